//! The requests and responses in frames. Big-endian:
//!
//! ```text
//! Append, Vote, PreVote, Transfer and their responses: see `raft::messages`
//! Snapshot:         vote | u64 length;  as many bytes of a snapshot's file follow the frame
//! Snapshot response: vote
//! Propose:          u64 term | commands                    Proposed:        nothing
//! ReadIndex:        nothing                                ReadUpTo:        u64 index
//! RenewSessions:    u16 server | session ids, each i64     SessionsRenewed: nothing
//! Identify:         nothing                                Identity: as below
//! Bind:             16 bytes ensemble                      Identity: as below
//! Join:             u64 member | server                    Joining:         nothing
//! Identity:         u64 member | 16 bytes ensemble | u8 fresh | u8 has a state
//!                   | u8 whether there is a leader, and then its server | u16 count, u64 members
//! Failed:           the reason, in UTF-8
//! ```
//!
//! Bytes that do not fit this, or a kind that is not known, end the connection.

use bytes::{Buf, BufMut, Bytes};

use super::frame::{self, Kind};
use crate::codec::{Malformed, end, get_array, get_bool, invalid};
use crate::commands::Commands;
use crate::raft::entry::{get_vote, put_vote};
use crate::raft::messages::{
    get_append, get_append_response, get_snapshot_response, get_transfer, get_transfer_response,
    get_vote_request, get_vote_response, put_append, put_append_response, put_snapshot_response,
    put_transfer, put_transfer_response, put_vote_request, put_vote_response,
};
use crate::raft::requests::{MemberInfo, Request, Response};
use crate::raft::state_machine::Data;
use crate::raft::types::{Types, Vote};
use crate::servers::{get_server, put_server};

const SESSION_BYTES: usize = 8;

type Result<T> = std::result::Result<T, Malformed>;

/// The frame of a request. `length` is the length of the file that follows a snapshot's frame.
pub(super) fn request_frame<C: Types, D: Data>(number: u32, request: &Request<C, D>, length: u64) -> Vec<u8> {
    let frame = |kind, body: &dyn Fn(&mut Vec<u8>)| frame::encode(kind, number, |out| body(out));
    match request {
        Request::Append(request) => frame(Kind::Append, &|out| put_append(request, out)),
        Request::Vote(request) => frame(Kind::Vote, &|out| put_vote_request(request, out)),
        Request::PreVote(request) => frame(Kind::PreVote, &|out| put_vote_request(request, out)),
        Request::Transfer(request) => frame(Kind::Transfer, &|out| put_transfer(request, out)),
        Request::Snapshot(vote, _) => frame(Kind::Snapshot, &|out| {
            put_vote(vote, out);
            out.put_u64(length);
        }),
        Request::Propose(term, commands) => frame(Kind::Propose, &|out| {
            out.put_u64(*term);
            out.put_slice(commands.as_bytes());
        }),
        Request::ReadIndex => frame(Kind::ReadIndex, &|_| {}),
        Request::RenewSessions(server, sessions) => frame(Kind::RenewSessions, &|out| {
            out.put_u16(*server);
            out.put_slice(sessions);
        }),
        Request::Identify => frame(Kind::Identify, &|_| {}),
        Request::Bind(ensemble) => frame(Kind::Bind, &|out| out.put_slice(ensemble)),
        Request::Join(member, server) => frame(Kind::Join, &|out| {
            out.put_u64(*member);
            put_server(server, out);
        }),
    }
}

/// Whether a request may be asked of any member of a server.
pub(super) fn is_for_any_member(kind: Kind) -> bool {
    matches!(kind, Kind::Identify | Kind::Bind | Kind::Join)
}

/// The request in a frame, unless it is a snapshot.
pub(super) fn get_request<C: Types, D: Data>(kind: Kind, mut bytes: Bytes) -> Result<Request<C, D>> {
    let request = match kind {
        Kind::Append => return get_append(bytes).map(Request::Append),
        Kind::Vote => return get_vote_request(bytes).map(Request::Vote),
        Kind::PreVote => return get_vote_request(bytes).map(Request::PreVote),
        Kind::Transfer => return get_transfer(bytes).map(Request::Transfer),
        Kind::Propose => {
            let term = bytes.try_get_u64()?;
            return Ok(Request::Propose(term, Commands::parse(bytes)?));
        }
        Kind::RenewSessions => {
            let server = bytes.try_get_u16()?;
            return match bytes.len() % SESSION_BYTES {
                0 => Ok(Request::RenewSessions(server, bytes)),
                left => Err(Malformed::TooLong(left)),
            };
        }
        Kind::ReadIndex => Request::ReadIndex,
        Kind::Identify => Request::Identify,
        Kind::Bind => Request::Bind(get_array(&mut bytes)?),
        Kind::Join => Request::Join(bytes.try_get_u64()?, get_server(&mut bytes)?),
        other => return invalid(format!("a frame of kind {other:?} in the place of a request")),
    };
    end(&bytes)?;
    Ok(request)
}

