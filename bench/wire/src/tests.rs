//! If these failed, the loads and the bare servers would not understand each other, and their figures would
//! be wrong.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use crate::args::{Args, Size};
use crate::bare_sendfile::Batches;
use crate::connections::Source;
use crate::error::BenchError;
use crate::frames::Frames;
use crate::load::Load;
use crate::{bare_broker, bare_sendfile, fetch, latency, messages, paced, produce, write_loop};

fn args(words: &str) -> Args {
    Args::parse(words.split_whitespace().map(str::to_owned).collect()).unwrap()
}

/// A directory that is removed at the end of the test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("logcore-bench-wire-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// If this failed, `fetch` could not read the batches that `produce` sent.
#[test]
fn fetch_reads_the_batches_of_produce() {
    let scratch = Scratch::new("round-trip");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..3 {
                let (stream, _) = listener.accept().unwrap();
                let path = scratch.0.join(format!("bare-{number}.log"));
                let file = File::create(&path).unwrap();
                bare_broker::serve(file, &path, stream).unwrap();
            }
        });
        let flags = format!("--port {port} --topic t --batch-size 4KiB --seconds 0.05");
        let options = produce::Options::take(&mut args(&flags)).unwrap();
        let line = produce::run(&options).unwrap().line();
        assert!(
            line.starts_with("{\"command\": \"produce\", \"mb_per_s\": "),
            "{line}"
        );
        let options = format!("--port {port} --topic t --acks 0 --seconds 0.01");
        let options = produce::Options::take(&mut args(&options)).unwrap();
        produce::run(&options).unwrap();
        let options = format!("--port {port} --topic t --seconds 0.01");
        let options = latency::Options::take(&mut args(&options)).unwrap();
        assert!(latency::run(&options).unwrap().line().contains("p999_us"));
    });

    let batches = Batches::open(&scratch.0.join("bare-0.log")).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            // With responses that cut batches, with a limit below one batch, and with all batches at once.
            for _ in 0..3 {
                let (stream, _) = listener.accept().unwrap();
                bare_sendfile::serve(&batches, &stream).unwrap();
            }
        });
        for max_bytes in ["9000", "100", "64MiB"] {
            let flags = format!("--port {port} --topic t --max-bytes {max_bytes} --seconds 0.1");
            let options = fetch::Options::take(&mut args(&flags)).unwrap();
            let line = fetch::run(&options).unwrap().line();
            assert!(line.contains("\"gb_per_s\": "), "{line}");
        }
    });
}

/// The figure `name` of a report's line.
fn figure(line: &str, name: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("\"{name}\": ")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

// If this failed, the runs with thousands of connections would lose requests or count them wrongly.
#[test]
fn few_threads_drive_many_connections() {
    let scratch = Scratch::new("connections");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::scope(|scope| {
                for number in 0..2 * 50 {
                    let (stream, _) = listener.accept().unwrap();
                    let path = scratch.0.join(format!("bare-{number}.log"));
                    let file = File::create(&path).unwrap();
                    scope.spawn(move || bare_broker::serve(file, &path, stream).unwrap());
                }
            });
        });
        // Requests of 1 MiB do not fit into a socket's buffer, so they are written in pieces.
        let shared = format!("--port {port} --topic t --connections 50 --partitions 200");
        let flags = format!("{shared} --threads 2 --in-flight 3 --batch-size 1MiB --seconds 0.05");
        let options = produce::Options::take(&mut args(&flags)).unwrap();
        let line = produce::run(&options).unwrap().line();
        assert!(figure(&line, "requests") >= 150.0, "{line}");
        let flags = format!("{shared} --rate 2000 --threads 2 --batch-size 1KiB --seconds 0.2");
        let options = paced::Options::take(&mut args(&flags)).unwrap();
        let line = paced::run(&options).unwrap().line();
        assert!((figure(&line, "requests") - 400.0).abs() < 1e-9, "{line}");
        let counted = figure(&line, "counted");
        assert!((355.0..=365.0).contains(&counted), "{line}");
        assert!(figure(&line, "p50_us") <= figure(&line, "max_us"), "{line}");
    });
}

// If this failed, the latencies of a slow broker would be too low.
#[test]
fn latency_is_measured_from_the_scheduled_time() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        // A broker that answers when it has all 20 requests.
        scope.spawn(|| {
            let (stream, _) = listener.accept().unwrap();
            let (mut frames, mut answers) = (Frames::new(&stream), Vec::new());
            for _ in 0..20 {
                let frame = frames.next().unwrap().unwrap();
                let request = messages::read_produce_request(frame).unwrap();
                let (id, topic) = (request.correlation_id, request.topic.clone());
                let mut answer = Vec::new();
                messages::produce_response(&mut answer, id, &frame[topic], 0, 0);
                answers.extend(answer);
            }
            (&stream).write_all(&answers).unwrap();
        });
        // One request every 10 ms: the first has waited 190 ms when the last is due. The first two do not
        // count.
        let flags = format!("--port {port} --topic t --rate 100 --seconds 0.2");
        let options = paced::Options::take(&mut args(&flags)).unwrap();
        let line = paced::run(&options).unwrap().line();
        assert!((figure(&line, "counted") - 18.0).abs() < 1e-9, "{line}");
        assert!(figure(&line, "p50_us") >= 80_000.0, "{line}");
        assert!(figure(&line, "max_us") >= 170_000.0, "{line}");
    });
}

