//! The faults of a history: one after another, some at the same time, each for a while.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use logcore_quorum::servers::MemberId;

use crate::sleep;
use crate::world::World;

/// The most faults of a history.
const FAULTS: usize = 14;

pub(crate) async fn strike(world: &Arc<World>) {
    let count = world.random().between(2, FAULTS);
    for _ in 0..count {
        let wait_ms = world.random().between(20, 1_200) as u64;
        sleep(Duration::from_millis(wait_ms)).await;
        let kind = world.random().below(12);
        let member = one(world);
        match kind {
            0 | 1 => kill(world, member).await,
            2 => {
                for member in world.members.clone() {
                    world.crash(member, true).await;
                }
            }
            3 => partition(world),
            4 => cut_one_way(world),
            5 => bridge(world),
            6 => {
                world.faults().paused.insert(member);
            }
            7 => {
                let slow_ms = world.random().between(50, 3_000);
                world.faults().slow_disks.insert(member, slow_ms);
            }
            8 => {
                world.faults().breaking = world.random().between(3, 30);
            }
            9 => transfer(world, member).await,
            _ => world.want(some(world)),
        }
        if world.random().one_in(2) {
            let last_ms = world.random().between(10, 3_000) as u64;
            sleep(Duration::from_millis(last_ms)).await;
            mend(world).await;
        }
    }
}

fn one(world: &World) -> MemberId {
    *world.random().pick(&world.members)
}

fn some(world: &World) -> BTreeSet<MemberId> {
    let mut random = world.random();
    let inside = |_: &&MemberId| random.one_in(2);
    let mut some: BTreeSet<MemberId> = world.members.iter().filter(inside).copied().collect();
    if some.is_empty() {
        some.insert(*random.pick(&world.members));
    }
    some
}

async fn kill(world: &Arc<World>, member: MemberId) {
    let power = world.random().one_in(2);
    world.crash(member, power).await;
    if world.random().one_in(2) {
        // At once, as a supervisor does.
        world.start(member).await;
    }
}

/// Cuts the network between two sides.
fn partition(world: &World) {
    let side: BTreeSet<MemberId> = {
        let mut random = world.random();
        let inside = |_: &&MemberId| random.one_in(2);
        world.members.iter().filter(inside).copied().collect()
    };
    let mut faults = world.faults();
    for a in &world.members {
        for b in &world.members {
            if side.contains(a) != side.contains(b) {
                faults.cut.insert((*a, *b));
            }
        }
    }
}

/// Cuts the network in one direction between two members.
fn cut_one_way(world: &World) {
    let (from, to) = (one(world), one(world));
    if from != to {
        world.faults().cut.insert((from, to));
    }
}

/// Cuts the network between all members but one, which still reaches all.
fn bridge(world: &World) {
    let bridge = one(world);
    let mut faults = world.faults();
    for a in &world.members {
        for b in &world.members {
            if a != b && *a != bridge && *b != bridge {
                faults.cut.insert((*a, *b));
            }
        }
    }
}

async fn transfer(world: &World, to: MemberId) {
    for life in world.lives() {
        // A leader that hands over to itself, or to a member that cannot lead, would take no more writes.
        let votes = life.membership().voter_ids().any(|id| id == to);
        if life.member.is_leader() && life.id != to && votes {
            // It may fail.
            let _ = life.member.raft().trigger().transfer_leader(to).await;
        }
    }
}

/// Ends some of the faults.
async fn mend(world: &Arc<World>) {
    {
        let all = world.random().one_in(2);
        let mut faults = world.faults();
        faults.paused.clear();
        if all {
            faults.cut.clear();
            faults.slow_disks.clear();
            faults.breaking = 0;
        } else {
            faults.cut.pop_first();
            faults.slow_disks.pop_first();
        }
    }
    world.calmer();
    for member in world.members.clone() {
        let starts = world.random().one_in(2);
        if starts {
            world.start(member).await;
        }
    }
}
