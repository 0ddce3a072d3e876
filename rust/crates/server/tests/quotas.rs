//! Quotas and limits of connections. A client above a quota gets its response at once, with a throttle time,
//! and the server does not read from it for that time.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::collections::HashMap;
use std::io::Read;
use std::time::{Duration, Instant};

use common::{
    Fetch, TestServer, batch, fetched, int, is_readable, partition, produce, records, replica, request,
};
use logcore_protocol::{Direction, Value, schema};
use logcore_server::{ClientQuota, PartitionSpec};

/// Sets the quota of a client id; the empty one is the default.
fn set(server: &TestServer, client_id: &str, values: &[(&str, f64)]) {
    let owned = values.iter().map(|(name, value)| ((*name).to_owned(), *value));
    let quota = ClientQuota {
        user: None,
        client_id: Some(client_id.to_owned()),
        values: owned.collect::<HashMap<_, _>>(),
    };
    server.server.set_client_quotas(&[quota]).unwrap();
}

fn throttle_ms(body: &Value) -> i64 {
    int(body.as_struct().unwrap(), "throttle_time_ms")
}

fn batch_of(size: usize) -> Vec<u8> {
    batch(&[&vec![b'x'; size]])
}

// If this failed, a throttled client that vanished would keep its connection for hours.
#[test]
fn a_throttled_client_is_closed_when_idle() {
    let server = TestServer::start(&[("connections.max.idle.ms", "2000")]);
    set(&server, "", &[("producer_byte_rate", 1.0)]);
    let mut client = server.client();
    let body = client.call(0, 9, produce("t", 1, &[(0, &batch_of(1000))]));
    assert!(throttle_ms(&body) > 60_000);
    server.wait_for_line("idle for connections.max.idle.ms");
    assert!(client.is_closed());
}

// If this failed, a producer above its quota would go on as before, or would be throttled for another time
// than its response says. Or one below its quota would be throttled.
#[test]
fn a_producer_above_its_quota_is_throttled() {
    let server = TestServer::start(&[]);
    set(&server, "", &[("producer_byte_rate", 10_000.0)]);
    let mut client = server.client();
    let mut call = |size| {
        let message = produce("t", 1, &[(0, &batch_of(size))]);
        throttle_ms(&client.call(0, 9, message))
    };
    // 10,000 bytes a second are 100,000 in a window of ten seconds.
    assert_eq!(call(90_000), 0);
    let began = Instant::now();
    // Even on a slow machine, the window is shorter than 11 seconds until one has passed.
    let waits = call(25_000);
    assert!((1..2000).contains(&waits), "{waits}");
    let more = call(10);
    let elapsed = began.elapsed();
    assert!(elapsed.as_millis() as i64 >= waits, "{elapsed:?} {waits}");
    // The excess is at most the used bytes less 100,000, because the window has at least ten seconds.
    assert!(more <= 1600, "{more} {waits}");
    set(&server, "other", &[("producer_byte_rate", 1.0)]);
    call(10);
    assert_eq!(call(200_000), 0, "there is no quota any more");
}

// If this failed, a stop would take the throttle time of each request that was read.
#[test]
fn a_stop_does_not_wait_for_quotas() {
    let server = TestServer::start(&[]);
    set(&server, "", &[("producer_byte_rate", 1.0)]);
    let mut client = server.client();
    // The first read of a connection has a small buffer, so a short request comes first.
    client.call(18, 0, request(18));
    let message = || produce("t", 1, &[(0, &batch_of(1000))]);
    let together: Vec<u8> = (0..3).flat_map(|_| client.frame(0, 9, message())).collect();
    client.send_raw(&together);
    let (_, body) = client.receive(0, 9);
    assert!(throttle_ms(&body) > 60_000);
    let grace = Duration::from_secs(50);
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| server.server.stop(grace).unwrap());
        for _ in 0..2 {
            client.receive(0, 9);
        }
        drop(client);
    });
    assert!(began.elapsed() < grace);
}

