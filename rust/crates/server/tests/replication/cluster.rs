//! Several servers in one process that reach each other over loopback. The test is their controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use logcore_server::{BrokerAddress, ListenerSpec, PartitionSpec, Server, ServerOptions};

use crate::common::{
    Client, TIMEOUT, TestServer, batch, gauge, int, partition, produce, produced, properties, replica,
    request,
};

/// A topic's leader, its epoch, and the replicas with the ISR.
#[derive(Clone)]
pub(crate) struct Decision {
    pub(crate) leader: i32,
    pub(crate) epoch: i32,
    pub(crate) replicas: Vec<i32>,
    pub(crate) isr: Vec<i32>,
}

/// All of the brokers 1 to `count` are in sync.
pub(crate) fn led_by(leader: i32, epoch: i32, count: i32) -> Decision {
    Decision {
        leader,
        epoch,
        replicas: (1..=count).collect(),
        isr: (1..=count).collect(),
    }
}

impl Decision {
    pub(crate) fn spec(&self, topic: &str, index: i32) -> PartitionSpec {
        let replicas = self.replicas.iter();
        PartitionSpec {
            leader_epoch: self.epoch,
            leader_id: self.leader,
            replicas: replicas.map(|id| replica(*id, self.isr.contains(id))).collect(),
            ..partition(topic, index)
        }
    }
}

pub(crate) struct Broker {
    pub(crate) server: Server,
    pub(crate) port: u16,
}

impl Broker {
    pub(crate) fn client(&self) -> Client {
        TestServer::client_of(self.port)
    }
}

pub(crate) struct Cluster {
    pub(crate) brokers: BTreeMap<i32, Broker>,
    config: Vec<(String, String)>,
    /// All log lines so far.
    lines: Mutex<String>,
    log_dirs: usize,
    /// The first partition's directory is `<root>/<id>/<topic>-<index>`.
    root: tempfile::TempDir,
}

impl Cluster {
    /// The brokers 1 to `count`, with quick retries.
    pub(crate) fn start(count: i32, config: &[(&str, &str)]) -> Self {
        Self::start_on(1, count, config)
    }

    /// With so many log directories each.
    pub(crate) fn start_on(log_dirs: usize, count: i32, config: &[(&str, &str)]) -> Self {
        let defaults = [
            ("log.retention.ms", "-1"),
            ("replica.fetch.backoff.ms", "20"),
            ("num.network.threads", "2"),
        ];
        let config = defaults.iter().chain(config);
        let mut cluster = Self {
            brokers: BTreeMap::new(),
            config: config
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            lines: Mutex::default(),
            log_dirs,
            root: tempfile::tempdir().unwrap(),
        };
        for id in 1..=count {
            cluster.start_broker(id, 0);
        }
        cluster.introduce();
        cluster
    }

    /// Starts a broker, again if it was stopped. It knows no other one yet.
    pub(crate) fn start_broker(&mut self, id: i32, port: u16) {
        let config: Vec<_> = self
            .config
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let server = Server::open(&ServerOptions {
            node_id: id,
            cluster_id: "abcdefghijklmnopqrstug".to_owned(),
            log_dirs: (0..self.log_dirs)
                .map(|number| self.log_dir(id, number))
                .collect(),
            properties: properties(&config),
            progress: Arc::default(),
        })
        .unwrap();
        let listener = ListenerSpec {
            name: "PLAINTEXT".to_owned(),
            host: "127.0.0.1".to_owned(),
            port,
            tls: None,
        };
        let port = server.start(&[listener]).unwrap()[0];
        self.brokers.insert(id, Broker { server, port });
    }

    /// Ends a broker in an orderly way. Returns its port.
    pub(crate) fn stop_broker(&mut self, id: i32) -> u16 {
        let broker = self.brokers.remove(&id).unwrap();
        broker.server.stop(std::time::Duration::ZERO).unwrap();
        broker.port
    }

    /// Tells every broker where the running ones are.
    pub(crate) fn introduce(&self) {
        let addresses: Vec<_> = self
            .brokers
            .iter()
            .map(|(id, broker)| BrokerAddress {
                id: *id,
                host: "127.0.0.1".to_owned(),
                port: broker.port,
            })
            .collect();
        for broker in self.brokers.values() {
            broker.server.set_brokers(&addresses);
        }
    }

