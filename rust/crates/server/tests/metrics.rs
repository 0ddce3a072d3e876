//! Metrics after known traffic.
//!
//! A request is counted when its response is sent, before the next request of its connection is read. So the
//! counts are exact after one more request on the same connection.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use common::{Client, Fetch, TestServer, batch, fetched, partition, produce, produced, records, request};
use logcore_protocol::{Direction, Value, schema};
use logcore_server::{ApiMeasurements, Measurements};

const API_VERSIONS: i16 = 18;
const METADATA: i16 = 3;

/// The measurements after all earlier requests of this connection are counted.
fn measured(server: &TestServer, client: &mut Client) -> Measurements {
    client.call(API_VERSIONS, 0, request(API_VERSIONS));
    server.server.measurements()
}

fn api<'a>(measurements: &'a Measurements, name: &str) -> &'a ApiMeasurements {
    let found = measurements.apis.iter().find(|api| api.name == name);
    found.unwrap_or_else(|| panic!("no counts for {name}"))
}

fn gauge(measurements: &Measurements, name: &str) -> f64 {
    let found = measurements.gauges.iter().find(|(found, _)| *found == name);
    found.unwrap_or_else(|| panic!("no gauge {name}")).1
}

fn counter(measurements: &Measurements, values: &[u64], name: &str) -> u64 {
    let names = &measurements.topic_counters;
    values[names.iter().position(|found| *found == name).unwrap()]
}

fn topic(measurements: &Measurements, topic: &str, name: &str) -> u64 {
    let (_, values) = measurements
        .topics
        .iter()
        .find(|(found, _)| found == topic)
        .unwrap();
    counter(measurements, values, name)
}

/// The number of requests in the histogram of a stage's times: all, and those above the first bound.
fn times(measurements: &Measurements, name: &str, stage: &str) -> (u64, u64) {
    let stages = &measurements.stages;
    let stage = stages.iter().position(|found| *found == stage).unwrap();
    let cumulative = &api(measurements, name).times[stage].cumulative;
    let all = cumulative[cumulative.len() - 1];
    (all, all - cumulative[0])
}

// If this failed, an operator could not choose the number of threads that serve connections.
#[test]
fn num_network_threads_is_the_number_of_threads() {
    let server = TestServer::start(&[("num.network.threads", "5")]);
    let seen = server.server.measurements();
    assert_eq!(gauge(&seen, "network_threads"), 5.0);
}

// If this failed, the metrics of bytes and messages would be wrong, or would lose those of a deleted topic.
#[test]
fn topics_are_counted() {
    let server = TestServer::start(&[("message.max.bytes", "200")]);
    server.server.create_partition(&partition("u", 0)).unwrap();
    let mut client = server.client();
    let sent = batch(&[b"a", b"b"]);
    let mut send = |topic: &str, index: i32, records: &[u8]| {
        let body = client.call(0, 9, produce(topic, 1, &[(index, records)]));
        common::int(&produced(&body), "error_code")
    };
    assert_eq!(send("t", 0, &sent), 0);
    assert_eq!(send("t", 1, &sent), 0);
    assert_eq!(send("u", 0, &sent), 0);
    assert_eq!(send("nowhere", 0, &sent), 3);
    let large = batch(&[&[0; 300]]);
    assert_eq!(send("t", 0, &large), 10);
    // A client may not set an offset, so the batch is refused as invalid.
    let mut wrong = sent.clone();
    wrong[7] = 1;
    assert_eq!(send("t", 0, &wrong), 87);
    let body = Fetch::default().call(&mut client);
    let out = records(&fetched(&body)[0]).len() as u64;
    let out_of_range = Fetch {
        offset: 99,
        ..Fetch::default()
    };
    out_of_range.call(&mut client);

    let seen = measured(&server, &mut client);
    let bytes = sent.len() as u64;
    assert_eq!(out, bytes);
    for (name, expected) in [
        ("BytesIn", 2 * bytes),
        ("MessagesIn", 4),
        ("BytesOut", bytes),
        ("BytesRejected", large.len() as u64),
        ("TotalProduceRequests", 4),
        ("FailedProduceRequests", 1),
        ("TotalFetchRequests", 2),
        // Kafka does not count an offset out of range as a failure.
        ("FailedFetchRequests", 0),
        ("ProduceMessageConversions", 0),
        ("FetchMessageConversions", 0),
    ] {
        assert_eq!(topic(&seen, "t", name), expected, "{name}");
        let more = [("BytesIn", bytes), ("MessagesIn", 2), ("TotalProduceRequests", 1)];
        let more = more.iter().find(|(found, _)| *found == name);
        let all = expected + more.map_or(0, |(_, more)| *more);
        assert_eq!(counter(&seen, &seen.all_topics, name), all, "all: {name}");
    }
    assert_eq!(api(&seen, "Produce").requests, [(9, 6)]);
    let mut errors = api(&seen, "Produce").errors.clone();
    errors.sort_unstable();
    assert_eq!(errors, [(0, 3), (3, 1), (10, 1), (87, 1)]);
    // A Fetch response has an error code of its own and one for each partition.
    assert_eq!(api(&seen, "FetchConsumer").errors, [(0, 3), (1, 1)]);
    assert_eq!(api(&seen, "Fetch").requests, [(12, 2)]);

    server.server.delete_topic("t").unwrap();
    let after = measured(&server, &mut client);
    assert_eq!(after.topics.len(), 1);
    assert_eq!(after.all_topics, seen.all_topics);
}

