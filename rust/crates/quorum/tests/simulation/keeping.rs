//! Who leads makes the members who is wanted, as a host's leader does: it completes what was begun, and hands over when it votes
//! no more.

use std::sync::Arc;
use std::time::Duration;

use logcore_quorum::members::change_to;
use openraft::{AsyncRuntime, ChangeMembers};
use openraft_rt_sim::{SimJoinHandle, SimRuntime};

use crate::life::Life;
use crate::sleep;
use crate::world::World;

const PAUSE: Duration = Duration::from_millis(100);
/// What a change may take before it is looked at again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Until clients stop.
pub(crate) fn start(world: &Arc<World>) -> SimJoinHandle<()> {
    let world = world.clone();
    SimRuntime::spawn(async move {
        while !world.clients_stop() {
            for life in world.lives() {
                if life.member.raft().is_leader() {
                    step(&world, &life).await;
                }
            }
            sleep(PAUSE).await;
        }
    })
}

async fn step(world: &World, life: &Life) {
    let membership = life.membership();
    let raft = life.member.raft();
    let configs = membership.get_joint_config();
    let change = if configs.len() > 1 {
        configs.last().cloned().map(ChangeMembers::ReplaceAllVoters)
    } else {
        let wanted = world.wanted();
        wanted.and_then(|wanted| change_to(&membership, &wanted, |_| true))
    };
    if let Some(change) = change {
        // Whether it comes to that or not: it is looked at again.
        let _ = SimRuntime::timeout(PATIENCE, raft.change_membership(change, true)).await;
    } else if !membership.voter_ids().any(|id| id == life.id) {
        let voters: Vec<_> = membership.voter_ids().collect();
        let to = *world.random().pick(&voters);
        let _ = raft.trigger().transfer_leader(to).await;
    }
}
