//! The requests to a group's coordinator: FindCoordinator 2, JoinGroup 5, SyncGroup 3, Heartbeat 3,
//! LeaveGroup 2, OffsetCommit 9, and ConsumerGroupHeartbeat 0 of KIP-848.
//!
//! These are versions with plain arrays where Kafka 4.1 still has one; OffsetCommit 9 knows the member epochs
//! of KIP-848. The fields are those of Kafka's message files of the same names, and of its
//! `ConsumerProtocolSubscription.json` and `ConsumerProtocolAssignment.json`. No member is static.

use std::ops::Range;

use crate::cursor::Cursor;
use crate::error::BenchError;
use crate::messages::{begin, check_correlation, finish, put_compact, put_string, put_unsigned};

const OFFSET_COMMIT: (i16, i16) = (8, 9);
const FIND_COORDINATOR: (i16, i16) = (10, 2);
const JOIN_GROUP: (i16, i16) = (11, 5);
const HEARTBEAT: (i16, i16) = (12, 3);
const LEAVE_GROUP: (i16, i16) = (13, 2);
const SYNC_GROUP: (i16, i16) = (14, 3);
const CONSUMER_GROUP_HEARTBEAT: (i16, i16) = (68, 0);

const NULL_STRING: [u8; 2] = (-1i16).to_be_bytes();
const NULL_BYTES: [u8; 4] = (-1i32).to_be_bytes();
const REBALANCE_TIMEOUT_MS: i32 = 60_000;
/// The version of a subscription that has the owned partitions.
const SUBSCRIPTION_VERSION: i16 = 1;

/// The epoch with which a member of KIP-848 joins.
pub(crate) const JOINING: i32 = 0;
/// The epoch with which it leaves.
pub(crate) const LEAVING: i32 = -1;

/// Kafka's error codes that a member handles.
pub(crate) mod code {
    pub(crate) const NONE: i16 = 0;
    pub(crate) const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
    pub(crate) const COORDINATOR_NOT_AVAILABLE: i16 = 15;
    pub(crate) const NOT_COORDINATOR: i16 = 16;
    pub(crate) const ILLEGAL_GENERATION: i16 = 22;
    pub(crate) const UNKNOWN_MEMBER_ID: i16 = 25;
    pub(crate) const REBALANCE_IN_PROGRESS: i16 = 27;
    pub(crate) const MEMBER_ID_REQUIRED: i16 = 79;
    pub(crate) const FENCED_MEMBER_EPOCH: i16 = 110;
}

/// The id of a topic.
pub(crate) type TopicId = [u8; 16];

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as i32).to_be_bytes());
}

fn put_partitions(out: &mut Vec<u8>, topic: &str, partitions: &[i32]) {
    put_count(out, 1);
    put_string(out, topic);
    put_count(out, partitions.len());
    for partition in partitions {
        out.extend_from_slice(&partition.to_be_bytes());
    }
}

/// Reads topics with their partitions; the partitions of all topics.
fn partitions(cursor: &mut Cursor<'_>) -> Result<Vec<i32>, BenchError> {
    let mut found = Vec::new();
    for _ in 0..cursor.i32()? {
        cursor.string()?;
        for _ in 0..cursor.i32()? {
            found.push(cursor.i32()?);
        }
    }
    Ok(found)
}

fn text(frame: &[u8], range: Range<usize>) -> String {
    String::from_utf8_lossy(&frame[range]).into_owned()
}

/// The header of a response with plain arrays, up to its error code.
fn plain<'a>(frame: &'a [u8], correlation_id: i32) -> Result<(Cursor<'a>, i16), BenchError> {
    let mut cursor = Cursor::new(frame);
    check_correlation(cursor.i32()?, correlation_id)?;
    cursor.i32()?; // throttle time
    let code = cursor.i16()?;
    Ok((cursor, code))
}

/// The error code of a response that has nothing else of interest.
pub(crate) fn read_code(frame: &[u8], correlation_id: i32) -> Result<i16, BenchError> {
    Ok(plain(frame, correlation_id)?.1)
}

/// A FindCoordinator request of a group.
pub(crate) fn find_coordinator(group: &str) -> Vec<u8> {
    let mut out = begin(FIND_COORDINATOR.0, FIND_COORDINATOR.1);
    put_string(&mut out, group);
    out.push(0); // a group's
    finish(out)
}

/// What a member of the classic protocol tells the coordinator about itself.
pub(crate) struct Join<'a> {
    pub(crate) group: &'a str,
    pub(crate) member: &'a str,
    pub(crate) session_ms: i32,
    pub(crate) assignor: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) owned: &'a [i32],
}

