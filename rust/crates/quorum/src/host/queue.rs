//! The events that wait for the application, and when it is woken for them.
//!
//! The host's thread fills the queue; the application takes from it on any thread. Entries in the queue are
//! bounded: more are read from the log only when some were taken.
//!
//! The application is woken at once for events that a client of this server may wait for: a command that this
//! member proposed, a role, a barrier. For other members' commands it is woken at intervals
//! ([`WAKE_INTERVAL`], unless it sets another), once for all that came by then. Waking it costs about as much
//! as applying an entry, and where members share processors it delays those whose clients wait.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use logcore_wake::WakeFd;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::applied::{Applied, Position};
use super::event::{Event, OutOfOrder, Role, RoleKind, Stopped};
use crate::delivery::Delivery;
use crate::files::snapshots::{SnapshotFile, SnapshotSource};
use crate::raft::types::{LogId, Snapshot, SnapshotMeta};
use crate::reader::DeliveredEntry;

/// The limit of bytes that wait. No more entries are read then.
const WAITING_BYTES: usize = 4 << 20;
/// The limit of session renewals that wait. More are refused.
const RENEWAL_BYTES: usize = 16 << 20;
/// The approximate size of an event or an entry without its bytes.
const EVENT_BYTES: usize = 64;
/// The limit of barriers that wait. More are refused.
pub(super) const BARRIERS: usize = 65_536;
const WAKE_INTERVAL: Duration = Duration::from_millis(1);
/// The limit of different warnings.
const WARNINGS: usize = 256;

pub(super) struct EventQueue {
    state: Mutex<State>,
    wake: WakeFd,
    /// Notified when bytes were taken.
    taken: Notify,
    /// Notified when events wait for the end of an interval.
    wake_later: Notify,
}

struct State {
    /// Each event with its size.
    queue: VecDeque<(Event, usize)>,
    bytes: usize,
    /// Whether the application is to be woken at once.
    is_urgent: bool,
    /// The application was woken and did not take yet.
    is_woken: bool,
    woken_at: Option<Instant>,
    wake_interval: Duration,
    renewal_bytes: usize,
    /// The index of the next entry to deliver, and the term of the last.
    next: u64,
    term: u64,
    /// The index after the last entry that was taken.
    taken: u64,
    applied: Applied,
    barriers: Vec<Barrier>,
    /// Barriers that were asked for and not answered.
    barriers_open: usize,
    /// The role that was reported last.
    role: Option<Role>,
    /// The role to report once entries below an index were delivered.
    next_role: Option<(Role, u64)>,
    /// The last term in which leading was reported.
    leading_term: u64,
    warned: HashSet<String>,
    failed: Option<String>,
}

/// A barrier that waits for the entry with an index.
struct Barrier {
    number: u64,
    index: u64,
    deadline: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// Nothing waits, or the application was woken already.
    No,
    Now,
    Later,
}

/// Whether a client of this server may wait for an entry.
fn is_awaited(entry: &DeliveredEntry) -> bool {
    entry.membership.is_some() || entry.commands.iter().any(|counted| counted.mine)
}

impl State {
    /// Decides whether to wake the application. `Now` counts as done.
    fn wake(&mut self, now: Instant) -> Wake {
        if self.queue.is_empty() || self.is_woken {
            return Wake::No;
        }
        let is_recent = |at: Instant| now.saturating_duration_since(at) < self.wake_interval;
        if !self.is_urgent && self.woken_at.is_some_and(is_recent) {
            return Wake::Later;
        }
        self.is_woken = true;
        self.woken_at = Some(now);
        Wake::Now
    }

    fn push(&mut self, event: Event, bytes: usize) {
        if self.failed.is_none() {
            self.is_urgent |= match &event {
                Event::Entries(entries) => entries.iter().any(is_awaited),
                _ => true,
            };
            self.bytes += bytes + EVENT_BYTES;
            self.queue.push_back((event, bytes + EVENT_BYTES));
        }
    }

    fn answer_barrier(&mut self, number: u64, ok: bool) {
        self.barriers_open -= 1;
        self.push(Event::Barrier { number, ok }, 0);
    }