// If this failed, a throttled producer would not learn its throttle time: each version has its own encoding.
#[test]
fn every_version_has_its_throttle_time() {
    let server = TestServer::start(&[("quota.window.num", "2")]);
    for version in 0..=11 {
        // A change of quotas starts a new window for each version.
        set(&server, "other", &[("producer_byte_rate", 1.0)]);
        set(&server, "", &[("producer_byte_rate", 1000.0)]);
        let mut client = server.client();
        let mut message = produce("t", 1, &[(0, &batch_of(100_000))]);
        message.set("acks", 1i16);
        if version < 3 {
            // Versions before 3 take batches of format v2 too.
            message.set("transactional_id", Value::Null);
        }
        let answer = client.call(0, version, message);
        let waits = throttle_ms(&answer);
        assert_eq!(waits > 0, version >= 1, "version {version}: {waits}");
        let answers = answer.get("responses").unwrap().structs();
        assert_eq!(answers.count(), 1, "version {version}");
    }
}

// If this failed, a consumer above its quota would get more records than it may, or would skip some.
#[test]
fn a_throttled_consumer_gets_its_records_later() {
    let server = TestServer::start(&[]);
    for _ in 0..3 {
        let stored = produce("t", 1, &[(0, &batch_of(57_000))]);
        server.client().call(0, 9, stored);
    }
    set(&server, "", &[("consumer_byte_rate", 10_000.0)]);
    let mut client = server.client();
    let mut fetch = |offset, session| {
        let fetch = Fetch {
            offset,
            session,
            // A throttled Fetch does not wait for this.
            wait_ms: 60_000,
            partition_bytes_max: 58_000,
            ..Fetch::default()
        };
        fetch.call(&mut client)
    };
    let first = fetch(0, (0, 0));
    assert_eq!(throttle_ms(&first), 0);
    assert!(!records(&fetched(&first)[0]).is_empty());
    let session = int(first.as_struct().unwrap(), "session_id") as i32;
    assert_ne!(session, 0);
    let began = Instant::now();
    let throttled = fetch(1, (session, 1));
    let waits = throttle_ms(&throttled);
    assert!(waits > 0);
    assert!(fetched(&throttled).is_empty());
    assert_eq!(int(throttled.as_struct().unwrap(), "error_code"), 0);
    assert_eq!(
        int(throttled.as_struct().unwrap(), "session_id"),
        i64::from(session)
    );
    set(&server, "other", &[("consumer_byte_rate", 1.0)]);
    let later = fetch(1, (session, 2));
    let elapsed = began.elapsed();
    assert!(elapsed.as_millis() as i64 >= waits, "{elapsed:?} {waits}");
    let part = &fetched(&later)[0];
    assert!(!records(part).is_empty(), "{part:?}");
}

// If this failed, a consumer of many partitions without new records would have no quota.
#[test]
fn responses_without_records_count() {
    let server = TestServer::start(&[]);
    set(&server, "", &[("consumer_byte_rate", 100.0)]);
    let mut client = server.client();
    let fetch = || {
        let mut message = request(1);
        let mut topic = message.element("topics").with("topic", "t");
        let empty = topic.element("partitions");
        let parts = (0..10).map(|index| empty.clone().with("partition", index));
        topic.set("partitions", parts.collect::<Vec<_>>());
        message.set("topics", vec![topic]);
        message.set("session_epoch", -1);
        message
    };
    let mut answered = 0;
    while throttle_ms(&client.call(1, 12, fetch())) == 0 {
        answered += 1;
        assert!(answered < 100);
    }
    // Each response has some 40 bytes of each partition, and the quota allows 1,000 bytes in ten seconds.
    assert!(answered > 0);
}

