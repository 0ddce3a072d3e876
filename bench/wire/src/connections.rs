//! Many connections in one thread, with nonblocking sockets and one epoll.
//!
//! [`Connections`] owns the sockets and their open requests. Its caller decides when a request is due. epoll
//! is edge-triggered: each socket is read until it is empty, and written until it is full.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::error::BenchError;
use crate::frames::Frames;

/// Responses to these requests are small.
const READ_BUFFER: usize = 4 << 10;
const EVENTS: usize = 256;
/// A run fails after so long without a response.
const STALLED: Duration = Duration::from_secs(30);

/// The encoded requests of a load, and the check of their responses.
pub(crate) trait Source: Clone + Send {
    /// The request `number` of a connection.
    fn get(&mut self, connection: usize, number: u64) -> &[u8];

    /// Checks a response to the request `number` of a connection.
    fn check(frame: &[u8], number: u64) -> Result<(), BenchError>;
}

struct Connection {
    /// Its index among all connections of the run.
    number: usize,
    frames: Frames<TcpStream>,
    /// The due times of the requests that are not written yet.
    unsent: VecDeque<Instant>,
    /// The written bytes of the first unsent request.
    written: usize,
    /// The due times of the requests that were sent and not answered.
    unanswered: VecDeque<Instant>,
    sent: u64,
    answered: u64,
    /// The socket takes no more bytes until epoll reports it as writable.
    full: bool,
}

impl Connection {
    fn new(number: usize, stream: TcpStream) -> Self {
        Self {
            number,
            frames: Frames::with_buffer(stream, READ_BUFFER),
            unsent: VecDeque::new(),
            written: 0,
            unanswered: VecDeque::new(),
            sent: 0,
            answered: 0,
            full: false,
        }
    }

