//! What a host has for whoever applies entries, in order, and what that one has applied of it.
//!
//! Filled on the host's thread, taken on any other. What is delivered and not taken has a bound: the log keeps the rest.
//!
//! Whoever applies entries is woken at once for what somebody waits for: what this member proposed, what it asked for. For what
//! others proposed it is woken once in a while, for all that came by then: [`TOGETHER`], unless it says that it has more patience.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use logcore_wake::WakeFd;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;

use crate::delivery::Delivery;
use crate::flushes::Flush;
use crate::machine::Snapshot;
use crate::reader::DeliveredEntry;
use crate::snapshots::SnapshotFile;
use crate::types::{LogId, MemberId, SnapshotMeta, StoredMembership};

/// Bytes that may wait to be taken before no more is read from the log.
const WAITING_BYTES: usize = 4 << 20;
/// What members' touches may have that were not taken.
const TOUCHED_BYTES: usize = 16 << 20;
/// An event or an entry beside its bytes, more or less.
const EVENT_BYTES: usize = 64;
/// Barriers that were not answered.
pub(super) const BARRIERS: usize = 65_536;
/// Whoever applies entries is not woken more often for what others proposed: waking it takes about as long as it takes to apply
/// one, and where members share processors it is in the way of those whose clients wait.
const TOGETHER: Duration = Duration::from_millis(1);
/// Different texts for the operator.
const WARNINGS: usize = 256;

/// What happened, for whoever applies entries.
#[derive(Debug)]
pub enum Event {
    /// Agreed on: every entry once, in order, without a hole.
    Entries(Vec<DeliveredEntry>),
    /// Forget everything and begin with this. Commands of this member that are in it come no more; their tickets are below
    /// `my_next`.
    Install { source: SnapshotSource, my_next: u64 },
    /// After everything that was agreed on before it was so.
    Role(Role),
    /// This member leads in this term, and everything of earlier terms was delivered, and something of this one.
    Leading { term: u64 },
    /// At the leader: another server heard from these sessions.
    Touched { server: u16, sessions: Bytes },
    /// The leader had this round, and a majority followed it after that.
    TouchAck { round: u64 },
    /// If it is `ok`: what was agreed on when it was asked for was delivered.
    Barrier { number: u64, ok: bool },
    /// The snapshot up to this entry is on disk, or why it is not.
    Snapshot { index: u64, error: Option<String> },
    /// What bringing the log to disk took since the last time; it comes beside another.
    Flushed(Vec<Flush>),
    /// For the operator.
    Warning(String),
    /// The last event: nothing happens any more.
    Failed(String),
}

/// What a member does in its ensemble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleKind {
    Leader,
    Follower,
    Observer,
    /// It knows of nobody who leads.
    Looking,
}

/// What a member does, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    pub kind: RoleKind,
    pub term: u64,
    /// The leader's server, or 0.
    pub leader: u16,
    /// A majority was heard from lately if this is the leader; otherwise the leader was, and had one.
    pub in_contact: bool,
}

impl Role {
    pub(crate) const LOOKING: Self = Self {
        kind: RoleKind::Looking,
        term: 0,
        leader: 0,
        in_contact: false,
    };
}

/// What a snapshot that is to be begun with consists of: the bytes that were written to its sink.
pub struct SnapshotSource {
    /// The last entry that is in it.
    pub log_id: LogId,
    content: Mutex<Box<dyn Read + Send>>,
}

impl std::fmt::Debug for SnapshotSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotSource({})", self.log_id)
    }
}

impl SnapshotSource {
    /// The way to a snapshot's bytes; `None` for one of nothing.
    pub(crate) fn open(snapshot: &Snapshot<SnapshotFile>) -> io::Result<Option<Self>> {
        let Some(log_id) = snapshot.meta.last_log_id else {
            return Ok(None);
        };
        let content = snapshot.snapshot.open_content()?;
        Ok(Some(Self {
            log_id,
            content: Mutex::new(Box::new(content)),
        }))
    }