// If this failed, replicas would fall behind because of the quotas of clients, or of consumers with the same
// client id.
#[test]
fn client_quotas_do_not_apply_to_replicas() {
    let server = TestServer::start(&[]);
    let replicated = PartitionSpec {
        replicas: vec![replica(1, true), replica(2, true)],
        ..partition("t", 0)
    };
    server.server.create_partition(&replicated).unwrap();
    for _ in 0..2 {
        let stored = produce("t", 1, &[(0, &batch_of(57_000))]);
        server.client().call(0, 9, stored);
    }
    let quotas = [
        ("consumer_byte_rate", 1000.0),
        ("request_percentage", 0.000_000_1),
    ];
    set(&server, "", &quotas);
    let mut follower = server.client();
    let fetch = Fetch {
        version: 17,
        replica: 2,
        leader_epoch: 3,
        ..Fetch::default()
    };
    for _ in 0..3 {
        let answer = fetch.call(&mut follower);
        assert_eq!(throttle_ms(&answer), 0);
        let bytes = records(&fetched(&answer)[0]).len();
        assert!(bytes > 2 * 57_000, "{bytes}");
    }
    // An error response is not throttled either, after consumers with its client id have used up the quota.
    let used_up = Fetch::default().call(&mut server.client());
    assert!(throttle_ms(&used_up) > 0);
    let lost = Fetch {
        session: (77, 5),
        ..fetch
    };
    let answer = lost.call(&mut follower);
    assert_eq!(int(answer.as_struct().unwrap(), "error_code"), 70);
    assert_eq!(throttle_ms(&answer), 0);
    // Other requests of a replica's connection are throttled.
    let versions = follower.call(18, 2, request(18));
    assert_eq!(throttle_ms(&versions), 1000);
}

// If this failed, a client could use all of the threads' time, in Rust or in Python.
#[test]
fn request_percentage_counts_every_api() {
    let server = TestServer::start(&[]);
    set(&server, "", &[("request_percentage", 0.000_000_1)]);
    let mut client = server.client();
    let mut waits = |key, version, message| {
        let body = client.call(key, version, message);
        throttle_ms(&body)
    };
    assert_eq!(waits(18, 2, request(18)), 1000);
    assert_eq!(waits(2, 5, request(2)), 1000);
    assert_eq!(waits(0, 9, produce("t", 1, &[(0, &batch_of(1))])), 1000);
    assert_eq!(waits(1, 12, Fetch::default().message()), 1000);
    client.send(3, 9, request(3));
    let mut taken = server.take_request();
    let mut answer = logcore_protocol::schema(3, logcore_protocol::Direction::Response)
        .unwrap()
        .message();
    answer.set("controller_id", 1);
    let _ = taken.take_body();
    taken.respond(&answer.into()).unwrap();
    let (_, body) = client.receive(3, 9);
    assert_eq!(throttle_ms(&body), 1000);
    assert_eq!(int(body.as_struct().unwrap(), "controller_id"), 1);
}

// If this failed, a client above a quota that Python keeps would not be throttled.
#[test]
fn a_throttle_time_from_python_is_applied() {
    let server = TestServer::start(&[]);
    let mut client = server.client();
    client.send(3, 9, request(3));
    let mut taken = server.take_request();
    let mut answer = logcore_protocol::schema(3, logcore_protocol::Direction::Response)
        .unwrap()
        .message();
    answer.set("throttle_time_ms", 300);
    let began = Instant::now();
    taken.respond(&answer.into()).unwrap();
    let (_, body) = client.receive(3, 9);
    assert_eq!(throttle_ms(&body), 300);
    assert!(began.elapsed() < Duration::from_secs(20), "the response waits");
    client.call(18, 2, request(18));
    assert!(began.elapsed() >= Duration::from_millis(300));
}

// If this failed, connections above the limit would be accepted, or those that wait would never be.
#[test]
fn connections_above_the_limit_wait() {
    let server = TestServer::start(&[("listener.name.plaintext.max.connections", "2")]);
    let mut open = [server.client(), server.client()];
    for client in &mut open {
        client.call(18, 0, request(18));
    }
    let mut new_client = server.client();
    new_client.send(18, 0, request(18));
    let [first, mut second] = open;
    // The server has time to accept the third connection here, and must not do it.
    for _ in 0..100 {
        second.call(18, 0, request(18));
    }
    assert_eq!(server.gauge("connections_accepted"), 2);
    new_client.stream.set_nonblocking(true).unwrap();
    let unread = new_client.stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(unread.kind(), std::io::ErrorKind::WouldBlock);
    new_client.stream.set_nonblocking(false).unwrap();
    drop(first);
    new_client.receive(18, 0);
    // A new limit applies at once. A lower one closes the connection that was idle for longest.
    server.server.update_config(&HashMap::new()).unwrap();
    let mut third = server.client();
    third.call(18, 0, request(18));
    new_client.call(18, 0, request(18));
    let lowered = common::properties(&[("max.connections", "2")]);
    server.server.update_config(&lowered).unwrap();
    assert!(second.is_closed());
    server.wait_for_line("it was idle for the longest time");
    third.call(18, 0, request(18));
    new_client.call(18, 0, request(18));
}

