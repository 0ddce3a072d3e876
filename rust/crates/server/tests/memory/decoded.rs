//! The memory of decoded requests, which is more than that of their frames.

use logcore_protocol::{Direction, schema};
use logcore_server::ControlRequest;

use super::common::{Client, Fetch, TestServer, fetched, request};
use super::{Allocated, LIMITS, MEGABYTE, ONE_AT_A_TIME, check_served, server};

/// A Metadata request of so many topics with empty names. At version 1 each has two bytes.
fn nameless(client: &mut Client, topics: usize) -> Vec<u8> {
    let mut message = request(3);
    let topic = message.element("topics").with("name", "");
    message.set("topics", vec![topic; topics]);
    client.frame(3, 1, message)
}

/// Answers a Metadata request.
fn answer(mut request: ControlRequest) {
    let body = request.take_body();
    assert!(!body.get("topics").unwrap().as_array().unwrap().is_empty());
    let response = schema(3, Direction::Response).unwrap().message();
    request.respond(&response.into()).unwrap();
}

// If this failed, requests of many tiny elements could use a hundred times the memory of their frames.
#[test]
fn decoded_requests_share_a_budget() {
    const CLIENTS: usize = 40;
    let _alone = ONE_AT_A_TIME.lock();
    // There are 16 MiB for decoded requests, 12 of them for those that cross to Python.
    let server = server();
    let half = nameless(&mut server.client(), 20_000);
    let bomb = nameless(&mut server.client(), 1_000_000);
    let allocated = Allocated::since_now();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send_raw(&half);
    }
    for _ in &clients {
        let taken = server.take_request();
        // It uses Python's budget. Other requests are served, and the next of its kind waits.
        check_served(&server);
        assert!(server.server.take_requests(usize::MAX).is_empty());
        let mut hostile = server.client();
        hostile.send_raw(&bomb);
        assert!(hostile.is_closed());
        answer(taken);
    }
    for client in &mut clients {
        client.receive(3, 1);
    }
    let lines: Vec<_> = server.server.take_log_lines();
    let refused = lines.iter().filter(|line| {
        let text = &line.message;
        !text.contains("times more in the last")
            && text.contains("MetadataRequest version 1: cannot decode topics at byte 4")
            && text.contains("decodes to more than")
            && text.contains("raise queued.max.request.bytes or send less at once")
    });
    // The line is logged once a minute.
    assert_eq!(refused.count(), 1, "{lines:?}");
    server.wait_for_gauge("connections_refused", CLIENTS as u64);
    // Each is 2.4 MiB when decoded.
    let most = 8 * MEGABYTE + 16 * MEGABYTE + 4 * MEGABYTE;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    eprintln!(
        "{CLIENTS} requests of 20,000 topics used {} bytes",
        allocated.peak()
    );
}

// If this failed, two members of a group that wait for a third could use all memory of requests meanwhile.
#[test]
fn a_join_that_waits_for_members_keeps_no_permit() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&LIMITS);
    let mut join = request(11);
    let protocol = join.element("protocols").with("name", "range");
    join.push("protocols", protocol.with("metadata", vec![0u8; MEGABYTE]));
    // Together they are larger than the budgets of frames and of decoded requests.
    let members = (0..20).map(|_| {
        let mut member = server.client();
        member.send(11, 5, join.clone());
        let mut taken = server.take_request();
        assert_eq!(taken.take_body(), join.clone().into());
        (member, taken)
    });
    for (mut member, mut waiting) in members.collect::<Vec<_>>() {
        check_served(&server);
        let response = schema(11, Direction::Response).unwrap().message();
        waiting.respond(&response.into()).unwrap();
        member.receive(11, 5);
    }
}

// If this failed, Fetch and Produce requests could use unbounded memory, or a full Fetch of a large consumer
// would be refused.
#[test]
fn decoded_fetches_and_produces_are_bounded() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let many = |partitions| Fetch {
        partitions: (0..partitions).collect(),
        ..Fetch::default()
    };
    let answer = many(2000).call(&mut server.client());
    assert_eq!(fetched(&answer).len(), 2000);
    let topic = request(0).element("topic_data");
    let mut nameless = request(0);
    nameless.set("topic_data", vec![topic; 100_000]);
    for (key, version, message) in [(1, 12, many(40_000).message()), (0, 9, nameless)] {
        let frame = server.client().frame(key, version, message);
        let allocated = Allocated::since_now();
        for _ in 0..4 {
            let mut client = server.client();
            client.send_raw(&frame);
            assert!(client.is_closed());
        }
        // The line is logged once a minute.
        server.wait_for_line("raise queued.max.request.bytes");
        check_served(&server);
        // The frames, and the buffers they grow from.
        let most = 8 * MEGABYTE;
        assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    }
}

// If this failed, an administrator with many topics would have to raise a setting.
#[test]
fn ten_thousand_topics_are_an_ordinary_request() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&[]);
    let mut client = server.client();
    let names = (0..10_000).map(|number| format!("a-topic-with-a-name-of-an-ordinary-length-{number}"));
    let (mut described, mut created) = (request(3), request(19));
    for name in names {
        let topic = described.element("topics").with("name", &*name);
        described.push("topics", topic);
        let mut topic = created.element("topics").with("name", &*name);
        topic.set("num_partitions", 12).set("replication_factor", 3i16);
        for config in ["retention.ms", "cleanup.policy"] {
            let config = topic.element("configs").with("name", config);
            topic.push("configs", config.with("value", "604800000"));
        }
        created.push("topics", topic);
    }
    for (key, version, message) in [(3, 12, described), (19, 7, created)] {
        client.send(key, version, message.clone());
        let mut taken = server.take_request();
        assert_eq!(taken.take_body(), message.into());
        let response = schema(key, Direction::Response).unwrap().message();
        taken.respond(&response.into()).unwrap();
        client.receive(key, version);
    }
}
