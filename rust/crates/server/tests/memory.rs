//! What connections cost: memory is counted here by the allocator, so each test has the process for itself.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use bytes::Bytes;
use certificates::Authority;
use common::{
    Client, Fetch, TestServer, batch, fetched, int, partition, produce, produced, records, replica, request,
};
use logcore_protocol::{Direction, Value, decode_response, decode_response_header, schema};
use logcore_server::{ClientAuth, ControlRequest, ListenerTls, PartitionSpec, TlsOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MEGABYTE: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
/// The port the helper process connects to; without it, the test that is the helper does nothing.
const PORT: &str = "LOGCORE_TEST_PORT";
const IDLE_CONNECTIONS: usize = 10_000;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters are not part of any memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the memory came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What was allocated at the most since the watch began.
struct Watch(usize);

impl Watch {
    fn start() -> Self {
        let now = NOW.load(Ordering::Relaxed);
        PEAK.store(now, Ordering::Relaxed);
        Self(now)
    }

    fn peak(&self) -> usize {
        PEAK.load(Ordering::Relaxed).saturating_sub(self.0)
    }

    fn now(&self) -> usize {
        NOW.load(Ordering::Relaxed).saturating_sub(self.0)
    }
}

/// 8 MiB for requests of at most 2 MiB. The kernel's buffers are small, so what is not read is not sent.
const LIMITS: [(&str, &str); 6] = [
    ("queued.max.request.bytes", "8388608"),
    ("socket.request.max.bytes", "2097152"),
    ("message.max.bytes", "2097152"),
    ("socket.receive.buffer.bytes", "65536"),
    ("socket.send.buffer.bytes", "65536"),
    ("socket.listen.backlog.size", "1000"),
];

fn server() -> TestServer {
    TestServer::start(&LIMITS)
}

fn limit_files(least: u64) {
    let limit = getrlimit(Resource::Nofile);
    assert!(limit.maximum.is_none_or(|most| most >= least), "{limit:?}");
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

fn large_frame(client: &mut Client) -> Vec<u8> {
    let records = batch(&[&vec![b'x'; MEGABYTE]]);
    client.frame(0, 9, produce("t", 1, &[(0, &records)]))
}

fn check_served(server: &TestServer) {
    let mut client = server.client();
    let answer = client.call(0, 9, produce("t", 1, &[(1, &batch(&[b"small"]))]));
    assert_eq!(int(&produced(&answer), "error_code"), 0);
}

/// Whether something came for the client, be it the end.
fn is_answered(client: &Client) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let came = client.stream.peek(&mut [0; 1]);
    client.stream.set_nonblocking(false).unwrap();
    came.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true)
}

/// A connection whose kernel buffer is small.
async fn connect(port: u16) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(65_536).unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    socket.connect(address).await.unwrap()
}

// If this failed, many clients could have all of the machine's memory, or could wait for each other for ever.
#[test]
fn a_thousand_large_requests_share_what_there_is() {
    let _alone = ONE_AT_A_TIME.lock();
    limit_files(4000);
    let server = server();
    let frame = large_frame(&mut server.client());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let watch = Watch::start();
    let port = server.port;
    let frame = &*Box::leak(frame.into_boxed_slice());
    runtime.block_on(async {
        let clients: Vec<_> = (0..1000)
            .map(|_| {
                tokio::spawn(async move {
                    let mut stream = connect(port).await;
                    stream.write_all(frame).await?;
                    let mut size = [0; 4];
                    stream.read_exact(&mut size).await?;
                    let mut answer = vec![0; u32::from_be_bytes(size) as usize];
                    stream.read_exact(&mut answer).await?;
                    let mut answer = Bytes::from(answer);
                    decode_response_header(0, 9, &mut answer).unwrap();
                    let answer = produced(&decode_response(0, 9, &answer).unwrap());
                    assert_eq!(int(&answer, "error_code"), 0, "{answer:?}");
                    Ok::<_, std::io::Error>(())
                })
            })
            .collect();
        for client in clients {
            let served = tokio::time::timeout(PATIENCE, client).await.unwrap();
            if let Err(error) = served.unwrap() {
                panic!("{error}: {:?}", server.server.take_log_lines());
            }
        }
    });
    let end = server.server.offsets("t", 0).unwrap().log_end;
    assert_eq!(end, 1000, "{:?}", server.server.take_log_lines());
    // Both ends' tasks are counted too, and a buffer is copied as it grows.
    let most = 8 * MEGABYTE + 1000 * 32 * 1024 + 4 * MEGABYTE;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
    eprintln!("a thousand requests of 1 MiB had {} bytes", watch.peak());
}

