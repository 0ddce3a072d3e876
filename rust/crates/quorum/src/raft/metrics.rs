//! What openraft reports of a member.

use std::fmt;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::{RaftMetrics, RaftServerMetrics};
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{Instant, ServerState};

use super::types::{LogId, StoredMembership, Types};
use crate::servers::{MemberId, Server};

/// The leader and its term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    pub member: MemberId,
    pub term: u64,
    pub server: Server,
}

/// The state of a member at one moment.
pub struct Metrics<C: Types>(pub(super) RaftMetrics<C>);

impl<C: Types> Metrics<C> {
    pub fn term(&self) -> u64 {
        self.0.current_term
    }

    /// The term that this member voted in last.
    pub fn vote_term(&self) -> u64 {
        self.0.vote.leader_id.term
    }

    pub fn leader(&self) -> Option<MemberId> {
        self.0.current_leader
    }

    pub fn is_leader(&self) -> bool {
        self.0.state == ServerState::Leader
    }

    pub fn membership(&self) -> &StoredMembership {
        &self.0.membership_config
    }

    pub fn last_index(&self) -> Option<u64> {
        self.0.last_log_index
    }

    /// The last entry of the newest snapshot.
    pub fn snapshot(&self) -> Option<u64> {
        self.0.snapshot.map(|last| last.index)
    }

    /// The last entry that was removed from the log's front.
    pub fn purged(&self) -> Option<u64> {
        self.0.purged.map(|last| last.index)
    }

    /// At the leader: how long ago a majority confirmed it.
    pub fn quorum_ack(&self) -> Option<Duration> {
        let acked = self.0.last_quorum_acked.as_ref()?;
        Some(Instant::elapsed(&**acked))
    }

    /// At the leader: how long ago it heard from another member.
    pub fn heard(&self, member: MemberId) -> Option<Duration> {
        let heard = self.0.heartbeat.as_ref()?.get(&member)?.as_ref()?;
        Some(Instant::elapsed(&**heard))
    }

    /// At the leader: the last entry that another member is known to have.
    pub fn matched(&self, member: MemberId) -> Option<LogId> {
        self.0.replication.as_ref()?.get(&member).copied().flatten()
    }

    /// Why openraft ended, if it failed.
    pub fn failure(&self) -> Option<String> {
        self.0.running_state.as_ref().err().map(ToString::to_string)
    }
}

impl<C: Types> fmt::Display for Metrics<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// openraft of this member has ended.
#[derive(Debug)]
pub struct Ended;

/// Follows the changes of the leader and the membership.
pub struct Watch<C: Types>(pub(super) WatchReceiverOf<C, RaftServerMetrics<C>>);

impl<C: Types> Watch<C> {
    /// The leader, if it is one of the known members.
    pub fn leader(&self) -> Option<Leader> {
        let metrics = self.0.borrow_watched();
        let member = metrics.current_leader?;
        let server = metrics.membership_config.get_node(&member)?.clone();
        Some(Leader {
            member,
            term: metrics.vote.leader_id.term,
            server,
        })
    }

    pub fn membership(&self) -> StoredMembership {
        (*self.0.borrow_watched().membership_config).clone()
    }

    /// Returns after the next change.
    pub async fn changed(&mut self) -> Result<(), Ended> {
        self.0.changed().await.map_err(|_| Ended)
    }

    /// Returns once the leader is no longer this one.
    pub async fn leader_changes(&mut self, leader: Option<&Leader>) -> Result<(), Ended> {
        while self.leader().as_ref() == leader {
            self.changed().await?;
        }
        Ok(())
    }
}
