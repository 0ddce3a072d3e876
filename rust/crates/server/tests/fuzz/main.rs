//! Requests of every API and version, changed, cut and mixed, from clients that misbehave, beside one that
//! does not.
//!
//! Each seed has a server of its own. Some connections send random streams of requests ([`requests`]), a
//! thread answers in Python's place, and the responses of an ordinary client are all checked. The responses
//! that must come back are computed from the bytes sent ([`expected`]). `LOGCORE_SEED=n` runs one seed again,
//! `LOGCORE_FUZZ_MINUTES=n` runs new ones for so long (`make fuzz`).
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../common/mod.rs"]
mod common;
mod expected;
#[path = "../../../protocol/tests/common/mod.rs"]
mod messages;
mod peer;
mod requests;
#[path = "../../../records/tests/support/mod.rs"]
mod support;

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Fetch, SetOnDrop, TestServer, batch, check_log, fetched, int, partition};
use common::{produce, produced, records};
use logcore_protocol::{Direction, schema};
use parking_lot::Mutex;
use peer::Peer;
use proptest::test_runner::{RngAlgorithm, TestRng};
use requests::Requests;
use support::allocation::most_of_all_threads_during;
use support::for_each_seed;
use support::random::Random;

/// Seeds of a normal run.
const SEEDS: u64 = 600;
/// How long a step that should not wait may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The memory that both ends may use. An unchecked length would need more.
const MEMORY: usize = 32 << 20;
/// The longest request.
const FRAME_MAX: usize = 300_000;
/// The topic of the ordinary client.
const OWN_TOPIC: &str = "own";

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records the panics of all threads.
fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.lock().push(panic.to_string());
            before(panic);
        }));
    });
}

/// The source of random messages of a seed.
fn messages_of(random: &mut Random) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &random.bytes(32))
}

fn start(random: &mut Random) -> TestServer {
    let memory = *random.pick(&["600000", "8388608"]);
    let queue = *random.pick(&["1", "500"]);
    let limit = FRAME_MAX.to_string();
    let config = [
        ("socket.request.max.bytes", &*limit),
        ("queued.max.request.bytes", memory),
        ("queued.max.requests", queue),
        // The records have old timestamps, and retention would delete them.
        ("log.retention.ms", "-1"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(dir, &config);
    let own = partition(OWN_TOPIC, 0);
    server.server.create_partition(&own).unwrap();
    server
}

/// The ordinary client: writes and reads its own topic until `done`. Returns the number of records.
fn produce_and_fetch(server: &TestServer, done: &AtomicBool) -> i64 {
    let mut client = server.client();
    let mut offset = 0;
    while offset == 0 || !done.load(Ordering::SeqCst) {
        let sent = batch(&[offset.to_string().as_bytes()]);
        let answer = client.call(0, 9, produce(OWN_TOPIC, 1, &[(0, &sent)]));
        let answer = produced(&answer);
        assert_eq!(int(&answer, "error_code"), 0, "{answer:?}");
        assert_eq!(int(&answer, "base_offset"), offset);
        let fetch = Fetch {
            topic: OWN_TOPIC,
            offset,
            ..Fetch::default()
        };
        let part = &fetched(&fetch.call(&mut client))[0];
        offset += 1;
        assert_eq!(int(part, "high_watermark"), offset);
        // The checksum does not cover the fields before it, which the broker sets.
        assert_eq!(records(part)[17..], sent[17..], "offset {}", offset - 1);
    }
    offset
}

/// Answers in Python's place until `done`. Returns the log lines.
fn answer_control(server: &TestServer, mut rng: TestRng, done: &AtomicBool) -> Vec<String> {
    let mut lines = Vec::new();
    while !done.load(Ordering::SeqCst) {
        assert!(common::is_readable(server.server.wake_fd()));
        for mut request in server.server.take_requests(usize::MAX) {
            let (key, version) = (request.header.api_key, request.header.api_version);
            if expected::is_dropped(request.header.correlation_id) {
                continue;
            }
            let schema = schema(key, Direction::Response).unwrap();
            let mut answer = messages::random_struct(schema.root, version, &mut rng);
            // A random time would stop the reads of the connection for days.
            if answer.get("throttle_time_ms").is_some() {
                answer.set("throttle_time_ms", 0);
            }
            request.respond(&answer.into()).unwrap();
        }
        let taken = server.server.take_log_lines();
        lines.extend(taken.into_iter().map(|line| line.message));
    }
    if !PANICS.lock().is_empty() {
        eprintln!("the server's log: {lines:#?}");
    }
    lines
}

/// Wakes the thread in Python's place when it is dropped, so that the thread checks its flag.
struct WakeOnDrop<'a>(&'a TestServer);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        common::wake(self.0.server.wake_fd());
    }
}

