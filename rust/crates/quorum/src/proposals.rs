//! What this member proposes, until it is agreed on.
//!
//! Proposals go to whoever leads, one batch after another, in order. Whenever it is not certain that one arrived (another
//! leads, the way broke, nothing was agreed on for a while) everything that was not seen agreed on is sent again, in order;
//! [`crate::delivery`] makes each count once. So a change of leader is a delay for whoever proposed, not an error.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;

use crate::delivery::{Delivery, ticket};
use crate::entry::{Command, Commands};
use crate::types::MemberId;

/// A batch has at most so many commands and, unless one is larger, bytes.
const BATCH_COMMANDS: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;
/// What may be proposed and not agreed on yet.
const OUTSTANDING_BYTES: usize = 64 << 20;
const OUTSTANDING_COMMANDS: usize = 65_536;

/// Too much is proposed and not agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{commands} commands of {bytes} bytes wait to be agreed on: wait until there are fewer, or look whether the ensemble has a leader"
)]
pub struct Full {
    pub commands: usize,
    pub bytes: usize,
}

/// This member's proposals.
pub struct Proposals {
    member: MemberId,
    start: u32,
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Default)]
struct Queue {
    /// The sequence number of the first that waits.
    first: u64,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// How many of those were sent since the last time that all were to be sent again.
    sent: usize,
}

impl Queue {
    fn pop_front(&mut self) {
        if let Some(body) = self.waiting.pop_front() {
            self.bytes -= body.len();
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
        }
    }
}

impl Proposals {
    /// Of a member that starts for the `start`-th time: a number that it never had before.
    pub fn new(member: MemberId, start: u32) -> Self {
        Self {
            member,
            start,
            queue: Mutex::default(),
            more: Notify::new(),
        }
    }

    /// Proposes a command, and says which ticket it has. Does not wait.
    ///
    /// Errors: [`Full`]; nothing was proposed then.
    pub fn propose(&self, body: Bytes) -> Result<u64, Full> {
        let mut queue = self.queue.lock();
        let (commands, bytes) = (queue.waiting.len(), queue.bytes);
        let fits = bytes + body.len() <= OUTSTANDING_BYTES || commands == 0;
        if !fits || commands >= OUTSTANDING_COMMANDS {
            return Err(Full { commands, bytes });
        }
        let ticket = ticket(self.start, queue.first + commands as u64);
        queue.bytes += body.len();
        queue.waiting.push_back(body);
        drop(queue);
        self.more.notify_one();
        Ok(ticket)
    }

    /// A command counted. Whether this member proposed it since it started.
    pub(crate) fn delivered(&self, command: &Command) -> bool {
        let mut queue = self.queue.lock();
        if command.member != self.member || command.ticket != ticket(self.start, queue.first) {
            return false;
        }
        queue.pop_front();
        true
    }

    /// All commands up to these counted.
    pub(crate) fn delivered_up_to(&self, delivery: &Delivery) {
        let Some(last) = delivery.last(self.member) else {
            return;
        };
        let mut queue = self.queue.lock();
        while !queue.waiting.is_empty() && ticket(self.start, queue.first) <= last {
            queue.pop_front();
        }
    }

    /// Everything is to be sent again.
    pub(crate) fn begin_anew(&self) {
        self.queue.lock().sent = 0;
    }

    /// How many were sent and not seen agreed on, and the sequence number of the first of them.
    pub(crate) fn outstanding(&self) -> (usize, u64) {
        let queue = self.queue.lock();
        (queue.sent, queue.first)
    }

    /// The next to send, with this time; they count as sent.
    pub(crate) fn next_batch(&self, time_ms: i64) -> Option<Commands> {
        let mut queue = self.queue.lock();
        let (mut commands, mut bytes) = (Vec::new(), 0);
        let begin = queue.sent;
        for (index, body) in queue.waiting.iter().enumerate().skip(begin) {
            bytes += body.len();
            if commands.len() == BATCH_COMMANDS || (bytes > BATCH_BYTES && !commands.is_empty()) {
                break;
            }
            commands.push(Command {
                member: self.member,
                ticket: ticket(self.start, queue.first + index as u64),
                body: body.clone(),
            });
        }
        queue.sent += commands.len();
        (!commands.is_empty()).then(|| Commands::new(time_ms, &commands))
    }

    /// Returns once there may be more to send.
    pub(crate) async fn more(&self) {
        self.more.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(commands: Option<Commands>) -> Vec<u64> {
        let of = |commands: Commands| commands.iter().map(|c| c.ticket & 0xff_ffff).collect();
        commands.map(of).unwrap_or_default()
    }

    fn command(ticket: u64) -> Command {
        Command {
            member: 1,
            ticket,
            body: Bytes::new(),
        }
    }

    #[test]
    fn they_are_sent_in_order_and_again_until_they_are_delivered() {
        let proposals = Proposals::new(1, 3);
        for _ in 0..3 {
            proposals.propose(Bytes::from_static(b"a")).unwrap();
        }
        assert_eq!(sequences(proposals.next_batch(0)), [0, 1, 2]);
        assert_eq!(sequences(proposals.next_batch(0)), [0; 0]);
        let fourth = proposals.propose(Bytes::from_static(b"b")).unwrap();
        assert_eq!(fourth, ticket(3, 3));
        assert_eq!(sequences(proposals.next_batch(0)), [3]);
        assert!(proposals.delivered(&command(ticket(3, 0))));
        assert!(!proposals.delivered(&command(ticket(2, 1))));
        assert_eq!(proposals.outstanding(), (3, 1));
        proposals.begin_anew();
        assert_eq!(sequences(proposals.next_batch(0)), [1, 2, 3]);
    }

    #[test]
    fn there_is_a_bound_and_one_large_command_goes_alone() {
        let proposals = Proposals::new(1, 1);
        let large = Bytes::from(vec![0; OUTSTANDING_BYTES + 1]);
        proposals.propose(large.clone()).unwrap();
        let full = proposals.propose(Bytes::from_static(b"a")).unwrap_err();
        assert_eq!((full.commands, full.bytes), (1, OUTSTANDING_BYTES + 1));
        assert_eq!(sequences(proposals.next_batch(0)), [0]);
        assert!(proposals.delivered(&command(ticket(1, 0))));
        for _ in 0..3 {
            proposals
                .propose(Bytes::from(vec![0; BATCH_BYTES * 2 / 3]))
                .unwrap();
        }
        assert_eq!(sequences(proposals.next_batch(0)), [1]);
        assert_eq!(sequences(proposals.next_batch(0)), [2]);
    }
}
