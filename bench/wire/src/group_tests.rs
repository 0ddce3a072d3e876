//! If these failed, the benchmarks of groups would measure something else than Kafka's group protocols.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::args::Args;
use crate::cursor::Cursor;
use crate::error::BenchError;
use crate::frames::Frames;
use crate::group_load::{self, Kind};
use crate::group_messages::{self as wire, Said};
use crate::member::{Member, Next, Protocol, Shared};
use crate::members;

fn args(words: &str) -> Args {
    Args::parse(words.split_whitespace().map(str::to_owned).collect()).unwrap()
}

fn shared(protocol: Protocol) -> Shared {
    Shared {
        protocol,
        topic: "t".to_owned(),
        partitions: 4,
        heartbeat: Duration::from_millis(30),
        session: Duration::from_secs(10),
    }
}

/// Appends a string, or bytes with a length of four bytes.
trait Put {
    fn text(&mut self, text: &str);
    fn bytes(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    fn text(&mut self, text: &str) {
        self.extend_from_slice(&(text.len() as i16).to_be_bytes());
        self.extend_from_slice(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
        self.extend_from_slice(bytes);
    }
}

/// The start of a response with plain arrays.
fn answer(id: i32, code: i16) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend_from_slice(&0i32.to_be_bytes()); // throttle time
    out.extend_from_slice(&code.to_be_bytes());
    out
}

fn joined(
    id: i32,
    code: i16,
    generation: i32,
    leader: &str,
    member: &str,
    members: &[(String, Vec<u8>)],
) -> Vec<u8> {
    let mut out = answer(id, code);
    out.extend_from_slice(&generation.to_be_bytes());
    for text in ["range", leader, member] {
        out.text(text);
    }
    out.extend_from_slice(&(members.len() as i32).to_be_bytes());
    for (id, subscription) in members {
        out.text(id);
        out.extend_from_slice(&(-1i16).to_be_bytes());
        out.bytes(subscription);
    }
    out
}

fn synced(id: i32, partitions: &[i32]) -> Vec<u8> {
    let mut assignment = vec![0, 1, 0, 0, 0, 1];
    assignment.text("t");
    assignment.extend_from_slice(&(partitions.len() as i32).to_be_bytes());
    for partition in partitions {
        assignment.extend_from_slice(&partition.to_be_bytes());
    }
    let mut out = answer(id, 0);
    out.bytes(&assignment);
    out
}

/// The API key of a request.
fn key(request: &[u8]) -> i16 {
    i16::from_be_bytes([request[4], request[5]])
}

fn sent(next: Next) -> Vec<u8> {
    match next {
        Next::Send(request) => request,
        other => panic!("{other:?} instead of a request"),
    }
}

const JOIN: i16 = 11;
const SYNC: i16 = 14;

// If this failed, a cooperative member would keep partitions that another one gets.
#[test]
fn a_cooperative_member_rejoins_when_it_gives_up_a_partition() {
    let shared = shared(Protocol::Cooperative);
    let mut member = Member::new(0, "g");
    assert_eq!(key(&member.join(&shared)), JOIN);
    let again = sent(
        member
            .on_answer(&shared, &joined(0, 79, -1, "", "m", &[]), 0)
            .unwrap(),
    );
    assert_eq!(key(&again), JOIN);
    assert_eq!(member.id, "m");
    assert_eq!(
        key(&sent(
            member
                .on_answer(&shared, &joined(1, 0, 1, "l", "m", &[]), 1)
                .unwrap()
        )),
        SYNC
    );
    let next = member.on_answer(&shared, &synced(2, &[0, 1]), 2).unwrap();
    assert_eq!(next, Next::Wait(shared.heartbeat));
    assert!(member.is_steady);

    member.on_timer(&shared);
    assert_eq!(
        key(&sent(member.on_answer(&shared, &answer(3, 27), 3).unwrap())),
        JOIN
    );
    assert_eq!(member.owned, [0, 1]);
    member
        .on_answer(&shared, &joined(4, 0, 2, "l", "m", &[]), 4)
        .unwrap();
    assert_eq!(
        key(&sent(member.on_answer(&shared, &synced(5, &[1]), 5).unwrap())),
        JOIN
    );
    assert!(!member.is_steady);
    assert_eq!(member.owned, [1]);
}

// If this failed, an expelled member would hold its partitions, or an unknown error would be ignored.
#[test]
fn an_expelled_member_joins_anew_and_other_errors_end_the_run() {
    let shared = shared(Protocol::Cooperative);
    let mut member = Member::new(0, "g");
    member.join(&shared);
    member
        .on_answer(&shared, &joined(0, 0, 1, "l", "m", &[]), 0)
        .unwrap();
    member.on_answer(&shared, &synced(1, &[3]), 1).unwrap();
    member.on_timer(&shared);
    assert_eq!(
        key(&sent(member.on_answer(&shared, &answer(2, 25), 2).unwrap())),
        JOIN
    );
    assert_eq!((member.id.as_str(), member.expelled), ("", 1));
    assert!(member.owned.is_empty());
    let failed = member.on_answer(&shared, &joined(3, 81, -1, "", "", &[]), 3);
    assert!(matches!(
        failed,
        Err(BenchError::Refused {
            api: "join",
            code: 81
        })
    ));
}

// If this failed, the coordinator would wait for a member of KIP-848, and no partition would move.
#[test]
fn a_member_of_kip_848_reports_what_it_owns() {
    let shared = shared(Protocol::Consumer);
    let mut member = Member::new(0, "g");
    member.join(&shared);
    let mut frame = vec![0, 0, 0, 0, 0]; // correlation id, tags
    frame.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 2, b'm']); // throttle time, code, no message, member
    frame.extend_from_slice(&[0, 0, 0, 5, 0, 0, 0, 100, 1, 2]); // epoch, interval, one topic
    frame.extend_from_slice(&[7; 16]);
    frame.extend_from_slice(&[3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]); // two partitions, tags
    let next = member.on_answer(&shared, &frame, 0).unwrap();
    let said = Said::Owned([7; 16], &[1, 2]);
    assert_eq!(next, Next::Send(wire::consumer_heartbeat("g", "m", 5, &said)));
    frame[3] = 1;
    let next = member.on_answer(&shared, &frame, 1).unwrap();
    assert_eq!(next, Next::Wait(Duration::from_millis(100)));
    assert!(member.is_steady);
    // The tags of the assignment and of the body are not read.
    for cut in 5..frame.len() - 2 {
        assert!(wire::read_beaten(&frame[..cut], 1).is_err(), "{cut}");
    }
}

