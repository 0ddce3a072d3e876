//! The commands that this member proposes, until they are delivered.
//!
//! Batches go to the leader one after another, in order. Whenever a batch may be lost (another member leads,
//! the connection broke, nothing was committed for a while), everything that was not delivered is sent again,
//! in order. [`crate::delivery`] lets each command count once. A change of leader is therefore a delay for
//! clients, not an error.
//!
//! After a silence, the first batch is sent alone until it is committed. A slow leader is thus not sent
//! everything again and again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;

use crate::commands::{Command, Commands};
use crate::delivery::{Delivery, ticket};
use crate::servers::MemberId;

/// The most commands of a batch, and the most bytes unless its first command is larger.
const BATCH_COMMANDS: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;
/// The most that may be proposed and not delivered yet. A proposal beyond it is refused with [`Full`].
const OUTSTANDING_BYTES: usize = 64 << 20;
const OUTSTANDING_COMMANDS: usize = 65_536;

/// The limit of proposals that are not committed yet is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{commands} commands of {bytes} bytes wait to be committed: wait until there are fewer, or check that \
     the ensemble has a leader"
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
    /// The sequence number of the first command that waits.
    first: u64,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// How many of them were sent since the last [`Proposals::send_again`].
    sent: usize,
    /// Nothing more is sent until one of the sent commands is delivered.
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
    /// `start` is a number that this member never had before.
    pub fn new(member: MemberId, start: u32) -> Self {
        Self {
            member: AtomicU64::new(member),
            start,
            queue: Mutex::default(),
            more: Notify::new(),
        }
    }

    /// Sets the member's id once it is known. Nothing is sent before.
    pub(crate) fn set_member(&self, member: MemberId) {
        self.member.store(member, Ordering::Relaxed);
    }

    fn member(&self) -> MemberId {
        self.member.load(Ordering::Relaxed)
    }

    /// Proposes a command and returns its ticket. Does not wait.
    ///
    /// Errors: [`Full`]; nothing was proposed then.
    pub fn propose(&self, body: Bytes) -> Result<u64, Full> {
        self.propose_all(vec![body])
    }

    /// Proposes commands and returns the ticket of the first; the others have the tickets after it. Does not
    /// wait.
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

    /// The ticket of the first command that was not delivered, or of the next to be proposed.
    pub fn next_ticket(&self) -> u64 {
        ticket(self.start, self.queue.lock().first)
    }

    /// Notes that a command counted. Returns whether this member proposed it since its start.
    pub(crate) fn delivered(&self, command: &Command) -> bool {
        let mut queue = self.queue.lock();
        if command.member != self.member() || command.ticket != ticket(self.start, queue.first) {
            return false;
        }
        let was_probing = queue.probing;
        queue.pop_front();
        drop(queue);
        if was_probing {
            self.more.notify_one();
        }
        true
    }

    /// Notes that all commands up to these counted.
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

    /// The number of commands that were not delivered.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Has everything sent again. With `probing`, nothing follows the first batch until a command is
    /// delivered.
    pub(crate) fn send_again(&self, probing: bool) {
        let mut queue = self.queue.lock();
        queue.sent = 0;
        queue.probing = probing;
    }

    /// How many were sent and not delivered, and the sequence number of the first of them.
    pub(crate) fn outstanding(&self) -> (usize, u64) {
        let queue = self.queue.lock();
        (queue.sent, queue.first)
    }

    /// The next batch to send, stamped with this time. Its commands count as sent.
    pub(crate) fn next_batch(&self, time_ms: i64) -> Option<Commands> {
        let mut queue = self.queue.lock();
        let (mut commands, mut bytes) = (Vec::new(), 0);
        let sent = queue.sent;
        if queue.probing && sent > 0 {
            return None;
        }
        for (index, body) in queue.waiting.iter().enumerate().skip(sent) {
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

    /// If this failed, a command would be lost with the leader that had it, or overtake another.
    #[test]
    fn commands_are_sent_in_order_and_again_until_they_are_delivered() {
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
        proposals.send_again(false);
        assert_eq!(sequences(proposals.next_batch(0)), [1, 2, 3]);
    }

    /// If this failed, a slow leader would be sent everything again and again, and become slower.
    #[test]
    fn after_a_silence_the_first_batch_is_sent_alone() {
        let proposals = Proposals::new(1, 1);
        for _ in 0..3 {
            let body = Bytes::from(vec![0; BATCH_BYTES * 2 / 3]);
            proposals.propose(body).unwrap();
            proposals.next_batch(0).unwrap();
        }
        proposals.send_again(true);
        assert_eq!(sequences(proposals.next_batch(0)), [0]);
        assert_eq!(proposals.next_batch(0), None);
        assert!(proposals.delivered(&command(ticket(1, 0))));
        assert_eq!(sequences(proposals.next_batch(0)), [1]);
        assert_eq!(sequences(proposals.next_batch(0)), [2]);
    }

    /// If this failed, a refused call would have proposed some of its commands.
    #[test]
    fn commands_of_one_call_are_proposed_together_or_not_at_all() {
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

    /// If this failed, an ensemble without a leader would fill the memory, or a large command could never be
    /// proposed.
    #[test]
    fn the_queue_is_bounded_and_a_large_command_is_sent_alone() {
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
