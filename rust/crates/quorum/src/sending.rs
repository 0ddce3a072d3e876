//! Proposals on their way to whoever leads.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use openraft::Instant;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::WatchReceiverOf;

use crate::entry::Commands;
use crate::machine::Data;
use crate::network::{Answer, Links, NoAnswer, Request};
use crate::proposals::Proposals;
use crate::types::{MemberId, Server, Term, Types};

/// What a leader has for taking a batch.
const PATIENCE: Duration = Duration::from_secs(1);
/// After a way broke or a leader refused, and twice as long each time it does again.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// When nothing was agreed on for so long the first batch is sent again, and once that is agreed on everything after it.
const SILENCE: Duration = Duration::from_secs(2);

/// Where openraft says who leads.
type Watched<C> = WatchReceiverOf<C, RaftServerMetrics<C>>;

/// Who leads, and in which term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) member: MemberId,
    pub(crate) term: u64,
    pub(crate) server: Server,
}

/// The leader of this member, for its own proposals.
pub(crate) trait Local: Send + Sync + 'static {
    /// Puts commands before openraft, which takes them if this member leads in this term.
    fn propose(&self, term: Term, commands: Commands) -> impl Future<Output = Result<(), NoAnswer>> + Send;
}

pub(crate) struct Sending<C: Types, L, M> {
    pub(crate) me: MemberId,
    pub(crate) proposals: Arc<Proposals>,
    pub(crate) links: L,
    pub(crate) local: M,
    pub(crate) clock: fn() -> i64,
    pub(crate) _types: std::marker::PhantomData<fn() -> C>,
}

/// Why sending to a leader ended.
enum Ended {
    /// Another leads, or nobody.
    Changed,
    /// It did not take a batch.
    Broken,
    /// It took batches, and nothing was agreed on.
    Silent,
    /// This member stopped.
    Stopped,
}

impl<C: Types, L, M: Local> Sending<C, L, M> {
    /// Sends until this member stops.
    pub(crate) async fn run<D: Data>(self, mut metrics: Watched<C>)
    where
        L: Links<C, D>,
    {
        let (mut pause, mut silent) = (PAUSE, false);
        let mut progress = 0;
        loop {
            let leader = leader_of::<C>(&metrics.borrow_watched());
            let Some(leader) = leader else {
                if metrics.changed().await.is_err() {
                    return;
                }
                continue;
            };
            self.proposals.begin_anew(silent);
            let ended = self.send_to::<D>(&leader, &mut metrics).await;
            let first = self.proposals.outstanding().1;
            if first > progress {
                pause = PAUSE;
                progress = first;
            }
            silent = matches!(ended, Ended::Silent);
            match ended {
                Ended::Stopped => return,
                Ended::Changed | Ended::Silent => {}
                Ended::Broken => {
                    C::sleep(pause).await;
                    pause = PAUSE_MAX.min(pause * 2);
                }
            }
        }
    }

    async fn send_to<D: Data>(&self, leader: &Leader, metrics: &mut Watched<C>) -> Ended
    where
        L: Links<C, D>,
    {
        let mut progress = self.proposals.outstanding().1;
        let mut since = C::now();
        loop {
            while let Some(commands) = self.proposals.next_batch((self.clock)()) {
                let sent = pin!(self.send::<D>(leader, commands));
                match select(sent, pin!(another::<C>(leader, metrics))).await {
                    Either::Left((Ok(()), _)) => {}
                    Either::Left((Err(_), _)) => return Ended::Broken,
                    Either::Right((ended, _)) => return ended,
                }
            }
            let (outstanding, first) = self.proposals.outstanding();
            if first != progress || outstanding == 0 {
                progress = first;
                since = C::now();
            }
            let left = SILENCE.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Ended::Silent;
            }
            let wait = pin!(async {
                if outstanding > 0 {
                    select(pin!(self.proposals.more()), pin!(C::sleep(left))).await;
                } else {
                    self.proposals.more().await;
                }
            });
            if let Either::Right((ended, _)) = select(wait, pin!(another::<C>(leader, metrics))).await {
                return ended;
            }
        }
    }

    async fn send<D: Data>(&self, leader: &Leader, commands: Commands) -> Result<(), NoAnswer>
    where
        L: Links<C, D>,
    {
        if leader.member == self.me {
            return self.local.propose(Term::new(leader.term), commands).await;
        }
        let request = Request::Propose(leader.term, commands);
        let asked = self.links.ask(leader.member, &leader.server, request, PATIENCE);
        match asked.await? {
            Answer::Proposed => Ok(()),
            _ => Err(NoAnswer::Broken("it answered something else".to_owned())),
        }
    }
}

pub(crate) fn leader_of<C: Types>(metrics: &RaftServerMetrics<C>) -> Option<Leader> {
    let member = metrics.current_leader?;
    let server = metrics.membership_config.get_node(&member)?.clone();
    Some(Leader {
        member,
        term: metrics.vote.leader_id.term,
        server,
    })
}

/// Returns when somebody else leads, or nobody.
async fn another<C: Types>(leader: &Leader, metrics: &mut Watched<C>) -> Ended {
    loop {
        if leader_of::<C>(&metrics.borrow_watched()).as_ref() != Some(leader) {
            return Ended::Changed;
        }
        if metrics.changed().await.is_err() {
            return Ended::Stopped;
        }
    }
}