// If this failed, a dashboard would show wrong sizes, offsets or numbers of logs.
#[test]
fn partitions_are_measured() {
    let server = TestServer::start(&[]);
    let elsewhere = logcore_server::PartitionSpec {
        leader_id: 2,
        ..partition("u", 0)
    };
    server.server.create_partition(&elsewhere).unwrap();
    let mut client = server.client();
    let sent = batch(&[b"a", b"b", b"c"]);
    client.call(0, 9, produce("t", 1, &[(1, &sent)]));
    let seen = measured(&server, &mut client);
    let names: Vec<_> = seen
        .partitions
        .iter()
        .map(|partition| (&*partition.topic, partition.partition, partition.leads))
        .collect();
    assert_eq!(names, [("t", 0, true), ("t", 1, true), ("u", 0, false)]);
    let written = &seen.partitions[1];
    assert_eq!(written.size_bytes, sent.len() as u64);
    assert_eq!((written.log_start_offset, written.log_end_offset), (0, 3));
    assert_eq!((written.segments, written.offline), (1, false));
    assert_eq!(server.gauge("connections"), 1);
    assert_eq!(gauge(&seen, "offline_log_dirs"), 0.0);
    assert!((0.0..=1.0).contains(&gauge(&seen, "network_idle")));
    assert!(gauge(&seen, "network_busy_seconds") > 0.0);
}

// If this failed, the wait of a long poll would be counted as work, or the poll would not be counted at all.
#[test]
fn a_long_poll_is_counted_in_the_purgatory() {
    let server = TestServer::start(&[]);
    let (mut poller, mut producer) = (server.client(), server.client());
    let poll = Fetch {
        wait_ms: 600_000,
        ..Fetch::default()
    };
    poller.send(1, 12, poll.message());
    server.wait_until("a delayed fetch", || {
        gauge(&server.server.measurements(), "delayed_fetches") == 1.0
    });
    producer.call(0, 9, produce("t", 1, &[(0, &batch(&[b"a"]))]));
    poller.receive(1, 12);
    measured(&server, &mut producer);
    let seen = measured(&server, &mut poller);
    assert_eq!(gauge(&seen, "delayed_fetches"), 0.0);
    assert_eq!(times(&seen, "Fetch", "RemoteTimeMs"), (1, 1));
    assert_eq!(times(&seen, "Fetch", "RequestQueueTimeMs"), (1, 0));
    for stage in [
        "RequestQueueTimeMs",
        "RemoteTimeMs",
        "ThrottleTimeMs",
        "ResponseQueueTimeMs",
    ] {
        assert_eq!(times(&seen, "Produce", stage), (1, 0), "{stage}");
    }
    assert_eq!(times(&seen, "Produce", "TotalTimeMs").0, 1);
    assert_eq!(times(&seen, "Produce", "ResponseSendTimeMs").0, 1);
}

// If this failed, the metrics would not show slow requests in Python, or their errors.
#[test]
fn requests_that_cross_to_python_are_counted() {
    let server = TestServer::start(&[("slow.request.log.ms", "0")]);
    let mut client = server.client();
    client.send(METADATA, 8, request(METADATA));
    server.wait_until("a request in the queue", || {
        gauge(&server.server.measurements(), "request_queue_size") == 1.0
    });
    let mut taken = server.take_request();
    let mut answer = schema(METADATA, Direction::Response).unwrap().message();
    for code in [3i16, 0, 3] {
        let topic = answer.element("topics").with("error_code", code);
        answer.push("topics", topic.with("name", "x"));
    }
    taken.respond(&Value::Struct(answer)).unwrap();
    client.receive(METADATA, 8);
    let seen = measured(&server, &mut client);
    assert_eq!(gauge(&seen, "request_queue_size"), 0.0);
    let metadata = api(&seen, "Metadata");
    assert_eq!(metadata.requests, [(8, 1)]);
    let mut errors = metadata.errors.clone();
    errors.sort_unstable();
    assert_eq!(errors, [(0, 1), (3, 2)]);
    assert_eq!(times(&seen, "Metadata", "RequestQueueTimeMs").0, 1);
    let total = &metadata.times[6].sum;
    let parts: f64 = metadata.times[..6].iter().map(|times| times.sum).sum();
    // No stage covers the time between Python's answer and the sending of the response.
    assert!(parts > 0.0 && parts <= total + 1e-6, "{parts} of {total}");
    let lines = server.wait_for_line("slow request: Metadata v8");
    let line = lines.lines().find(|line| line.contains("Metadata")).unwrap();
    for part in [
        "client \"test\"",
        "listener PLAINTEXT",
        "request queue",
        "local",
        "waiting 0.0 ms",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(
        line.contains(&format!("{}", client.stream.local_addr().unwrap())),
        "{line}"
    );
}