// If this failed, each request would be copied before it is written.
#[test]
fn a_large_request_has_one_buffer() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let mut client = server.client();
    let frame = large_frame(&mut client);
    for _ in 0..3 {
        let watch = Watch::start();
        client.send_raw(&frame);
        let (_, answer) = client.receive(0, 9);
        assert_eq!(int(&produced(&answer), "error_code"), 0);
        let most = MEGABYTE * 3 / 2;
        assert!(watch.peak() <= most, "{} > {most}", watch.peak());
    }
}

// If this failed, a few slow writers could keep everybody else from writing, or could fill the memory.
#[test]
fn frames_that_do_not_come_make_room() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let mut honest = server.client();
    let frame = large_frame(&mut honest);
    let watch = Watch::start();
    let mut slow: Vec<_> = (0..12)
        .map(|_| {
            let stream = server.client().stream;
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // As much of half a frame as is taken off them; then nothing more comes, or a byte now and then.
    let mut sent = vec![0; slow.len()];
    for _ in 0..200 {
        for (stream, sent) in slow.iter_mut().zip(&mut sent) {
            if let Ok(count) = stream.write(&frame[*sent..MEGABYTE / 2]) {
                *sent += count;
            }
        }
        check_served(&server);
    }
    honest.send_raw(&frame);
    let (served, is_served) = mpsc::channel::<()>();
    let dripping = std::thread::spawn(move || {
        let drip = Duration::from_millis(500);
        while is_served.recv_timeout(drip) == Err(RecvTimeoutError::Timeout) {
            for (stream, sent) in slow.iter_mut().zip(&mut sent).step_by(2) {
                // It is closed one day.
                *sent += stream.write(&frame[*sent..=*sent]).unwrap_or(0);
            }
        }
    });
    let (_, answer) = honest.receive(0, 9);
    assert_eq!(int(&produced(&answer), "error_code"), 0);
    drop(served);
    dripping.join().unwrap();
    server.wait_for_line("arrive too slowly");
    let most = 8 * MEGABYTE + 4 * MEGABYTE;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
}

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
        server.wait_for_line("not enough of a large one");
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

// If this failed, consumers that wait for records could have any amount of memory, by requests that are small.
#[test]
fn fetches_that_wait_share_what_there_is() {
    const EACH: i32 = 900;
    const PLACES: usize = (512 << 10) / EACH as usize;
    let _alone = ONE_AT_A_TIME.lock();
    limit_files(4000);
    let server = server();
    let poll = Fetch {
        wait_ms: i32::MAX,
        bytes_min: 1,
        partitions: (0..EACH).collect(),
        ..Fetch::default()
    };
    let watch = Watch::start();
    let mut waiting: Vec<Client> = (0..1500).map(|_| server.client()).collect();
    for client in &mut waiting {
        client.send(1, poll.version, poll.message());
    }
    server.wait_for_requests(1, waiting.len() as u64);
    server.wait_for_gauge("delayed_fetches", PLACES as u64);
    server.wait_for_line("answered without waiting for records");
    check_served(&server);
    // What waits, what is worked on at a time, and the connections.
    let most = 64 * MEGABYTE + 16 * MEGABYTE + waiting.len() * 32 * 1024;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
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

// If this failed, who has one session of many partitions could have it in memory once for each request of some thirty bytes.
#[test]
fn fetches_of_one_session_share_what_there_is() {
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
    // The next request of a session must come after the one before it. Where it overtakes it, it is sent again.
    let mut clients: Vec<Client> = (0..4 * REQUESTS).map(|_| server.client()).collect();
    let watch = Watch::start();
    for (client, epoch) in clients.iter_mut().zip((1..=REQUESTS).cycle()) {
        let next = Fetch {
            session: (id, epoch),
            partitions: Vec::new(),
            ..Fetch::default()
        };
        client.send(1, next.version, next.message());
    }
    server.wait_for_requests(1, 1 + clients.len() as u64);
    // What is worked on at a time, what is told, and the connections.
    let most = 64 * MEGABYTE + 64 * MEGABYTE + clients.len() * 32 * 1024;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
    check_served(&server);
}

// If this failed, producers that wait for replicas would fill the memory by naming many partitions, or would keep others waiting.
#[test]
fn produces_that_wait_share_what_there_is() {
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
    let watch = Watch::start();
    for client in &mut clients {
        client.send_raw(&frame);
    }
    server.wait_for_requests(0, CLIENTS as u64);
    server.wait_for_line("nothing is appended");
    // Who waits for replicas has nothing that others need.
    check_served(&server);
    server.wait_until("answers to all that have no place", || {
        server.gauge("delayed_produces") as usize + clients.iter().filter(|c| is_answered(c)).count()
            == CLIENTS
    });
    // Those that do not read their answers may be closed by now.
    let mut refused = server.client();
    refused.send_raw(&frame);
    let (_, answer) = refused.receive(0, 9);
    assert_eq!(int(&produced(&answer), "error_code"), 7);
    // What waits, the frames and their answers, what is worked on at a time, and the connections.
    let most = (64 + 8 + 16 + 16) * MEGABYTE + CLIENTS * 32 * 1024;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
    eprintln!("{CLIENTS} that waited for replicas had {} bytes", watch.peak());
}

// If this failed, consumers that wait for records would have more than what is counted, by naming a topic anew for each partition.
#[test]
fn a_name_that_is_repeated_is_had_once() {
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
    let watch = Watch::start();
    for client in &mut waiting {
        client.send_raw(&frame);
    }
    server.wait_for_gauge("delayed_fetches", WAITING as u64);
    // What `room.rs` says that each partition has, and the connections.
    let most = WAITING * (EACH * 128 + 16 * 1024);
    assert!(watch.now() <= most, "{} > {most}", watch.now());
    eprintln!(
        "{WAITING} that name a topic {EACH} times had {} bytes",
        watch.now()
    );
}

// If this failed, old clients that do not read would have those that wait for them fill the memory, or one of these would be told
// of an error or wait for ever.
#[test]
fn fetches_that_wait_to_be_converted_share_what_there_is() {
    const EACH: i32 = 900;
    const CROWD: usize = 1000;
    const DEAF: usize = 10;
    const PLACES: usize = (192 << 10) / EACH as usize;
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
    let watch = Watch::start();
    let mut clients: Vec<Client> = (0..DEAF + CROWD).map(|_| server.client()).collect();
    let (deaf, crowd) = clients.split_at_mut(DEAF);
    for client in deaf {
        client.send(1, old.version, old.message());
    }
    server.wait_for_requests(1, DEAF as u64);
    for client in &mut *crowd {
        client.send_raw(&many_frame);
    }
    server.wait_for_requests(1, (DEAF + CROWD) as u64);
    server.wait_for_line("gets no messages yet");
    server.wait_until("answers to all that have no place", || {
        let answered = crowd.iter().filter(|client| is_answered(client));
        answered.count() >= CROWD - PLACES
    });
    let answered = crowd.iter_mut().find(|client| is_answered(client)).unwrap();
    let (_, answer) = answered.receive(1, many.version);
    let part = &fetched(&answer)[0];
    assert_eq!((int(part, "error_code"), int(part, "high_watermark")), (0, 8));
    assert!(records(part).is_empty());
    check_served(&server);
    // Messages, and one that is made; what waits for them, what is worked on at a time, and the connections.
    let most = (64 + 16 + 60 + 16) * MEGABYTE + clients.len() * 32 * 1024;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
    eprintln!("{CROWD} that waited had {} bytes", watch.peak());
}

/// Metadata of so many topics without a name: at version 1, two bytes for each.
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

// If this failed, requests of many tiny things could take a hundred times the memory their frames have.
#[test]
fn decoded_requests_share_what_there_is() {
    const CLIENTS: usize = 40;
    let _alone = ONE_AT_A_TIME.lock();
    // 16 MiB for decoded requests, of which 12 are for those that cross.
    let server = server();
    let half = nameless(&mut server.client(), 20_000);
    let bomb = nameless(&mut server.client(), 1_000_000);
    let watch = Watch::start();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send_raw(&half);
    }
    for _ in &clients {
        let held = server.take_request();
        // What the others need is had.
        check_served(&server);
        assert!(server.server.take_requests(usize::MAX).is_empty());
        let mut hostile = server.client();
        hostile.send_raw(&bomb);
        assert!(hostile.is_closed());
        answer(held);
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
    // It is said once a minute.
    assert_eq!(refused.count(), 1, "{lines:?}");
    server.wait_for_gauge("connections_refused", CLIENTS as u64);
    // Each of them has 2.4 MiB decoded.
    let most = 8 * MEGABYTE + 16 * MEGABYTE + 4 * MEGABYTE;
    assert!(watch.peak() <= most, "{} > {most}", watch.peak());
    eprintln!("{CLIENTS} requests of 20,000 topics had {} bytes", watch.peak());
}

// If this failed, two members of a group could keep everybody's memory for as long as they like to wait for a third.
#[test]
fn who_waits_for_others_gives_its_memory_back() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&LIMITS);
    let mut join = request(11);
    let protocol = join.element("protocols").with("name", "range");
    join.push("protocols", protocol.with("metadata", vec![0u8; MEGABYTE]));
    // Together more than all frames have, and than all that crosses.
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

// If this failed, the data path could be made to take the memory that is bounded elsewhere, or the full fetch of a large
// consumer would be taken for an attack.
#[test]
fn fetches_and_produces_have_no_more_than_there_is() {
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
        let watch = Watch::start();
        for _ in 0..4 {
            let mut client = server.client();
            client.send_raw(&frame);
            assert!(client.is_closed());
        }
        // It is said once a minute.
        server.wait_for_line("raise queued.max.request.bytes");
        check_served(&server);
        // The frames, and their growing.
        let most = 8 * MEGABYTE;
        assert!(watch.peak() <= most, "{} > {most}", watch.peak());
    }
}