    /// Writes the unsent requests until the socket is full.
    fn write(&mut self, requests: &mut impl Source) -> Result<(), BenchError> {
        while !self.full
            && let Some(due) = self.unsent.front()
        {
            let request = requests.get(self.number, self.sent);
            match self.frames.get_ref().write(&request[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.full = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(BenchError::io("sending a request")(error)),
            }
            if self.written == request.len() {
                self.unanswered.push_back(*due);
                self.unsent.pop_front();
                self.written = 0;
                self.sent += 1;
            }
        }
        Ok(())
    }

    /// Reads until the socket is empty, and calls `on_response` with the due time of each answered request.
    fn read<S: Source>(&mut self, mut on_response: impl FnMut(Instant)) -> Result<(), BenchError> {
        loop {
            let more = self.frames.fill()?;
            while let Some(frame) = self.frames.buffered()? {
                S::check(frame, self.answered)?;
                self.answered += 1;
                let due = self
                    .unanswered
                    .pop_front()
                    .ok_or_else(|| BenchError::Protocol("a response without a request".to_owned()))?;
                on_response(due);
            }
            if !more {
                return Ok(());
            }
        }
    }
}

/// The connections of one thread.
pub(crate) struct Connections<S> {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    requests: S,
    /// The number of requests that are due and not answered.
    open: u64,
    answered: u64,
    /// The requests answered during the last wait: their connections and due times.
    completed: Vec<(usize, Instant)>,
}

pub(crate) fn failed(what: &str) -> impl FnOnce(Errno) -> BenchError {
    move |error| BenchError::io(what)(error.into())
}

pub(crate) fn timespec(time: Duration) -> Result<Timespec, BenchError> {
    Timespec::try_from(time).map_err(|_| BenchError::Usage("the time is too long".to_owned()))
}

impl<S: Source> Connections<S> {
    fn new(requests: S) -> Result<Self, BenchError> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(failed("creating an epoll"))?,
            connections: Vec::new(),
            requests,
            open: 0,
            answered: 0,
            completed: Vec::new(),
        })
    }

    fn add(&mut self, number: usize, stream: TcpStream) -> Result<(), BenchError> {
        stream
            .set_nonblocking(true)
            .map_err(BenchError::io("setting a socket's mode"))?;
        let data = EventData::new_u64(self.connections.len() as u64);
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(&self.epoll, &stream, data, flags).map_err(failed("watching a socket"))?;
        self.connections.push(Connection::new(number, stream));
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether all requests that were due are answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.open == 0
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answered
    }

    /// The due times of the requests answered during the last wait.
    pub(crate) fn completed(&self) -> impl Iterator<Item = Instant> {
        self.completed.iter().map(|(_, due)| *due)
    }

    /// Sends one more request of a connection, after those before it.
    pub(crate) fn issue(&mut self, index: usize, due: Instant) -> Result<(), BenchError> {
        let connection = &mut self.connections[index];
        connection.unsent.push_back(due);
        self.open += 1;
        connection.write(&mut self.requests)
    }

    /// Waits until sockets are ready or until `until`, if there is one. Then reads and writes the ready
    /// sockets.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<(), BenchError> {
        let timeout = match until {
            Some(until) => {
                self.wait_exactly(until)?;
                Timespec::default()
            }
            None => timespec(STALLED)?,
        };
        self.completed.clear();
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(failed("waiting for sockets")(error)),
        };
        if events.is_empty() && until.is_none() {
            return Err(BenchError::Stalled { open: self.open });
        }
        for event in events {
            let (flags, data) = (event.flags, event.data);
            let index = data.u64() as usize;
            let connection = &mut self.connections[index];
            let completed = &mut self.completed;
            if flags.contains(EventFlags::OUT) {
                connection.full = false;
            }
            connection.read::<S>(|due| completed.push((index, due)))?;
            connection.write(&mut self.requests)?;
        }
        self.open -= self.completed.len() as u64;
        self.answered += self.completed.len() as u64;
        Ok(())
    }

    /// Waits until sockets are ready or until this instant. epoll's timeout is in milliseconds, which is too
    /// coarse for a schedule, so this uses poll.
    fn wait_exactly(&self, until: Instant) -> Result<(), BenchError> {
        let timeout = timespec(until.saturating_duration_since(Instant::now()))?;
        let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut epoll, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed("waiting for sockets")(error)),
        }
    }

    /// Keeps `in_flight` requests of each connection open until `end`, then waits for the last responses.
    pub(crate) fn keep_busy(&mut self, in_flight: u32, end: Instant) -> Result<(), BenchError> {
        let mut now = Instant::now();
        for index in 0..self.len() {
            for _ in 0..in_flight {
                self.issue(index, now)?;
            }
        }
        while !self.is_idle() {
            self.wait(None)?;
            now = Instant::now();
            if now < end {
                for (index, _) in std::mem::take(&mut self.completed) {
                    self.issue(index, now)?;
                }
            }
        }
        Ok(())
    }
}

/// Divides the sockets among `threads` threads, or fewer if there are fewer sockets.
pub(crate) fn split<S: Source>(
    streams: Vec<TcpStream>,
    threads: u32,
    requests: &S,
) -> Result<Vec<Connections<S>>, BenchError> {
    let count = (threads as usize).clamp(1, streams.len().max(1));
    let mut groups = (0..count)
        .map(|_| Connections::new(requests.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    for (number, stream) in streams.into_iter().enumerate() {
        groups[number % count].add(number, stream)?;
    }
    Ok(groups)
}

/// Runs `work` on each group in a thread of its own. Returns the number of answered requests.
pub(crate) fn run<S: Source>(
    mut groups: Vec<Connections<S>>,
    work: impl Fn(usize, &mut Connections<S>) -> Result<(), BenchError> + Sync,
) -> Result<u64, BenchError> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = groups
            .iter_mut()
            .enumerate()
            .map(|(index, group)| scope.spawn(move || work(index, group).map(|()| group.answered())))
            .collect();
        let mut answered = 0;
        for thread in threads {
            answered += thread.join().map_err(|_| BenchError::Panicked)??;
        }
        Ok(answered)
    })
}
