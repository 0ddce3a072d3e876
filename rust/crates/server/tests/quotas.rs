//! Quotas as clients meet them: the answer comes at once, tells how long the client is not heard, and that is kept.
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

/// For every client id, or for one.
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

// If this failed, clients that were throttled and went would have their descriptors for hours.
#[test]
fn a_throttled_client_is_kept_no_longer_than_an_idle_one() {
    let server = TestServer::start(&[("connections.max.idle.ms", "2000")]);
    set(&server, "", &[("producer_byte_rate", 1.0)]);
    let mut client = server.client();
    let body = client.call(0, 9, produce("t", 1, &[(0, &batch_of(1000))]));
    assert!(throttle_ms(&body) > 60_000);
    server.wait_for_line("idle for connections.max.idle.ms");
    assert!(client.is_closed());
}

// If this failed, a producer above its quota would go on as before, wait for its answer, or be told something that does not
// happen; or one below it would wait.
#[test]
fn a_producer_above_its_quota_is_answered_at_once_and_not_heard_for_a_while() {
    let server = TestServer::start(&[]);
    set(&server, "", &[("producer_byte_rate", 10_000.0)]);
    let mut client = server.client();
    let mut call = |size| {
        let message = produce("t", 1, &[(0, &batch_of(size))]);
        throttle_ms(&client.call(0, 9, message))
    };
    // 10,000 a second are 100,000 in ten seconds.
    assert_eq!(call(90_000), 0);
    let began = Instant::now();
    // However slow the machine is, the window is less than 11 seconds long until one has passed.
    let waits = call(25_000);
    assert!((1..2000).contains(&waits), "{waits}");
    let more = call(10);
    let silent = began.elapsed();
    assert!(silent.as_millis() as i64 >= waits, "{silent:?} {waits}");
    // What it used, less what ten seconds have room for: the window is at least so long.
    assert!(more <= 1600, "{more} {waits}");
    set(&server, "other", &[("producer_byte_rate", 1.0)]);
    call(10);
    assert_eq!(call(200_000), 0, "there is no quota any more");
}