// If this failed, a refused commit would count as one.
#[test]
fn a_refused_commit_ends_the_run() {
    let mut frame = vec![0, 0, 0, 9, 0, 0, 0, 0, 0]; // correlation id, tags, throttle time
    frame.extend_from_slice(&[2, 2, b't', 2, 0, 0, 0, 3, 0, 0, 0, 0, 0]); // one topic, one partition
    wire::check_committed(&frame, 9).unwrap();
    assert!(wire::check_committed(&frame, 8).is_err());
    let code_at = frame.len() - 4;
    frame[code_at] = 22;
    assert!(matches!(
        wire::check_committed(&frame, 9),
        Err(BenchError::Broker {
            partition: 3,
            code: 22,
            ..
        })
    ));
}

/// A request that waits for the other members of its group.
type Held = (i32, Arc<TcpStream>);

/// A group of a coordinator for one group of the classic protocol.
#[derive(Default)]
struct Group {
    generation: i32,
    named: i32,
    /// The members of this generation, with their subscriptions.
    members: BTreeMap<String, Vec<u8>>,
    joining: BTreeMap<String, (Vec<u8>, Held)>,
    syncing: BTreeMap<String, Held>,
    assignments: BTreeMap<String, Vec<u8>>,
    is_rebalancing: bool,
}

fn respond((_, stream): &Held, out: &[u8]) {
    let mut frame = (out.len() as i32).to_be_bytes().to_vec();
    frame.extend_from_slice(out);
    // A lost member's socket is closed.
    let _ = (&**stream).write_all(&frame);
}

fn words(frame: &[u8], cursor: &mut Cursor<'_>) -> String {
    String::from_utf8_lossy(&frame[cursor.string().unwrap()]).into_owned()
}

fn block(frame: &[u8], cursor: &mut Cursor<'_>) -> Vec<u8> {
    let size = cursor.i32().unwrap() as usize;
    frame[cursor.skip(size).unwrap()].to_vec()
}

impl Group {
    /// Ends the rebalance when all members have joined again.
    fn rebalance(&mut self) {
        self.is_rebalancing = true;
        if self.joining.is_empty() || self.members.keys().any(|id| !self.joining.contains_key(id)) {
            return;
        }
        self.generation += 1;
        self.is_rebalancing = false;
        self.assignments.clear();
        let joining = std::mem::take(&mut self.joining);
        let all: Vec<_> = joining
            .iter()
            .map(|(id, (subscription, _))| (id.clone(), subscription.clone()))
            .collect();
        self.members = all.iter().cloned().collect();
        let leader = all[0].0.clone();
        for (id, (_, held)) in joining {
            let told: &[_] = if id == leader { &all } else { &[] };
            respond(&held, &joined(held.0, 0, self.generation, &leader, &id, told));
        }
    }

    fn assign(&mut self) {
        for (id, held) in std::mem::take(&mut self.syncing) {
            let mut out = answer(held.0, 0);
            out.bytes(&self.assignments[&id]);
            respond(&held, &out);
        }
    }

    fn leave(&mut self, id: &str) {
        self.members.remove(id);
        self.rebalance();
    }