/// The vote and the file's length in the frame of a snapshot.
pub(super) fn get_snapshot(mut bytes: Bytes) -> Result<(Vote, u64)> {
    let snapshot = (get_vote(&mut bytes)?, bytes.try_get_u64()?);
    end(&bytes)?;
    Ok(snapshot)
}

/// The frame of a response.
pub(super) fn response_frame<C: Types>(number: u32, response: &Response<C>) -> Vec<u8> {
    let frame = |kind, body: &dyn Fn(&mut Vec<u8>)| frame::encode(kind, number, |out| body(out));
    match response {
        Response::Append(response) => frame(Kind::AppendResponse, &|out| put_append_response(response, out)),
        Response::Vote(response) => frame(Kind::VoteResponse, &|out| put_vote_response(response, out)),
        Response::Snapshot(response) => frame(Kind::SnapshotResponse, &|out| {
            put_snapshot_response(response, out)
        }),
        Response::Transfer(response) => frame(Kind::TransferResponse, &|out| {
            put_transfer_response(response, out)
        }),
        Response::Proposed => frame(Kind::Proposed, &|_| {}),
        Response::ReadIndex(index) => frame(Kind::ReadUpTo, &|out| out.put_u64(*index)),
        Response::SessionsRenewed => frame(Kind::SessionsRenewed, &|_| {}),
        Response::Identity(info) => frame(Kind::Identity, &|out| put_info(info, out)),
        Response::Joining => frame(Kind::Joining, &|_| {}),
    }
}

/// The response in a frame. The inner error is the reason why the other refused.
pub(super) fn get_response<C: Types>(
    kind: Kind,
    mut bytes: Bytes,
) -> Result<std::result::Result<Response<C>, String>> {
    let response = match kind {
        Kind::AppendResponse => Response::Append(get_append_response(&mut bytes)?),
        Kind::VoteResponse => Response::Vote(get_vote_response(&mut bytes)?),
        Kind::SnapshotResponse => Response::Snapshot(get_snapshot_response(&mut bytes)?),
        Kind::TransferResponse => Response::Transfer(get_transfer_response(&mut bytes)?),
        Kind::Proposed => Response::Proposed,
        Kind::ReadUpTo => Response::ReadIndex(bytes.try_get_u64()?),
        Kind::SessionsRenewed => Response::SessionsRenewed,
        Kind::Identity => Response::Identity(get_info(&mut bytes)?),
        Kind::Joining => Response::Joining,
        Kind::Failed => return Ok(Err(String::from_utf8_lossy(&bytes).into_owned())),
        other => return invalid(format!("a frame of kind {other:?} in the place of a response")),
    };
    end(&bytes)?;
    Ok(Ok(response))
}

fn put_info(info: &MemberInfo, out: &mut Vec<u8>) {
    out.put_u64(info.member);
    out.put_slice(&info.ensemble);
    out.put_u8(u8::from(info.fresh));
    out.put_u8(u8::from(info.has_state));
    out.put_u8(u8::from(info.leader.is_some()));
    if let Some(leader) = &info.leader {
        put_server(leader, out);
    }
    out.put_u16(info.members.len() as u16);
    for member in &info.members {
        out.put_u64(*member);
    }
}

