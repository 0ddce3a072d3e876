//! A server in a temporary directory, and a client that sends and receives raw frames.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used)] // a test may panic

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use logcore_protocol::{
    Direction, RequestHeader, Struct, Value, decode_response, decode_response_header, encode_request, schema,
};
use logcore_records::{BatchBuilder, Compression};
use logcore_server::{
    ControlRequest, ListenerSpec, ListenerTls, PartitionSpec, Properties, Replica, Server, ServerOptions,
};

pub(crate) const TOPIC_ID: [u8; 16] = [7; 16];
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) port: u16,
    /// The port of the last listener, which has TLS after [`Self::start_secured`].
    pub(crate) secure_port: u16,
    /// The ports of all listeners.
    pub(crate) ports: Vec<u16>,
    _dir: tempfile::TempDir,
}

pub(crate) fn properties(pairs: &[(&str, &str)]) -> Properties {
    let owned = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    owned.collect()
}

/// The id of `t`, or of every other topic.
fn topic_id(topic: &str) -> [u8; 16] {
    if topic == "t" { TOPIC_ID } else { [8; 16] }
}

pub(crate) fn partition(topic: &str, index: i32) -> PartitionSpec {
    PartitionSpec {
        topic: topic.to_owned(),
        topic_id: topic_id(topic),
        partition: index,
        leader_epoch: 3,
        leader_id: 1,
        partition_epoch: -1,
        replicas: Vec::new(),
        config: Properties::new(),
        new: true,
    }
}

pub(crate) fn replica(id: i32, in_sync: bool) -> Replica {
    Replica {
        id,
        rack: Some(format!("rack{id}")),
        listeners: vec!["PLAINTEXT".to_owned()],
        in_sync,
    }
}

/// A gauge of a server, or the number of its open connections.
pub(crate) fn gauge(server: &Server, name: &str) -> u64 {
    let measured = server.measurements();
    if name == "connections" {
        return measured.connections.iter().map(|(_, open)| open).sum();
    }
    let found = measured.gauges.iter().find(|(found, _)| *found == name);
    found.unwrap_or_else(|| panic!("there is no gauge {name}")).1 as u64
}

impl TestServer {
    /// Serves partitions 0 and 1 of topic `t`, led by this server in epoch 3.
    pub(crate) fn start(config: &[(&str, &str)]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// Opens the logs in the folder `logs` of `dir`.
    pub(crate) fn start_in(dir: tempfile::TempDir, config: &[(&str, &str)]) -> Self {
        Self::start_on(dir, &["logs"], config)
    }

    /// Uses several folders of `dir` as log directories.
    pub(crate) fn start_on(dir: tempfile::TempDir, log_dirs: &[&str], config: &[(&str, &str)]) -> Self {
        Self::start_with(dir, log_dirs, config, &[])
    }

    /// Adds listeners for clients to the one for brokers.
    pub(crate) fn start_listening(config: &[(&str, &str)], names: &[&str]) -> Self {
        let others: Vec<_> = names.iter().map(|name| (*name, None)).collect();
        let dir = tempfile::tempdir().unwrap();
        Self::start_with(dir, &["logs"], config, &others)
    }

    /// Adds a listener with TLS.
    pub(crate) fn start_secured(config: &[(&str, &str)], tls: ListenerTls) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_with(dir, &["logs"], config, &[("SSL", Some(tls))])
    }

    fn start_with(
        dir: tempfile::TempDir,
        log_dirs: &[&str],
        config: &[(&str, &str)],
        others: &[(&str, Option<ListenerTls>)],
    ) -> Self {
        let mut properties = properties(config);
        if !config.iter().any(|(name, _)| name.contains("retention")) {
            // The tests' records have old timestamps, and retention would delete them.
            properties.insert("log.retention.ms".to_owned(), "-1".to_owned());
        }
        let path = |name: &&str| dir.path().join(name).to_string_lossy().into_owned();
        let server = Server::open(&ServerOptions {
            node_id: 1,
            cluster_id: "abcdefghijklmnopqrstug".to_owned(),
            log_dirs: log_dirs.iter().map(path).collect(),
            properties,
            progress: Arc::default(),
        })
        .unwrap();
        server.create_partition(&partition("t", 0)).unwrap();
        server.create_partition(&partition("t", 1)).unwrap();
        let listener = |name: &str, tls| ListenerSpec {
            name: name.to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 0,
            tls,
        };
        let mut listeners = vec![listener("PLAINTEXT", None)];
        listeners.extend(others.iter().map(|(name, tls)| listener(name, tls.clone())));
        let ports = server.start(&listeners).unwrap();
        Self {
            server,
            port: ports[0],
            secure_port: *ports.last().unwrap(),
            ports,
            _dir: dir,
        }
    }

    /// Stops the server and closes its logs. The directory stays.
    pub(crate) fn stop(self) -> tempfile::TempDir {
        self.server.stop(TIMEOUT).unwrap();
        self._dir
    }

