//! One member of a group, without its connection: which request comes after which answer.
//!
//! A member has at most one request open, as a consumer has while it rebalances. It gives up a partition at
//! once, and knows no offsets.

use std::str::FromStr;
use std::time::Duration;

use crate::assignor;
use crate::error::BenchError;
use crate::group_messages::{self as wire, Join, Joined, Said, TopicId, code};

/// How long a member waits before it repeats a request to a coordinator that is still loading.
const RETRY: Duration = Duration::from_millis(50);

/// How a group rebalances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Classic; all partitions are given up before a rebalance.
    Eager,
    /// Classic; only partitions that move are given up.
    Cooperative,
    /// KIP-848: the coordinator assigns.
    Consumer,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "eager" => Ok(Self::Eager),
            "cooperative" => Ok(Self::Cooperative),
            "consumer" => Ok(Self::Consumer),
            _ => Err("not eager, cooperative or consumer".to_owned()),
        }
    }
}

/// What all members of a run have in common.
pub(crate) struct Shared {
    pub(crate) protocol: Protocol,
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    /// In the classic protocol. With KIP-848 the coordinator sets the interval.
    pub(crate) heartbeat: Duration,
    pub(crate) session: Duration,
}

/// The answer that a member waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Join,
    Sync,
    Heartbeat,
    Leave,
}

/// What a member does after an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    Send(Vec<u8>),
    /// Calls [`Member::on_timer`] after this time.
    Wait(Duration),
    Left,
}

/// A member of a group.
pub(crate) struct Member {
    /// The number of its group.
    pub(crate) group: usize,
    group_id: String,
    pub(crate) id: String,
    /// The generation or the member epoch.
    pub(crate) epoch: i32,
    pub(crate) owned: Vec<i32>,
    /// It has the assignment of its epoch, and no rebalance that it knows of.
    pub(crate) is_steady: bool,
    /// How often the coordinator did not know it any more.
    pub(crate) expelled: u64,
    topic_id: TopicId,
    open: Open,
    is_leaving: bool,
}

impl Member {
    pub(crate) fn new(group: usize, group_id: &str) -> Self {
        Self {
            group,
            group_id: group_id.to_owned(),
            id: String::new(),
            epoch: wire::JOINING,
            owned: Vec::new(),
            is_steady: false,
            expelled: 0,
            topic_id: TopicId::default(),
            open: Open::Nothing,
            is_leaving: false,
        }
    }

    /// Whether no answer is missing.
    pub(crate) fn is_idle(&self) -> bool {
        self.open == Open::Nothing
    }

    /// Whether the member waits for the answer to a JoinGroup.
    pub(crate) fn is_joining(&self) -> bool {
        self.open == Open::Join
    }

    /// The request that joins the group, or joins it again.
    pub(crate) fn join(&mut self, shared: &Shared) -> Vec<u8> {
        self.is_steady = false;
        if shared.protocol == Protocol::Consumer {
            self.open = Open::Heartbeat;
            self.epoch = wire::JOINING;
            self.owned.clear();
            let said = Said::Subscription(&shared.topic);
            return wire::consumer_heartbeat(&self.group_id, &self.id, self.epoch, &said);
        }
        if shared.protocol == Protocol::Eager {
            self.owned.clear();
        }
        self.open = Open::Join;
        wire::join(&Join {
            group: &self.group_id,
            member: &self.id,
            session_ms: shared.session.as_millis() as i32,
            assignor: if shared.protocol == Protocol::Eager {
                "range"
            } else {
                "cooperative-sticky"
            },
            topic: &shared.topic,
            owned: &self.owned,
        })
    }

    /// The request of a timer: a heartbeat, or a repeated join.
    pub(crate) fn on_timer(&mut self, shared: &Shared) -> Vec<u8> {
        if !self.is_steady {
            return self.join(shared);
        }
        self.open = Open::Heartbeat;
        self.heartbeat(shared)
    }

    /// A heartbeat that says nothing new.
    pub(crate) fn heartbeat(&self, shared: &Shared) -> Vec<u8> {
        match shared.protocol {
            Protocol::Consumer => {
                wire::consumer_heartbeat(&self.group_id, &self.id, self.epoch, &Said::Nothing)
            }
            _ => wire::heartbeat(&self.group_id, self.epoch, &self.id),
        }
    }

    /// An OffsetCommit of all partitions of the topic, and the range of an offset in it.
    pub(crate) fn commit(&self, shared: &Shared) -> (Vec<u8>, std::ops::Range<usize>) {
        wire::commit(
            &self.group_id,
            self.epoch,
            &self.id,
            &shared.topic,
            shared.partitions,
        )
    }

    /// The request that leaves the group. `None` while an answer is missing: then it is sent after that.
    pub(crate) fn leave(&mut self, shared: &Shared) -> Option<Vec<u8>> {
        self.is_leaving = true;
        self.is_steady = false;
        if self.open != Open::Nothing {
            return None;
        }
        self.open = Open::Leave;
        Some(match shared.protocol {
            Protocol::Consumer => {
                wire::consumer_heartbeat(&self.group_id, &self.id, wire::LEAVING, &Said::Nothing)
            }
            _ => wire::leave(&self.group_id, &self.id),
        })
    }