    /// The next bytes, `max` or fewer; none at the end. Reads the disk.
    pub fn read(&self, max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut content = self.content.lock();
        Read::take(&mut *content, max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Nothing happens any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Stopped(pub String);

/// Why a snapshot cannot be begun, or an entry not be applied: it is the caller's mistake.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct OutOfOrder(pub String);

pub(crate) struct Events {
    state: Mutex<State>,
    wake: WakeFd,
    /// Told when what waits becomes less.
    room: Notify,
    /// Told when something waits for which nobody was woken.
    later: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Event, usize)>,
    bytes: usize,
    /// Among what waits there is something that somebody waits for.
    is_urgent: bool,
    /// Whoever takes was woken, and did not take yet.
    is_told: bool,
    /// When it was woken last.
    told_at: Option<Instant>,
    /// How long it waits for what others proposed.
    patience: Patience,
    touched_bytes: usize,
    /// The index of the entry that is delivered next, and the term of the last.
    next: u64,
    term: u64,
    /// The index after the last that was taken.
    taken: u64,
    /// What was delivered and not applied.
    steps: VecDeque<Step>,
    applied: Applied,
    barriers: Vec<Barrier>,
    /// Barriers that were asked for and not answered.
    barriers_open: usize,
    /// What was told last, what is to be told once entries before an index were delivered, and the term in which leading was told.
    role: Option<Role>,
    wanted: Option<(Role, u64)>,
    led: u64,
    warned: HashSet<String>,
    /// Why nothing happens any more.
    failed: Option<String>,
}

struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(TOGETHER)
    }
}

struct Barrier {
    number: u64,
    index: u64,
    deadline: Instant,
}

/// What an entry, or a snapshot, does to [`Applied`].
enum Step {
    Entry {
        log_id: LogId,
        counted: Vec<(MemberId, u64)>,
        membership: Option<crate::types::Membership>,
    },
    Snapshot(Box<Applied>),
}

impl Step {
    fn log_id(&self) -> Option<LogId> {
        match self {
            Self::Entry { log_id, .. } => Some(*log_id),
            Self::Snapshot(applied) => applied.last,
        }
    }
}

#[derive(Default, Clone)]
struct Applied {
    last: Option<LogId>,
    membership: StoredMembership,
    delivery: Delivery,
}

impl Applied {
    fn make(&mut self, step: Step) {
        match step {
            Step::Snapshot(applied) => *self = *applied,
            Step::Entry {
                log_id,
                counted,
                membership,
            } => {
                self.last = Some(log_id);
                for (member, ticket) in counted {
                    self.delivery.note(member, ticket);
                }
                if let Some(membership) = membership {
                    self.delivery.keep_members_of(&membership);
                    self.membership = StoredMembership::new(Some(log_id), membership);
                }
            }
        }
    }
}

/// Whether somebody may wait for an entry here.
fn is_awaited(entry: &DeliveredEntry) -> bool {
    entry.membership.is_some() || entry.commands.iter().any(|counted| counted.mine)
}

/// Whether whoever takes is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// Nothing waits, or it was.
    No,
    Now,
    Later,
}