    pub(crate) fn client(&self) -> Client {
        Self::client_of(self.port)
    }

    pub(crate) fn client_of(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Client::over(stream)
    }

    /// Returns once `is_true`, which it asks between round trips.
    pub(crate) fn wait_until(&self, what: &str, is_true: impl Fn() -> bool) {
        let mut client = self.client();
        let begun = std::time::Instant::now();
        loop {
            // Before the first check, too: so this connection is always counted.
            client.call(18, 0, request(18));
            if is_true() {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "timed out waiting for {what}");
        }
    }

    /// Returns once the server has begun to serve so many requests of an API.
    pub(crate) fn wait_for_requests(&self, key: i16, count: u64) {
        self.wait_until(&format!("{count} requests of API {key}"), || {
            let counts = self.server.requests_begun();
            let seen = counts.into_iter().find(|(found, _)| *found == key);
            seen.is_some_and(|(_, seen)| seen >= count)
        });
    }

    /// A gauge of the server.
    pub(crate) fn gauge(&self, name: &str) -> u64 {
        gauge(&self.server, name)
    }

    /// Returns once a gauge has the value.
    pub(crate) fn wait_for_gauge(&self, name: &str, value: u64) {
        self.wait_until(&format!("{name} = {value}"), || self.gauge(name) == value);
    }

    /// The next request that crosses to Python.
    pub(crate) fn take_request(&self) -> ControlRequest {
        loop {
            assert!(is_readable(self.server.wake_fd()), "no request crosses");
            let mut taken = self.server.take_requests(usize::MAX);
            assert!(taken.len() <= 1, "more than one request crossed");
            if let Some(request) = taken.pop() {
                return request;
            }
        }
    }

    /// Waits for a log line that contains `part`, and returns all lines up to it.
    pub(crate) fn wait_for_line(&self, part: &str) -> String {
        let mut all = String::new();
        while !all.contains(part) {
            assert!(
                is_readable(self.server.wake_fd()),
                "no line with {part:?} in: {all}"
            );
            let _ = self.server.take_requests(usize::MAX);
            for line in self.server.take_log_lines() {
                all.push_str(&line.message);
                all.push('\n');
            }
        }
        all
    }
}

/// Sets a flag when it is dropped, also when the test fails, so that other threads end.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits until the descriptor is readable. False after the timeout.
pub(crate) fn is_readable(fd: i32) -> bool {
    // SAFETY: the server owns the descriptor and outlives the call.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec {
        tv_sec: TIMEOUT.as_secs() as i64,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
}