    /// Tells every broker who leads a partition.
    pub(crate) fn decide(&self, topic: &str, index: i32, decision: &Decision) {
        for broker in self.brokers.values() {
            broker
                .server
                .create_partition(&decision.spec(topic, index))
                .unwrap();
        }
    }

    pub(crate) fn server(&self, id: i32) -> &Server {
        &self.brokers[&id].server
    }

    /// The first log directory of a broker.
    pub(crate) fn dir(&self, id: i32) -> PathBuf {
        self.log_dir(id, 0).into()
    }

    pub(crate) fn log_dir(&self, id: i32, number: usize) -> String {
        let name = if number == 0 {
            id.to_string()
        } else {
            format!("{id}-{number}")
        };
        self.root.path().join(name).to_string_lossy().into_owned()
    }

    /// Produces one batch to partition 0 of `t`. Returns its offset; panics if it is refused.
    pub(crate) fn produce(&self, id: i32, acks: i16, values: &[&[u8]]) -> i64 {
        let (code, offset) = self.try_produce(id, ("t", 0), acks, values);
        assert_eq!(code, 0, "Produce to broker {id}");
        offset
    }

    /// The error code and the offset.
    pub(crate) fn try_produce(
        &self,
        id: i32,
        (topic, index): (&str, i32),
        acks: i16,
        values: &[&[u8]],
    ) -> (i64, i64) {
        let mut message = produce(topic, acks, &[(index, &batch(values))]);
        message.set("timeout_ms", TIMEOUT.as_millis() as i32);
        let answer = produced(&self.brokers[&id].client().call(0, 9, message));
        (int(&answer, "error_code"), int(&answer, "base_offset"))
    }

    pub(crate) fn end(&self, id: i32) -> i64 {
        self.server(id).offsets("t", 0).unwrap().log_end
    }

    pub(crate) fn gauge(&self, id: i32, name: &str) -> u64 {
        gauge(self.server(id), name)
    }

    /// Returns once `is_true`, which it asks between round trips.
    pub(crate) fn wait_until(&self, what: &str, is_true: impl Fn() -> bool) {
        let mut client = self.brokers.values().next().unwrap().client();
        let begun = Instant::now();
        while !is_true() {
            client.call(18, 0, request(18));
            if begun.elapsed() > TIMEOUT {
                panic!("timed out waiting for {what}:\n{}", self.lines());
            }
        }
    }

    /// Waits for a log line that contains `part`, and returns all lines so far.
    pub(crate) fn wait_for_line(&self, part: &str) -> String {
        self.wait_until(part, || self.lines().contains(part));
        self.lines()
    }

    /// All log lines so far.
    pub(crate) fn lines(&self) -> String {
        let mut all = self.lines.lock();
        for (id, broker) in &self.brokers {
            for line in broker.server.take_log_lines() {
                all.push_str(&format!("{id}: {}\n", line.message));
            }
        }
        all.clone()
    }

    /// Returns once the logs of partition 0 of `t` have the same end and high watermark, and checks that
    /// their bytes are equal.
    pub(crate) fn wait_until_equal(&self) {
        let offsets = |broker: &Broker| broker.server.offsets("t", 0).unwrap();
        self.wait_until("equal logs", || {
            let mut all = self.brokers.values().map(offsets);
            let first = all.next().unwrap();
            first.log_end == first.high_watermark
                && all.all(|one| (one.log_end, one.high_watermark) == (first.log_end, first.high_watermark))
        });
        let mut ids = self.brokers.keys();
        let first = *ids.next().unwrap();
        for id in ids {
            assert_same_files(&self.dir(first).join("t-0"), &self.dir(*id).join("t-0"));
        }
    }
}

/// The segments of two directories are equal byte for byte.
pub(crate) fn assert_same_files(left: &Path, right: &Path) {
    let segments = |dir: &Path| -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, std::fs::read(path).unwrap())
            })
            .collect()
    };
    let (left_files, right_files) = (segments(left), segments(right));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&left_files), names(&right_files), "{left:?} {right:?}");
    assert!(left_files == right_files, "{left:?} and {right:?} differ");
}
