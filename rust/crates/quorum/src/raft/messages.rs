//! The bytes of openraft's requests and responses. Big-endian; ids, votes and entries as in `entry`.
//!
//! ```text
//! Append:           vote | log id? before | log id? committed | u32 count, each { u32 length | entry }
//! Append response:  u8 0 success, 1 partly up to log id?, 2 conflict, 3 higher vote
//! Vote, PreVote:    vote | log id? last | u8 transfer of leadership
//! Vote response:    vote | u8 granted | log id? last
//! Transfer:         vote | u64 to | log id? last
//! Transfer response: u8 0, or 1 vote expected | vote, or 2 log id? expected | log id?
//! ```

use bytes::{Buf, BufMut, Bytes};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderError,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::entry::{self, get_log_id, get_vote, put_log_id, put_vote};
use super::types::{LogId, Types};
use crate::codec::{Malformed, end, get_bool, invalid, take};

type Result<T> = std::result::Result<T, Malformed>;

pub(crate) fn put_append<C: Types>(request: &AppendEntriesRequest<C>, out: &mut Vec<u8>) {
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

/// Refuses entries that do not follow each other.
pub(crate) fn get_append<C: Types>(mut bytes: Bytes) -> Result<AppendEntriesRequest<C>> {
    let vote = get_vote(&mut bytes)?;
    let (prev_log_id, leader_commit) = (get_log_id(&mut bytes)?, get_log_id(&mut bytes)?);
    let mut entries = Vec::new();
    let mut last = prev_log_id;
    for _ in 0..bytes.try_get_u32()? {
        let length = bytes.try_get_u32()? as usize;
        let entry = entry::decode(take(&mut bytes, length)?)?;
        if !follows(last, entry.log_id) {
            return invalid(format!("entry {} is out of order", entry.log_id.index));
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

/// Whether an entry may come next after another one, or as the first.
fn follows(last: Option<LogId>, next: LogId) -> bool {
    match last {
        None => next.index == 0,
        Some(last) => {
            last.index.checked_add(1) == Some(next.index) && last.leader_id.term <= next.leader_id.term
        }
    }
}

pub(crate) fn put_append_response<C: Types>(response: &AppendEntriesResponse<C>, out: &mut Vec<u8>) {
    match response {
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
    }
}

pub(crate) fn get_append_response<C: Types>(bytes: &mut Bytes) -> Result<AppendEntriesResponse<C>> {
    Ok(match bytes.try_get_u8()? {
        0 => AppendEntriesResponse::Success,
        1 => AppendEntriesResponse::PartialSuccess(get_log_id(bytes)?),
        2 => AppendEntriesResponse::Conflict,
        3 => AppendEntriesResponse::HigherVote(get_vote(bytes)?),
        other => return invalid(format!("an append has the unknown outcome {other}")),
    })
}

pub(crate) fn put_vote_request<C: Types>(request: &VoteRequest<C>, out: &mut Vec<u8>) {
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

pub(crate) fn put_vote_response<C: Types>(response: &VoteResponse<C>, out: &mut Vec<u8>) {
    put_vote(&response.vote, out);
    out.put_u8(u8::from(response.vote_granted));
    put_log_id(response.last_log_id, out);
}

pub(crate) fn get_vote_response<C: Types>(bytes: &mut Bytes) -> Result<VoteResponse<C>> {
    let (vote, granted) = (get_vote(bytes)?, get_bool(bytes)?);
    Ok(VoteResponse::new(vote, get_log_id(bytes)?, granted))
}

pub(crate) fn put_snapshot_response<C: Types>(response: &SnapshotResponse<C>, out: &mut Vec<u8>) {
    put_vote(&response.vote, out);
}

pub(crate) fn get_snapshot_response<C: Types>(bytes: &mut Bytes) -> Result<SnapshotResponse<C>> {
    Ok(SnapshotResponse::new(get_vote(bytes)?))
}

pub(crate) fn put_transfer<C: Types>(request: &TransferLeaderRequest<C>, out: &mut Vec<u8>) {
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

pub(crate) fn put_transfer_response<C: Types>(response: &TransferLeaderResponse<C>, out: &mut Vec<u8>) {
    match response {
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
    }
}

pub(crate) fn get_transfer_response<C: Types>(bytes: &mut Bytes) -> Result<TransferLeaderResponse<C>> {
    Ok(match bytes.try_get_u8()? {
        0 => Ok(()),
        1 => Err(TransferLeaderError::VoteChanged {
            expected: get_vote(bytes)?,
            actual: get_vote(bytes)?,
        }),
        2 => Err(TransferLeaderError::LogNotFlushed {
            expected: get_log_id(bytes)?,
            actual: get_log_id(bytes)?,
        }),
        other => return invalid(format!("a transfer has the unknown outcome {other}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::types::{Entry, OnTokio, Payload, log_id, vote};

    /// If this failed, a peer could make a log with a gap, or with terms that go backwards.
    #[test]
    fn entries_that_do_not_follow_each_other_are_refused() {
        let appended = |before: Option<(u64, u64)>, entries: &[(u64, u64)]| {
            let id = |(term, index)| log_id(term, index);
            let entries = entries.iter().map(|at| Entry {
                log_id: id(*at),
                payload: Payload::Blank,
            });
            let request = AppendEntriesRequest::<OnTokio> {
                vote: vote(0, 0, false),
                prev_log_id: before.map(id),
                entries: entries.collect(),
                leader_commit: None,
            };
            let mut bytes = Vec::new();
            put_append(&request, &mut bytes);
            get_append::<OnTokio>(bytes.into()).map(|_| ())
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
            assert!(matches!(refused, Err(Malformed::Invalid(_))), "{refused:?}");
        }
    }
}
