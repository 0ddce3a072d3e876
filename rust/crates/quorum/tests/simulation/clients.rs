//! Clients that write and read at random members.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logcore_quorum::commands::{Command, Commands};
use openraft::AsyncRuntime;
use openraft::errors::{ClientWriteError, RaftError};
use openraft_rt_sim::{SimJoinHandle, SimRuntime};

use crate::history::Key;
use crate::life::Life;
use crate::sleep;
use crate::world::World;

const CLIENTS: usize = 4;
/// After this time the outcome is unknown.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn start(world: &Arc<World>) -> Vec<SimJoinHandle<()>> {
    let client = |_| SimRuntime::spawn(work(world.clone()));
    (0..CLIENTS).map(client).collect()
}

async fn work(world: Arc<World>) {
    while !world.clients_stop() {
        world.look();
        let (life, kind, pause_ms) = {
            let lives = world.lives();
            let mut random = world.random();
            let life = (!lives.is_empty()).then(|| random.pick(&lives).clone());
            (life, random.below(4), random.between(0, 40))
        };
        if let Some(life) = life {
            match kind {
                0 => read(&world, &life).await,
                1 => {
                    write(&world, &life).await;
                }
                _ => {
                    propose(&world, &life);
                }
            }
        }
        sleep(Duration::from_millis(pause_ms as u64)).await;
    }
}

/// Proposes a command at a member. It counts unless the member crashes.
fn propose(world: &World, life: &Life) -> Key {
    let body = Bytes::from(vec![9; world.random().between(0, 300)]);
    let ticket = life.member.proposals().propose(body).unwrap();
    world.history().proposed((life.id, ticket));
    (life.id, ticket)
}

/// Writes one command at this member only. Returns whether it was acknowledged.
async fn write(world: &World, life: &Life) -> bool {
    // Each writer writes once.
    let key = (world.next_writer(), 0);
    let begun = world.history().begin();
    let command = Command {
        member: key.0,
        ticket: key.1,
        body: Bytes::from(vec![7; world.random().between(0, 200)]),
    };
    let proposed = life.member.raft().client_write(Commands::new(0, &[command]));
    match SimRuntime::timeout(TIMEOUT, proposed).await {
        Ok(Ok(response)) => {
            world.history().acknowledged(key, response.log_id.index, begun);
            true
        }
        Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
            world.history().refused(key);
            false
        }
        // The outcome is unknown.
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Reads at any member, which asks the leader.
async fn read(world: &Arc<World>, life: &Life) {
    let begun = world.history().begin();
    let wires = life.wires(world);
    let read = life.member.read_index(&wires, TIMEOUT);
    if let Ok(Ok(index)) = SimRuntime::timeout(TIMEOUT, read).await {
        world.history().read(index, begun);
    }
}

/// Checks that, without faults, a command of each member is committed within this time.
pub(crate) async fn propose_within(world: &World, within: Duration) {
    let is_awake = |life: &&Arc<Life>| !world.faults().paused.contains(&life.id);
    let keys: Vec<Key> = world
        .lives()
        .iter()
        .filter(is_awake)
        .map(|life| propose(world, life))
        .collect();
    let committed = world.progress_to(|| keys.iter().all(|key| world.history().has(*key)));
    if SimRuntime::timeout(within, committed).await.is_err() {
        let missing: Vec<_> = keys.iter().filter(|key| !world.history().has(**key)).collect();
        panic!("not committed within {within:?} without faults: {missing:x?}");
    }
}

/// Checks that, without faults, some member accepts a write within this time.
pub(crate) async fn write_within(world: &World, within: Duration) {
    let written = async {
        loop {
            for life in world.lives() {
                if write(world, &life).await {
                    return;
                }
            }
            // All refused.
            sleep(Duration::from_millis(10)).await;
        }
    };
    if SimRuntime::timeout(within, written).await.is_err() {
        for life in world.lives() {
            eprintln!("{}", life.member.metrics());
        }
        panic!("nothing was committed within {within:?} without faults");
    }
}
