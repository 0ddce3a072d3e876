//! What members say to each other, in bytes. Big-endian.
//!
//! ```text
//! frame:        u32 length of what follows | u8 kind | u32 request | body
//! log id:       u64 term | u64 index;  with a u8 before it, 1 or 0, where there may be none
//! vote:         u64 term | u64 voted for | u8 committed
//! Append:       vote | log id? before | log id? committed | u32 count, each { u32 length | entry }
//! Appended:     u8 0 success, 1 partly up to log id?, 2 conflict, 3 higher vote
//! Vote:         vote | log id? last | u8 transfer of leadership          (also PreVote)
//! Voted:        vote | u8 granted | log id? last
//! Transfer:     vote | u64 to | log id? last
//! Transferred:  u8 0, or 1 vote expected | vote, or 2 log id? expected | log id?
//! Snapshot:     vote | u64 length;  as many bytes of a snapshot's file follow the frame
//! Installed:    vote
//! Propose:      u64 term | commands
//! Proposed:     nothing
//! ReadIndex:    nothing                                                 ReadUpTo: u64 index
//! Touch:        u16 server | sessions, each i64                         Touched:  nothing
//! Whois:        nothing                                                 (Found is answered with Here too)
//! Here:         u64 member | 16 bytes ensemble | u8 fresh | u8 has a state | u8 whether somebody leads, and then that
//!               server | u16 count, u64 members
//! Found:        16 bytes ensemble
//! Join:         u64 member | server                                     Joining:  nothing
//! Failed:       why, in UTF-8
//! ```
//!
//! Every count and length is checked against the bytes that are there, and entries against those before them. A kind or version that
//! is not known ends a connection.

use bytes::{Buf, BufMut, Bytes, TryGetError};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderError,
    TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::vote::RaftLeaderId;
use thiserror::Error;

use crate::entry::{self, Commands, Malformed};
use crate::machine::Data;
use crate::network::{Answer, Here, Request};
use crate::types::{LeaderId, LogId, MemberId, Server, Term, Types, Vote};

/// Before a frame's body: length, kind, request.
pub(crate) const FRAME_FRONT: usize = 9;
const SESSION_BYTES: usize = 8;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Welcome = 2,
    Refused = 3,
    Append = 10,
    Vote = 11,
    PreVote = 12,
    Transfer = 13,
    Snapshot = 14,
    Propose = 15,
    ReadIndex = 16,
    Touch = 17,
    Whois = 30,
    Found = 31,
    Join = 32,
    Appended = 20,
    Voted = 21,
    Transferred = 22,
    Installed = 23,
    Proposed = 24,
    ReadUpTo = 25,
    Touched = 26,
    Here = 40,
    Joining = 41,
    Failed = 29,
}

impl Kind {
    pub(crate) fn of(code: u8) -> Result<Self, WireError> {
        let known = [
            Self::Hello,
            Self::Welcome,
            Self::Refused,
            Self::Append,
            Self::Vote,
            Self::PreVote,
            Self::Transfer,
            Self::Snapshot,
            Self::Propose,
            Self::ReadIndex,
            Self::Touch,
            Self::Whois,
            Self::Found,
            Self::Join,
            Self::Appended,
            Self::Voted,
            Self::Transferred,
            Self::Installed,
            Self::Proposed,
            Self::ReadUpTo,
            Self::Touched,
            Self::Here,
            Self::Joining,
            Self::Failed,
        ];
        let found = known.into_iter().find(|kind| *kind as u8 == code);
        found.ok_or(WireError::Unknown("kind of frame", code.into()))
    }
}

