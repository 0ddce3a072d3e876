//! What Fetch requests share: those of many partitions, and those whose peers wait or do not read, keep nobody waiting.

use std::io::Write;
use std::time::Duration;

use logcore_protocol::Value;

use super::common::{Client, Fetch, TestServer, batch, fetched, int, produce, records};

/// The kernel's buffers are small, so what is not read is not sent.
const SMALL_BUFFERS: [(&str, &str); 2] = [
    ("socket.send.buffer.bytes", "65536"),
    ("socket.receive.buffer.bytes", "65536"),
];

fn partitions(count: i32) -> Fetch {
    Fetch {
        partitions: (0..count).collect(),
        ..Fetch::default()
    }
}

/// Never answered, unless something is produced.
fn poll(count: i32) -> Fetch {
    Fetch {
        wait_ms: i32::MAX,
        bytes_min: 1,
        ..partitions(count)
    }
}

/// A Fetch of more than 500 partitions, all of which are told of.
fn check_served(server: &TestServer) {
    let answer = partitions(600).call(&mut server.client());
    assert_eq!(fetched(&answer).len(), 600);
}

fn number(answer: &Value, name: &str) -> i64 {
    int(answer.as_struct().unwrap(), name)
}

fn write(client: &mut Client, value: &[u8]) {
    client.call(0, 9, produce("t", 1, &[(0, &batch(&[value]))]));
}

// If this failed, consumers with nothing to read would keep those from reading that have something.
#[test]
fn who_waits_for_more_keeps_nobody_waiting() {
    let server = TestServer::start(&[]);
    let mut idle: Vec<_> = (0..225).map(|_| server.client()).collect();
    let poll = poll(600);
    for client in &mut idle {
        client.send(1, poll.version, poll.message());
    }
    server.wait_for_requests(1, 225);
    check_served(&server);
    server.wait_for_gauge("delayed_fetches", 225);
    write(&mut server.client(), b"news");
    for client in &mut idle {
        let (_, answer) = client.receive(1, poll.version);
        assert_eq!(fetched(&answer).len(), 600);
    }
}

// If this failed, a request that names partitions that there are not would be kept for as long as it likes, by which others wait
// or the memory fills.
#[test]
fn nobody_waits_with_many_partitions_that_there_are_not() {
    let server = TestServer::start(&[]);
    for count in [50_000, 50_000, 31_070] {
        let answer = poll(count).call(&mut server.client());
        assert_eq!(fetched(&answer).len(), count as usize);
    }
    check_served(&server);
}

// If this failed, one client that does not read what it is told would stop all others that ask for many partitions.
#[test]
fn who_does_not_read_keeps_nobody_waiting() {
    let server = TestServer::start(&SMALL_BUFFERS);
    let mut deaf: Vec<_> = (0..3).map(|_| server.client()).collect();
    for client in &mut deaf {
        let large = partitions(50_000);
        client.send(1, large.version, large.message());
    }
    // One of them is being told.
    server.wait_until("a response", || server.gauge("network_bytes_out") > 1_000_000);
    check_served(&server);
}

// If this failed, what is told of many partitions would be had for each of those that do not read it, however many they are.
#[test]
fn what_is_told_of_many_partitions_is_counted() {
    const EACH: i32 = 10_000;
    let server = TestServer::start(&SMALL_BUFFERS);
    // Not what there is not, which has a room of its own. Long names, told for each partition.
    let names = ["x", "y"].map(|letter| letter.repeat(249));
    for (number, name) in names.iter().enumerate() {
        let id = [number as u8 + 1; 16];
        server.server.know_topic(name, id, EACH, &[]);
    }
    let fetch = Fetch::default();
    let mut message = fetch.message();
    let part = message.element("topics").element("partitions");
    for index in 0..EACH {
        for name in &names {
            let part = Value::Struct(part.clone().with("partition", index));
            let topic = message.element("topics").with("topic", name.as_str());
            message.push("topics", topic.with("partitions", vec![part]));
        }
    }
    let mut deaf: Vec<_> = (0..40).map(|_| server.client()).collect();
    let frame = deaf[0].frame(1, fetch.version, message);
    std::thread::scope(|scope| {
        for client in &mut deaf {
            let frame = &frame;
            // Until it is read, or its end.
            scope.spawn(move || client.stream.write_all(frame));
        }
    });
    server.wait_for_line("bytes of large Fetch responses is used up");
    let small = Fetch::default().call(&mut server.client());
    assert_eq!(fetched(&small).len(), 1);
}

// If this failed, old clients that do not read would stop all others as old.
#[test]
fn who_reads_messages_waits_for_a_moment() {
    let server = TestServer::start(&SMALL_BUFFERS);
    let mut client = server.client();
    for _ in 0..5 {
        write(&mut client, &[0; 900_000]);
    }
    let old = |bytes| Fetch {
        version: 2,
        partition_bytes_max: bytes,
        ..Fetch::default()
    };
    let mut deaf: Vec<_> = (0..20).map(|_| server.client()).collect();
    for client in &mut deaf {
        client.send(1, 2, old(100 << 20).message());
    }
    server.wait_for_requests(1, 20);
    let patience = Some(Duration::from_secs(60));
    client.stream.set_read_timeout(patience).unwrap();
    let answer = old(1 << 20).call(&mut client);
    let part = &fetched(&answer)[0];
    assert_eq!(int(part, "error_code"), 0);
    assert!(records(part).len() > 800_000);
    server.wait_for_line("too little of a long one");
}

// If this failed, a few clients that ask for partitions nobody has would take their sessions from everybody.
#[test]
fn sessions_are_not_used_up_by_what_there_is_not() {
    let server = TestServer::start(&[("max.incremental.fetch.session.cache.slots", "10")]);
    let open = |count| {
        let fetch = Fetch {
            session: (0, 0),
            ..partitions(count)
        };
        number(&fetch.call(&mut server.client()), "session_id")
    };
    let first = open(1);
    assert_ne!(first, 0);
    for _ in 0..5 {
        assert_eq!(open(1900), 0);
    }
    let more = Fetch {
        session: (first as i32, 1),
        ..partitions(2)
    };
    let answer = more.call(&mut server.client());
    assert_eq!(number(&answer, "error_code"), 0);
    assert_ne!(open(2), 0);
}
