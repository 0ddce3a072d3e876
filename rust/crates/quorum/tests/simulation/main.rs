//! Ensembles that live through crashes, partitions, pauses, slow disks and changes of their members, in virtual time, drawn from a seed.
//!
//! Everything but the wire and the disk is what serves: openraft, the store with its writer, the machine and its feed. One
//! thread, one clock, one sequence of numbers: a seed is a history. What must hold is in [`history`].
//!
//! `LOGCORE_SEED=n` runs one seed again, `LOGCORE_FUZZ_MINUTES=n` new ones for so long (`make fuzz`).
//!
//! | module | what |
//! |---|---|
//! | `world` | the members, their disks, the network between them, the faults |
//! | `disk` | a disk that loses what was not flushed |
//! | `life` | a member from its start to its crash |
//! | `clients` | writes and reads |
//! | `keeping` | who leads makes the members who is wanted |
//! | `nemesis` | what goes wrong |
//! | `history` | what was agreed on, and what must be true of it |
#![allow(clippy::unwrap_used)] // a test may panic

mod clients;
mod disk;
mod history;
mod keeping;
mod life;
mod nemesis;
#[path = "../../../records/tests/support/mod.rs"]
mod support;
mod world;

use std::sync::Arc;
use std::time::Duration;

use logcore_quorum::entry::Commands;
use logcore_quorum::types::{LeaderId, MemberId, Server};
use openraft::AsyncRuntime;
use openraft_rt_sim::SimRuntime;
use support::random::Random;
use support::{for_each_seed, for_each_seed_on_all_cores};
use world::World;

openraft::declare_raft_types!(
    /// The types of the crate in simulated time.
    pub Simulated:
        D = Commands,
        R = (),
        NodeId = MemberId,
        Node = Server,
        LeaderId = LeaderId,
        AsyncRuntime = SimRuntime,
);

/// Seeds of a normal run.
const SEEDS: u64 = 200;
/// How long an ensemble without faults may take to agree on something: to elect a leader, and a little.
const RECOVERY: Duration = Duration::from_secs(5);
/// How long a member may wait before it proposes again what nobody heard of.
const SILENCE: Duration = Duration::from_secs(6);
/// From a leader's death until what all others propose is agreed on.
const FAILOVER: Duration = Duration::from_secs(1);

/// How long something takes in a history: a message's way, a disk, a fault, a client's pause. It is virtual time, in which everything
/// that can happen has happened before any of it passes.
async fn sleep(duration: Duration) {
    SimRuntime::sleep(duration).await;
}

/// One history: a while of faults, then none; what was acknowledged is there, and the ensemble goes on.
async fn live(random: &mut Random) {
    let world = World::new(random);
    world.start_all().await;
    world.initialize().await;
    let clients = clients::start(&world);
    let keeping = keeping::start(&world);
    nemesis::strike(&world).await;
    world.heal().await;
    clients::write_within(&world, RECOVERY).await;
    world.all_have_the_members(RECOVERY).await;
    world.stop_clients();
    for client in clients {
        client.await.unwrap();
    }
    keeping.await.unwrap();
    clients::propose_within(&world, SILENCE).await;
    world.all_apply_everything(RECOVERY).await;
    world.check();
    world.stop_all().await;
}

#[test]
fn nothing_that_was_agreed_on_is_lost() {
    for_each_seed_on_all_cores(SEEDS, |random| {
        let mut runtime = SimRuntime::with_seed(random.next());
        runtime.block_on(live(random));
    });
}

#[test]
fn a_leader_that_dies_or_stands_still_costs_less_than_a_second() {
    for_each_seed(SEEDS / 4, |random| {
        let mut runtime = SimRuntime::with_seed(random.next());
        runtime.block_on(async {
            let world = World::of(*random.pick(&[3, 5]), random);
            world.start_all().await;
            world.initialize().await;
            clients::write_within(&world, RECOVERY).await;
            sleep(Duration::from_millis(random.between(0, 500) as u64)).await;
            let leads = |life: &&Arc<life::Life>| life.member.raft().is_leader();
            let leader = world.lives().iter().find(leads).unwrap().id;
            if random.one_in(2) {
                world.crash(leader, true).await;
            } else {
                world.faults().paused.insert(leader);
            }
            clients::propose_within(&world, FAILOVER).await;
            world.check();
            world.heal().await;
            world.stop_all().await;
        });
    });
}

#[test]
fn a_seed_is_a_history() {
    let run = |seed| {
        let mut random = Random::new(seed);
        let mut runtime = SimRuntime::with_seed(random.next());
        let world: Arc<World> = runtime.block_on(async {
            let world = World::new(&mut random);
            world.start_all().await;
            world.initialize().await;
            let clients = clients::start(&world);
            let keeping = keeping::start(&world);
            nemesis::strike(&world).await;
            world.heal().await;
            world.stop_clients();
            for client in clients {
                client.await.unwrap();
            }
            keeping.await.unwrap();
            world.stop_all().await;
            world
        });
        world.history().digest()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
