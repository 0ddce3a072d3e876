//! Renews the sessions of this server's clients at the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::event::Event;
use super::shared::Shared;
use crate::raft::requests::{Links, Request, RequestError, Response};

/// The time in which a leader must answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Rounds that may be on their way at once. More are dropped; the next round renews the same sessions.
const ROUNDS: usize = 16;

/// Counts a round while it is on its way.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Renews sessions at the leader, once. Without success nothing is reported, and the next round follows.
pub(super) async fn renew(shared: Arc<Shared>, round: u64, sessions: Bytes) {
    let before = shared.renewals.fetch_add(1, Ordering::Relaxed);
    let _counted = Counted(&shared.renewals);
    if before >= ROUNDS {
        return;
    }
    let Some(node) = shared.node() else { return };
    let Some(leader) = node.member.watch().leader() else {
        return;
    };
    let asked = Instant::now();
    let renewed = if leader.member == node.id {
        node.member.confirm().await.map(|_| ())
    } else {
        let request = Request::RenewSessions(shared.me.id, sessions);
        let response = node
            .links
            .request(leader.member, &leader.server, request, TIMEOUT);
        match response.await {
            Ok(Response::SessionsRenewed) => {
                shared.leader_confirmed(asked, leader.term);
                Ok(())
            }
            Ok(_) => Err(RequestError::unexpected()),
            Err(why) => Err(why),
        }
    };
    if renewed.is_ok() {
        shared.events.report(Event::RenewalAck { round });
    }
}
