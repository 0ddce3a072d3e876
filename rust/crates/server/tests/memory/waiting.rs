//! The memory of Fetch and Produce requests that wait for records, for replicas or for their conversion.

use logcore_protocol::Value;
use logcore_server::PartitionSpec;

use super::common::{
    Client, Fetch, TestServer, batch, fetched, int, partition, produce, produced, records, replica,
};
use super::{
    Allocated, MEGABYTE, ONE_AT_A_TIME, check_served, is_answered, large_frame, limit_files, server,
};

// If this failed, consumers that wait for records could use any amount of memory with small requests.
#[test]
fn waiting_fetches_share_a_budget() {
    const EACH: i32 = 900;
    const MAX_WAITING: usize = (512 << 10) / EACH as usize;
    let _alone = ONE_AT_A_TIME.lock();
    limit_files(4000);
    let server = server();
    let poll = Fetch {
        wait_ms: i32::MAX,
        bytes_min: 1,
        partitions: (0..EACH).collect(),
        ..Fetch::default()
    };
    let allocated = Allocated::since_now();
    let mut waiting: Vec<Client> = (0..1500).map(|_| server.client()).collect();
    for client in &mut waiting {
        client.send(1, poll.version, poll.message());
    }
    server.wait_for_requests(1, waiting.len() as u64);
    server.wait_for_gauge("delayed_fetches", MAX_WAITING as u64);
    server.wait_for_line("answered without waiting for records");
    check_served(&server);
    // The waiting requests, those being worked on, and the connections.
    let most = 64 * MEGABYTE + 16 * MEGABYTE + waiting.len() * 32 * 1024;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    drop(waiting);
    server.wait_for_gauge("delayed_fetches", 0);
    assert_eq!(
        Fetch::default()
            .call(&mut server.client())
            .get("error_code")
            .and_then(Value::as_i16),
        Some(0)
    );
}

// If this failed, a client with one session of many partitions could have it copied for each of its short
// requests.
#[test]
fn fetches_of_one_session_share_a_budget() {
    const EACH: i32 = 20_000;
    const REQUESTS: i32 = 200;
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&[]);
    server.server.know_topic("elsewhere", [7; 16], EACH, &[]);
    let all = Fetch {
        topic: "elsewhere",
        session: (0, 0),
        partitions: (0..EACH).collect(),
        ..Fetch::default()
    };
    let answer = all.call(&mut server.client());
    assert_eq!(fetched(&answer).len(), EACH as usize);
    let id = int(answer.as_struct().unwrap(), "session_id") as i32;
    assert_ne!(id, 0);
    drop((all, answer));
    // The epochs of a session must arrive in order. Some may not, so each is sent several times.
    let mut clients: Vec<Client> = (0..4 * REQUESTS).map(|_| server.client()).collect();
    let allocated = Allocated::since_now();
    for (client, epoch) in clients.iter_mut().zip((1..=REQUESTS).cycle()) {
        let next = Fetch {
            session: (id, epoch),
            partitions: Vec::new(),
            ..Fetch::default()
        };
        client.send(1, next.version, next.message());
    }
    server.wait_for_requests(1, 1 + clients.len() as u64);
    // The requests being worked on, the responses, and the connections.
    let most = 64 * MEGABYTE + 64 * MEGABYTE + clients.len() * 32 * 1024;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    check_served(&server);
}

// If this failed, producers that wait for replicas could fill the memory by naming many partitions, or would
// stop other producers.
#[test]
fn waiting_produces_share_a_budget() {
    const EACH: i32 = 9000;
    const CLIENTS: usize = 150;
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let follower = replica(2, true);
    let replicated = PartitionSpec {
        replicas: vec![replica(1, true), follower],
        ..partition("t", 0)
    };
    server.server.create_partition(&replicated).unwrap();
    let records = batch(&[b"v"]);
    let mut parts: Vec<(i32, &[u8])> = vec![(0, &records)];
    parts.extend((2..EACH).map(|index| (index, &[] as &[u8])));
    let mut message = produce("t", -1, &parts);
    message.set("timeout_ms", i32::MAX);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    let frame = clients[0].frame(0, 9, message);
    let allocated = Allocated::since_now();
    for client in &mut clients {
        client.send_raw(&frame);
    }
    server.wait_for_requests(0, CLIENTS as u64);
    server.wait_for_line("nothing is appended");
    // Producers that wait for replicas do not stop others.
    check_served(&server);
    server.wait_until("responses to all that do not wait", || {
        server.gauge("delayed_produces") as usize + clients.iter().filter(|c| is_answered(c)).count()
            == CLIENTS
    });
    // The server may have closed connections with unread responses, so this needs a new one.
    let mut refused = server.client();
    refused.send_raw(&frame);
    let (_, answer) = refused.receive(0, 9);
    assert_eq!(int(&produced(&answer), "error_code"), 7);
    // The waiting requests, the frames, their responses, the requests being worked on, and the connections.
    let most = (64 + 8 + 16 + 16) * MEGABYTE + CLIENTS * 32 * 1024;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    eprintln!(
        "{CLIENTS} requests that waited for replicas used {} bytes",
        allocated.peak()
    );
}

