//! If these failed, a load would go to the wrong broker, or a lost record would not be noticed.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use logcore_records::set_offsets_in_place;

use crate::args::Args;
use crate::frames::Frames;
use crate::metadata::{Cluster, NO_LEADER, Partition, Topic};
use crate::{gap, messages, metadata, wait_for_leaders};

const NODE: i32 = 7;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;

/// A broker with the topic "t" of one partition. Its threads end with their connections.
#[derive(Default)]
struct Broker {
    /// Metadata requests that name no leader yet.
    leaderless: AtomicUsize,
    /// The number of the Produce request that is refused, and of the one whose record is lost.
    refused: usize,
    lost: Option<usize>,
    produced: AtomicUsize,
    log: std::sync::Mutex<Vec<Vec<u8>>>,
}

impl Broker {
    /// Serves until the test's process ends. Returns the port.
    fn start(self) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let broker = Arc::new(self);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let broker = Arc::clone(&broker);
                thread::spawn(move || broker.serve(&stream.unwrap(), port));
            }
        });
        port
    }

    fn serve(&self, stream: &TcpStream, port: u16) {
        let (mut frames, mut writer) = (Frames::new(stream), stream);
        while let Ok(Some(frame)) = frames.next() {
            let mut out = Vec::new();
            match frame[1] {
                0 => self.produce(frame, &mut out),
                1 => self.fetch(frame, &mut out),
                _ => self.metadata(port, &mut out),
            }
            writer.write_all(&out).unwrap();
        }
    }

    fn metadata(&self, port: u16, out: &mut Vec<u8>) {
        let one_less = |left: usize| left.checked_sub(1);
        let is_missing = self
            .leaderless
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok();
        let leader = if is_missing { NO_LEADER } else { NODE };
        out.extend_from_slice(&[0; 12]); // length, correlation id, throttle time
        for word in [1, NODE] {
            out.extend_from_slice(&i32::to_be_bytes(word));
        }
        messages::put_string(out, "127.0.0.1");
        out.extend_from_slice(&i32::from(port).to_be_bytes());
        out.extend_from_slice(&[0xff; 4]); // no rack, no cluster id
        for word in [NODE, 1] {
            out.extend_from_slice(&i32::to_be_bytes(word)); // the controller, one topic
        }
        out.extend_from_slice(&[0; 2]);
        messages::put_string(out, "t");
        out.push(0);
        out.extend_from_slice(&1i32.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        for word in [0, leader, 2, NODE, 8, 1, NODE] {
            out.extend_from_slice(&i32::to_be_bytes(word)); // the partition, its replicas and ISR
        }
        messages::set_frame_length(out, 0);
    }

    fn produce(&self, frame: &[u8], out: &mut Vec<u8>) {
        let request = messages::read_produce_request(frame).unwrap();
        let number = self.produced.fetch_add(1, Ordering::SeqCst);
        let mut log = self.log.lock().unwrap();
        let offset = log.len() as i64;
        messages::produce_response(out, request.correlation_id, b"t", 0, offset);
        if number == self.refused {
            // The error code comes after the header's tags, one topic "t", and the partition.
            let code_at = 4 + 4 + 1 + 1 + 2 + 1 + 4;
            out[code_at..code_at + 2].copy_from_slice(&NOT_LEADER_OR_FOLLOWER.to_be_bytes());
            return;
        }
        let mut batch = frame[request.records].to_vec();
        set_offsets_in_place(&mut batch, offset, 0);
        if self.lost == Some(number) {
            batch.clear();
        }
        log.push(batch);
    }

    fn fetch(&self, frame: &[u8], out: &mut Vec<u8>) {
        let request = messages::read_fetch_request(frame).unwrap();
        let log = self.log.lock().unwrap();
        let records = log[request.offset as usize..].concat();
        messages::fetch_response_header(out, &request, b"t", log.len() as i64, records.len());
        out.extend_from_slice(&records);
    }
}

fn args(words: &str) -> Args {
    Args::parse(words.split_whitespace().map(str::to_owned).collect()).unwrap()
}

#[test]
fn metadata_names_the_leader() {
    let port = Broker::default().start();
    let asked = metadata::Asking::connect(&("127.0.0.1".to_owned(), port), crate::target::PATIENCE);
    let cluster = asked.unwrap().ask(&["t"]).unwrap();
    let address = ("127.0.0.1".to_owned(), port);
    let partitions = vec![Partition {
        index: 0,
        leader: NODE,
        in_sync: 1,
    }];
    let topics = vec![Topic {
        name: "t".to_owned(),
        partitions,
    }];
    assert_eq!(
        cluster,
        Cluster {
            brokers: vec![(NODE, address.clone())],
            topics
        }
    );
    assert_eq!(cluster.leader("t", 0), Some(&address));
    assert_eq!((cluster.leader("t", 1), cluster.leader("u", 0)), (None, None));
}

#[test]
fn a_wait_ends_when_every_partition_has_a_leader() {
    let broker = Broker {
        leaderless: AtomicUsize::new(3),
        ..Broker::default()
    };
    let ports = format!("{},{}", broker.start(), Broker::default().start());
    let wait = |flags: &str| {
        let flags = format!("--ports {ports} --topic t --partitions 1 {flags}");
        wait_for_leaders::run(&wait_for_leaders::Options::take(&mut args(&flags)).unwrap())
    };
    // Three questions without a leader and the last one; one to the other broker.
    assert!(wait("--in-sync 1").unwrap().line().contains("\"requests\": 5"));
    for never in ["--in-sync 2", "--not-broker 7"] {
        let error = wait(&format!("{never} --timeout 0.01")).unwrap_err().to_string();
        assert!(error.contains("1 topics yet, the first is t"), "{error}");
    }
}

/// Runs `gap` until its first answers, and returns its report.
fn gap_of(broker: Broker) -> String {
    let flags = format!("--bootstrap {} --topic t", broker.start());
    let options = gap::Options::take(&mut args(&flags)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (going, is_going) = mpsc::channel();
    let stopped = Arc::clone(&stop);
    let run = thread::spawn(move || gap::run(&options, &stopped, || going.send(()).unwrap()));
    is_going.recv().unwrap();
    stop.store(true, Ordering::Relaxed);
    run.join().unwrap().unwrap().line()
}

#[test]
fn a_refused_record_is_sent_again_and_a_lost_one_is_counted() {
    let line = gap_of(Broker {
        refused: 5,
        ..Broker::default()
    });
    assert!(
        line.contains("\"lost\": 0, \"duplicates\": 0, \"refused\": {\"6\": 1}"),
        "{line}"
    );
    let line = gap_of(Broker {
        refused: 5,
        lost: Some(9),
        ..Broker::default()
    });
    assert!(line.contains("\"lost\": 1, \"duplicates\": 0"), "{line}");
}
