//! Where a load goes: to one broker, or to the leader of each partition.

use std::time::Duration;

use crate::args::Args;
use crate::error::BenchError;
use crate::metadata::{Address, Asking};

/// How long a broker may take to answer a Metadata request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The flags `--host`, and `--port` or `--bootstrap`.
pub(crate) struct Target {
    address: Address,
    find_leaders: bool,
}

impl Target {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let host = args.optional("host", "127.0.0.1".to_owned())?;
        let [port, bootstrap] = ["port", "bootstrap"].map(|flag| args.optional(flag, 0u16));
        let (port, bootstrap) = (port?, bootstrap?);
        if (port == 0) == (bootstrap == 0) {
            return Err(BenchError::Usage(
                "give --port of one broker, or --bootstrap of any broker of a cluster".to_owned(),
            ));
        }
        Ok(Self {
            address: (host, port + bootstrap),
            find_leaders: bootstrap != 0,
        })
    }

    /// The address of each partition's leader; with `--port`, that broker's.
    pub(crate) fn leaders(&self, topic: &str, partitions: &[i32]) -> Result<Vec<Address>, BenchError> {
        if !self.find_leaders {
            return Ok(vec![self.address.clone(); partitions.len()]);
        }
        let cluster = Asking::connect(&self.address, PATIENCE)?.ask(&[topic])?;
        let found = partitions.iter().map(|partition| {
            cluster.leader(topic, *partition).cloned().ok_or_else(|| {
                BenchError::Usage(format!(
                    "partition {partition} of topic {topic} has no leader; create the topic first"
                ))
            })
        });
        found.collect()
    }
}