    /// Takes an answer.
    pub(crate) fn on_answer(
        &mut self,
        shared: &Shared,
        frame: &[u8],
        correlation_id: i32,
    ) -> Result<Next, BenchError> {
        let open = std::mem::replace(&mut self.open, Open::Nothing);
        let next = match open {
            Open::Join => self.on_joined(shared, wire::read_joined(frame, correlation_id)?)?,
            Open::Sync => {
                let (code, assigned) = wire::read_synced(frame, correlation_id)?;
                self.on_synced(shared, code, assigned)?
            }
            Open::Heartbeat if shared.protocol == Protocol::Consumer => {
                self.on_beaten(shared, wire::read_beaten(frame, correlation_id)?)?
            }
            Open::Heartbeat => {
                let code = wire::read_code(frame, correlation_id)?;
                match code {
                    code::NONE => Next::Wait(shared.heartbeat),
                    _ => self.on_code(shared, "heartbeat", code)?,
                }
            }
            Open::Leave => {
                let code = match shared.protocol {
                    Protocol::Consumer => wire::read_beaten(frame, correlation_id)?.code,
                    _ => wire::read_code(frame, correlation_id)?,
                };
                match code {
                    code::NONE | code::UNKNOWN_MEMBER_ID => Next::Left,
                    _ => return Err(BenchError::Refused { api: "leave", code }),
                }
            }
            Open::Nothing => {
                return Err(BenchError::Protocol("a response without a request".to_owned()));
            }
        };
        if self.is_leaving && next != Next::Left {
            self.open = Open::Nothing;
            return Ok(self.leave(shared).map_or(next, Next::Send));
        }
        Ok(next)
    }

    fn on_joined(&mut self, shared: &Shared, joined: Joined) -> Result<Next, BenchError> {
        if joined.code == code::MEMBER_ID_REQUIRED {
            self.id = joined.member;
            return Ok(Next::Send(self.join(shared)));
        }
        if joined.code != code::NONE {
            return self.on_code(shared, "join", joined.code);
        }
        self.id = joined.member;
        self.epoch = joined.generation;
        let assignments = if self.id == joined.leader {
            let cooperative = shared.protocol == Protocol::Cooperative;
            assignor::assign(joined.members, shared.partitions as i32, cooperative)
        } else {
            Vec::new()
        };
        self.open = Open::Sync;
        Ok(Next::Send(wire::sync(
            &self.group_id,
            self.epoch,
            &self.id,
            &shared.topic,
            &assignments,
        )))
    }

    fn on_synced(&mut self, shared: &Shared, code: i16, assigned: Vec<i32>) -> Result<Next, BenchError> {
        if code != code::NONE {
            return self.on_code(shared, "sync", code);
        }
        let gives_up = self.owned.iter().any(|partition| !assigned.contains(partition));
        self.owned = assigned;
        if gives_up {
            return Ok(Next::Send(self.join(shared)));
        }
        self.is_steady = true;
        Ok(Next::Wait(shared.heartbeat))
    }

    fn on_beaten(&mut self, shared: &Shared, beaten: wire::Beaten) -> Result<Next, BenchError> {
        if beaten.code != code::NONE {
            return self.on_code(shared, "consumer group heartbeat", beaten.code);
        }
        if !beaten.member.is_empty() {
            self.id = beaten.member;
        }
        self.epoch = beaten.epoch;
        self.is_steady = true;
        if let Some((topic, mut assigned)) = beaten.assignment {
            assigned.sort_unstable();
            if !assigned.is_empty() {
                self.topic_id = topic;
            }
            if assigned != self.owned {
                self.owned = assigned;
                self.open = Open::Heartbeat;
                let said = Said::Owned(self.topic_id, &self.owned);
                let request = wire::consumer_heartbeat(&self.group_id, &self.id, self.epoch, &said);
                return Ok(Next::Send(request));
            }
        }
        Ok(Next::Wait(Duration::from_millis(
            u64::try_from(beaten.interval_ms).unwrap_or(0),
        )))
    }

    /// Handles the errors that a consumer handles, too.
    fn on_code(&mut self, shared: &Shared, api: &'static str, code: i16) -> Result<Next, BenchError> {
        match code {
            code::COORDINATOR_LOAD_IN_PROGRESS | code::COORDINATOR_NOT_AVAILABLE | code::NOT_COORDINATOR => {
                return Ok(Next::Wait(RETRY));
            }
            code::REBALANCE_IN_PROGRESS => {}
            code::UNKNOWN_MEMBER_ID => {
                self.id.clear();
                self.owned.clear();
                self.expelled += 1;
            }
            code::ILLEGAL_GENERATION | code::FENCED_MEMBER_EPOCH => {
                self.owned.clear();
                self.expelled += 1;
            }
            _ => return Err(BenchError::Refused { api, code }),
        }
        Ok(Next::Send(self.join(shared)))
    }
}
