//! openraft's connection to the other members, over any [`Links`].

use std::pin::pin;

use futures_util::Stream;
use futures_util::future::{Either, select};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RPCTypes, RaftNetworkV2};

use super::commit_notices::coalesced;
use super::requests::{Links, Request, RequestError, Response};
use super::state_machine::Data;
use super::types::{Snapshot, Types, Vote};
use crate::servers::{MemberId, Server};

/// Makes a [`Peer`] for each member.
pub(super) struct Network<L, D> {
    me: MemberId,
    links: L,
    _data: std::marker::PhantomData<fn() -> D>,
}

impl<L, D> Network<L, D> {
    pub(super) fn new(me: MemberId, links: L) -> Self {
        Self {
            me,
            links,
            _data: std::marker::PhantomData,
        }
    }
}

/// openraft's connection to one member.
pub(super) struct Peer<L, D> {
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
    async fn request<C: Types>(
        &self,
        kind: RPCTypes,
        request: Request<C, D>,
        option: &RPCOption,
    ) -> Result<Response<C>, RPCError<C>>
    where
        L: Links<C, D>,
    {
        let timeout = option.soft_ttl();
        let response = self.links.request(self.member, &self.server, request, timeout);
        response.await.map_err(|error| match error {
            RequestError::Unreachable(why) => RPCError::Unreachable(Unreachable::from_string(why)),
            RequestError::Broken(why) => RPCError::Network(NetworkError::from_string(why)),
            RequestError::TimedOut => RPCError::Timeout(Timeout {
                action: kind,
                id: self.me,
                target: self.member,
                timeout,
            }),
        })
    }

    fn unexpected<C: Types, T>(&self) -> Result<T, RPCError<C>> {
        Err(RPCError::Network(NetworkError::from_string(format!(
            "member {}: {}",
            self.member,
            RequestError::unexpected()
        ))))
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
        let requests = coalesced(self.member, input);
        stream_append_sequential(self, Box::pin(requests), option)
    }

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<C>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<C>, RPCError<C>> {
        let request = Request::Append(request);
        match self.request(RPCTypes::AppendEntries, request, &option).await? {
            Response::Append(response) => Ok(response),
            _ => self.unexpected(),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        let request = Request::Vote(request);
        match self.request(RPCTypes::Vote, request, &option).await? {
            Response::Vote(response) => Ok(response),
            _ => self.unexpected(),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        let request = Request::PreVote(request);
        match self.request(RPCTypes::Vote, request, &option).await? {
            Response::Vote(response) => Ok(response),
            _ => self.unexpected(),
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
        let sent = pin!(self.request(RPCTypes::InstallSnapshot, request, &option));
        match select(sent, pin!(cancel)).await {
            Either::Left((response, _)) => match response? {
                Response::Snapshot(response) => Ok(response),
                _ => Ok(self.unexpected()?),
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
        match self.request(RPCTypes::TransferLeader, request, &option).await? {
            Response::Transfer(response) => Ok(response),
            _ => self.unexpected(),
        }
    }
}