    /// Handles a request. Returns the id of the member that joined with it.
    fn handle(&mut self, frame: &[u8], stream: &Arc<TcpStream>) -> Option<String> {
        let mut cursor = Cursor::new(frame);
        let (api, _, correlation) = (
            cursor.i16().unwrap(),
            cursor.i16().unwrap(),
            cursor.i32().unwrap(),
        );
        let held = (correlation, Arc::clone(stream));
        cursor.string().unwrap();
        if api == 8 {
            respond(
                &held,
                &[&correlation.to_be_bytes()[..], &[0, 0, 0, 0, 0, 1, 0]].concat(),
            );
            return None;
        }
        let group = words(frame, &mut cursor);
        assert!(group.starts_with("bench-"), "{group}");
        match api {
            10 => respond(&held, &answer(correlation, 0)),
            11 => {
                cursor.skip(8).unwrap();
                let mut id = words(frame, &mut cursor);
                if id.is_empty() {
                    self.named += 1;
                    id = format!("m{:03}", self.named);
                    respond(&held, &joined(correlation, 79, -1, "", &id, &[]));
                    return None;
                }
                cursor.string().unwrap();
                cursor.string().unwrap();
                assert_eq!(cursor.i32().unwrap(), 1);
                cursor.string().unwrap();
                self.joining.insert(id.clone(), (block(frame, &mut cursor), held));
                self.rebalance();
                return Some(id);
            }
            12 => respond(
                &held,
                &answer(correlation, if self.is_rebalancing { 27 } else { 0 }),
            ),
            13 => {
                let id = words(frame, &mut cursor);
                respond(&held, &answer(correlation, 0));
                self.leave(&id);
            }
            14 => {
                assert_eq!(cursor.i32().unwrap(), self.generation);
                let id = words(frame, &mut cursor);
                cursor.string().unwrap();
                let count = cursor.i32().unwrap();
                for _ in 0..count {
                    let member = words(frame, &mut cursor);
                    self.assignments.insert(member, block(frame, &mut cursor));
                }
                self.syncing.insert(id, held);
                if !self.assignments.is_empty() {
                    self.assign();
                }
            }
            other => panic!("API key {other}"),
        }
        None
    }
}

/// Serves so many connections. A member is lost when its connection ends.
fn coordinator(listener: &TcpListener, connections: usize) {
    let groups = Mutex::new(Group::default());
    thread::scope(|scope| {
        for _ in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            let (groups, stream) = (&groups, Arc::new(stream));
            scope.spawn(move || {
                let (mut frames, mut ids) = (Frames::with_buffer(&*stream, 4096), VecDeque::new());
                while let Ok(Some(frame)) = frames.next() {
                    ids.extend(groups.lock().unwrap().handle(frame, &stream));
                }
                if let Some(id) = ids.pop_back() {
                    groups.lock().unwrap().leave(&id);
                }
            });
        }
    });
}

/// The figure `name` of a report's line.
fn figure(line: &str, name: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("\"{name}\": ")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

// If this failed, a group would not settle, or would seem to have settled too early.
#[test]
fn a_group_forms_loses_a_member_and_is_rolled() {
    for protocol in ["eager", "cooperative"] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::scope(|scope| {
            // The coordinators' question, six members, two that replace others.
            scope.spawn(|| coordinator(&listener, 1 + 6 + 2));
            let flags = format!(
                "--port {port} --topic t --partitions 8 --members 6 --roll 2 --heartbeat-ms 10 \
                 --session-ms 0 --protocol {protocol}"
            );
            let options = members::Options::take(&mut args(&flags)).unwrap();
            let line = members::run(&options).unwrap().line();
            for name in ["form_ms", "lose_ms", "roll_ms"] {
                assert!(figure(&line, name) > 0.0, "{line}");
            }
            assert!(
                figure(&line, "form_after_join_ms") <= figure(&line, "form_ms"),
                "{line}"
            );
        });
    }
}

// If this failed, the loads would count requests that nobody answered.
#[test]
fn commits_and_heartbeats_are_counted_by_their_answers() {
    for kind in [Kind::Commits, Kind::Heartbeats] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (members, flags) = match kind {
            Kind::Commits => (1, ""),
            Kind::Heartbeats => (3, "--members 3"),
        };
        thread::scope(|scope| {
            scope.spawn(|| coordinator(&listener, 1 + members + 1));
            let flags = format!("--port {port} --topic t --groups 1 {flags} --in-flight 2 --seconds 0.05");
            let options = group_load::Options::take(&mut args(&flags), kind).unwrap();
            let line = group_load::run(&options).unwrap().line();
            assert!(figure(&line, "requests") >= 2.0 * members as f64, "{line}");
            assert_eq!(figure(&line, "expelled"), 0.0, "{line}");
        });
    }
}

// If this failed, a group that cannot be rolled would be measured.
#[test]
fn flags_of_the_group_commands_are_checked() {
    let members = |words: &str| members::Options::take(&mut args(&format!("--port 1 --topic t {words}")));
    assert!(members("--partitions 8 --members 20").is_err());
    assert!(members("--partitions 8 --members 21").is_ok());
    assert!(members("--members 21").is_err());
    assert!(members("--partitions 8 --protocol classic").is_err());
    let mut flags = args("--port 1 --topic t --members 2");
    assert!(group_load::Options::take(&mut flags, Kind::Commits).is_err());
}
