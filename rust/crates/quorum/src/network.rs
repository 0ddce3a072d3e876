//! Requests to other members, for whatever carries them.
//!
//! What is agreed on is told with the entries that follow. Without any, a member is told at once if it waits for it, for it
//! proposed something of that, and a moment later otherwise: mostly entries follow by then, and a message, its answer and two
//! threads that are woken for them are spared.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::{Stream, StreamExt, stream};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::SleepOf;
use openraft::{Instant, OptionalSend, RPCTypes, RaftNetworkV2};
use thiserror::Error;

use bytes::Bytes;

use crate::entry::Commands;
use crate::machine::{Data, Snapshot};
use crate::types::{Entry, MemberId, Payload, Server, Types, Vote};

/// How long a member that does not wait for it is not told what is agreed on, unless entries follow.
const TOGETHER: Duration = Duration::from_millis(1);

/// What one member asks another.
#[derive(Clone)]
pub enum Request<C: Types, D: Data> {
    /// To append entries, or none: a heartbeat.
    Append(AppendEntriesRequest<C>),
    /// To vote for it.
    Vote(VoteRequest<C>),
    /// Whether it would vote for it.
    PreVote(VoteRequest<C>),
    /// To begin anew with a snapshot.
    Snapshot(Vote, Snapshot<D>),
    /// To lead.
    Transfer(TransferLeaderRequest<C>),
    /// To propose commands, if it leads in this term.
    Propose(u64, Commands),
    /// Up to where to read, if it leads.
    ReadIndex,
    /// From a server: it heard from these sessions; to be told once a majority follows whom it tells.
    Touch(u16, Bytes),
    /// Which member it is, and of what.
    Whois,
    /// To be a founder of this ensemble, and of no other: a majority of its servers has nothing yet.
    Found([u8; 16]),
    /// To make this member one of the ensemble, in the place of what its server was before.
    Join(MemberId, Server),
}

/// What the other says.
#[derive(Debug, Clone)]
pub enum Answer<C: Types> {
    Append(AppendEntriesResponse<C>),
    Vote(VoteResponse<C>),
    Snapshot(SnapshotResponse<C>),
    Transfer(TransferLeaderResponse<C>),
    /// They are before the leader, who may still lose them.
    Proposed,
    /// What is agreed on up to this index was agreed on when it was asked, and nothing after.
    ReadIndex(u64),
    Touched,
    Here(Here),
    /// It will be, if it lasts.
    Joining,
}

/// What a member says of itself to one that has nothing yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// 0 for one that has nothing yet either.
    pub member: MemberId,
    /// The ensemble that it is of, or would found.
    pub ensemble: [u8; 16],
    /// It knows of nothing that was agreed on.
    pub fresh: bool,
    /// It has a state that the ensemble it founds is to begin with.
    pub has_state: bool,
    /// Who leads.
    pub leader: Option<Server>,
    /// Whom it knows as the ensemble's members.
    pub members: Vec<MemberId>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoAnswer {
    /// There is no way to it, and will be none soon.
    #[error("{0}")]
    Unreachable(String),
    /// The way broke, or its owner refuses; what was asked may have been done.
    #[error("{0}")]
    Broken(String),
    /// It took too long; what was asked may have been done.
    #[error("it does not answer")]
    TimedOut,
}

/// The ways to the other members.
pub trait Links<C: Types, D: Data>: Clone + Send + Sync + 'static {
    /// Asks a member, and waits at most so long.
    fn ask(
        &self,
        member: MemberId,
        server: &Server,
        request: Request<C, D>,
        patience: Duration,
    ) -> impl Future<Output = Result<Answer<C>, NoAnswer>> + Send;
}

/// openraft's way to other members.
pub struct Network<L, D> {
    me: MemberId,
    links: L,
    _data: std::marker::PhantomData<fn() -> D>,
}

impl<L, D> Network<L, D> {
    pub fn new(me: MemberId, links: L) -> Self {
        Self {
            me,
            links,
            _data: std::marker::PhantomData,
        }
    }
}

/// openraft's way to one member.
pub struct Peer<L, D> {
    me: MemberId,
    member: MemberId,
    server: Server,
    links: L,
    _data: std::marker::PhantomData<fn() -> D>,
}

impl<C: Types, L: Links<C, D>, D: Data> RaftNetworkFactory<C> for Network<L, D> {
    type Network = Peer<L, D>;

    async fn new_client(&mut self, member: MemberId, server: &Server) -> Peer<L, D> {
        Peer {
            me: self.me,
            member,
            server: server.clone(),
            links: self.links.clone(),
            _data: std::marker::PhantomData,
        }
    }
}

impl<L, D: Data> Peer<L, D> {
    async fn ask<C: Types>(
        &self,
        kind: RPCTypes,
        request: Request<C, D>,
        option: &RPCOption,
    ) -> Result<Answer<C>, RPCError<C>>
    where
        L: Links<C, D>,
    {
        let patience = option.soft_ttl();
        let asked = self.links.ask(self.member, &self.server, request, patience);
        asked.await.map_err(|why| match why {
            NoAnswer::Unreachable(why) => RPCError::Unreachable(Unreachable::from_string(why)),
            NoAnswer::Broken(why) => RPCError::Network(NetworkError::from_string(why)),
            NoAnswer::TimedOut => RPCError::Timeout(Timeout {
                action: kind,
                id: self.me,
                target: self.member,
                timeout: patience,
            }),
        })
    }