/// Makes the server's descriptor readable, as a request would.
pub(crate) fn wake(fd: i32) {
    // SAFETY: the server owns the descriptor and outlives the call.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

pub(crate) struct Client<S = TcpStream> {
    pub(crate) stream: S,
    pub(crate) client_id: &'static str,
    next_id: i32,
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self {
            stream,
            client_id: "test",
            next_id: 100,
        }
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// A request's frame.
    pub(crate) fn frame(&mut self, key: i16, version: i16, message: Struct) -> Vec<u8> {
        self.next_id += 1;
        let header = RequestHeader {
            api_key: key,
            api_version: version,
            correlation_id: self.next_id,
            client_id: Some(self.client_id.into()),
        };
        let mut frame = vec![0; 4];
        header.encode(&mut frame).unwrap();
        encode_request(key, version, &message.into(), &mut frame).unwrap();
        let size = (frame.len() - 4) as i32;
        frame[..4].copy_from_slice(&size.to_be_bytes());
        frame
    }

    pub(crate) fn send(&mut self, key: i16, version: i16, message: Struct) {
        let frame = self.frame(key, version, message);
        self.send_raw(&frame);
    }

    /// The next response's correlation id and body.
    pub(crate) fn receive(&mut self, key: i16, version: i16) -> (i32, Value) {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).unwrap();
        let mut frame = vec![0; i32::from_be_bytes(size) as usize];
        self.stream.read_exact(&mut frame).unwrap();
        let mut frame = Bytes::from(frame);
        let id = decode_response_header(key, version, &mut frame).unwrap();
        (id, decode_response(key, version, &frame).unwrap())
    }

    pub(crate) fn call(&mut self, key: i16, version: i16, message: Struct) -> Value {
        self.send(key, version, message);
        let (id, body) = self.receive(key, version);
        assert_eq!(id, self.next_id);
        body
    }

    /// Whether the server closed the connection without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            // The kernel sends a reset if the server left bytes unread.
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

pub(crate) fn request(key: i16) -> Struct {
    schema(key, Direction::Request).unwrap().message()
}

pub(crate) fn batch(values: &[&[u8]]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    for value in values {
        builder.append(1_700_000_000_000, None, Some(value), &[]).unwrap();
    }
    builder.build().unwrap()
}

pub(crate) fn produce(topic: &str, acks: i16, parts: &[(i32, &[u8])]) -> Struct {
    let mut message = request(0);
    message.set("acks", acks).set("timeout_ms", 1000);
    let mut data = message.element("topic_data").with("name", topic);
    for (index, records) in parts {
        let part = data.element("partition_data").with("index", *index);
        data.push("partition_data", part.with("records", records.to_vec()));
    }
    message.push("topic_data", data);
    message
}

/// The response for the first partition of a Produce.
pub(crate) fn produced(body: &Value) -> Struct {
    let topic = body.get("responses").unwrap().structs().next().unwrap();
    topic
        .get("partition_responses")
        .unwrap()
        .structs()
        .next()
        .unwrap()
        .clone()
}

pub(crate) struct Fetch {
    pub(crate) version: i16,
    pub(crate) topic: &'static str,
    pub(crate) offset: i64,
    pub(crate) wait_ms: i32,
    pub(crate) bytes_min: i32,
    pub(crate) bytes_max: i32,
    pub(crate) partition_bytes_max: i32,
    pub(crate) session: (i32, i32),
    pub(crate) leader_epoch: i32,
    pub(crate) partitions: Vec<i32>,
    pub(crate) committed: bool,
    pub(crate) replica: i32,
    pub(crate) rack: &'static str,
}

impl Default for Fetch {
    fn default() -> Self {
        Self {
            version: 12,
            topic: "t",
            offset: 0,
            wait_ms: 0,
            bytes_min: 1,
            bytes_max: 50 << 20,
            partition_bytes_max: 1 << 20,
            session: (0, -1),
            leader_epoch: -1,
            partitions: vec![0],
            committed: false,
            replica: -1,
            rack: "",
        }
    }
}

impl Fetch {
    pub(crate) fn message(&self) -> Struct {
        let mut message = request(1);
        message
            .set("max_wait_ms", self.wait_ms)
            .set("min_bytes", self.bytes_min)
            .set("max_bytes", self.bytes_max)
            .set("isolation_level", i8::from(self.committed))
            .set("session_id", self.session.0)
            .set("session_epoch", self.session.1)
            .set("rack_id", self.rack);
        if self.version >= 15 {
            let state = message.element("replica_state");
            message.set("replica_state", state.with("replica_id", self.replica));
        } else {
            message.set("replica_id", self.replica);
        }
        let mut topic = message.element("topics");
        if self.version >= 13 {
            topic.set("topic_id", topic_id(self.topic));
        } else {
            topic.set("topic", self.topic);
        }
        for index in &self.partitions {
            let part = topic
                .element("partitions")
                .with("partition", *index)
                .with("current_leader_epoch", self.leader_epoch)
                .with("fetch_offset", self.offset)
                .with("partition_max_bytes", self.partition_bytes_max);
            topic.push("partitions", part);
        }
        if !self.partitions.is_empty() {
            message.push("topics", topic);
        }
        message
    }

    pub(crate) fn call<S: Read + Write>(&self, client: &mut Client<S>) -> Value {
        client.call(1, self.version, self.message())
    }
}

/// Every partition of a Fetch response.
pub(crate) fn fetched(body: &Value) -> Vec<Struct> {
    let topics = body.get("responses").unwrap().structs();
    let partitions = topics.flat_map(|topic| topic.get("partitions").unwrap().structs());
    partitions.cloned().collect()
}

/// The only partition of a response's only topic.
pub(crate) fn only_part(body: &Value) -> Struct {
    let topic = body.get("topics").unwrap().structs().next().unwrap();
    let mut parts = topic.get("partitions").unwrap().structs();
    parts.next().unwrap().clone()
}

/// The leader's id and epoch in a Produce response with NOT_LEADER_OR_FOLLOWER.
pub(crate) fn current_leader(answer: &Struct) -> (i64, i64) {
    let leader = answer.get("current_leader").unwrap().as_struct().unwrap();
    (int(leader, "leader_id"), int(leader, "leader_epoch"))
}

pub(crate) fn int(message: &Struct, name: &str) -> i64 {
    match message.get(name) {
        Some(Value::I16(number)) => i64::from(*number),
        Some(Value::I32(number)) => i64::from(*number),
        Some(Value::I64(number)) => *number,
        other => panic!("{name} is {other:?}"),
    }
}

pub(crate) fn records(partition: &Struct) -> Bytes {
    partition
        .get("records")
        .and_then(Value::as_bytes)
        .cloned()
        .unwrap_or_default()
}

/// Checks every batch stored in a partition, and returns the number of records.
pub(crate) fn check_log(server: &TestServer, topic: &str, index: i32) -> i64 {
    let end = server.server.offsets(topic, index).unwrap().log_end;
    let mut offset = 0;
    while offset < end {
        let stored = server.server.read(topic, index, offset, 1 << 20).unwrap();
        for batch in logcore_records::batches(&stored) {
            let batch = batch.unwrap();
            assert_eq!(batch.header.base_offset, offset);
            batch.verify_crc().unwrap();
            assert!(batch.validate(1 << 30).unwrap().in_order);
            offset = batch.header.last_offset() + 1;
        }
    }
    offset
}
