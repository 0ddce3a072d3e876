//! Many members in one thread, each with a connection of its own, and the moment at which their groups have
//! settled.
//!
//! A group has settled when each of its members has the assignment of the same epoch, every partition has
//! exactly one owner, and the shares are even. With KIP-848 the epochs may differ: they follow later.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::assignor::shares;
use crate::connections::{failed, timespec};
use crate::error::BenchError;
use crate::frames::Frames;
use crate::group_messages::{self as wire, code};
use crate::load::connect;
use crate::member::{Member, Next, Protocol, Shared};
use crate::messages;
use crate::metadata::Address;
use crate::target::PATIENCE;

const READ_BUFFER: usize = 4 << 10;
const EVENTS: usize = 256;
/// A run fails when its groups have not settled after so long.
const STALLED: Duration = Duration::from_secs(180);
/// Between two questions for a coordinator that does not exist yet.
const PAUSE: Duration = Duration::from_millis(20);

struct Seat {
    frames: Frames<TcpStream>,
    member: Member,
    /// The bytes that the socket did not take yet.
    unsent: Vec<u8>,
    /// The number of requests.
    sent: i32,
    /// When the last answer came.
    heard: Instant,
}

/// Groups of members.
pub(crate) struct Membership {
    address: Address,
    pub(crate) shared: Shared,
    groups: Vec<String>,
    epoll: OwnedFd,
    /// A member that left or was lost has no seat any more.
    seats: Vec<Option<Seat>>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    /// A member's state changed since the last look.
    has_changed: bool,
    /// When the last JoinGroup was sent.
    pub(crate) joined: Instant,
    /// The timers are off.
    is_quiet: bool,
    expelled: u64,
}

/// Asks for the coordinator of each group until it exists. The first question creates the state topic.
fn find_coordinators(address: &Address, groups: &[String]) -> Result<(), BenchError> {
    let stream = connect(&address.0, address.1)?;
    let limited = stream.set_read_timeout(Some(PATIENCE));
    limited.map_err(BenchError::io("setting a timeout"))?;
    let mut frames = Frames::with_buffer(&stream, READ_BUFFER);
    for group in groups {
        let end = Instant::now() + STALLED;
        loop {
            let sent = (&stream).write_all(&wire::find_coordinator(group));
            sent.map_err(BenchError::io("sending a request for a coordinator"))?;
            match wire::read_code(frames.expect()?, 0)? {
                code::NONE => break,
                code::COORDINATOR_NOT_AVAILABLE if Instant::now() < end => std::thread::sleep(PAUSE),
                code => {
                    return Err(BenchError::Refused {
                        api: "find coordinator",
                        code,
                    });
                }
            }
        }
    }
    Ok(())
}

impl Membership {
    /// Finds the coordinators of the groups, which have no members yet.
    pub(crate) fn new(address: Address, shared: Shared, groups: Vec<String>) -> Result<Self, BenchError> {
        find_coordinators(&address, &groups)?;
        Ok(Self {
            address,
            shared,
            groups,
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(failed("creating an epoll"))?,
            seats: Vec::new(),
            timers: BinaryHeap::new(),
            has_changed: true,
            joined: Instant::now(),
            is_quiet: false,
            expelled: 0,
        })
    }

    /// Connects a member, which does not join yet. Returns its number.
    pub(crate) fn add(&mut self, group: usize) -> Result<usize, BenchError> {
        let stream = connect(&self.address.0, self.address.1)?;
        stream
            .set_nonblocking(true)
            .map_err(BenchError::io("setting a socket's mode"))?;
        let number = self.seats.len();
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(&self.epoll, &stream, EventData::new_u64(number as u64), flags)
            .map_err(failed("watching a socket"))?;
        self.seats.push(Some(Seat {
            frames: Frames::with_buffer(stream, READ_BUFFER),
            member: Member::new(group, &self.groups[group]),
            unsent: Vec::new(),
            sent: 0,
            heard: Instant::now(),
        }));
        Ok(number)
    }

    /// The numbers of the members that neither left nor were lost.
    pub(crate) fn present(&self) -> Vec<usize> {
        (0..self.seats.len())
            .filter(|number| self.seats[*number].is_some())
            .collect()
    }

    /// How often the coordinator did not know a member any more, which disturbs the figures.
    pub(crate) fn expelled(&self) -> u64 {
        let present = self.seats.iter().flatten();
        self.expelled + present.map(|seat| seat.member.expelled).sum::<u64>()
    }

    pub(crate) fn join(&mut self, number: usize) -> Result<(), BenchError> {
        if let Some(seat) = &mut self.seats[number] {
            let request = seat.member.join(&self.shared);
            self.send(number, request)?;
        }
        Ok(())
    }

    /// Leaves the group in order. The member is gone when the coordinator has answered.
    pub(crate) fn leave(&mut self, number: usize) -> Result<(), BenchError> {
        if let Some(seat) = &mut self.seats[number]
            && let Some(request) = seat.member.leave(&self.shared)
        {
            self.send(number, request)?;
        }
        Ok(())
    }

    /// Ends a member as the loss of its process does. Returns when the coordinator may expect it no longer.
    pub(crate) fn lose(&mut self, number: usize) -> Option<Instant> {
        let seat = self.forget(number)?;
        Some(seat.heard + self.shared.session)
    }

    fn forget(&mut self, number: usize) -> Option<Seat> {
        let seat = self.seats[number].take()?; // closes the socket, which ends the watch too
        self.expelled += seat.member.expelled;
        self.has_changed = true;
        Some(seat)
    }

