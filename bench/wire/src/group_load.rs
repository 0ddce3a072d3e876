//! Load: offset commits or heartbeats of consumers, as fast as the coordinator answers them.
//!
//! The groups are formed before the measurement. Each member keeps its requests in flight on a connection of
//! its own, and leaves at the end.

use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::args::{Args, Count};
use crate::connections::{self, Source};
use crate::descriptors;
use crate::error::BenchError;
use crate::frames::Frames;
use crate::group_messages as wire;
use crate::load::{connect, duration};
use crate::member::{Member, Protocol, Shared};
use crate::membership::Membership;
use crate::messages;
use crate::metadata::Address;
use crate::report::Report;

/// Longer than any run, because no member sends heartbeats while it commits. Kafka's default.
const SESSION: Duration = Duration::from_secs(45);
/// The interval of heartbeats while the groups are formed.
const HEARTBEAT: Duration = Duration::from_millis(200);
const READ_BUFFER: usize = 4 << 10;

/// What the members send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Commits,
    Heartbeats,
}

/// The flags of `commits` and `heartbeats`.
pub(crate) struct Options {
    kind: Kind,
    address: Address,
    topic: String,
    partitions: Count,
    groups: Count,
    members: Count,
    in_flight: Count,
    threads: Count,
    protocol: Protocol,
    seconds: f64,
}

impl Options {
    pub(crate) fn take(args: &mut Args, kind: Kind) -> Result<Self, BenchError> {
        let many = |count: u32| Count::MIN.saturating_add(count - 1);
        let (partitions, groups) = match kind {
            Kind::Commits => (1, 50),
            Kind::Heartbeats => (50, 10),
        };
        let options = Self {
            kind,
            address: (
                args.optional("host", "127.0.0.1".to_owned())?,
                args.required("port")?,
            ),
            topic: args.required("topic")?,
            partitions: args.optional("partitions", many(partitions))?,
            groups: args.optional("groups", many(groups))?,
            members: match kind {
                Kind::Commits => Count::MIN,
                Kind::Heartbeats => args.optional("members", many(50))?,
            },
            in_flight: args.optional("in-flight", Count::MIN)?,
            threads: args.optional("threads", Count::MIN)?,
            protocol: args.optional("protocol", Protocol::Eager)?,
            seconds: args.optional("seconds", 5.0)?,
        };
        args.finish()?;
        Ok(options)
    }
}

/// The request of each member.
#[derive(Clone)]
struct Commits(Vec<(Vec<u8>, Range<usize>)>);

impl Source for Commits {
    /// Commits another offset each time.
    fn get(&mut self, connection: usize, number: u64) -> &[u8] {
        let (request, offset_at) = &mut self.0[connection];
        messages::set_correlation_id(request, number as i32);
        request[offset_at.clone()].copy_from_slice(&number.to_be_bytes());
        request
    }

    fn check(frame: &[u8], number: u64) -> Result<(), BenchError> {
        wire::check_committed(frame, number as i32)
    }
}

fn refused(code: i16) -> Result<(), BenchError> {
    match code {
        wire::code::NONE => Ok(()),
        code => Err(BenchError::Refused {
            api: "heartbeat",
            code,
        }),
    }
}

/// The request of each member.
#[derive(Clone)]
struct Heartbeats(Vec<Vec<u8>>);

impl Source for Heartbeats {
    fn get(&mut self, connection: usize, number: u64) -> &[u8] {
        let request = &mut self.0[connection];
        messages::set_correlation_id(request, number as i32);
        request
    }

    fn check(frame: &[u8], number: u64) -> Result<(), BenchError> {
        refused(wire::read_code(frame, number as i32)?)
    }
}

/// The same of KIP-848.
#[derive(Clone)]
struct ConsumerHeartbeats(Heartbeats);

impl Source for ConsumerHeartbeats {
    fn get(&mut self, connection: usize, number: u64) -> &[u8] {
        self.0.get(connection, number)
    }

    fn check(frame: &[u8], number: u64) -> Result<(), BenchError> {
        refused(wire::read_beaten(frame, number as i32)?.code)
    }
}

/// A name that no earlier run used.
pub(crate) fn group_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format!("bench-{}", now.map_or(0, |time| time.as_nanos()))
}

/// Lets the members leave over a new connection.
fn leave(address: &Address, shared: &Shared, members: &mut [Member]) -> Result<(), BenchError> {
    let stream = connect(&address.0, address.1)?;
    let mut frames = Frames::with_buffer(&stream, READ_BUFFER);
    for (number, member) in members.iter_mut().enumerate() {
        let mut request = member
            .leave(shared)
            .ok_or_else(|| BenchError::Protocol("a request of a member is not answered".to_owned()))?;
        messages::set_correlation_id(&mut request, number as i32);
        (&stream)
            .write_all(&request)
            .map_err(BenchError::io("sending a member's request"))?;
        member.on_answer(shared, frames.expect()?, number as i32)?;
    }
    Ok(())
}

/// Runs the load and reports its speed.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    let (groups, each) = (options.groups.get(), options.members.get());
    descriptors::allow(groups.saturating_mul(each))?;
    let time = duration(options.seconds)?;
    let shared = Shared {
        protocol: options.protocol,
        topic: options.topic.clone(),
        partitions: options.partitions.get(),
        heartbeat: HEARTBEAT,
        session: SESSION,
    };
    let name = group_name();
    let names = (0..groups).map(|number| format!("{name}-{number}")).collect();
    let mut membership = Membership::new(options.address.clone(), shared, names)?;
    for group in 0..groups as usize {
        for _ in 0..each {
            let number = membership.add(group)?;
            membership.join(number)?;
        }
    }
    membership.settle()?;
    membership.quiesce()?;
    let (mut members, streams): (Vec<_>, Vec<_>) = membership.take().into_iter().unzip();
    let shared = &membership.shared;

    let begun = Instant::now();
    let answered = match (options.kind, options.protocol) {
        (Kind::Commits, _) => drive(
            options,
            streams,
            Commits(members.iter().map(|member| member.commit(shared)).collect()),
            begun + time,
        )?,
        (Kind::Heartbeats, protocol) => {
            let requests = Heartbeats(members.iter().map(|member| member.heartbeat(shared)).collect());
            if protocol == Protocol::Consumer {
                drive(options, streams, ConsumerHeartbeats(requests), begun + time)?
            } else {
                drive(options, streams, requests, begun + time)?
            }
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    leave(&options.address, shared, &mut members)?;
    let report = Report::new(match options.kind {
        Kind::Commits => "commits",
        Kind::Heartbeats => "heartbeats",
    });
    Ok(report
        .with_figure("requests_per_s", answered as f64 / seconds)
        .with("requests", answered)
        .with("groups", groups)
        .with("members", each)
        .with("partitions", options.partitions)
        .with("in_flight", options.in_flight)
        .with("expelled", membership.expelled())
        .with_figure("seconds", seconds))
}

fn drive<S: Source>(
    options: &Options,
    streams: Vec<std::net::TcpStream>,
    requests: S,
    end: Instant,
) -> Result<u64, BenchError> {
    let in_flight = options.in_flight.get();
    let parts = connections::split(streams, options.threads.get(), &requests)?;
    connections::run(parts, |_, part| part.keep_busy(in_flight, end))
}
