//! The budgets that Fetch requests share: clients that wait or do not read do not stop others.

use std::io::Write;
use std::time::Duration;

use logcore_protocol::Value;

use super::common::{Client, Fetch, TestServer, batch, fetched, int, produce, records};

/// The kernel's buffers are small, so the server cannot send what a client does not read.
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

/// A Fetch that is answered only after an append.
fn poll(count: i32) -> Fetch {
    Fetch {
        wait_ms: i32::MAX,
        bytes_min: 1,
        ..partitions(count)
    }
}

/// Sends a Fetch of more than 500 partitions, which needs a permit. The response has all of them.
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

// If this failed, consumers that wait for records would stop those that have records to read.
#[test]
fn a_waiting_fetch_keeps_no_permit() {
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

// If this failed, a request for unknown partitions would wait, stop other requests, or fill the memory.
#[test]
fn a_fetch_of_unknown_partitions_does_not_wait() {
    let server = TestServer::start(&[]);
    for count in [50_000, 50_000, 31_070] {
        let answer = poll(count).call(&mut server.client());
        assert_eq!(fetched(&answer).len(), count as usize);
    }
    check_served(&server);
}

// If this failed, one client that does not read would stop all others that fetch many partitions.
#[test]
fn unread_responses_stop_no_other_fetch() {
    let server = TestServer::start(&SMALL_BUFFERS);
    let mut not_reading: Vec<_> = (0..3).map(|_| server.client()).collect();
    for client in &mut not_reading {
        let large = partitions(50_000);
        client.send(1, large.version, large.message());
    }
    // One of the responses is being sent.
    server.wait_until("a response", || server.gauge("network_bytes_out") > 1_000_000);
    check_served(&server);
}

// If this failed, clients that fetch many partitions and do not read would fill the memory with responses.
#[test]
fn large_responses_share_a_budget() {
    const EACH: i32 = 10_000;
    let server = TestServer::start(&SMALL_BUFFERS);
    // The topics must be known: the names of unknown ones are counted separately. Each partition's response
    // has the name.
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
    let mut not_reading: Vec<_> = (0..40).map(|_| server.client()).collect();
    let frame = not_reading[0].frame(1, fetch.version, message);
    std::thread::scope(|scope| {
        for client in &mut not_reading {
            let frame = &frame;
            // Ends when the server has read it, or closed the connection.
            scope.spawn(move || client.stream.write_all(frame));
        }
    });
    server.wait_for_line("bytes of large Fetch responses is used up");
    let small = Fetch::default().call(&mut server.client());
    assert_eq!(fetched(&small).len(), 1);
}

// If this failed, old clients that do not read would stop all other old clients.
#[test]
fn an_old_client_that_reads_gets_its_response() {
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
    let mut not_reading: Vec<_> = (0..20).map(|_| server.client()).collect();
    for client in &mut not_reading {
        client.send(1, 2, old(100 << 20).message());
    }
    server.wait_for_requests(1, 20);
    let timeout = Some(Duration::from_secs(60));
    client.stream.set_read_timeout(timeout).unwrap();
    let answer = old(1 << 20).call(&mut client);
    let part = &fetched(&answer)[0];
    assert_eq!(int(part, "error_code"), 0);
    assert!(records(part).len() > 800_000);
    server.wait_for_line("too little of a long one");
}

// If this failed, a few clients that fetch unknown partitions would take the sessions of all others.
#[test]
fn a_session_of_unknown_partitions_is_refused() {
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