    fn other<C: Types, T>(&self) -> Result<T, RPCError<C>> {
        Err(RPCError::Network(NetworkError::from_string(format!(
            "member {} answered something else than it was asked",
            self.member
        ))))
    }
}

/// Requests to append, for one member.
struct Requests<C: Types, S> {
    openrafts: stream::Fuse<S>,
    member: MemberId,
    /// An alarm that was set, for this request or one before it: for each its own would be set and put off most of the time.
    alarm: Option<Pin<Box<SleepOf<C>>>>,
    /// The entries that the member waits for and was not told of that they are agreed on, in order.
    awaited: VecDeque<u64>,
}

/// openraft's requests for a member. One that only tells what is agreed on comes a moment later, and is left out if another
/// comes by then.
fn together<C: Types>(
    member: MemberId,
    openrafts: impl Stream<Item = AppendEntriesRequest<C>> + Unpin,
) -> impl Stream<Item = AppendEntriesRequest<C>> {
    let requests = Requests::<C, _> {
        openrafts: openrafts.fuse(),
        member,
        alarm: None,
        awaited: VecDeque::new(),
    };
    stream::unfold(requests, |mut requests| async move {
        let request = requests.next().await?;
        Some((request, requests))
    })
}

impl<C: Types, S> Requests<C, S>
where
    S: Stream<Item = AppendEntriesRequest<C>> + Unpin,
{
    async fn next(&mut self) -> Option<AppendEntriesRequest<C>> {
        let mut request = self.openrafts.next().await?;
        if self.may_wait(&request) {
            let since = C::now();
            while self.may_wait(&request) {
                let set = || Box::pin(C::sleep(TOGETHER.saturating_sub(since.elapsed())));
                let alarm = self.alarm.get_or_insert_with(set);
                match select(self.openrafts.next(), alarm.as_mut()).await {
                    // It tells of as much.
                    Either::Left((Some(following), _)) => request = following,
                    Either::Left((None, _)) => break,
                    Either::Right(_) => {
                        self.alarm = None;
                        if since.elapsed() >= TOGETHER {
                            break;
                        }
                    }
                }
            }
        }
        while self.tells_of_awaited(&request) {
            self.awaited.pop_front();
        }
        for entry in &request.entries {
            if self.waits_for(entry) {
                self.awaited.push_back(entry.log_id.index);
            }
        }
        Some(request)
    }

    fn may_wait(&self, request: &AppendEntriesRequest<C>) -> bool {
        request.entries.is_empty() && !self.tells_of_awaited(request)
    }

    fn tells_of_awaited(&self, request: &AppendEntriesRequest<C>) -> bool {
        let committed = request.leader_commit.map(|last| last.index);
        let first = self.awaited.front();
        first.is_some_and(|index| committed >= Some(*index))
    }

    fn waits_for(&self, entry: &Entry) -> bool {
        match &entry.payload {
            Payload::Blank => false,
            // They were proposed together.
            Payload::Normal(commands) => commands.proposer() == Some(self.member),
            Payload::Membership(_) => true,
        }
    }
}

