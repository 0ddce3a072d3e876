//! The leader's changes of the members, as in a host: it completes what was begun, and hands over when it no
//! longer votes.

use std::sync::Arc;
use std::time::Duration;

use logcore_quorum::raft::members::{change_to, completion};
use openraft::AsyncRuntime;
use openraft_rt_sim::{SimJoinHandle, SimRuntime};

use crate::life::Life;
use crate::sleep;
use crate::world::World;

const PAUSE: Duration = Duration::from_millis(100);
/// The time after which a change is looked at again.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Works until the clients stop.
pub(crate) fn start(world: &Arc<World>) -> SimJoinHandle<()> {
    let world = world.clone();
    SimRuntime::spawn(async move {
        while !world.clients_stop() {
            for life in world.lives() {
                if life.member.is_leader() {
                    step(&world, &life).await;
                }
            }
            sleep(PAUSE).await;
        }
    })
}

async fn step(world: &World, life: &Life) {
    let membership = life.membership();
    let change = completion(&membership).or_else(|| {
        let wanted = world.wanted();
        wanted.and_then(|wanted| change_to(&membership, &wanted, |_| true))
    });
    if let Some(change) = change {
        let term = life.member.metrics().term();
        // When it fails, it is tried again.
        let _ = SimRuntime::timeout(TIMEOUT, life.member.change_members(term, change)).await;
    } else if !membership.voter_ids().any(|id| id == life.id) {
        let voters: Vec<_> = membership.voter_ids().collect();
        let to = *world.random().pick(&voters);
        let _ = life.member.raft().trigger().transfer_leader(to).await;
    }
}