// If this failed, connections would not share the partitions evenly.
#[test]
fn connections_send_to_their_partitions_in_turn() {
    let mut flags = args("--port 1 --topic t --connections 3 --partitions 9 --batch-size 100");
    let load = Load::take(&mut flags).unwrap();
    let (mut requests, _) = load.requests().unwrap();
    let mut sent = |connection, number| {
        let request = messages::read_produce_request(&requests.get(connection, number)[4..]);
        let request = request.unwrap();
        assert_eq!(request.correlation_id, number as i32);
        request.partition
    };
    let mut of = |connection| (0..4).map(|n| sent(connection, n)).collect::<Vec<_>>();
    assert_eq!(of(0), [0, 3, 6, 0]);
    assert_eq!(of(1), [1, 4, 7, 1]);
    assert_eq!(of(2), [2, 5, 8, 2]);
}

// If this failed, a run with too many connections would fail in the middle.
#[test]
fn more_connections_than_open_files_are_refused() {
    assert!(matches!(
        crate::descriptors::allow(u32::MAX),
        Err(BenchError::Descriptors { .. })
    ));
    crate::descriptors::allow(10).unwrap();
}

// If this failed, refused batches would count as written.
#[test]
fn an_error_code_ends_the_run() {
    let mut response = Vec::new();
    messages::produce_response(&mut response, 7, b"topic", 3, 0);
    let frame = &mut response[4..];
    messages::check_produce_response(frame, 7).unwrap();
    assert!(matches!(
        messages::check_produce_response(frame, 8),
        Err(BenchError::Protocol(_))
    ));
    // Correlation id, tags, count, name, count, index; then the code.
    let code_at = 4 + 1 + 1 + 6 + 1 + 4;
    frame[code_at + 1] = 6;
    assert!(matches!(
        messages::check_produce_response(frame, 7),
        Err(BenchError::Broker {
            partition: 3,
            code: 6,
            ..
        })
    ));
    for cut in 0..code_at {
        assert!(messages::check_produce_response(&frame[..cut], 7).is_err());
    }
}

// If this failed, a response that arrives in pieces would end the run.
#[test]
fn frames_are_read_in_pieces_of_any_size() {
    /// Returns one byte more at each read.
    struct Drip(Vec<u8>, usize, usize);
    impl std::io::Read for Drip {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.2 += 1;
            let count = self.2.min(out.len()).min(self.0.len() - self.1);
            out[..count].copy_from_slice(&self.0[self.1..self.1 + count]);
            self.1 += count;
            Ok(count)
        }
    }
    let mut bytes = Vec::new();
    for length in [0usize, 1, 5, 3000, 2] {
        bytes.extend_from_slice(&(length as i32).to_be_bytes());
        bytes.extend(vec![length as u8; length]);
    }
    let mut frames = Frames::new(Drip(bytes.clone(), 0, 0));
    for length in [0usize, 1, 5, 3000, 2] {
        assert_eq!(frames.next().unwrap().unwrap(), vec![length as u8; length]);
    }
    assert!(frames.next().unwrap().is_none());
    bytes.pop();
    let mut frames = Frames::new(&bytes[..]);
    for _ in 0..4 {
        frames.next().unwrap();
    }
    assert!(frames.next().is_err());
    assert!(Frames::new(&[0xff; 8][..]).next().is_err());
}

// If this failed, a mistyped flag would be ignored.
#[test]
fn wrong_flags_are_named() {
    let refused = |words: &str| {
        let words = words.split_whitespace().map(str::to_owned).collect();
        let taken = Args::parse(words).and_then(|mut args| fetch::Options::take(&mut args));
        match taken.map(|_| ()) {
            Err(BenchError::Usage(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused("--topic t").contains("--port"));
    assert!(refused("--topic t --port 1 --color red").contains("--color"));
    assert!(refused("--topic t --port 70000").contains("70000"));
    assert!(refused("--topic t --port 1 --max-bytes 4MB").contains("4MB"));
    assert!(refused("--topic").contains("needs a value"));
    assert!(refused("topic").contains("not a flag"));
    assert_eq!("3KiB".parse(), Ok(Size(3072)));
    assert!("0".parse::<Size>().is_err());
}

// If this failed, the disk would fill up.
#[test]
fn write_loop_removes_its_files() {
    let scratch = Scratch::new("write-loop");
    let flags = format!(
        "--dir {} --block 1000 --total 10KiB --file-size 4000",
        scratch.0.display()
    );
    let options = write_loop::Options::take(&mut args(&flags)).unwrap();
    let line = write_loop::run(&options).unwrap().line();
    assert!(line.contains("\"files\": 3"), "{line}");
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
}