// If this failed, an administrator with many topics would need to know of a setting.
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

/// Connects for [`idle_connections_are_cheap`], which starts it as a process of its own: both ends need a descriptor.
#[test]
fn holds_connections() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    limit_files(IDLE_CONNECTIONS as u64 + 100);
    let port: u16 = port.parse().unwrap();
    let mut held = Vec::new();
    for _ in 0..IDLE_CONNECTIONS {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // ApiVersions, as every client begins, so that it is idle after it was served.
        stream
            .write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff])
            .unwrap();
        let mut size = [0; 4];
        stream.read_exact(&mut size).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(size) as usize];
        stream.read_exact(&mut answer).unwrap();
        held.push(stream);
    }
    println!("\nconnected");
    // Until the test has seen enough.
    let _ = std::io::stdin().read(&mut [0; 1]);
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<usize>().unwrap() * 1024
}

// If this failed, clients that do nothing would cost what those that do something need.
#[test]
fn idle_connections_are_cheap() {
    let _alone = ONE_AT_A_TIME.lock();
    // The server keeps an eighth of the limit, up to 1,024, for logs.
    limit_files(IDLE_CONNECTIONS as u64 + 1_200);
    let server = TestServer::start(&[]);
    server.client().call(18, 0, request(18));
    let (watch, resident) = (Watch::start(), resident_bytes());
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds_connections", "--nocapture"])
        .env(PORT, server.port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "connected"));
    let each = watch.now() / IDLE_CONNECTIONS;
    let resident_each = resident_bytes().saturating_sub(resident) / IDLE_CONNECTIONS;
    eprintln!("an idle connection has {each} bytes, {resident_each} of them resident");
    check_served(&server);
    assert!(each <= 20 * 1024, "{each}");
    assert!(resident_each <= 20 * 1024, "{resident_each}");
    drop(helper.stdin.take());
    assert!(helper.wait().unwrap().success());
    server.server.create_partition(&partition("more", 0)).unwrap();
}

