//! Waits until each partition has a leader, in the Metadata of several brokers.
//!
//! A topic that is ready is not asked for again, and few topics are asked for at once. So the wait takes
//! little of the time of the brokers that it measures.

use std::thread;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::error::BenchError;
use crate::metadata::{Address, Asking, NO_LEADER, Topic};
use crate::report::Report;
use crate::target::PATIENCE;

/// The topics of one request.
const TOPICS_AT_ONCE: usize = 50;
/// Between two questions, at least.
const PAUSE: Duration = Duration::from_millis(10);
/// A pause is so many times as long as the answer took, so that the questions load no broker.
const PAUSE_BY_ANSWER: u32 = 10;

/// The flags of `wait-for-leaders`.
pub(crate) struct Options {
    brokers: Vec<Address>,
    topics: Vec<String>,
    partitions: usize,
    not_broker: i32,
    in_sync: usize,
    timeout: f64,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let host = args.optional("host", "127.0.0.1".to_owned())?;
        let ports: String = args.required("ports")?;
        let (topic, topics): (String, usize) = (args.required("topic")?, args.optional("topics", 0)?);
        let address = |port: &str| {
            let port = port
                .parse()
                .map_err(|error| BenchError::Usage(format!("--ports {port}: {error}")));
            Ok((host.clone(), port?))
        };
        let options = Self {
            brokers: ports.split(',').map(address).collect::<Result<_, BenchError>>()?,
            topics: match topics {
                0 => vec![topic],
                several => (0..several).map(|number| format!("{topic}-{number}")).collect(),
            },
            partitions: args.required("partitions")?,
            not_broker: args.optional("not-broker", NO_LEADER)?,
            in_sync: args.optional("in-sync", 0)?,
            timeout: args.optional("timeout", 120.0)?,
        };
        args.finish()?;
        Ok(options)
    }

    fn is_ready(&self, topic: &Topic) -> bool {
        topic.partitions.len() == self.partitions
            && topic.partitions.iter().all(|partition| {
                let leader = partition.leader;
                leader != NO_LEADER && leader != self.not_broker && partition.in_sync >= self.in_sync
            })
    }

    /// Waits for one broker. Returns the number of requests.
    fn wait_for(&self, broker: &Address, end: Instant) -> Result<u64, BenchError> {
        let mut missing: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        let (mut asking, mut requests) = (None, 0);
        while !missing.is_empty() {
            let asked = &missing[..missing.len().min(TOPICS_AT_ONCE)];
            let asked_at = Instant::now();
            let answer = match &mut asking {
                None => Asking::connect(broker, PATIENCE).and_then(|fresh| asking.insert(fresh).ask(asked)),
                Some(asking) => asking.ask(asked),
            };
            requests += 1;
            let before = missing.len();
            match answer {
                Ok(cluster) => missing.retain(|name| {
                    !cluster
                        .topics
                        .iter()
                        .any(|topic| topic.name == *name && self.is_ready(topic))
                }),
                Err(_) => asking = None, // it may start just now
            }
            if missing.len() < before {
                continue;
            }
            if Instant::now() > end {
                return Err(BenchError::NotReady {
                    broker: format!("{}:{}", broker.0, broker.1),
                    topics: missing.len(),
                    first: missing[0].to_owned(),
                });
            }
            thread::sleep(PAUSE.max(asked_at.elapsed() * PAUSE_BY_ANSWER));
        }
        Ok(requests)
    }
}

/// Waits for all brokers.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    let begun = Instant::now();
    let end = begun + crate::load::duration(options.timeout)?;
    let requests = thread::scope(|scope| {
        let waits = options
            .brokers
            .iter()
            .map(|broker| scope.spawn(move || options.wait_for(broker, end)));
        let waits: Vec<_> = waits.collect();
        let mut requests = 0;
        for wait in waits {
            requests += wait.join().map_err(|_| BenchError::Panicked)??;
        }
        Ok::<u64, BenchError>(requests)
    })?;
    Ok(Report::new("wait-for-leaders")
        .with_figure("seconds", begun.elapsed().as_secs_f64())
        .with("requests", requests))
}