// If this failed, a waiting request that names its topic once for each partition would use more memory than
// is counted.
#[test]
fn a_repeated_topic_name_is_stored_once() {
    const EACH: usize = 200;
    const WAITING: usize = 50;
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let long = "x".repeat(249);
    server.server.create_partition(&partition(&long, 0)).unwrap();
    let poll = Fetch {
        wait_ms: i32::MAX,
        ..Fetch::default()
    };
    let mut message = poll.message();
    let part = message.element("topics").element("partitions");
    let topics = (0..EACH).map(|index| {
        let part = part.clone().with("partition", index as i32);
        let part = part.with("partition_max_bytes", 1);
        let topic = message.element("topics").with("topic", long.as_str());
        Value::Struct(topic.with("partitions", vec![Value::Struct(part)]))
    });
    let topics: Vec<Value> = topics.collect();
    message.set("topics", topics);
    let mut waiting: Vec<Client> = (0..WAITING).map(|_| server.client()).collect();
    let frame = waiting[0].frame(1, poll.version, message);
    let allocated = Allocated::since_now();
    for client in &mut waiting {
        client.send_raw(&frame);
    }
    server.wait_for_gauge("delayed_fetches", WAITING as u64);
    // The bytes that `fetch_purgatory` counts for each partition, and the connections.
    let most = WAITING * (EACH * 128 + 16 * 1024);
    assert!(allocated.now() <= most, "{} > {most}", allocated.now());
    eprintln!(
        "{WAITING} requests that name a topic {EACH} times used {} bytes",
        allocated.now()
    );
}

// If this failed, old clients that do not read would make other old clients' requests fill the memory. Or
// these clients would get an error, or wait for ever.
#[test]
fn fetches_that_wait_for_conversion_share_a_budget() {
    const EACH: i32 = 900;
    const MANY: usize = 1000;
    const NOT_READING: usize = 10;
    const MAX_WAITING: usize = (192 << 10) / EACH as usize;
    let _alone = ONE_AT_A_TIME.lock();
    limit_files(4000);
    let server = server();
    let mut client = server.client();
    for _ in 0..8 {
        let frame = large_frame(&mut client);
        client.send_raw(&frame);
        client.receive(0, 9);
    }
    let old = Fetch {
        version: 2,
        partition_bytes_max: 100 << 20,
        ..Fetch::default()
    };
    let many = Fetch {
        version: 2,
        partitions: (0..EACH).collect(),
        ..Fetch::default()
    };
    let many_frame = client.frame(1, many.version, many.message());
    let allocated = Allocated::since_now();
    let mut clients: Vec<Client> = (0..NOT_READING + MANY).map(|_| server.client()).collect();
    let (not_reading, others) = clients.split_at_mut(NOT_READING);
    for client in not_reading {
        client.send(1, old.version, old.message());
    }
    server.wait_for_requests(1, NOT_READING as u64);
    for client in &mut *others {
        client.send_raw(&many_frame);
    }
    server.wait_for_requests(1, (NOT_READING + MANY) as u64);
    server.wait_for_line("gets no messages yet");
    server.wait_until("responses to all that do not wait", || {
        let answered = others.iter().filter(|client| is_answered(client));
        answered.count() >= MANY - MAX_WAITING
    });
    let answered = others.iter_mut().find(|client| is_answered(client)).unwrap();
    let (_, answer) = answered.receive(1, many.version);
    let part = &fetched(&answer)[0];
    assert_eq!((int(part, "error_code"), int(part, "high_watermark")), (0, 8));
    assert!(records(part).is_empty());
    check_served(&server);
    // Converted messages, one conversion, the requests that wait, those being worked on, and the connections.
    let most = (64 + 16 + 60 + 16) * MEGABYTE + clients.len() * 32 * 1024;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    eprintln!("{MANY} requests that waited used {} bytes", allocated.peak());
}
