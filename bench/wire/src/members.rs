//! How long one group takes to form, to settle without a member that was lost, and to replace members one
//! after another.
//!
//! The connections are open before the members join. The time of a lost member begins when its session
//! expires: before that, no coordinator can know. Of each time, the part after the last JoinGroup is reported
//! too: it has no wait for a heartbeat in it, so it is the coordinator's own.

use std::time::{Duration, Instant};

use crate::args::{Args, Count};
use crate::descriptors;
use crate::error::BenchError;
use crate::group_load::group_name;
use crate::member::{Protocol, Shared};
use crate::membership::Membership;
use crate::metadata::Address;
use crate::report::Report;

/// The flags of `members`.
pub(crate) struct Options {
    address: Address,
    topic: String,
    partitions: Count,
    members: Count,
    roll: u32,
    protocol: Protocol,
    heartbeat: Duration,
    session: Duration,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            address: (
                args.optional("host", "127.0.0.1".to_owned())?,
                args.required("port")?,
            ),
            topic: args.required("topic")?,
            partitions: args.required("partitions")?,
            members: args.optional("members", Count::MIN.saturating_add(499))?,
            roll: args.optional("roll", 20)?,
            protocol: args.optional("protocol", Protocol::Eager)?,
            heartbeat: Duration::from_millis(args.optional("heartbeat-ms", 500)?),
            session: Duration::from_millis(args.optional("session-ms", 10_000)?),
        };
        args.finish()?;
        let members = options.members.get();
        if members < 2 || members <= options.roll {
            return Err(BenchError::Usage(
                "--members must be at least 2, and more than --roll".to_owned(),
            ));
        }
        Ok(options)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The time after the last JoinGroup; KIP-848 has none.
fn after_join(membership: &Membership, settled: Instant) -> f64 {
    match membership.shared.protocol {
        Protocol::Consumer => f64::NAN,
        _ => milliseconds(settled.saturating_duration_since(membership.joined)),
    }
}

/// Runs the steps and reports their times.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    let members = options.members.get();
    descriptors::allow(members.saturating_add(options.roll))?;
    let shared = Shared {
        protocol: options.protocol,
        topic: options.topic.clone(),
        partitions: options.partitions.get(),
        heartbeat: options.heartbeat,
        session: options.session,
    };
    let mut group = Membership::new(options.address.clone(), shared, vec![group_name()])?;
    let numbers = (0..members)
        .map(|_| group.add(0))
        .collect::<Result<Vec<_>, _>>()?;

    let begun = Instant::now();
    for number in &numbers {
        group.join(*number)?;
    }
    let settled = group.settle()?;
    let report = Report::new("members")
        .with_figure("form_ms", milliseconds(settled - begun))
        .with_figure("form_after_join_ms", after_join(&group, settled));

    let expiry = group.lose(numbers[0]).unwrap_or(settled);
    let settled = group.settle()?;
    let lost = settled.saturating_duration_since(expiry);
    let report = report
        .with_figure("lose_ms", milliseconds(lost))
        .with_figure("lose_after_join_ms", after_join(&group, settled));

    let begun = Instant::now();
    for number in &numbers[1..=options.roll as usize] {
        group.leave(*number)?;
        group.wait_for_leave(*number)?;
        let next = group.add(0)?;
        group.join(next)?;
        group.settle()?;
    }
    let rolled = milliseconds(begun.elapsed());
    let expelled = group.expelled();
    group.end()?;
    Ok(report
        .with_figure("roll_ms", rolled / f64::from(options.roll))
        .with("members", members)
        .with("partitions", options.partitions)
        .with("rolled", options.roll)
        .with("expelled", expelled))
}