/// Bytes that are no message.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum WireError {
    #[error("a message is cut off: {0}")]
    CutOff(#[from] TryGetError),
    #[error("a message has an unknown {0}, {1}")]
    Unknown(&'static str, u64),
    #[error("a message has {0} bytes after its end")]
    TooLong(usize),
    #[error("a message has a bad entry: {0}")]
    Entry(#[from] Malformed),
}

type Result<T, E = WireError> = std::result::Result<T, E>;

/// A whole frame.
pub(crate) fn frame(kind: Kind, request: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.put_u8(kind as u8);
    out.put_u32(request);
    body(&mut out);
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

pub(crate) fn put_log_id(id: Option<LogId>, out: &mut Vec<u8>) {
    out.put_u8(u8::from(id.is_some()));
    if let Some(id) = id {
        out.put_u64(id.leader_id.term);
        out.put_u64(id.index);
    }
}

pub(crate) fn get_log_id(bytes: &mut Bytes) -> Result<Option<LogId>> {
    if !get_bool(bytes)? {
        return Ok(None);
    }
    Ok(Some(LogId {
        leader_id: Term::new(bytes.try_get_u64()?),
        index: bytes.try_get_u64()?,
    }))
}

fn get_bool(bytes: &mut Bytes) -> Result<bool> {
    match bytes.try_get_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(WireError::Unknown("truth value", other.into())),
    }
}

pub(crate) fn put_vote(vote: &Vote, out: &mut Vec<u8>) {
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.voted_for);
    out.put_u8(u8::from(vote.committed));
}

pub(crate) fn get_vote(bytes: &mut Bytes) -> Result<Vote> {
    let (term, voted_for) = (bytes.try_get_u64()?, bytes.try_get_u64()?);
    Ok(Vote {
        leader_id: LeaderId::new(term, voted_for),
        committed: get_bool(bytes)?,
    })
}

fn take(bytes: &mut Bytes, count: usize) -> Result<Bytes> {
    if bytes.len() < count {
        return Err(WireError::CutOff(TryGetError {
            requested: count,
            available: bytes.len(),
        }));
    }
    Ok(bytes.split_to(count))
}

/// That nothing is left.
pub(crate) fn end(bytes: &Bytes) -> Result<()> {
    match bytes.len() {
        0 => Ok(()),
        left => Err(WireError::TooLong(left)),
    }
}

fn put_append<C: Types>(request: &AppendEntriesRequest<C>, out: &mut Vec<u8>) {
    put_vote(&request.vote, out);
    put_log_id(request.prev_log_id, out);
    put_log_id(request.leader_commit, out);
    out.put_u32(request.entries.len() as u32);
    for entry in &request.entries {
        let start = out.len();
        out.put_u32(0);
        entry::encode(entry, out);
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

pub(crate) fn get_append<C: Types>(mut bytes: Bytes) -> Result<AppendEntriesRequest<C>> {
    let vote = get_vote(&mut bytes)?;
    let (prev_log_id, leader_commit) = (get_log_id(&mut bytes)?, get_log_id(&mut bytes)?);
    let mut entries = Vec::new();
    let mut last = prev_log_id;
    for _ in 0..bytes.try_get_u32()? {
        let length = bytes.try_get_u32()? as usize;
        let entry = entry::decode(take(&mut bytes, length)?)?;
        if !follows(last, entry.log_id) {
            let found = entry.log_id.index;
            return Err(Malformed::Impossible(format!("index {found}, out of order")).into());
        }
        last = Some(entry.log_id);
        entries.push(entry);
    }
    end(&bytes)?;
    Ok(AppendEntriesRequest {
        vote,
        prev_log_id,
        entries,
        leader_commit,
    })
}

/// Whether an entry may come next behind another one, or as the first.
fn follows(last: Option<LogId>, next: LogId) -> bool {
    match last {
        None => next.index == 0,
        Some(last) => {
            last.index.checked_add(1) == Some(next.index) && last.leader_id.term <= next.leader_id.term
        }
    }
}

fn put_vote_request<C: Types>(request: &VoteRequest<C>, out: &mut Vec<u8>) {
    put_vote(&request.vote, out);
    put_log_id(request.last_log_id, out);
    out.put_u8(u8::from(request.leadership_transfer));
}

pub(crate) fn get_vote_request<C: Types>(mut bytes: Bytes) -> Result<VoteRequest<C>> {
    let mut request = VoteRequest::new(get_vote(&mut bytes)?, get_log_id(&mut bytes)?);
    request.leadership_transfer = get_bool(&mut bytes)?;
    end(&bytes)?;
    Ok(request)
}

fn put_transfer<C: Types>(request: &TransferLeaderRequest<C>, out: &mut Vec<u8>) {
    put_vote(request.from_leader(), out);
    out.put_u64(*request.to_node_id());
    put_log_id(request.last_log_id().copied(), out);
}

pub(crate) fn get_transfer<C: Types>(mut bytes: Bytes) -> Result<TransferLeaderRequest<C>> {
    let (from, to) = (get_vote(&mut bytes)?, bytes.try_get_u64()?);
    let request = TransferLeaderRequest::new(from, to, get_log_id(&mut bytes)?);
    end(&bytes)?;
    Ok(request)
}

fn put_propose(term: u64, commands: &Commands, out: &mut Vec<u8>) {
    out.put_u64(term);
    out.put_slice(commands.as_bytes());
}

pub(crate) fn get_propose(mut bytes: Bytes) -> Result<(u64, Commands)> {
    let term = bytes.try_get_u64()?;
    Ok((term, Commands::parse(bytes)?))
}

pub(crate) fn get_touch(mut bytes: Bytes) -> Result<(u16, Bytes)> {
    let server = bytes.try_get_u16()?;
    match bytes.len() % SESSION_BYTES {
        0 => Ok((server, bytes)),
        left => Err(WireError::TooLong(left)),
    }
}

pub(crate) fn get_ensemble(mut bytes: Bytes) -> Result<[u8; 16]> {
    let ensemble = take_ensemble(&mut bytes)?;
    end(&bytes)?;
    Ok(ensemble)
}

fn take_ensemble(bytes: &mut Bytes) -> Result<[u8; 16]> {
    let mut ensemble = [0; 16];
    bytes.try_copy_to_slice(&mut ensemble)?;
    Ok(ensemble)
}

pub(crate) fn get_join(mut bytes: Bytes) -> Result<(MemberId, Server)> {
    let joining = (bytes.try_get_u64()?, entry::decode_server(&mut bytes)?);
    end(&bytes)?;
    Ok(joining)
}

fn put_here(here: &Here, out: &mut Vec<u8>) {
    out.put_u64(here.member);
    out.put_slice(&here.ensemble);
    out.put_u8(u8::from(here.fresh));
    out.put_u8(u8::from(here.has_state));
    out.put_u8(u8::from(here.leader.is_some()));
    if let Some(leader) = &here.leader {
        entry::encode_server(leader, out);
    }
    out.put_u16(here.members.len() as u16);
    for member in &here.members {
        out.put_u64(*member);
    }
}

fn get_here(bytes: &mut Bytes) -> Result<Here> {
    Ok(Here {
        member: bytes.try_get_u64()?,
        ensemble: take_ensemble(bytes)?,
        fresh: get_bool(bytes)?,
        has_state: get_bool(bytes)?,
        leader: match get_bool(bytes)? {
            true => Some(entry::decode_server(bytes)?),
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

/// The frame of a request; `length` is that of the file that follows a snapshot's.
pub(crate) fn request_frame<C: Types, D: Data>(number: u32, request: &Request<C, D>, length: u64) -> Vec<u8> {
    match request {
        Request::Append(request) => frame(Kind::Append, number, |out| put_append(request, out)),
        Request::Vote(request) => frame(Kind::Vote, number, |out| put_vote_request(request, out)),
        Request::PreVote(request) => frame(Kind::PreVote, number, |out| put_vote_request(request, out)),
        Request::Transfer(request) => frame(Kind::Transfer, number, |out| put_transfer(request, out)),
        Request::Propose(term, commands) => {
            frame(Kind::Propose, number, |out| put_propose(*term, commands, out))
        }
        Request::ReadIndex => frame(Kind::ReadIndex, number, |_| {}),
        Request::Touch(server, sessions) => frame(Kind::Touch, number, |out| {
            out.put_u16(*server);
            out.put_slice(sessions);
        }),
        Request::Whois => frame(Kind::Whois, number, |_| {}),
        Request::Found(ensemble) => frame(Kind::Found, number, |out| out.put_slice(ensemble)),
        Request::Join(member, server) => frame(Kind::Join, number, |out| {
            out.put_u64(*member);
            entry::encode_server(server, out);
        }),
        Request::Snapshot(vote, _) => frame(Kind::Snapshot, number, |out| {
            put_vote(vote, out);
            out.put_u64(length);
        }),
    }
}

/// The frame of an answer.
pub(crate) fn answer_frame<C: Types>(request: u32, answer: &Answer<C>) -> Vec<u8> {
    match answer {
        Answer::Append(answer) => frame(Kind::Appended, request, |out| match answer {
            AppendEntriesResponse::Success => out.put_u8(0),
            AppendEntriesResponse::PartialSuccess(up_to) => {
                out.put_u8(1);
                put_log_id(*up_to, out);
            }
            AppendEntriesResponse::Conflict => out.put_u8(2),
            AppendEntriesResponse::HigherVote(vote) => {
                out.put_u8(3);
                put_vote(vote, out);
            }
        }),
        Answer::Vote(answer) => frame(Kind::Voted, request, |out| {
            put_vote(&answer.vote, out);
            out.put_u8(u8::from(answer.vote_granted));
            put_log_id(answer.last_log_id, out);
        }),
        Answer::Proposed => frame(Kind::Proposed, request, |_| {}),
        Answer::ReadIndex(index) => frame(Kind::ReadUpTo, request, |out| out.put_u64(*index)),
        Answer::Touched => frame(Kind::Touched, request, |_| {}),
        Answer::Here(here) => frame(Kind::Here, request, |out| put_here(here, out)),
        Answer::Joining => frame(Kind::Joining, request, |_| {}),
        Answer::Snapshot(answer) => frame(Kind::Installed, request, |out| {
            put_vote(&answer.vote, out);
        }),
        Answer::Transfer(answer) => frame(Kind::Transferred, request, |out| match answer {
            Ok(()) => out.put_u8(0),
            Err(TransferLeaderError::VoteChanged { expected, actual }) => {
                out.put_u8(1);
                put_vote(expected, out);
                put_vote(actual, out);
            }
            Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
                out.put_u8(2);
                put_log_id(*expected, out);
                put_log_id(*actual, out);
            }
        }),
    }
}

/// The answer in a frame's body; `Err` in the result for one that says why there is none.
pub(crate) fn get_answer<C: Types>(
    kind: Kind,
    mut bytes: Bytes,
) -> Result<std::result::Result<Answer<C>, String>> {
    let answer = match kind {
        Kind::Appended => Answer::Append(match bytes.try_get_u8()? {
            0 => AppendEntriesResponse::Success,
            1 => AppendEntriesResponse::PartialSuccess(get_log_id(&mut bytes)?),
            2 => AppendEntriesResponse::Conflict,
            3 => AppendEntriesResponse::HigherVote(get_vote(&mut bytes)?),
            other => return Err(WireError::Unknown("outcome of an append", other.into())),
        }),
        Kind::Voted => {
            let (vote, granted) = (get_vote(&mut bytes)?, get_bool(&mut bytes)?);
            Answer::Vote(VoteResponse::new(vote, get_log_id(&mut bytes)?, granted))
        }
        Kind::Proposed => Answer::Proposed,
        Kind::ReadUpTo => Answer::ReadIndex(bytes.try_get_u64()?),
        Kind::Touched => Answer::Touched,
        Kind::Here => Answer::Here(get_here(&mut bytes)?),
        Kind::Joining => Answer::Joining,
        Kind::Installed => Answer::Snapshot(SnapshotResponse::new(get_vote(&mut bytes)?)),
        Kind::Transferred => Answer::Transfer(match bytes.try_get_u8()? {
            0 => Ok(()),
            1 => Err(TransferLeaderError::VoteChanged {
                expected: get_vote(&mut bytes)?,
                actual: get_vote(&mut bytes)?,
            }),
            2 => Err(TransferLeaderError::LogNotFlushed {
                expected: get_log_id(&mut bytes)?,
                actual: get_log_id(&mut bytes)?,
            }),
            other => return Err(WireError::Unknown("outcome of a transfer", other.into())),
        }),
        Kind::Failed => {
            return Ok(Err(String::from_utf8_lossy(&bytes).into_owned()));
        }
        other => return Err(WireError::Unknown("answer", other as u64)),
    };
    end(&bytes)?;
    Ok(Ok(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Served;
    use crate::snapshots::SnapshotFile;
    use crate::types::{Address, Entry, Payload};

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

    /// Body of a frame, and what it is.
    fn body(frame: Vec<u8>) -> (Kind, Bytes) {
        let mut frame = Bytes::from(frame);
        assert_eq!(frame.get_u32() as usize, frame.len());
        let kind = Kind::of(frame.get_u8()).unwrap();
        assert_eq!(frame.get_u32(), 7);
        (kind, frame)
    }

    #[test]
    fn what_a_member_says_of_itself_comes_back_and_is_never_cut_off() {
        let here = |leader| Here {
            member: 3 << 48 | 5,
            ensemble: *b"an ensemble's id",
            fresh: false,
            has_state: true,
            leader,
            members: vec![1 << 48, 2 << 48],
        };
        for here in [here(None), here(Some(server()))] {
            let answer = Answer::<Served>::Here(here.clone());
            let (kind, whole) = body(answer_frame(7, &answer));
            match get_answer::<Served>(kind, whole.clone()) {
                Ok(Ok(Answer::Here(there))) => assert_eq!(there, here),
                other => panic!("{other:?}"),
            }
            for length in 0..whole.len() {
                assert!(get_answer::<Served>(kind, whole.slice(..length)).is_err());
            }
        }
    }

    #[test]
    fn one_that_joins_is_named_whole() {
        let request = Request::<Served, SnapshotFile>::Join(9, server());
        let (kind, whole) = body(request_frame(7, &request, 0));
        assert_eq!(kind, Kind::Join);
        assert_eq!(get_join(whole.clone()), Ok((9, server())));
        for length in 0..whole.len() {
            assert!(get_join(whole.slice(..length)).is_err());
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(get_join(longer.into()), Err(WireError::TooLong(1)));
    }

    #[test]
    fn entries_that_do_not_follow_each_other_are_none() {
        let appended = |before: Option<(u64, u64)>, entries: &[(u64, u64)]| {
            let id = |(term, index)| crate::directory::log_id(term, index);
            let entries = entries.iter().map(|at| Entry {
                log_id: id(*at),
                payload: Payload::Blank,
            });
            let request = Request::<Served, SnapshotFile>::Append(AppendEntriesRequest {
                vote: get_vote(&mut Bytes::from_static(&[0; 17])).unwrap(),
                prev_log_id: before.map(id),
                entries: entries.collect(),
                leader_commit: None,
            });
            get_append::<Served>(body(request_frame(7, &request, 0)).1).map(|_| ())
        };
        assert_eq!(appended(None, &[(0, 0), (1, 1), (1, 2)]), Ok(()));
        assert_eq!(appended(Some((2, 8)), &[(2, 9), (3, 10)]), Ok(()));
        assert_eq!(appended(Some((2, u64::MAX)), &[]), Ok(()));
        for (before, entries) in [
            (None, [(1, 1), (1, 2)]),
            (Some((2, 8)), [(2, 8), (2, 9)]),
            (Some((2, 8)), [(2, 9), (2, 11)]),
            (Some((2, 8)), [(2, 9), (1, 10)]),
            (Some((2, u64::MAX)), [(2, 0), (2, 1)]),
        ] {
            let refused = appended(before, &entries);
            assert!(matches!(refused, Err(WireError::Entry(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_touch_is_of_whole_sessions() {
        for length in 0..20 {
            let touch = Request::<Served, SnapshotFile>::Touch(9, vec![1; length].into());
            let (_, whole) = body(request_frame(7, &touch, 0));
            match length % 8 {
                0 => assert_eq!(get_touch(whole), Ok((9, vec![1; length].into()))),
                left => assert_eq!(get_touch(whole), Err(WireError::TooLong(left))),
            }
        }
    }

    #[test]
    fn the_bytes_are_these() {
        type Asked = Request<Served, SnapshotFile>;
        let asked = |request: Asked| request_frame(7, &request, 0);
        assert_eq!(asked(Request::ReadIndex), [0, 0, 0, 5, 16, 0, 0, 0, 7]);
        assert_eq!(asked(Request::Whois), [0, 0, 0, 5, 30, 0, 0, 0, 7]);
        let touch = Request::Touch(258, Bytes::from_static(b"ab"));
        assert_eq!(asked(touch), [0, 0, 0, 9, 17, 0, 0, 0, 7, 1, 2, b'a', b'b']);
        let answered = |answer| answer_frame::<Served>(7, &answer);
        let read = answered(Answer::ReadIndex(3));
        assert_eq!(read, [0, 0, 0, 13, 25, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(answered(Answer::Touched), [0, 0, 0, 5, 26, 0, 0, 0, 7]);
        assert_eq!(answered(Answer::Joining), [0, 0, 0, 5, 41, 0, 0, 0, 7]);
    }
}