impl<C: Types, L: Links<C, D>, D: Data> RaftNetworkV2<C> for Peer<L, D> {
    type SnapshotData = D;

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<C>, RPCError<C>>>, RPCError<C>>>
    where
        S: Stream<Item = AppendEntriesRequest<C>> + OptionalSend + Unpin + 'static,
    {
        let requests = together(self.member, input);
        stream_append_sequential(self, Box::pin(requests), option)
    }

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<C>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<C>, RPCError<C>> {
        let request = Request::Append(request);
        match self.ask(RPCTypes::AppendEntries, request, &option).await? {
            Answer::Append(answer) => Ok(answer),
            _ => self.other(),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        let request = Request::Vote(request);
        match self.ask(RPCTypes::Vote, request, &option).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => self.other(),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        let request = Request::PreVote(request);
        match self.ask(RPCTypes::Vote, request, &option).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => self.other(),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<D>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<C>, StreamingError<C>> {
        let request = Request::Snapshot(vote, snapshot);
        let sent = pin!(self.ask(RPCTypes::InstallSnapshot, request, &option));
        match select(sent, pin!(cancel)).await {
            Either::Left((answer, _)) => match answer? {
                Answer::Snapshot(answer) => Ok(answer),
                _ => Ok(self.other()?),
            },
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<C>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<C>, RPCError<C>> {
        let request = Request::Transfer(request);
        match self.ask(RPCTypes::TransferLeader, request, &option).await? {
            Answer::Transfer(answer) => Ok(answer),
            _ => self.other(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use openraft::AsyncRuntime;
    use openraft::vote::RaftLeaderId;
    use openraft_rt_tokio::TokioRuntime;

    use super::*;
    use crate::entry::Command;
    use crate::host::Served;
    use crate::types::{LeaderId, LogId, Membership};

    fn log_id(index: u64) -> LogId {
        LogId::new(LeaderId::new(1, 1).to_committed(), index)
    }

    fn by(member: MemberId) -> Payload {
        let body = Bytes::new();
        let command = Command {
            member,
            ticket: 0,
            body,
        };
        Payload::Normal(Commands::new(0, &[command]))
    }

    /// Entries from this index on, and up to where all is agreed on.
    fn request(first: u64, payloads: Vec<Payload>, committed: u64) -> AppendEntriesRequest<Served> {
        let entries = (first..).zip(payloads).map(|(index, payload)| Entry {
            log_id: log_id(index),
            payload,
        });
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: None,
            entries: entries.collect(),
            leader_commit: Some(log_id(committed)),
        }
    }

    fn nothing(committed: u64) -> AppendEntriesRequest<Served> {
        request(0, Vec::new(), committed)
    }

    /// What member 2 is sent at once, and then, of openraft's requests: entries, and up to where all is agreed on.
    fn sent(openrafts: Vec<AppendEntriesRequest<Served>>) -> [Vec<(usize, u64)>; 2] {
        let shown = |request: AppendEntriesRequest<Served>| {
            let committed = request.leader_commit.map_or(0, |last| last.index);
            (request.entries.len(), committed)
        };
        let all = openrafts.last().and_then(|last| last.leader_commit);
        TokioRuntime::new(1).block_on(async {
            let endless = stream::iter(openrafts).chain(stream::pending());
            let mut requests = Box::pin(together(2, endless));
            let (mut at_once, mut later) = (Vec::new(), Vec::new());
            while let Some(Some(request)) = requests.next().now_or_never() {
                at_once.push(shown(request));
            }
            let told = |sent: &[(usize, u64)]| {
                sent.last()
                    .is_some_and(|(_, up_to)| Some(*up_to) == all.map(|last| last.index))
            };
            while !told(&at_once) && !told(&later) {
                later.extend(requests.next().await.map(shown));
            }
            [at_once, later]
        })
    }

    #[test]
    fn what_is_agreed_on_is_told_with_the_entries_that_follow() {
        let requests = vec![
            request(5, vec![by(1)], 4),
            nothing(5),
            request(6, vec![by(3), by(1)], 5),
            nothing(6),
            nothing(7),
        ];
        assert_eq!(sent(requests), [vec![(1, 4), (2, 5)], vec![(0, 7)]]);
    }

    #[test]
    fn who_proposed_something_is_told_at_once_that_it_is_agreed_on() {
        let requests = vec![
            request(5, vec![by(2), by(1)], 4),
            nothing(5),
            nothing(6),
            request(7, vec![by(1)], 6),
        ];
        assert_eq!(sent(requests), [vec![(2, 4), (0, 5), (1, 6)], vec![]]);
        let told_with_entries = vec![request(5, vec![by(2)], 4), request(6, vec![by(1)], 5), nothing(6)];
        assert_eq!(sent(told_with_entries), [vec![(1, 4), (1, 5)], vec![(0, 6)]]);
    }

    #[test]
    fn who_proposed_several_is_told_at_once_of_each() {
        let requests = vec![
            request(5, vec![by(2)], 4),
            request(6, vec![by(2)], 4),
            nothing(5),
            nothing(6),
        ];
        let at_once = vec![(1, 4), (1, 4), (0, 5), (0, 6)];
        assert_eq!(sent(requests), [at_once, vec![]]);
    }

    #[test]
    fn all_are_told_at_once_who_the_members_are() {
        let requests = vec![
            request(5, vec![Payload::Membership(Membership::default())], 4),
            nothing(5),
        ];
        assert_eq!(sent(requests), [vec![(1, 4), (0, 5)], vec![]]);
    }

    #[test]
    fn what_comes_behind_one_that_did_not_wait_so_long_waits_no_less() {
        TokioRuntime::new(1).block_on(async {
            let (ask, mut asked) = tokio::sync::mpsc::unbounded_channel();
            let openrafts = stream::poll_fn(move |context| asked.poll_recv(context));
            let mut requests = Box::pin(together(2, openrafts));
            ask.send(nothing(5)).unwrap();
            // It waits, unless this thread was kept waiting as long.
            let _ = requests.next().now_or_never();
            ask.send(request(6, vec![by(1)], 5)).unwrap();
            assert!(requests.next().now_or_never().is_some());
            // The first's alarm rings.
            std::thread::sleep(2 * TOGETHER);
            let since = std::time::Instant::now();
            ask.send(nothing(6)).unwrap();
            assert!(requests.next().await.is_some());
            assert!(since.elapsed() >= TOGETHER);
        });
    }

    #[test]
    fn the_last_is_told_when_openraft_ends() {
        TokioRuntime::new(1).block_on(async {
            let requests = Box::pin(together(2, stream::iter([nothing(5)])));
            assert_eq!(requests.count().now_or_never(), Some(1));
        });
    }
}