// If this failed, a new connection would close one on another listener, or brokers could not connect.
#[test]
fn a_new_connection_closes_none_on_another_listener() {
    let server = TestServer::start_listening(&[("max.connections", "3")], &["A", "B"]);
    let [brokers, a, b] = server.ports[..] else {
        panic!("there are three listeners");
    };
    let mut open = [a; 3].map(TestServer::client_of);
    for client in &mut open {
        client.call(18, 0, request(18));
    }
    let mut new_client = TestServer::client_of(b);
    new_client.send(18, 0, request(18));
    let [mut first, mut second, third] = open;
    for _ in 0..100 {
        second.call(18, 0, request(18));
    }
    assert_eq!(server.gauge("connections_accepted"), 3);
    drop(third);
    new_client.receive(18, 0);
    first.call(18, 0, request(18));
    second.call(18, 0, request(18));
    new_client.call(18, 0, request(18));
    // A broker's connection does not wait: the client that was idle for longest is closed.
    TestServer::client_of(brokers).call(18, 0, request(18));
    assert!(first.is_closed());
    second.call(18, 0, request(18));
    new_client.call(18, 0, request(18));
}

// If this failed, an address could open connections at any rate, or would be refused at once and try again.
#[test]
fn an_address_that_connects_too_fast_is_delayed_and_closed() {
    let server = TestServer::start(&[]);
    let quota = (Some("127.0.0.1".to_owned()), 0.1);
    server.server.set_ip_quotas(&[quota]).unwrap();
    // 0.1 connections a second allow one in ten seconds.
    server.client().call(18, 0, request(18));
    let began = Instant::now();
    let mut second = server.client();
    assert!(second.is_closed());
    assert!(began.elapsed() >= Duration::from_millis(500));
    server.wait_for_line("connection_creation_rate");
}

// If this failed, long polls of disconnected clients would add up, with their memory.
#[test]
fn a_request_ends_with_its_connection() {
    let server = TestServer::start(&[]);
    let poll = Fetch {
        wait_ms: 600_000,
        ..Fetch::default()
    };
    let mut polling = server.client();
    polling.send(1, 12, poll.message());
    server.wait_for_requests(1, 1);
    // This request is never read.
    polling.send(1, 12, poll.message());
    let mut asking = server.client();
    asking.send(3, 9, request(3));
    server.wait_for_requests(3, 1);
    drop((polling, asking));
    // The connection of `wait_for_gauge` is left.
    server.wait_for_gauge("connections", 1);
    // The Metadata request is still in the queue, although its client is gone.
    assert_eq!(server.server.take_requests(usize::MAX).len(), 1);
}

// If this failed, Python would keep the waiting requests of group members that have disconnected.
#[test]
fn python_learns_which_waiting_clients_disconnected() {
    let server = TestServer::start(&[]);
    let mut clients = [11, 11, 12].map(|key| {
        let mut client = server.client();
        client.send(key, 3, request(key));
        (client, server.take_request())
    });
    assert_eq!(server.server.take_gone(), [""; 0]);
    // A client that has its response does not wait.
    let response = schema(11, Direction::Response).unwrap().message();
    clients[1].1.respond(&response.into()).unwrap();
    clients[1].0.receive(11, 3);
    let id = clients[0].1.connection.id.clone();
    let requests = clients.map(|(_disconnected, request)| request);
    // The connection of `wait_for_gauge` is left.
    server.wait_for_gauge("connections", 1);
    assert!(is_readable(server.server.wake_fd()));
    assert_eq!(server.server.take_gone(), [id]);
    drop(requests);

    // A request that Python did not take yet is not reported.
    let mut client = server.client();
    client.send(11, 3, request(11));
    server.wait_for_requests(11, 3);
    drop(client);
    server.wait_for_gauge("connections", 1);
    assert_eq!(server.server.take_requests(usize::MAX).len(), 0);
}
