//! Many connections in one thread: no socket blocks, and one epoll says which of them can go on.
//!
//! A [`Crowd`] owns its connections and what each has still to send and to hear; whoever holds it decides when a request
//! is due. Sockets are watched for edges: each is read until it is empty, and written to until it is full.

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
use crate::load::Requests;
use crate::messages;

/// The answers are small.
const READ_BUFFER: usize = 4 << 10;
const EVENTS: usize = 256;
/// A peer that answers nothing for so long has stopped.
const STALLED: Duration = Duration::from_secs(30);

struct Connection {
    /// Which of all connections of the run it is.
    number: usize,
    frames: Frames<TcpStream>,
    /// When each request that is not wholly written was due.
    unsent: VecDeque<Instant>,
    /// Bytes of the first of `unsent` that are written.
    written: usize,
    /// When each request that is not answered was due.
    unanswered: VecDeque<Instant>,
    sent: u64,
    answered: u64,
    /// The socket took no more bytes; its next edge says when it does.
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

    /// Writes what is due until all is written or the socket is full.
    fn write(&mut self, requests: &mut Requests) -> Result<(), BenchError> {
        while !self.full
            && let Some(due) = self.unsent.front()
        {
            let request = requests.get(self.number, self.sent);
            match self.frames.get_ref().write(&request[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.full = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(BenchError::io("sending a produce request")(error)),
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

    /// Reads until the socket is empty; `answered` is told when each request that was answered had been due.
    fn read(&mut self, mut answered: impl FnMut(Instant)) -> Result<(), BenchError> {
        loop {
            let more = self.frames.fill()?;
            while let Some(frame) = self.frames.buffered()? {
                messages::check_produce_response(frame, self.answered as i32)?;
                self.answered += 1;
                let due = self.unanswered.pop_front().ok_or_else(|| {
                    BenchError::Protocol("an answer to a request that was not sent".to_owned())
                })?;
                answered(due);
            }
            if !more {
                return Ok(());
            }
        }
    }
}

/// The connections of one thread.
pub(crate) struct Crowd {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    requests: Requests,
    /// Requests that are due and not answered.
    open: u64,
    answered: u64,
    /// What the last wait brought: the connection and when the request had been due, for each answer.
    news: Vec<(usize, Instant)>,
}

fn failed(what: &str) -> impl FnOnce(Errno) -> BenchError {
    move |error| BenchError::io(what)(error.into())
}

fn timespec(time: Duration) -> Result<Timespec, BenchError> {
    Timespec::try_from(time).map_err(|_| BenchError::Usage("a wait that is too long".to_owned()))
}

impl Crowd {
    fn new(requests: Requests) -> Result<Self, BenchError> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(failed("creating an epoll"))?,
            connections: Vec::new(),
            requests,
            open: 0,
            answered: 0,
            news: Vec::new(),
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

    /// True when all that was due is answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.open == 0
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answered
    }

    /// The answers of the last wait: when each request had been due.
    pub(crate) fn news(&self) -> impl Iterator<Item = Instant> {
        self.news.iter().map(|(_, due)| *due)
    }

    /// One more request of a connection is due; it is sent as soon as those before it are.
    pub(crate) fn issue(&mut self, index: usize, due: Instant) -> Result<(), BenchError> {
        let connection = &mut self.connections[index];
        connection.unsent.push_back(due);
        self.open += 1;
        connection.write(&mut self.requests)
    }

    /// Waits for sockets until `until` (without one, until something happens), and reads and writes those that can.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<(), BenchError> {
        let timeout = match until {
            Some(until) => {
                self.wait_exactly(until)?;
                Timespec::default()
            }
            None => timespec(STALLED)?,
        };
        self.news.clear();
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
            let news = &mut self.news;
            if flags.contains(EventFlags::OUT) {
                connection.full = false;
            }
            connection.read(|due| news.push((index, due)))?;
            connection.write(&mut self.requests)?;
        }
        self.open -= self.news.len() as u64;
        self.answered += self.news.len() as u64;
        Ok(())
    }

    /// Waits for sockets until this instant. epoll counts in milliseconds, and a schedule cannot: poll does not.
    fn wait_exactly(&self, until: Instant) -> Result<(), BenchError> {
        let timeout = timespec(until.saturating_duration_since(Instant::now()))?;
        let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut epoll, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed("waiting for sockets")(error)),
        }
    }

    /// Keeps `in_flight` requests of each connection under way until `end`, then waits for their answers.
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
                for (index, _) in std::mem::take(&mut self.news) {
                    self.issue(index, now)?;
                }
            }
        }
        Ok(())
    }
}

/// Deals the connections out to so many threads (no more than there are connections).
pub(crate) fn split(
    streams: Vec<TcpStream>,
    threads: u32,
    requests: &Requests,
) -> Result<Vec<Crowd>, BenchError> {
    let count = (threads as usize).clamp(1, streams.len().max(1));
    let mut crowds = (0..count)
        .map(|_| Crowd::new(requests.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    for (number, stream) in streams.into_iter().enumerate() {
        crowds[number % count].add(number, stream)?;
    }
    Ok(crowds)
}

/// Runs each crowd in a thread of its own; the answers they had.
pub(crate) fn run(
    mut crowds: Vec<Crowd>,
    work: impl Fn(usize, &mut Crowd) -> Result<(), BenchError> + Sync,
) -> Result<u64, BenchError> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = crowds
            .iter_mut()
            .enumerate()
            .map(|(index, crowd)| scope.spawn(move || work(index, crowd).map(|()| crowd.answered())))
            .collect();
        let mut answered = 0;
        for thread in threads {
            answered += thread.join().map_err(|_| BenchError::Panicked)??;
        }
        Ok(answered)
    })
}
