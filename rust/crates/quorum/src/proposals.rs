//! What this member proposes, until it is agreed on.
//!
//! Proposals go to whoever leads, one batch after another, in order. Whenever it is not certain that one arrived (another
//! leads, the way broke, nothing was agreed on for a while) everything that was not seen agreed on is sent again, in order;
//! [`crate::delivery`] makes each count once. After a silence the first batch goes alone until it is agreed on, so that a
//! leader that is slow is not given everything again and again. So a change of leader is a delay for whoever proposed, not an error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

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
    member: AtomicU64,
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
    /// Nothing follows what was sent until something is agreed on.
    probing: bool,
}

impl Queue {
    fn pop_front(&mut self) {
        if let Some(body) = self.waiting.pop_front() {
            self.bytes -= body.len();
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
            self.probing = false;
        }
    }
}

impl Proposals {
    /// Of a member that starts for the `start`-th time: a number that it never had before.
    pub fn new(member: MemberId, start: u32) -> Self {
        Self {
            member: AtomicU64::new(member),
            start,
            queue: Mutex::default(),
            more: Notify::new(),
        }
    }

    /// Says who proposes, if that was not known before. Nothing is sent until then.
    pub(crate) fn set_member(&self, member: MemberId) {
        self.member.store(member, Ordering::Relaxed);
    }

    fn member(&self) -> MemberId {
        self.member.load(Ordering::Relaxed)
    }

    /// Proposes a command, and says which ticket it has. Does not wait.
    ///
    /// Errors: [`Full`]; nothing was proposed then.
    pub fn propose(&self, body: Bytes) -> Result<u64, Full> {
        self.propose_all(vec![body])
    }

    /// Proposes commands, and says which ticket the first has; the others follow it. Does not wait.
    ///
    /// Errors: [`Full`]; nothing was proposed then.
    pub fn propose_all(&self, bodies: Vec<Bytes>) -> Result<u64, Full> {
        let mut queue = self.queue.lock();
        let (commands, bytes) = (queue.waiting.len(), queue.bytes);
        let more: usize = bodies.iter().map(Bytes::len).sum();
        let fits = bytes + more <= OUTSTANDING_BYTES || commands == 0;
        if !fits || commands + bodies.len() > OUTSTANDING_COMMANDS {
            return Err(Full { commands, bytes });
        }
        let first = ticket(self.start, queue.first + commands as u64);
        queue.bytes += more;
        queue.waiting.extend(bodies);
        drop(queue);
        self.more.notify_one();
        Ok(first)
    }

    /// The ticket of the first that was not delivered, or of the next that is proposed.
    pub fn next_ticket(&self) -> u64 {
        ticket(self.start, self.queue.lock().first)
    }

    /// A command counted. Whether this member proposed it since it started.
    pub(crate) fn delivered(&self, command: &Command) -> bool {
        let mut queue = self.queue.lock();
        if command.member != self.member() || command.ticket != ticket(self.start, queue.first) {
            return false;
        }
        let probed = queue.probing;
        queue.pop_front();
        drop(queue);
        if probed {
            self.more.notify_one();
        }
        true
    }

    /// All commands up to these counted.
    pub(crate) fn delivered_up_to(&self, delivery: &Delivery) {
        let Some(last) = delivery.last(self.member()) else {
            return;
        };
        let mut queue = self.queue.lock();
        while !queue.waiting.is_empty() && ticket(self.start, queue.first) <= last {
            queue.pop_front();
        }
        drop(queue);
        self.more.notify_one();
    }

    /// How many were not delivered.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Everything is to be sent again; with `probing` nothing after the first batch until something is agreed on.
    pub(crate) fn begin_anew(&self, probing: bool) {
        let mut queue = self.queue.lock();
        queue.sent = 0;
        queue.probing = probing;
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
        if queue.probing && begin > 0 {
            return None;
        }
        for (index, body) in queue.waiting.iter().enumerate().skip(begin) {
            bytes += body.len();
            if commands.len() == BATCH_COMMANDS || (bytes > BATCH_BYTES && !commands.is_empty()) {
                break;
            }
            commands.push(Command {
                member: self.member(),
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
        proposals.begin_anew(false);
        assert_eq!(sequences(proposals.next_batch(0)), [1, 2, 3]);
    }

    #[test]
    fn after_a_silence_the_first_batch_goes_alone() {
        let proposals = Proposals::new(1, 1);
        for _ in 0..3 {
            let body = Bytes::from(vec![0; BATCH_BYTES * 2 / 3]);
            proposals.propose(body).unwrap();
            proposals.next_batch(0).unwrap();
        }
        proposals.begin_anew(true);
        assert_eq!(sequences(proposals.next_batch(0)), [0]);
        assert_eq!(proposals.next_batch(0), None);
        assert!(proposals.delivered(&command(ticket(1, 0))));
        assert_eq!(sequences(proposals.next_batch(0)), [1]);
        assert_eq!(sequences(proposals.next_batch(0)), [2]);
    }

    #[test]
    fn several_are_proposed_together_or_not_at_all() {
        let proposals = Proposals::new(1, 1);
        let three = || vec![Bytes::from_static(b"a"); 3];
        assert_eq!(proposals.propose_all(three()), Ok(ticket(1, 0)));
        assert_eq!(proposals.propose_all(three()), Ok(ticket(1, 3)));
        let many = vec![Bytes::new(); OUTSTANDING_COMMANDS - 5];
        let full = Full {
            commands: 6,
            bytes: 6,
        };
        assert_eq!(proposals.propose_all(many), Err(full));
        assert_eq!(proposals.outstanding(), (0, 0));
        assert_eq!(proposals.next_ticket(), ticket(1, 0));
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
