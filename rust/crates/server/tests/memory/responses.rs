//! Responses that are not read, and long responses that Python makes.

use std::io::Write;

use logcore_protocol::{Direction, Value, schema};
use logcore_server::ControlRequest;

use super::common::{Client, Fetch, TestServer, batch, produce, request};
use super::{LIMITS, MEGABYTE, ONE_AT_A_TIME, Watch, check_served, large_frame, server};

// If this failed, clients that send and never read would fill the memory with answers.
#[test]
fn answers_nobody_reads_cost_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let mut honest = server.client();
    for _ in 0..2 {
        let frame = large_frame(&mut honest);
        honest.send_raw(&frame);
        honest.receive(0, 9);
    }
    let watch = Watch::start();
    let mut deaf = Vec::new();
    for number in 0..20 {
        let mut client = server.client();
        client.stream.set_nonblocking(true).unwrap();
        let frame = match number % 2 {
            0 => client.frame(0, 9, produce("t", 1, &[(1, &batch(&[&[b'x'; 1000]]))])),
            _ => client.frame(1, 12, Fetch::default().message()),
        };
        // Until the server reads no more of it, or for some thousand requests.
        let many = frame.repeat(100);
        let mut sent = 0;
        for _ in 0..50 {
            match client.stream.write(&many[sent % frame.len()..]) {
                Ok(count) => sent += count,
                Err(_) => std::thread::yield_now(),
            }
        }
        assert!(sent > 0);
        deaf.push(client);
        check_served(&server);
    }
    let most = 20 * 20 * 1024 + 2 * MEGABYTE;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
}

/// ListOffsets of topics that there are not, whose names are long: the answer is as long.
fn unknown_topics(client: &mut Client) -> Vec<u8> {
    let mut message = request(2);
    message.set("replica_id", -1);
    let name = "x".repeat(30_000);
    let topic = message.element("topics").with("name", name.as_str());
    let part = Value::Struct(topic.element("partitions").with("timestamp", -1i64));
    let topic = Value::Struct(topic.with("partitions", vec![part]));
    message.set("topics", vec![topic; 60]);
    client.frame(2, 1, message)
}

// If this failed, clients that ask for much that they name themselves, and never read, would fill the memory with answers.
#[test]
fn answers_that_say_what_was_asked_share_the_memory_of_requests() {
    const DEAF: usize = 40;
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let asked = unknown_topics(&mut server.client());
    let watch = Watch::start();
    let mut deaf: Vec<Client> = (0..DEAF).map(|_| server.client()).collect();
    std::thread::scope(|scope| {
        for client in &mut deaf {
            let mut stream = client.stream.try_clone().unwrap();
            let asked = &asked;
            // Until it is read, or its end.
            scope.spawn(move || stream.write_all(asked));
        }
        // Those that have answers give way to others, who read as little.
        server.wait_for_line("too little of a long one");
        server.wait_for_requests(2, 8);
        check_served(&server);
        let most = 20 * MEGABYTE;
        assert!(watch.peak() <= most, "{} > {most}", watch.peak());
        for client in &deaf {
            // It may have been closed.
            let _ = client.stream.shutdown(std::net::Shutdown::Both);
        }
    });
}

/// Answers a DescribeGroups request with so many bytes, or a ListGroups request with none.
fn tell(mut request: ControlRequest, bytes: usize) {
    let key = request.header.api_key;
    let mut response = schema(key, Direction::Response).unwrap().message();
    if key == 15 {
        let mut group = response.element("groups");
        let member = group.element("members");
        group.push("members", member.with("member_metadata", vec![0u8; bytes]));
        response.push("groups", group);
    }
    request.respond(&response.into()).unwrap();
}

// If this failed, clients that ask for everything and read nothing of it would fill the memory with what they are told, or a
// crowd of them would be told all at once, and whoever asks for something else would wait for the last of them.
#[test]
fn answers_from_python_share_what_there_is() {
    const ANSWER: usize = 4 * MEGABYTE;
    const ROOM: usize = 32 * MEGABYTE;
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&LIMITS);
    let watch = Watch::start();
    let mut deaf: Vec<_> = (0..40).map(|_| server.client()).collect();
    for client in &mut deaf {
        client.send(15, 0, request(15));
    }
    server.wait_for_requests(15, 40);
    // A frame is a little longer than what is in it: the last of these waits for its memory.
    for _ in 0..ROOM / ANSWER {
        let taken = server.take_request();
        check_served(&server);
        assert!(server.server.take_requests(usize::MAX).is_empty());
        tell(taken, ANSWER);
    }
    check_served(&server);
    assert!(server.server.take_requests(usize::MAX).is_empty());
    let mut other = server.client();
    other.send(16, 0, request(16));
    tell(server.take_request(), 0);
    other.receive(16, 0);
    // Who leaves, or reads, makes room for the next.
    drop(deaf.remove(0));
    let next = server.take_request();
    assert_eq!(next.header.api_key, 15);
    // One is made at a time, from what is to be said to a buffer that grows.
    let most = ROOM + 4 * ANSWER + 4 * MEGABYTE;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
}

// If this failed, clients that ask for everything and go away at once would have as much made for them together as there are of
// them.
#[test]
fn an_answer_that_nobody_waits_for_keeps_its_turn() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&LIMITS);
    let mut gone = server.client();
    gone.send(15, 0, request(15));
    let making = server.take_request();
    drop(gone);
    // The one that looks is left.
    server.wait_until("its connection is gone", || {
        server.gauge("connections_accepted") == 2 && server.gauge("connections") == 1
    });
    let mut other = server.client();
    other.send(15, 0, request(15));
    server.wait_for_requests(15, 2);
    check_served(&server);
    assert!(server.server.take_requests(usize::MAX).is_empty());
    tell(making, MEGABYTE);
    tell(server.take_request(), 0);
    other.receive(15, 0);
}
