//! Sends this member's proposals to the leader.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use openraft::Instant;
use openraft::type_config::TypeConfigExt;

use super::metrics::{Ended, Leader, Watch};
use super::requests::{Links, Request, RequestError, Response};
use super::state_machine::Data;
use super::types::Types;
use crate::commands::Commands;
use crate::proposals::Proposals;
use crate::servers::MemberId;

/// The time in which a leader must take a batch.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a failure; it doubles with each that follows, up to the maximum.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The time without a commit after which the first batch is sent again. The others follow once it is
/// committed.
const SILENCE: Duration = Duration::from_secs(2);

/// This member's own openraft, for the time when it leads.
pub(super) trait Local: Send + Sync + 'static {
    /// Gives commands to openraft, which takes them if this member leads in this term.
    fn propose(&self, term: u64, commands: Commands)
    -> impl Future<Output = Result<(), RequestError>> + Send;
}

pub(super) struct Sending<L, M> {
    pub(super) me: MemberId,
    pub(super) proposals: Arc<Proposals>,
    pub(super) links: L,
    pub(super) local: M,
    pub(super) clock: fn() -> i64,
}

/// Why sending to a leader ended.
enum Outcome {
    /// There is another leader, or none.
    Changed,
    /// The leader did not take a batch.
    Failed,
    /// The leader took batches, and nothing was committed.
    Silent,
    /// This member stopped.
    Stopped,
}

impl From<Result<(), Ended>> for Outcome {
    fn from(changed: Result<(), Ended>) -> Self {
        match changed {
            Ok(()) => Self::Changed,
            Err(Ended) => Self::Stopped,
        }
    }
}

impl<L, M: Local> Sending<L, M> {
    /// Sends until this member stops.
    pub(super) async fn run<C: Types, D: Data>(self, mut watch: Watch<C>)
    where
        L: Links<C, D>,
    {
        let (mut pause, mut silent) = (PAUSE, false);
        let mut progress = 0;
        loop {
            let Some(leader) = watch.leader() else {
                if watch.changed().await.is_err() {
                    return;
                }
                continue;
            };
            self.proposals.send_again(silent);
            let outcome = self.send_to::<C, D>(&leader, &mut watch).await;
            let first = self.proposals.outstanding().1;
            if first > progress {
                pause = PAUSE;
                progress = first;
            }
            silent = matches!(outcome, Outcome::Silent);
            match outcome {
                Outcome::Stopped => return,
                Outcome::Changed | Outcome::Silent => {}
                Outcome::Failed => {
                    C::sleep(pause).await;
                    pause = PAUSE_MAX.min(pause * 2);
                }
            }
        }
    }

    async fn send_to<C: Types, D: Data>(&self, leader: &Leader, watch: &mut Watch<C>) -> Outcome
    where
        L: Links<C, D>,
    {
        let mut progress = self.proposals.outstanding().1;
        let mut since = C::now();
        loop {
            while let Some(commands) = self.proposals.next_batch((self.clock)()) {
                let sent = pin!(self.send::<C, D>(leader, commands));
                match select(sent, pin!(watch.leader_changes(Some(leader)))).await {
                    Either::Left((Ok(()), _)) => {}
                    Either::Left((Err(_), _)) => return Outcome::Failed,
                    Either::Right((changed, _)) => return changed.into(),
                }
            }
            let (outstanding, first) = self.proposals.outstanding();
            if first != progress || outstanding == 0 {
                progress = first;
                since = C::now();
            }
            let left = SILENCE.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Outcome::Silent;
            }
            let wait = pin!(async {
                if outstanding > 0 {
                    select(pin!(self.proposals.more()), pin!(C::sleep(left))).await;
                } else {
                    self.proposals.more().await;
                }
            });
            let changed = pin!(watch.leader_changes(Some(leader)));
            if let Either::Right((changed, _)) = select(wait, changed).await {
                return changed.into();
            }
        }
    }

    async fn send<C: Types, D: Data>(&self, leader: &Leader, commands: Commands) -> Result<(), RequestError>
    where
        L: Links<C, D>,
    {
        if leader.member == self.me {
            return self.local.propose(leader.term, commands).await;
        }
        let request = Request::Propose(leader.term, commands);
        let sent = self
            .links
            .request(leader.member, &leader.server, request, TIMEOUT);
        match sent.await? {
            Response::Proposed => Ok(()),
            _ => Err(RequestError::unexpected()),
        }
    }
}