    fn send(&mut self, number: usize, mut request: Vec<u8>) -> Result<(), BenchError> {
        let Some(seat) = &mut self.seats[number] else {
            return Ok(());
        };
        if seat.member.is_joining() {
            self.joined = Instant::now();
        }
        messages::set_correlation_id(&mut request, seat.sent);
        seat.sent += 1;
        seat.unsent.extend_from_slice(&request);
        seat.write()
    }

    /// Reads the answers of a member, and does what comes next.
    fn serve(&mut self, number: usize) -> Result<(), BenchError> {
        loop {
            let Some(seat) = &mut self.seats[number] else {
                return Ok(());
            };
            let more = seat.frames.fill()?;
            while let Some(seat) = &mut self.seats[number]
                && let Some(frame) = seat.frames.buffered()?
            {
                seat.heard = Instant::now();
                let before = (seat.member.is_steady, seat.member.epoch, seat.member.owned.len());
                let next = seat.member.on_answer(&self.shared, frame, seat.sent - 1)?;
                let after = (seat.member.is_steady, seat.member.epoch, seat.member.owned.len());
                self.has_changed |= before != after;
                match next {
                    Next::Send(request) => self.send(number, request)?,
                    Next::Wait(_) if self.is_quiet => self.has_changed = true,
                    Next::Wait(time) => self.timers.push(Reverse((Instant::now() + time, number))),
                    Next::Left => {
                        self.forget(number);
                    }
                }
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Serves the members until an event, a timer or `until`.
    fn wait(&mut self, until: Instant) -> Result<(), BenchError> {
        let now = Instant::now();
        while let Some(Reverse((due, number))) = self.timers.peek().copied()
            && due <= now
        {
            self.timers.pop();
            if let Some(seat) = &mut self.seats[number]
                && seat.member.is_idle()
            {
                let request = seat.member.on_timer(&self.shared);
                self.send(number, request)?;
            }
        }
        let due = self.timers.peek().map_or(until, |Reverse((due, _))| *due);
        let timeout = timespec(due.min(until).saturating_duration_since(Instant::now()))?;
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(failed("waiting for sockets")(error)),
        };
        for event in events {
            let data = event.data;
            let number = data.u64() as usize;
            if let Some(seat) = &mut self.seats[number] {
                seat.write()?;
            }
            self.serve(number)?;
        }
        Ok(())
    }

    /// Serves the members until all groups have settled. Returns when they had.
    pub(crate) fn settle(&mut self) -> Result<Instant, BenchError> {
        self.serve_until(Self::has_settled)
    }

    /// Serves the members until a member has left.
    pub(crate) fn wait_for_leave(&mut self, number: usize) -> Result<Instant, BenchError> {
        self.serve_until(|membership| membership.seats[number].is_none())
    }

    fn serve_until(&mut self, done: impl Fn(&Self) -> bool) -> Result<Instant, BenchError> {
        let end = Instant::now() + STALLED;
        self.has_changed = true;
        loop {
            if std::mem::take(&mut self.has_changed) && done(self) {
                return Ok(Instant::now());
            }
            if Instant::now() > end {
                let present = self.seats.iter().flatten();
                let open = present.filter(|seat| !seat.member.is_steady).count();
                return Err(BenchError::Unsettled {
                    seconds: STALLED.as_secs(),
                    open,
                });
            }
            self.wait(end)?;
        }
    }

    fn has_settled(&self) -> bool {
        let mut members = vec![Vec::new(); self.groups.len()];
        for seat in self.seats.iter().flatten() {
            if !seat.member.is_steady {
                return false;
            }
            members[seat.member.group].push(&seat.member);
        }
        members.iter().all(|members| self.is_whole(members))
    }

    /// Whether these members own each partition once, in even shares.
    fn is_whole(&self, members: &[&Member]) -> bool {
        let partitions = self.shared.partitions as usize;
        let (least, most) = shares(partitions, members.len());
        let mut owned = vec![false; partitions];
        let mut count = 0;
        for member in members {
            let classic = self.shared.protocol != Protocol::Consumer;
            if !(least..=most).contains(&member.owned.len()) || classic && member.epoch != members[0].epoch {
                return false;
            }
            for partition in &member.owned {
                if std::mem::replace(&mut owned[*partition as usize], true) {
                    return false;
                }
                count += 1;
            }
        }
        count == partitions || members.is_empty()
    }

    /// Serves the members until no answer is missing. Their heartbeats end.
    pub(crate) fn quiesce(&mut self) -> Result<(), BenchError> {
        self.is_quiet = true;
        self.timers.clear();
        self.serve_until(|membership| {
            let mut present = membership.seats.iter().flatten();
            present.all(|seat| seat.member.is_idle())
        })?;
        Ok(())
    }

    /// The members and their connections. They send no more heartbeats.
    pub(crate) fn take(&mut self) -> Vec<(Member, TcpStream)> {
        let seats = std::mem::take(&mut self.seats).into_iter().flatten();
        seats
            .map(|seat| (seat.member, seat.frames.into_inner()))
            .collect()
    }

    /// Lets all members leave in order, so that the coordinator has nothing more to do for them.
    pub(crate) fn end(&mut self) -> Result<(), BenchError> {
        for number in self.present() {
            self.leave(number)?;
        }
        self.serve_until(|membership| membership.seats.iter().all(Option::is_none))?;
        Ok(())
    }
}

impl Seat {
    /// Writes until the socket is full.
    fn write(&mut self) -> Result<(), BenchError> {
        while !self.unsent.is_empty() {
            match self.frames.get_ref().write(&self.unsent) {
                Ok(count) => {
                    self.unsent.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(BenchError::io("sending a member's request")(error)),
            }
        }
        Ok(())
    }
}