// If this failed, a stop would take as long as a throttled client has to wait, for each of its requests that were read.
#[test]
fn a_stop_waits_for_no_quota() {
    let server = TestServer::start(&[]);
    set(&server, "", &[("producer_byte_rate", 1.0)]);
    let mut client = server.client();
    // The first read of a connection brings little.
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

// If this failed, a throttled producer could not tell why it is not heard: every version has its answer encoded anew.
#[test]
fn every_version_tells_its_throttle_time() {
    let server = TestServer::start(&[("quota.window.num", "2")]);
    for version in 0..=11 {
        // Without a window to look back on, every version begins anew.
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

// If this failed, a consumer above its quota would get more than it may, or lose what it was not given.
#[test]
fn a_consumer_above_its_quota_gets_nothing_at_once_and_the_same_later() {
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
            // However long it would wait otherwise.
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
    let silent = began.elapsed();
    assert!(silent.as_millis() as i64 >= waits, "{silent:?} {waits}");
    let part = &fetched(&later)[0];
    assert!(!records(part).is_empty(), "{part:?}");
}

// If this failed, a consumer of many partitions that have nothing new would have no quota.
#[test]
fn what_is_told_of_partitions_without_records_counts() {
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
    // A second of ten, and each tells some forty bytes of each partition.
    assert!(answered > 0);
}

// If this failed, replicas would fall behind because clients are held back, or be held back for the same client id's sake.
#[test]
fn replicas_are_no_clients() {
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
    // Nor does it wait for what consumers with its client id have used, when it is told that its session is not there.
    let used_up = Fetch::default().call(&mut server.client());
    assert!(throttle_ms(&used_up) > 0);
    let lost = Fetch {
        session: (77, 5),
        ..fetch
    };
    let answer = lost.call(&mut follower);
    assert_eq!(int(answer.as_struct().unwrap(), "error_code"), 70);
    assert_eq!(throttle_ms(&answer), 0);
    // Nothing is on the client id's account by it either, but now its own time is.
    let versions = follower.call(18, 2, request(18));
    assert_eq!(throttle_ms(&versions), 1000);
}

// If this failed, a client could take all of the threads' time, in Rust or in Python.
#[test]
fn time_is_a_quota_too() {
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

// If this failed, a client above a quota that is kept in Python would only be asked to wait.
#[test]
fn the_time_a_handler_tells_is_waited() {
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
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "it is answered at once"
    );
    client.call(18, 2, request(18));
    assert!(began.elapsed() >= Duration::from_millis(300));
}

// If this failed, connections above the limit would be served, or those that wait would never be.
#[test]
fn newcomers_wait_until_there_is_room() {
    let server = TestServer::start(&[("listener.name.plaintext.max.connections", "2")]);
    let mut open = [server.client(), server.client()];
    for client in &mut open {
        client.call(18, 0, request(18));
    }
    let mut newcomer = server.client();
    newcomer.send(18, 0, request(18));
    let [first, mut second] = open;
    // Whatever the others have answered meanwhile, the third is not let in as long as two are served.
    for _ in 0..100 {
        second.call(18, 0, request(18));
    }
    assert_eq!(server.gauge("connections_accepted"), 2);
    newcomer.stream.set_nonblocking(true).unwrap();
    let unread = newcomer.stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(unread.kind(), std::io::ErrorKind::WouldBlock);
    newcomer.stream.set_nonblocking(false).unwrap();
    drop(first);
    newcomer.receive(18, 0);
    // A limit that is raised holds at once, and so does one that is lowered: the idlest must go.
    server.server.update_config(&HashMap::new()).unwrap();
    let mut third = server.client();
    third.call(18, 0, request(18));
    newcomer.call(18, 0, request(18));
    let lowered = common::properties(&[("max.connections", "2")]);
    server.server.update_config(&lowered).unwrap();
    assert!(second.is_closed());
    server.wait_for_line("it was idle for the longest time");
    third.call(18, 0, request(18));
    newcomer.call(18, 0, request(18));
}

// If this failed, somebody who is served would be closed for a newcomer on another listener, or brokers would be kept out.
#[test]
fn a_newcomer_closes_nobody_on_another_listener() {
    let server = TestServer::start_listening(&[("max.connections", "3")], &["A", "B"]);
    let [brokers, a, b] = server.ports[..] else {
        panic!("there are three listeners");
    };
    let mut open = [a; 3].map(TestServer::client_of);
    for client in &mut open {
        client.call(18, 0, request(18));
    }
    let mut newcomer = TestServer::client_of(b);
    newcomer.send(18, 0, request(18));
    let [mut first, mut second, third] = open;
    for _ in 0..100 {
        second.call(18, 0, request(18));
    }
    assert_eq!(server.gauge("connections_accepted"), 3);
    drop(third);
    newcomer.receive(18, 0);
    first.call(18, 0, request(18));
    second.call(18, 0, request(18));
    newcomer.call(18, 0, request(18));
    // Brokers have no need to wait: the idlest client goes.
    TestServer::client_of(brokers).call(18, 0, request(18));
    assert!(first.is_closed());
    second.call(18, 0, request(18));
    newcomer.call(18, 0, request(18));
}

// If this failed, an address could open connections as fast as it likes, or would be told before its time is over.
#[test]
fn an_address_that_connects_too_fast_is_kept_waiting_and_closed() {
    let server = TestServer::start(&[]);
    let quota = (Some("127.0.0.1".to_owned()), 0.1);
    server.server.set_ip_quotas(&[quota]).unwrap();
    // A tenth of a connection a second is one in ten seconds.
    server.client().call(18, 0, request(18));
    let began = Instant::now();
    let mut second = server.client();
    assert!(second.is_closed());
    assert!(began.elapsed() >= Duration::from_millis(500));
    server.wait_for_line("connection_creation_rate");
}

// If this failed, long polls of clients that are gone would add up, with all they hold.
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
    // It sends ahead what nobody will read.
    polling.send(1, 12, poll.message());
    let mut asking = server.client();
    asking.send(3, 9, request(3));
    server.wait_for_requests(3, 1);
    drop((polling, asking));
    // The one that is left asks.
    server.wait_for_gauge("connections", 1);
    // Nobody waits for the answer any more.
    assert_eq!(server.server.take_requests(usize::MAX).len(), 1);
}

// If this failed, what members of groups wait for would be kept for those who are gone, for as long as others take.
#[test]
fn who_goes_while_others_are_waited_for_is_told_of() {
    let server = TestServer::start(&[]);
    let mut clients = [11, 11, 12].map(|key| {
        let mut client = server.client();
        client.send(key, 3, request(key));
        (client, server.take_request())
    });
    assert_eq!(server.server.take_gone(), [""; 0]);
    // One whose answer has come is not waited for.
    let response = schema(11, Direction::Response).unwrap().message();
    clients[1].1.respond(&response.into()).unwrap();
    clients[1].0.receive(11, 3);
    let id = clients[0].1.connection.id.clone();
    let requests = clients.map(|(_gone, request)| request);
    // The one that is left asks.
    server.wait_for_gauge("connections", 1);
    assert!(is_readable(server.server.wake_fd()));
    assert_eq!(server.server.take_gone(), [id]);
    drop(requests);

    // Of one that nobody took there is no more to tell.
    let mut unheard = server.client();
    unheard.send(11, 3, request(11));
    server.wait_for_requests(11, 3);
    drop(unheard);
    server.wait_for_gauge("connections", 1);
    assert_eq!(server.server.take_requests(usize::MAX).len(), 0);
}