fn run_peers(port: u16, random: &mut Random, requests: &Requests) -> Vec<Peer> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let peers = (0..random.between(1, 6))
        .map(|_| Peer::new(random, requests))
        .collect::<Vec<_>>();
    runtime.block_on(async {
        let running: Vec<_> = peers
            .into_iter()
            .map(|peer| tokio::spawn(tokio::time::timeout(TIMEOUT, peer.run(port))))
            .collect();
        let mut finished = Vec::new();
        for peer in running {
            let ended = peer.await.unwrap();
            finished.push(ended.expect("the server neither answers nor closes"));
        }
        finished
    })
}

/// Stops the server, and checks that it closes the connections that are still open.
fn stop(server: &TestServer, peers: Vec<Peer>) {
    std::thread::scope(|scope| {
        for peer in peers {
            scope.spawn(move || peer.expect_close(TIMEOUT));
        }
        server.server.stop(TIMEOUT).unwrap();
    });
}

/// Runs one seed. Returns the number of records that the peers stored.
fn run_seed(random: &mut Random, requests: &Requests) -> i64 {
    let server = &start(random);
    let (done, stopped) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let rng = messages_of(random);
    std::thread::scope(|scope| {
        // Fields are dropped in their order: the flag is set before the thread wakes up.
        let stopping = (SetOnDrop(stopped), WakeOnDrop(server));
        let control = scope.spawn(|| answer_control(server, rng, stopped));
        let ending = SetOnDrop(done);
        let client = scope.spawn(|| produce_and_fetch(server, done));
        let peers = run_peers(server.port, random, requests);
        drop(ending);
        let written = client.join().unwrap();
        assert_eq!(check_log(server, OWN_TOPIC, 0), written);
        let stored = check_log(server, "t", 0) + check_log(server, "t", 1);
        stop(server, peers);
        drop(stopping);
        for line in control.join().unwrap() {
            let is_harm = line.contains("defect") || line.contains("did not finish in time");
            assert!(!is_harm, "{line}");
        }
        stored
    })
}

// If this failed, a client could stop the broker, fill its memory, block it, get another client's response,
// or store a damaged batch.
#[test]
fn misbehaving_clients_harm_nobody() {
    record_panics();
    let in_a_thread = || std::thread::spawn(|| drop(vec![1u8; 2 * MEMORY])).join();
    let (most, _) = most_of_all_threads_during(in_a_thread);
    assert!(most > MEMORY, "other threads' memory is not counted: {most}");
    let requests = Requests::new();
    let (mut seeds, mut stored) = (0, 0);
    for_each_seed(SEEDS, |random| {
        let (most, records) = most_of_all_threads_during(|| run_seed(random, &requests));
        let panics = std::mem::take(&mut *PANICS.lock());
        assert!(panics.is_empty(), "{panics:?}");
        assert!(most <= MEMORY, "{most} bytes, {MEMORY} is the limit");
        (seeds, stored) = (seeds + 1, stored + records);
    });
    // About one record a seed is stored. With far fewer, the requests are not valid enough to test much.
    assert!(
        2 * stored >= seeds || seeds < 10,
        "{stored} records, {seeds} seeds"
    );
}
