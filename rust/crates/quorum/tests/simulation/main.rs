//! Ensembles in virtual time that a seed draws: with crashes, partitions, pauses, slow disks and changes of
//! the members.
//!
//! Only the network and the disk are simulated. openraft, the store with its writer, the state machine and
//! the feed are the real ones. There is one thread, one clock and one sequence of random numbers, so a seed
//! always makes the same history. [`history`] says what must be true of it.
//!
//! `LOGCORE_SEED=n` runs one seed again. `LOGCORE_FUZZ_MINUTES=n` runs new ones for so long (`make fuzz`).
//!
//! | module | concept |
//! |---|---|
//! | `world` | the members, their disks, the network between them, the faults |
//! | `disk` | a disk that loses what was not flushed |
//! | `life` | a member from its start to its crash |
//! | `clients` | writes and reads |
//! | `membership` | the leader's changes of the members |
//! | `nemesis` | the faults |
//! | `history` | what was committed, and what must be true of it |
#![allow(clippy::unwrap_used)] // a test may panic

mod clients;
mod disk;
mod history;
mod life;
mod membership;
mod nemesis;
#[path = "../../../records/tests/support/mod.rs"]
mod support;
mod world;

use std::sync::Arc;
use std::time::Duration;

use logcore_quorum::commands::Commands;
use logcore_quorum::raft::types::LeaderId;
use logcore_quorum::servers::{MemberId, Server};
use openraft::AsyncRuntime;
use openraft_rt_sim::SimRuntime;
use support::random::Random;
use support::{for_each_seed, for_each_seed_on_all_cores};
use world::World;

openraft::declare_raft_types!(
    /// The crate's types in virtual time.
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
/// The time in which an ensemble without faults must elect a leader and commit a write.
const RECOVERY: Duration = Duration::from_secs(5);
/// The time in which a member must send a lost proposal again and see it committed.
const SILENCE: Duration = Duration::from_secs(6);
/// The time from a leader's crash until proposals of all others are committed.
const FAILOVER: Duration = Duration::from_secs(1);

/// Waits in virtual time, which passes only when nothing else can happen.
async fn sleep(duration: Duration) {
    SimRuntime::sleep(duration).await;
}

/// One history: faults for a while, then none. What was acknowledged is there, and the ensemble goes on.
async fn live(random: &mut Random) {
    let world = World::new(random);
    world.start_all().await;
    world.initialize().await;
    let clients = clients::start(&world);
    let changes = membership::start(&world);
    nemesis::strike(&world).await;
    world.heal().await;
    clients::write_within(&world, RECOVERY).await;
    world.all_have_the_members(RECOVERY).await;
    world.stop_clients();
    for client in clients {
        client.await.unwrap();
    }
    changes.await.unwrap();
    clients::propose_within(&world, SILENCE).await;
    world.all_apply_everything(RECOVERY).await;
    world.check();
    world.stop_all().await;
}

/// If this failed, an ensemble could lose or reorder acknowledged writes, or stay down after its faults end.
#[test]
fn acknowledged_writes_survive_faults() {
    for_each_seed_on_all_cores(SEEDS, |random| {
        let mut runtime = SimRuntime::with_seed(random.next());
        runtime.block_on(live(random));
    });
}

/// If this failed, clients would wait longer for their writes when a leader crashes.
#[test]
fn a_leader_that_crashes_or_hangs_costs_less_than_a_second() {
    for_each_seed(SEEDS / 4, |random| {
        let mut runtime = SimRuntime::with_seed(random.next());
        runtime.block_on(async {
            let world = World::of(*random.pick(&[3, 5]), random);
            world.start_all().await;
            world.initialize().await;
            clients::write_within(&world, RECOVERY).await;
            sleep(Duration::from_millis(random.between(0, 500) as u64)).await;
            let leads = |life: &&Arc<life::Life>| life.member.is_leader();
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

/// If this failed, a failing seed could not be run again.
#[test]
fn a_seed_makes_the_same_history() {
    let run = |seed| {
        let mut random = Random::new(seed);
        let mut runtime = SimRuntime::with_seed(random.next());
        let world: Arc<World> = runtime.block_on(async {
            let world = World::new(&mut random);
            world.start_all().await;
            world.initialize().await;
            let clients = clients::start(&world);
            let changes = membership::start(&world);
            nemesis::strike(&world).await;
            world.heal().await;
            world.stop_clients();
            for client in clients {
                client.await.unwrap();
            }
            changes.await.unwrap();
            world.stop_all().await;
            world
        });
        world.history().digest()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