const SESSIONS: usize = 100;

/// Waits until it is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come to {what}");
        std::thread::yield_now();
    }
}

/// A client that has been served once, and its session's memory is given back.
fn secured(server: &TestServer, config: &std::sync::Arc<ClientConfig>, asks: &Fetch) -> TcpStream {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(std::sync::Arc::clone(config), name).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", server.secure_port)).unwrap();
    let mut client = Client::over(StreamOwned::new(session, socket));
    client.call(18, 0, request(18));
    if !asks.partitions.is_empty() {
        client.send(1, asks.version, asks.message());
    }
    client.stream.sock
}

// If this failed, whoever comes over TLS and does not go on, or does not read, would have the memory of those who do.
#[test]
fn sessions_are_cheap_whatever_their_peers_do() {
    let _alone = ONE_AT_A_TIME.lock();
    let authority = Authority::new();
    let tls = ListenerTls::new(authority.options(ClientAuth::None)).unwrap();
    // Little of an answer is the kernel's.
    let limits = [&LIMITS[..], &[("socket.send.buffer.bytes", "8192")]].concat();
    let server = TestServer::start_secured(&limits, tls);
    let config = authority.client(None);
    let nothing = Fetch {
        partitions: Vec::new(),
        ..Fetch::default()
    };
    drop(secured(&server, &config, &nothing));

    // Half of a greeting as long as one may be, in three records and the beginning of another.
    let length = 60_000;
    let mut hello = vec![1, 0, 0xff, 0xf0];
    hello.resize(length, 0);
    let records = hello.chunks(16 * 1024).flat_map(|part| {
        let size = (part.len() as u16).to_be_bytes();
        [&[0x16, 3, 1], &size[..], part].concat()
    });
    let records: Vec<u8> = records.collect();
    let watch = Watch::start();
    let greeting = [(); SESSIONS].map(|()| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.secure_port)).unwrap();
        stream.write_all(&records).unwrap();
        stream
    });
    until("all that was said", || watch.now() >= SESSIONS * length);
    let each = watch.peak() / SESSIONS;
    eprintln!("a handshake has at most {each} bytes");
    assert!(each <= 100 * 1024, "{each}");
    check_served(&server);
    drop(greeting);
    until("the end of all", || watch.now() < MEGABYTE);

    let watch = Watch::start();
    let idle = [(); SESSIONS].map(|()| secured(&server, &config, &nothing));
    let each = watch.now() / SESSIONS;
    eprintln!("an idle session has {each} bytes");
    assert!(each <= 40 * 1024, "{each}");
    drop(idle);

    let value = vec![b'v'; 1_900_000];
    for _ in 0..4 {
        let produce = produce("t", -1, &[(0, &batch(&[&value]))]);
        server.client().call(0, 9, produce);
    }
    let sent = || server.gauge("network_bytes_out");
    // What a large buffer takes at once leaves it no sooner than what it does not.
    let small = vec![b'v'; 240_000];
    let produce = produce("t", -1, &[(1, &batch(&[&small]))]);
    server.client().call(0, 9, produce);
    let answers = [
        (0, 4 * value.len(), SESSIONS, 640, 100),
        (1, small.len(), 3 * SESSIONS, 250, 70),
    ];
    for (partition, size, sessions, large, other) in answers {
        let (before, watch) = (sent(), Watch::start());
        let all = Fetch {
            partitions: vec![partition],
            partition_bytes_max: 20 << 20,
            ..Fetch::default()
        };
        let unread = (0..sessions).map(|_| secured(&server, &config, &all));
        let unread: Vec<_> = unread.collect();
        until("all answers", || sent() - before >= (sessions * size) as u64);
        check_served(&server);
        let peak = watch.peak();
        eprintln!("{sessions} answers that nobody reads have at most {peak} bytes");
        assert!(peak <= (64 * large + (sessions - 64) * other) * 1024, "{peak}");
        drop(unread);
        until("the end of all", || watch.now() < MEGABYTE);
    }
}