/// A JoinGroup request.
pub(crate) fn join(join: &Join<'_>) -> Vec<u8> {
    let mut subscription = SUBSCRIPTION_VERSION.to_be_bytes().to_vec();
    put_count(&mut subscription, 1);
    put_string(&mut subscription, join.topic);
    subscription.extend_from_slice(&NULL_BYTES); // user data
    put_partitions(&mut subscription, join.topic, join.owned);

    let mut out = begin(JOIN_GROUP.0, JOIN_GROUP.1);
    put_string(&mut out, join.group);
    out.extend_from_slice(&join.session_ms.to_be_bytes());
    out.extend_from_slice(&REBALANCE_TIMEOUT_MS.to_be_bytes());
    put_string(&mut out, join.member);
    out.extend_from_slice(&NULL_STRING); // instance id
    put_string(&mut out, "consumer");
    put_count(&mut out, 1);
    put_string(&mut out, join.assignor);
    put_bytes(&mut out, &subscription);
    finish(out)
}

/// A member as its leader knows it: its id and the partitions that it owns.
pub(crate) type Owner = (String, Vec<i32>);

/// The answer to a JoinGroup.
#[derive(Debug, PartialEq)]
pub(crate) struct Joined {
    pub(crate) code: i16,
    pub(crate) generation: i32,
    pub(crate) leader: String,
    pub(crate) member: String,
    /// All members; empty for a member that is not the leader.
    pub(crate) members: Vec<Owner>,
}

/// Decodes the answer to a JoinGroup.
pub(crate) fn read_joined(frame: &[u8], correlation_id: i32) -> Result<Joined, BenchError> {
    let (mut cursor, code) = plain(frame, correlation_id)?;
    let generation = cursor.i32()?;
    cursor.string()?; // the chosen assignor
    let leader = text(frame, cursor.string()?);
    let member = text(frame, cursor.string()?);
    let mut members = Vec::new();
    for _ in 0..cursor.i32()? {
        let id = text(frame, cursor.string()?);
        cursor.string()?; // instance id
        let size = usize::try_from(cursor.i32()?).unwrap_or(0);
        let mut subscription = Cursor::new(&frame[cursor.skip(size)?]);
        subscription.i16()?;
        for _ in 0..subscription.i32()? {
            subscription.string()?;
        }
        let user_data = usize::try_from(subscription.i32()?).unwrap_or(0);
        subscription.skip(user_data)?;
        members.push((id, partitions(&mut subscription)?));
    }
    Ok(Joined {
        code,
        generation,
        leader,
        member,
        members,
    })
}

/// A SyncGroup request; with the assignments of all members if it is the leader's.
pub(crate) fn sync(
    group: &str,
    generation: i32,
    member: &str,
    topic: &str,
    assignments: &[Owner],
) -> Vec<u8> {
    let mut out = begin(SYNC_GROUP.0, SYNC_GROUP.1);
    put_string(&mut out, group);
    out.extend_from_slice(&generation.to_be_bytes());
    put_string(&mut out, member);
    out.extend_from_slice(&NULL_STRING);
    put_count(&mut out, assignments.len());
    for (member, partitions) in assignments {
        put_string(&mut out, member);
        let mut assignment = SUBSCRIPTION_VERSION.to_be_bytes().to_vec();
        put_partitions(&mut assignment, topic, partitions);
        assignment.extend_from_slice(&NULL_BYTES); // user data
        put_bytes(&mut out, &assignment);
    }
    finish(out)
}

/// Decodes the answer to a SyncGroup: its error code, and the assigned partitions.
pub(crate) fn read_synced(frame: &[u8], correlation_id: i32) -> Result<(i16, Vec<i32>), BenchError> {
    let (mut cursor, code) = plain(frame, correlation_id)?;
    if code != code::NONE || cursor.i32()? <= 0 {
        return Ok((code, Vec::new()));
    }
    cursor.i16()?; // version
    Ok((code, partitions(&mut cursor)?))
}

/// A Heartbeat request of the classic protocol.
pub(crate) fn heartbeat(group: &str, generation: i32, member: &str) -> Vec<u8> {
    let mut out = begin(HEARTBEAT.0, HEARTBEAT.1);
    put_string(&mut out, group);
    out.extend_from_slice(&generation.to_be_bytes());
    put_string(&mut out, member);
    out.extend_from_slice(&NULL_STRING);
    finish(out)
}

/// A LeaveGroup request.
pub(crate) fn leave(group: &str, member: &str) -> Vec<u8> {
    let mut out = begin(LEAVE_GROUP.0, LEAVE_GROUP.1);
    put_string(&mut out, group);
    put_string(&mut out, member);
    finish(out)
}

