//! The memory of responses: those that no client reads, and long ones that Python makes.

use std::io::Write;

use logcore_protocol::{Direction, Value, schema};
use logcore_server::ControlRequest;

use super::common::{Client, Fetch, TestServer, batch, produce, request};
use super::{Allocated, LIMITS, MEGABYTE, ONE_AT_A_TIME, check_served, large_frame, server};

// If this failed, clients that send and never read would fill the memory with responses.
#[test]
fn unread_responses_use_no_memory() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let mut honest = server.client();
    for _ in 0..2 {
        let frame = large_frame(&mut honest);
        honest.send_raw(&frame);
        honest.receive(0, 9);
    }
    let allocated = Allocated::since_now();
    let mut clients = Vec::new();
    for number in 0..20 {
        let mut client = server.client();
        client.stream.set_nonblocking(true).unwrap();
        let frame = match number % 2 {
            0 => client.frame(0, 9, produce("t", 1, &[(1, &batch(&[&[b'x'; 1000]]))])),
            _ => client.frame(1, 12, Fetch::default().message()),
        };
        // Until the server reads no more, or for some thousand requests.
        let many = frame.repeat(100);
        let mut sent = 0;
        for _ in 0..50 {
            match client.stream.write(&many[sent % frame.len()..]) {
                Ok(count) => sent += count,
                Err(_) => std::thread::yield_now(),
            }
        }
        assert!(sent > 0);
        clients.push(client);
        check_served(&server);
    }
    let most = 20 * 20 * 1024 + 2 * MEGABYTE;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
}

/// A ListOffsets request for unknown topics with long names. The response repeats the names.
fn frame_with_unknown_topics(client: &mut Client) -> Vec<u8> {
    let mut message = request(2);
    message.set("replica_id", -1);
    let name = "x".repeat(30_000);
    let topic = message.element("topics").with("name", name.as_str());
    let part = Value::Struct(topic.element("partitions").with("timestamp", -1i64));
    let topic = Value::Struct(topic.with("partitions", vec![part]));
    message.set("topics", vec![topic; 60]);
    client.frame(2, 1, message)
}

// If this failed, clients with long requests that never read would fill the memory with responses.
#[test]
fn responses_as_long_as_their_requests_share_the_frame_budget() {
    const CLIENTS: usize = 40;
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let frame = frame_with_unknown_topics(&mut server.client());
    let allocated = Allocated::since_now();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    std::thread::scope(|scope| {
        for client in &mut clients {
            let mut stream = client.stream.try_clone().unwrap();
            let frame = &frame;
            // Ends when the server has read it, or closed the connection.
            scope.spawn(move || stream.write_all(frame));
        }
        // The server closes connections with unread responses for the next ones, which do not read either.
        server.wait_for_line("too little of a long one");
        server.wait_for_requests(2, 8);
        check_served(&server);
        let most = 20 * MEGABYTE;
        assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
        for client in &clients {
            // The server may have closed it.
            let _ = client.stream.shutdown(std::net::Shutdown::Both);
        }
    });
}

/// Answers a DescribeGroups request with so many bytes, or a ListGroups request with none.
fn respond(mut request: ControlRequest, bytes: usize) {
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

// If this failed, many clients that ask for long responses and read nothing would fill the memory. Or Python
// would make all these responses at once, and the requests of other APIs would wait for the last one.
#[test]
fn long_responses_of_an_api_share_a_budget() {
    const RESPONSE: usize = 4 * MEGABYTE;
    const BUDGET: usize = 32 * MEGABYTE;
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&LIMITS);
    let allocated = Allocated::since_now();
    let mut clients: Vec<_> = (0..40).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(15, 0, request(15));
    }
    server.wait_for_requests(15, 40);
    // A frame is a little longer than its content, so the last of these waits for its permit.
    for _ in 0..BUDGET / RESPONSE {
        let taken = server.take_request();
        check_served(&server);
        assert!(server.server.take_requests(usize::MAX).is_empty());
        respond(taken, RESPONSE);
    }
    check_served(&server);
    assert!(server.server.take_requests(usize::MAX).is_empty());
    let mut other = server.client();
    other.send(16, 0, request(16));
    respond(server.take_request(), 0);
    other.receive(16, 0);
    // A client that leaves gives back its permit.
    drop(clients.remove(0));
    let next = server.take_request();
    assert_eq!(next.header.api_key, 15);
    // One response is encoded at a time, into a buffer that grows.
    let most = BUDGET + 4 * RESPONSE + 4 * MEGABYTE;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
}

// If this failed, Python would make one long response for each client that asks and disconnects, all at once.
#[test]
fn a_request_keeps_exclusive_access_after_its_client_left() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&LIMITS);
    let mut gone = server.client();
    gone.send(15, 0, request(15));
    let first = server.take_request();
    drop(gone);
    // The connection of `wait_until` is left.
    server.wait_until("its connection is gone", || {
        server.gauge("connections_accepted") == 2 && server.gauge("connections") == 1
    });
    let mut other = server.client();
    other.send(15, 0, request(15));
    server.wait_for_requests(15, 2);
    check_served(&server);
    assert!(server.server.take_requests(usize::MAX).is_empty());
    respond(first, MEGABYTE);
    respond(server.take_request(), 0);
    other.receive(15, 0);
}
