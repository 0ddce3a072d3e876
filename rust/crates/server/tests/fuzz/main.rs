//! Requests of every API and version, changed, cut and mixed, from peers that do not behave, beside one that does.
//!
//! Each seed has a server of its own: some connections that send what [`requests`] draws, a thread in Python's place, and a
//! neighbour whose every answer is checked. What must come back is worked out from the bytes that were sent ([`expected`]).
//! `LOGCORE_SEED=n` runs one seed again, `LOGCORE_FUZZ_MINUTES=n` new ones for so long (`make fuzz`).
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
/// How long anything may take that should not wait.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What both ends may have at once; a length that is believed asks for more.
const MEMORY: usize = 32 << 20;
/// The longest request.
const FRAME_MAX: usize = 300_000;
/// The neighbour's own topic.
const QUIET_TOPIC: &str = "quiet";

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whatever thread panics, the test hears of it.
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

/// The source of random messages, from a seed's numbers.
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
        // The records' times are old, and a disk may be slow.
        ("log.retention.ms", "-1"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(dir, &config);
    let quiet = partition(QUIET_TOPIC, 0);
    server.server.create_partition(&quiet).unwrap();
    server
}

/// Writes and reads until `over`, and finds what it wrote. Returns how often.
fn behave(server: &TestServer, over: &AtomicBool) -> i64 {
    let mut client = server.client();
    let mut offset = 0;
    while offset == 0 || !over.load(Ordering::SeqCst) {
        let sent = batch(&[offset.to_string().as_bytes()]);
        let answer = client.call(0, 9, produce(QUIET_TOPIC, 1, &[(0, &sent)]));
        let answer = produced(&answer);
        assert_eq!(int(&answer, "error_code"), 0, "{answer:?}");
        assert_eq!(int(&answer, "base_offset"), offset);
        let fetch = Fetch {
            topic: QUIET_TOPIC,
            offset,
            ..Fetch::default()
        };
        let part = &fetched(&fetch.call(&mut client))[0];
        offset += 1;
        assert_eq!(int(part, "high_watermark"), offset);
        // The checksum is of what the producer decides: all after it.
        assert_eq!(records(part)[17..], sent[17..], "offset {}", offset - 1);
    }
    offset
}

/// Answers in Python's place until `over`; returns what was logged.
fn answer_control(server: &TestServer, mut rng: TestRng, over: &AtomicBool) -> Vec<String> {
    let mut lines = Vec::new();
    while !over.load(Ordering::SeqCst) {
        assert!(common::is_readable(server.server.wake_fd()));
        for mut request in server.server.take_requests(usize::MAX) {
            let (key, version) = (request.header.api_key, request.header.api_version);
            if expected::is_dropped(request.header.correlation_id) {
                continue;
            }
            let schema = schema(key, Direction::Response).unwrap();
            let mut answer = messages::random_struct(schema.root, version, &mut rng);
            // Otherwise the connection would not be read for days.
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

/// Wakes the thread in Python's place, which then looks whether it is over.
struct Wakes<'a>(&'a TestServer);

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        common::wake(self.0.server.wake_fd());
    }
}

fn play(port: u16, random: &mut Random, requests: &Requests) -> Vec<Peer> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let peers = (0..random.between(1, 6))
        .map(|_| Peer::new(random, requests))
        .collect::<Vec<_>>();
    runtime.block_on(async {
        let playing: Vec<_> = peers
            .into_iter()
            .map(|peer| tokio::spawn(tokio::time::timeout(TIMEOUT, peer.play(port))))
            .collect();
        let mut played = Vec::new();
        for peer in playing {
            let ended = peer.await.unwrap();
            played.push(ended.expect("the server neither answers nor closes"));
        }
        played
    })
}

/// The server ends, whatever its connections are in the middle of, and they see it.
fn stop(server: &TestServer, peers: Vec<Peer>) {
    std::thread::scope(|scope| {
        for peer in peers {
            scope.spawn(move || peer.see_the_end(TIMEOUT));
        }
        server.server.stop(TIMEOUT).unwrap();
    });
}

/// Returns how many records the peers had stored.
fn round(random: &mut Random, requests: &Requests) -> i64 {
    let server = &start(random);
    let (over, stopped) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let rng = messages_of(random);
    std::thread::scope(|scope| {
        // Dropped from the left.
        let stopping = (SetOnDrop(stopped), Wakes(server));
        let control = scope.spawn(|| answer_control(server, rng, stopped));
        let ending = SetOnDrop(over);
        let neighbour = scope.spawn(|| behave(server, over));
        let peers = play(server.port, random, requests);
        drop(ending);
        let written = neighbour.join().unwrap();
        assert_eq!(check_log(server, QUIET_TOPIC, 0), written);
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

// Broken if it failed: who reaches the port could stop the broker, fill its memory, keep it waiting, be given another's answer,
// or have something stored that is not intact.
#[test]
fn whatever_arrives_harms_nobody() {
    record_panics();
    let elsewhere = || std::thread::spawn(|| drop(vec![1u8; 2 * MEMORY])).join();
    let (most, _) = most_of_all_threads_during(elsewhere);
    assert!(most > MEMORY, "other threads' memory is not seen: {most}");
    let requests = Requests::new();
    let (mut seeds, mut stored) = (0, 0);
    for_each_seed(SEEDS, |random| {
        let (most, records) = most_of_all_threads_during(|| round(random, &requests));
        let panics = std::mem::take(&mut *PANICS.lock());
        assert!(panics.is_empty(), "{panics:?}");
        assert!(most <= MEMORY, "{most} bytes, {MEMORY} is the limit");
        (seeds, stored) = (seeds + 1, stored + records);
    });
    // Otherwise nothing got far enough to do harm: it is about one for each seed.
    assert!(
        2 * stored >= seeds || seeds < 10,
        "{stored} records, {seeds} seeds"
    );
}