fn get_info(bytes: &mut Bytes) -> Result<MemberInfo> {
    Ok(MemberInfo {
        member: bytes.try_get_u64()?,
        ensemble: get_array(bytes)?,
        fresh: get_bool(bytes)?,
        has_state: get_bool(bytes)?,
        leader: match get_bool(bytes)? {
            true => Some(get_server(bytes)?),
            false => None,
        },
        members: {
            let mut members = Vec::new();
            for _ in 0..bytes.try_get_u16()? {
                members.push(bytes.try_get_u64()?);
            }
            members
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::snapshots::SnapshotFile;
    use crate::raft::types::OnTokio;
    use crate::servers::{Address, Server};

    type AnyRequest = Request<OnTokio, SnapshotFile>;

    fn server() -> Server {
        let at = |host: &str, port| Address {
            host: host.to_owned(),
            port,
        };
        Server {
            id: 3,
            quorum: vec![at("a", 2888), at("b", 2889)],
            election: vec![at("a", 3888)],
            client: Some(at("", 2181)),
            observer: true,
        }
    }

    /// The kind and the body of a frame.
    fn body(frame: Vec<u8>) -> (Kind, Bytes) {
        let mut frame = Bytes::from(frame);
        assert_eq!(frame.get_u32() as usize, frame.len());
        let kind = Kind::of(frame.get_u8()).unwrap();
        assert_eq!(frame.get_u32(), 7);
        (kind, frame)
    }

    /// If this failed, a new member could not tell whether there is an ensemble, or would read a part as the
    /// whole.
    #[test]
    fn a_members_info_is_read_back_whole_or_not_at_all() {
        let info = |leader| MemberInfo {
            member: 3 << 48 | 5,
            ensemble: *b"an ensemble's id",
            fresh: false,
            has_state: true,
            leader,
            members: vec![1 << 48, 2 << 48],
        };
        for info in [info(None), info(Some(server()))] {
            let response = Response::<OnTokio>::Identity(info.clone());
            let (kind, whole) = body(response_frame(7, &response));
            match get_response::<OnTokio>(kind, whole.clone()) {
                Ok(Ok(Response::Identity(found))) => assert_eq!(found, info),
                other => panic!("{other:?}"),
            }
            for length in 0..whole.len() {
                assert!(get_response::<OnTokio>(kind, whole.slice(..length)).is_err());
            }
        }
    }

    /// If this failed, a member would be added with other addresses than its own.
    #[test]
    fn a_join_is_read_back_whole_or_not_at_all() {
        let join = |bytes| match get_request(Kind::Join, bytes)? {
            AnyRequest::Join(member, server) => Ok((member, server)),
            _ => panic!("another request"),
        };
        let (kind, whole) = body(request_frame(7, &AnyRequest::Join(9, server()), 0));
        assert_eq!(kind, Kind::Join);
        assert_eq!(join(whole.clone()), Ok((9, server())));
        for length in 0..whole.len() {
            assert!(join(whole.slice(..length)).is_err());
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(join(longer.into()), Err(Malformed::TooLong(1)));
    }

    /// If this failed, a part of a session's id would be taken for a session.
    #[test]
    fn sessions_are_renewed_by_whole_ids() {
        for length in 0..20 {
            let renewal = AnyRequest::RenewSessions(9, vec![1; length].into());
            let (kind, whole) = body(request_frame(7, &renewal, 0));
            match (length % SESSION_BYTES, get_request(kind, whole)) {
                (0, Ok(AnyRequest::RenewSessions(9, sessions))) => assert_eq!(sessions, vec![1; length]),
                (left, Err(Malformed::TooLong(found))) => assert_eq!(found, left),
                _ => panic!("{length}"),
            }
        }
    }

    /// If this failed, members of this version would not understand those of another.
    #[test]
    fn the_bytes_stay_the_same() {
        let request = |request: AnyRequest| request_frame(7, &request, 0);
        assert_eq!(request(Request::ReadIndex), [0, 0, 0, 5, 16, 0, 0, 0, 7]);
        assert_eq!(request(Request::Identify), [0, 0, 0, 5, 30, 0, 0, 0, 7]);
        let renewal = Request::RenewSessions(258, Bytes::from_static(b"ab"));
        assert_eq!(request(renewal), [0, 0, 0, 9, 17, 0, 0, 0, 7, 1, 2, b'a', b'b']);
        let response = |response| response_frame::<OnTokio>(7, &response);
        let read = response(Response::ReadIndex(3));
        assert_eq!(read, [0, 0, 0, 13, 25, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(response(Response::SessionsRenewed), [0, 0, 0, 5, 26, 0, 0, 0, 7]);
        assert_eq!(response(Response::Joining), [0, 0, 0, 5, 41, 0, 0, 0, 7]);
    }
}