/// What a heartbeat of KIP-848 says beside the member's epoch.
pub(crate) enum Said<'a> {
    /// Nothing new.
    Nothing,
    /// The topic to subscribe to, and no owned partitions: a new member.
    Subscription(&'a str),
    /// The partitions that the member owns now.
    Owned(TopicId, &'a [i32]),
}

/// A ConsumerGroupHeartbeat request.
pub(crate) fn consumer_heartbeat(group: &str, member: &str, epoch: i32, said: &Said<'_>) -> Vec<u8> {
    let mut out = begin(CONSUMER_GROUP_HEARTBEAT.0, CONSUMER_GROUP_HEARTBEAT.1);
    out.push(0); // header tags
    put_compact(&mut out, group.as_bytes());
    put_compact(&mut out, member.as_bytes());
    out.extend_from_slice(&epoch.to_be_bytes());
    out.extend_from_slice(&[0, 0]); // instance id, rack id
    let timeout = match said {
        Said::Subscription(_) => REBALANCE_TIMEOUT_MS,
        _ => -1,
    };
    out.extend_from_slice(&timeout.to_be_bytes());
    if let Said::Subscription(topic) = said {
        out.push(2); // one topic
        put_compact(&mut out, topic.as_bytes());
    } else {
        out.push(0);
    }
    out.push(0); // assignor: the coordinator's choice
    match said {
        Said::Nothing => out.push(0),
        Said::Subscription(_) => out.push(1),
        Said::Owned(_, []) => out.push(1),
        Said::Owned(topic, partitions) => {
            out.push(2); // one topic
            out.extend_from_slice(topic);
            put_unsigned(&mut out, partitions.len() as u32 + 1);
            for partition in *partitions {
                out.extend_from_slice(&partition.to_be_bytes());
            }
            out.push(0); // tags of the topic
        }
    }
    out.push(0); // tags of the body
    finish(out)
}

/// The answer to a ConsumerGroupHeartbeat.
#[derive(Debug, PartialEq)]
pub(crate) struct Beaten {
    pub(crate) code: i16,
    pub(crate) member: String,
    pub(crate) epoch: i32,
    pub(crate) interval_ms: i32,
    /// The partitions that the member may own now, if the coordinator says so.
    pub(crate) assignment: Option<(TopicId, Vec<i32>)>,
}

/// Decodes the answer to a ConsumerGroupHeartbeat.
pub(crate) fn read_beaten(frame: &[u8], correlation_id: i32) -> Result<Beaten, BenchError> {
    let mut cursor = Cursor::new(frame);
    check_correlation(cursor.i32()?, correlation_id)?;
    cursor.tags()?;
    cursor.i32()?; // throttle time
    let code = cursor.i16()?;
    cursor.compact()?; // error message
    let member = text(frame, cursor.compact()?);
    let (epoch, interval_ms) = (cursor.i32()?, cursor.i32()?);
    let present = cursor.skip(1)?;
    let mut assignment = None;
    if frame[present] == [1] {
        let (mut topic, mut partitions) = (TopicId::default(), Vec::new());
        for _ in 0..cursor.compact_array()? {
            topic.copy_from_slice(&frame[cursor.skip(16)?]);
            for _ in 0..cursor.compact_array()? {
                partitions.push(cursor.i32()?);
            }
            cursor.tags()?;
        }
        assignment = Some((topic, partitions));
    }
    Ok(Beaten {
        code,
        member,
        epoch,
        interval_ms,
        assignment,
    })
}

/// An OffsetCommit request for `partitions` partitions of a topic. Returns the range of the first partition's
/// offset, too.
pub(crate) fn commit(
    group: &str,
    epoch: i32,
    member: &str,
    topic: &str,
    partitions: u32,
) -> (Vec<u8>, Range<usize>) {
    let mut out = begin(OFFSET_COMMIT.0, OFFSET_COMMIT.1);
    out.push(0); // header tags
    put_compact(&mut out, group.as_bytes());
    out.extend_from_slice(&epoch.to_be_bytes());
    put_compact(&mut out, member.as_bytes());
    out.push(0); // instance id
    out.push(2); // one topic
    put_compact(&mut out, topic.as_bytes());
    put_unsigned(&mut out, partitions + 1);
    let offset_at = out.len() + 4..out.len() + 12;
    for partition in 0..partitions {
        out.extend_from_slice(&partition.to_be_bytes());
        out.extend_from_slice(&0i64.to_be_bytes());
        out.extend_from_slice(&(-1i32).to_be_bytes()); // leader epoch: unknown
        put_compact(&mut out, b""); // metadata
        out.push(0); // tags of the partition
    }
    out.extend_from_slice(&[0, 0]); // tags of the topic, the body
    (finish(out), offset_at)
}

/// Checks the correlation id and all error codes of the answer to an OffsetCommit.
pub(crate) fn check_committed(frame: &[u8], correlation_id: i32) -> Result<(), BenchError> {
    let mut cursor = Cursor::new(frame);
    check_correlation(cursor.i32()?, correlation_id)?;
    cursor.tags()?;
    cursor.i32()?; // throttle time
    for _ in 0..cursor.compact_array()? {
        cursor.compact()?;
        for _ in 0..cursor.compact_array()? {
            let (partition, code) = (cursor.i32()?, cursor.i16()?);
            if code != code::NONE {
                return Err(BenchError::Broker {
                    api: "offset commit",
                    partition,
                    code,
                });
            }
            cursor.tags()?;
        }
        cursor.tags()?;
    }
    Ok(())
}