impl State {
    /// Whether to wake whoever takes, which counts as done.
    fn wake(&mut self, now: Instant) -> Wake {
        if self.queue.is_empty() || self.is_told {
            return Wake::No;
        }
        let lately = |at: Instant| now.saturating_duration_since(at) < self.patience.0;
        if !self.is_urgent && self.told_at.is_some_and(lately) {
            return Wake::Later;
        }
        self.is_told = true;
        self.told_at = Some(now);
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

    /// Says what may be said after what was delivered.
    fn settle(&mut self) {
        let next = self.next;
        for barrier in self
            .barriers
            .extract_if(.., |barrier| barrier.index < next)
            .collect::<Vec<_>>()
        {
            self.answer_barrier(barrier.number, true);
        }
        if let Some((role, after)) = self.wanted
            && after <= next
        {
            self.wanted = None;
            if self.role != Some(role) {
                self.role = Some(role);
                self.push(Event::Role(role), 0);
            }
        }
        if let Some(role) = self.role
            && role.kind == RoleKind::Leader
            && self.wanted.is_none()
            && self.term == role.term
            && self.led < role.term
        {
            self.led = role.term;
            self.push(Event::Leading { term: role.term }, 0);
        }
    }
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            wake: WakeFd::new()?,
            room: Notify::new(),
            later: Notify::new(),
        })
    }

    pub(crate) fn wake_fd(&self) -> RawFd {
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
            Wake::Later => self.later.notify_one(),
        }
        result
    }

    // ---- the host's thread ----

    /// Returns once something waits for which nobody was woken, with the time to do so.
    pub(crate) async fn waits(&self) -> Instant {
        self.later.notified().await;
        let state = self.state.lock();
        let due = state.told_at.map(|at| at + state.patience.0);
        due.unwrap_or_else(Instant::now)
    }

    /// Has whoever takes be woken for what waits.
    pub(crate) fn hasten(&self) {
        self.change(|state| state.is_urgent = !state.queue.is_empty());
    }

    /// Returns once there is room for more entries.
    pub(crate) async fn room(&self) {
        loop {
            let room = self.room.notified();
            if self.state.lock().bytes < WAITING_BYTES {
                return;
            }
            room.await;
        }
    }

    pub(crate) fn delivered(&self, entries: Vec<DeliveredEntry>) {
        let mut bytes = 0;
        let mut steps = Vec::with_capacity(entries.len());
        for entry in &entries {
            bytes += EVENT_BYTES;
            let mut counted: Vec<(MemberId, u64)> = Vec::new();
            for command in entry.commands.iter().map(|counted| &counted.command) {
                bytes += EVENT_BYTES + command.body.len();
                match counted.last_mut() {
                    Some((member, last)) if *member == command.member => *last = command.ticket,
                    _ => counted.push((command.member, command.ticket)),
                }
            }
            steps.push(Step::Entry {
                log_id: entry.log_id,
                counted,
                membership: entry.membership.clone(),
            });
        }
        let Some(last) = entries.last().map(|entry| entry.log_id) else {
            return;
        };
        self.change(|state| {
            state.steps.extend(steps);
            state.next = last.index + 1;
            state.term = last.leader_id.term;
            state.push(Event::Entries(entries), bytes);
            state.settle();
        });
    }

    pub(crate) fn installed(
        &self,
        snapshot: &Snapshot<SnapshotFile>,
        delivery: &Delivery,
        my_next: u64,
    ) -> io::Result<()> {
        let Some(source) = SnapshotSource::open(snapshot)? else {
            return Ok(());
        };
        let last = source.log_id;
        let applied = Applied {
            last: Some(last),
            membership: snapshot.meta.last_membership.clone(),
            delivery: delivery.clone(),
        };
        self.change(|state| {
            state.steps.push_back(Step::Snapshot(Box::new(applied)));
            state.next = last.index + 1;
            state.term = last.leader_id.term;
            state.push(Event::Install { source, my_next }, 0);
            state.settle();
        });
        Ok(())
    }

    /// What this member does, to be told after the entries with indexes below `after`.
    pub(crate) fn role(&self, role: Role, after: u64) {
        self.change(|state| {
            let before = state.wanted.map_or(0, |(_, before)| before);
            if state.wanted.is_some() || state.role != Some(role) {
                state.wanted = Some((role, after.max(before)));
            }
            state.settle();
        });
    }

    /// What this member does, as was noticed last.
    pub(crate) fn current_role(&self) -> Role {
        let state = self.state.lock();
        let wanted = state.wanted.map(|(role, _)| role);
        wanted.or(state.role).unwrap_or(Role::LOOKING)
    }

    /// Barriers that are answered once this entry was delivered.
    pub(crate) fn barriers(&self, index: u64, numbers: Vec<(u64, Instant)>) {
        self.change(|state| {
            let barriers = numbers.into_iter().map(|(number, deadline)| Barrier {
                number,
                index,
                deadline,
            });
            state.barriers.extend(barriers);
            state.settle();
        });
    }

    pub(crate) fn refuse_barriers(&self, numbers: impl IntoIterator<Item = u64>) {
        self.change(|state| {
            for number in numbers {
                state.answer_barrier(number, false);
            }
        });
    }

    /// Refuses barriers that waited too long for what they are to see; all without `now`.
    pub(crate) fn expire_barriers(&self, now: Option<Instant>) {
        if self.state.lock().barriers.is_empty() {
            return;
        }
        self.change(|state| {
            let late = |barrier: &mut Barrier| now.is_none_or(|now| barrier.deadline <= now);
            for barrier in state.barriers.extract_if(.., late).collect::<Vec<_>>() {
                state.answer_barrier(barrier.number, false);
            }
        });
    }

    /// Whether there is room for it.
    pub(crate) fn touched(&self, server: u16, sessions: Bytes) -> bool {
        self.change(|state| {
            let bytes = sessions.len();
            if state.touched_bytes + bytes > TOUCHED_BYTES {
                return false;
            }
            state.touched_bytes += bytes + EVENT_BYTES;
            state.push(Event::Touched { server, sessions }, bytes);
            true
        })
    }

    pub(crate) fn tell(&self, event: Event) {
        self.change(|state| state.push(event, 0));
    }

    /// Tells the operator, once.
    pub(crate) fn warn(&self, text: String) {
        self.change(|state| {
            if state.warned.len() < WARNINGS && state.warned.insert(text.clone()) {
                state.push(Event::Warning(text), 0);
            }
        });
    }

    /// Nothing happens any more, for this reason.
    pub(crate) fn fail(&self, why: String) {
        self.change(|state| {
            if state.failed.is_none() {
                state.push(Event::Failed(why.clone()), 0);
                state.failed = Some(why);
            }
        });
    }

    pub(crate) fn failure(&self) -> Option<Stopped> {
        self.state.lock().failed.clone().map(Stopped)
    }

    // ---- whoever applies ----

    pub(crate) fn take(&self, max_bytes: usize) -> Result<Vec<Event>, Stopped> {
        // First: what comes after it is taken below or wakes again.
        self.wake.clear();
        let mut state = self.state.lock();
        state.is_told = false;
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
                Event::Touched { .. } => state.touched_bytes -= size,
                _ => {}
            }
            events.push(event);
        }
        state.is_urgent = !state.queue.is_empty();
        let (wake, room) = (state.wake(Instant::now()), state.bytes < WAITING_BYTES);
        drop(state);
        if wake == Wake::Now {
            self.wake.signal();
        }
        if room {
            self.room.notify_one();
        }
        Ok(events)
    }

    pub(crate) fn be_patient(&self, patience: Duration) {
        self.state.lock().patience = Patience(patience);
    }

    pub(crate) fn applied(&self, index: u64) -> Result<(), OutOfOrder> {
        let mut state = self.state.lock();
        if index >= state.taken {
            return Err(OutOfOrder(format!(
                "entry {index} cannot be applied: of the entries those before {} were taken",
                state.taken
            )));
        }
        while let Some(step) = state.steps.front()
            && step.log_id().is_none_or(|log_id| log_id.index <= index)
            && let Some(step) = state.steps.pop_front()
        {
            state.applied.make(step);
        }
        Ok(())
    }

    pub(crate) fn last_applied(&self) -> Option<LogId> {
        self.state.lock().applied.last
    }

    /// What a snapshot says of itself that is of everything up to the entry that was applied last.
    pub(crate) fn snapshot_of(&self, index: u64) -> Result<(SnapshotMeta, Delivery), OutOfOrder> {
        let state = self.state.lock();
        let applied = &state.applied;
        if applied.last.is_none_or(|last| last.index != index) {
            let last = applied
                .last
                .map_or("none".to_owned(), |last| last.index.to_string());
            return Err(OutOfOrder(format!(
                "a snapshot is of everything up to the entry that was applied last, which is {last} and not {index}"
            )));
        }
        let meta = SnapshotMeta {
            last_log_id: applied.last,
            last_membership: applied.membership.clone(),
        };
        Ok((meta, applied.delivery.clone()))
    }

    /// Whether one more barrier may wait.
    pub(crate) fn open_barrier(&self) -> bool {
        let mut state = self.state.lock();
        let fits = state.barriers_open < BARRIERS;
        state.barriers_open += usize::from(fits);
        fits
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use logcore_wake::WakeFd;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::directory::log_id;
    use crate::entry::Command;
    use crate::reader::Counted;

    fn is_readable(wake: &WakeFd) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(wake.borrowed(), PollFlags::IN)];
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

    // Broken if it failed: a client would wait for what is agreed on, or every member be woken for each command of another.
    #[test]
    fn who_applies_is_woken_at_once_for_its_own_and_together_for_others() {
        let events = Events::new().unwrap();
        events.delivered(entry(1, false));
        assert!(is_readable(&events.wake), "nothing came for long before");
        events.take(usize::MAX).unwrap();
        let just_now = || events.state.lock().told_at = Some(Instant::now() + Duration::from_secs(60));
        just_now();
        for index in 2..4 {
            events.delivered(entry(index, false));
            assert!(!is_readable(&events.wake));
        }
        assert!(events.later.notified().now_or_never().is_some());
        events.delivered(entry(4, true));
        assert!(is_readable(&events.wake));
        assert_eq!(events.take(usize::MAX).unwrap().len(), 3);
        assert!(!is_readable(&events.wake));

        let while_ago = || events.state.lock().told_at = Some(Instant::now() - 10 * TOGETHER);
        for (index, patience) in [(5, Duration::from_secs(60)), (6, TOGETHER)] {
            while_ago();
            events.be_patient(patience);
            events.delivered(entry(index, false));
            assert_eq!(is_readable(&events.wake), patience == TOGETHER);
            events.take(usize::MAX).unwrap();
        }

        just_now();
        events.delivered(entry(7, false));
        events.hasten();
        assert!(is_readable(&events.wake));
        assert_eq!(events.take(1).unwrap().len(), 1);
        events.hasten();
        assert!(!is_readable(&events.wake), "nothing waits");

        just_now();
        events.delivered(entry(8, false));
        events.delivered(entry(9, false));
        assert_eq!(events.take(1).unwrap().len(), 1);
        assert!(is_readable(&events.wake), "some was left");
        events.take(1).unwrap();

        just_now();
        events.delivered(entry(10, false));
        assert!(events.open_barrier());
        events.barriers(10, vec![(1, Instant::now() + Duration::from_secs(60))]);
        assert!(is_readable(&events.wake), "a barrier is answered");
    }
}