    /// Reports what had to wait for entries that are delivered now.
    fn report_due(&mut self) {
        let next = self.next;
        let due = self.barriers.extract_if(.., |barrier| barrier.index < next);
        for barrier in due.collect::<Vec<_>>() {
            self.answer_barrier(barrier.number, true);
        }
        if let Some((role, after)) = self.next_role
            && after <= next
        {
            self.next_role = None;
            if self.role != Some(role) {
                self.role = Some(role);
                self.push(Event::Role(role), 0);
            }
        }
        if let Some(role) = self.role
            && role.kind == RoleKind::Leader
            && self.next_role.is_none()
            && self.term == role.term
            && self.leading_term < role.term
        {
            self.leading_term = role.term;
            self.push(Event::Leading { term: role.term }, 0);
        }
    }
}

impl EventQueue {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                bytes: 0,
                is_urgent: false,
                is_woken: false,
                woken_at: None,
                wake_interval: WAKE_INTERVAL,
                renewal_bytes: 0,
                next: 0,
                term: 0,
                taken: 0,
                applied: Applied::default(),
                barriers: Vec::new(),
                barriers_open: 0,
                role: None,
                next_role: None,
                leading_term: 0,
                warned: HashSet::new(),
                failed: None,
            }),
            wake: WakeFd::new()?,
            taken: Notify::new(),
            wake_later: Notify::new(),
        })
    }

    pub(super) fn wake_fd(&self) -> RawFd {
        self.wake.raw()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let wake = state.wake(Instant::now());
        drop(state);
        match wake {
            Wake::No => {}
            Wake::Now => self.wake.signal(),
            Wake::Later => self.wake_later.notify_one(),
        }
        result
    }

    // ---- the host's thread ----

    /// Returns once events wait for the end of an interval, with that time.
    pub(super) async fn interval_end(&self) -> Instant {
        self.wake_later.notified().await;
        let state = self.state.lock();
        let due = state.woken_at.map(|at| at + state.wake_interval);
        due.unwrap_or_else(Instant::now)
    }

    /// Wakes the application for whatever waits.
    pub(super) fn wake_now(&self) {
        self.change(|state| state.is_urgent = !state.queue.is_empty());
    }

    /// Returns once more entries may be delivered.
    pub(super) async fn has_space(&self) {
        loop {
            let taken = self.taken.notified();
            if self.state.lock().bytes < WAITING_BYTES {
                return;
            }
            taken.await;
        }
    }

    pub(super) fn deliver(&self, entries: Vec<DeliveredEntry>) {
        let Some(last) = entries.last().map(|entry| entry.log_id) else {
            return;
        };
        let commands = entries.iter().flat_map(|entry| &entry.commands);
        let bytes: usize = commands
            .map(|counted| EVENT_BYTES + counted.command.body.len())
            .sum();
        let bytes = bytes + EVENT_BYTES * entries.len();
        self.change(|state| {
            for entry in &entries {
                state.applied.delivered(entry);
            }
            state.next = last.index + 1;
            state.term = last.leader_id.term;
            state.push(Event::Entries(entries), bytes);
            state.report_due();
        });
    }

    /// Delivers a snapshot that replaces the state. `my_next` is the ticket of this member's first command
    /// after it.
    pub(super) fn install(
        &self,
        snapshot: &Snapshot<SnapshotFile>,
        delivery: &Delivery,
        my_next: u64,
    ) -> io::Result<()> {
        let Some(source) = SnapshotSource::open(snapshot)? else {
            return Ok(());
        };
        let last = source.log_id;
        let position = Position {
            last: Some(last),
            membership: snapshot.meta.last_membership.clone(),
            delivery: delivery.clone(),
        };
        self.change(|state| {
            state.applied.installed(position);
            state.next = last.index + 1;
            state.term = last.leader_id.term;
            state.push(Event::Install { source, my_next }, 0);
            state.report_due();
        });
        Ok(())
    }

    /// Sets this member's role. It is reported after the entries with indexes below `after`.
    pub(super) fn set_role(&self, role: Role, after: u64) {
        self.change(|state| {
            let before = state.next_role.map_or(0, |(_, before)| before);
            if state.next_role.is_some() || state.role != Some(role) {
                state.next_role = Some((role, after.max(before)));
            }
            state.report_due();
        });
    }

    /// This member's role, reported or not.
    pub(super) fn current_role(&self) -> Role {
        let state = self.state.lock();
        let next = state.next_role.map(|(role, _)| role);
        next.or(state.role).unwrap_or(Role::LOOKING)
    }

    /// Adds barriers that are answered once this entry was delivered.
    pub(super) fn add_barriers(&self, index: u64, numbers: Vec<(u64, Instant)>) {
        self.change(|state| {
            let barriers = numbers.into_iter().map(|(number, deadline)| Barrier {
                number,
                index,
                deadline,
            });
            state.barriers.extend(barriers);
            state.report_due();
        });
    }

    pub(super) fn refuse_barriers(&self, numbers: impl IntoIterator<Item = u64>) {
        self.change(|state| {
            for number in numbers {
                state.answer_barrier(number, false);
            }
        });
    }

    /// Refuses the barriers whose deadline has passed; all of them without `now`.
    pub(super) fn expire_barriers(&self, now: Option<Instant>) {
        if self.state.lock().barriers.is_empty() {
            return;
        }
        self.change(|state| {
            let is_late = |barrier: &mut Barrier| now.is_none_or(|now| barrier.deadline <= now);
            for barrier in state.barriers.extract_if(.., is_late).collect::<Vec<_>>() {
                state.answer_barrier(barrier.number, false);
            }
        });
    }

    /// Returns false when too many renewals wait.
    pub(super) fn sessions_renewed(&self, server: u16, sessions: Bytes) -> bool {
        self.change(|state| {
            let bytes = sessions.len();
            if state.renewal_bytes + bytes > RENEWAL_BYTES {
                return false;
            }
            state.renewal_bytes += bytes + EVENT_BYTES;
            state.push(Event::SessionsRenewed { server, sessions }, bytes);
            true
        })
    }

    pub(super) fn report(&self, event: Event) {
        self.change(|state| state.push(event, 0));
    }

    /// Reports a message for the operator, unless it was reported before.
    pub(super) fn warn(&self, text: String) {
        self.change(|state| {
            if state.warned.len() < WARNINGS && state.warned.insert(text.clone()) {
                state.push(Event::Warning(text), 0);
            }
        });
    }

    /// Reports the failure of the member. Later events are dropped.
    pub(super) fn fail(&self, why: String) {
        self.change(|state| {
            if state.failed.is_none() {
                state.push(Event::Failed(why.clone()), 0);
                state.failed = Some(why);
            }
        });
    }

    pub(super) fn failure(&self) -> Option<Stopped> {
        self.state.lock().failed.clone().map(Stopped)
    }

    // ---- the application ----

    /// Takes at least one event if there is one, and otherwise about `max_bytes`.
    pub(super) fn take(&self, max_bytes: usize) -> Result<Vec<Event>, Stopped> {
        // Before the queue is looked at, so that no signal for a later event is lost.
        self.wake.clear();
        let mut state = self.state.lock();
        state.is_woken = false;
        if state.queue.is_empty()
            && let Some(why) = &state.failed
        {
            return Err(Stopped(why.clone()));
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while let Some((_, size)) = state.queue.front() {
            if !events.is_empty() && bytes + size > max_bytes {
                break;
            }
            let Some((event, size)) = state.queue.pop_front() else {
                break;
            };
            bytes += size;
            state.bytes -= size;
            match &event {
                Event::Entries(entries) => {
                    state.taken = entries.last().map_or(0, |entry| entry.log_id.index + 1);
                }
                Event::Install { source, .. } => state.taken = source.log_id.index + 1,
                Event::SessionsRenewed { .. } => state.renewal_bytes -= size,
                _ => {}
            }
            events.push(event);
        }
        state.is_urgent = !state.queue.is_empty();
        let (wake, has_space) = (state.wake(Instant::now()), state.bytes < WAITING_BYTES);
        drop(state);
        if wake == Wake::Now {
            self.wake.signal();
        }
        if has_space {
            self.taken.notify_one();
        }
        Ok(events)
    }

    pub(super) fn set_wake_interval(&self, interval: Duration) {
        self.state.lock().wake_interval = interval;
    }

    pub(super) fn applied(&self, index: u64) -> Result<(), OutOfOrder> {
        let mut state = self.state.lock();
        if index >= state.taken {
            return Err(OutOfOrder(format!(
                "entry {index} cannot be applied: only entries before {} were taken",
                state.taken
            )));
        }
        state.applied.applied(index);
        Ok(())
    }

    pub(super) fn last_applied(&self) -> Option<LogId> {
        self.state.lock().applied.last()
    }

    /// The metadata of a snapshot of the application's state, which must be at this entry.
    pub(super) fn snapshot_of(&self, index: u64) -> Result<(SnapshotMeta, Delivery), OutOfOrder> {
        self.state.lock().applied.snapshot_of(index)
    }

    /// Counts a barrier. Returns false when too many wait.
    pub(super) fn open_barrier(&self) -> bool {
        let mut state = self.state.lock();
        let fits = state.barriers_open < BARRIERS;
        state.barriers_open += usize::from(fits);
        fits
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::commands::Command;
    use crate::raft::types::log_id;
    use crate::reader::Counted;

    fn is_readable(queue: &EventQueue) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(queue.wake.borrowed(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
    }

    fn entry(index: u64, mine: bool) -> Vec<DeliveredEntry> {
        let command = Command {
            member: 1,
            ticket: index,
            body: Bytes::from_static(b"a"),
        };
        vec![DeliveredEntry {
            log_id: log_id(1, index),
            time_ms: 0,
            commands: vec![Counted { command, mine }],
            membership: None,
        }]
    }

    /// If this failed, a client would wait for its committed write, or every member be woken for each command
    /// of another.
    #[test]
    fn the_application_is_woken_at_once_for_its_own_commands_and_at_intervals_for_others() {
        let queue = EventQueue::new().unwrap();
        queue.deliver(entry(1, false));
        assert!(is_readable(&queue), "the last wake is long ago");
        queue.take(usize::MAX).unwrap();
        let woken_just_now = || queue.state.lock().woken_at = Some(Instant::now() + Duration::from_secs(60));
        woken_just_now();
        for index in 2..4 {
            queue.deliver(entry(index, false));
            assert!(!is_readable(&queue));
        }
        assert!(queue.wake_later.notified().now_or_never().is_some());
        queue.deliver(entry(4, true));
        assert!(is_readable(&queue));
        assert_eq!(queue.take(usize::MAX).unwrap().len(), 3);
        assert!(!is_readable(&queue));

        let woken_a_while_ago = || queue.state.lock().woken_at = Some(Instant::now() - 10 * WAKE_INTERVAL);
        for (index, interval) in [(5, Duration::from_secs(60)), (6, WAKE_INTERVAL)] {
            woken_a_while_ago();
            queue.set_wake_interval(interval);
            queue.deliver(entry(index, false));
            assert_eq!(is_readable(&queue), interval == WAKE_INTERVAL);
            queue.take(usize::MAX).unwrap();
        }

        woken_just_now();
        queue.deliver(entry(7, false));
        queue.wake_now();
        assert!(is_readable(&queue));
        assert_eq!(queue.take(1).unwrap().len(), 1);
        queue.wake_now();
        assert!(!is_readable(&queue), "nothing waits");

        woken_just_now();
        queue.deliver(entry(8, false));
        queue.deliver(entry(9, false));
        assert_eq!(queue.take(1).unwrap().len(), 1);
        assert!(is_readable(&queue), "an event is left");
        queue.take(1).unwrap();

        woken_just_now();
        queue.deliver(entry(10, false));
        assert!(queue.open_barrier());
        queue.add_barriers(10, vec![(1, Instant::now() + Duration::from_secs(60))]);
        assert!(is_readable(&queue), "a barrier is answered");
    }
}
