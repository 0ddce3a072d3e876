//! Three members on real disks, over real sockets.
#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use logcore_quorum::delivery::Delivery;
use logcore_quorum::files::directory::{self, Directory, DirectoryReader};
use logcore_quorum::files::snapshots::{Received, SnapshotDir, SnapshotFile};
use logcore_quorum::proposals::Proposals;
use logcore_quorum::raft::member::{Member, Parts, Timing};
use logcore_quorum::raft::requests::{Request, RequestError, Response};
use logcore_quorum::raft::state_machine::{Feed, Snapshots};
use logcore_quorum::raft::store;
use logcore_quorum::raft::types::{LogId, OnTokio, Snapshot, SnapshotMeta, StoredMembership};
use logcore_quorum::reader::{Delivered, Reader};
use logcore_quorum::servers::{Address, MemberId, Server, member_id, server_of};
use logcore_quorum::transport::handshake::Identity;
use logcore_quorum::transport::links::TcpLinks;
use logcore_quorum::transport::server::{Handler, serve};
use openraft::AsyncRuntime;
use openraft_rt_tokio::TokioRuntime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

type Node = Member<OnTokio, DirectoryReader, Arc<SnapshotDir>>;

/// Nothing takes so long unless it never ends.
const TIMEOUT: Duration = Duration::from_secs(60);
const ENSEMBLE: [u8; 16] = *b"an ensemble's id";

#[derive(Clone)]
struct MemberHandler(Identity, Node, Arc<SnapshotDir>);

impl Handler<OnTokio> for MemberHandler {
    fn identity(&self) -> Identity {
        self.0
    }

    async fn handle(
        &self,
        request: Request<OnTokio, SnapshotFile>,
    ) -> Result<Response<OnTokio>, RequestError> {
        self.1.answer(request).await
    }

    fn receive(&self) -> io::Result<Received> {
        self.2.receive()
    }
}

/// The state of a member's application: the number in each command.
#[derive(Default)]
struct Applied {
    last: Option<LogId>,
    membership: StoredMembership,
    delivery: Delivery,
    bodies: Vec<u64>,
    installed: usize,
}

struct Running {
    id: MemberId,
    node: Node,
    snapshots: Arc<SnapshotDir>,
    applied: Arc<watch::Sender<Applied>>,
    tasks: Vec<AbortHandle>,
    disk: JoinHandle<Directory>,
}

async fn start(id: MemberId, start: u32, path: &Path, listener: TcpListener) -> Running {
    let (disk, reader, state) = directory::open(path).unwrap();
    let (store, writer) = store::open(disk, reader, state);
    let disk = std::thread::spawn(|| writer.run().unwrap());
    let damaged = |path: &Path, error: &io::Error| panic!("{}: {error}", path.display());
    let snapshots = Arc::new(SnapshotDir::open(&path.join("snapshots"), damaged).unwrap());
    let more = Arc::new(Notify::new());
    let wake = more.clone();
    let feed = Arc::new(Feed::new(move || wake.notify_one()));
    let me = Identity {
        ensemble: ENSEMBLE,
        member: id,
        server: server_of(id),
    };
    let links = TcpLinks::new(me);
    let node = Member::start(Parts {
        id,
        timing: Timing::default(),
        entries_kept: 2,
        links,
        store,
        snapshots: Arc::new(snapshots.clone()),
        feed,
        proposals: Arc::new(Proposals::new(id, start)),
        clock: || 1_000,
    });
    let node = node.await.unwrap();
    let handler = MemberHandler(me, node.clone(), snapshots.clone());
    let serving = tokio::spawn(serve(listener, handler, |_| {}));
    let applied: Arc<watch::Sender<Applied>> = Arc::default();
    let applying = tokio::spawn(apply(node.clone(), applied.clone(), more));
    Running {
        id,
        node,
        snapshots,
        applied,
        tasks: vec![serving.abort_handle(), applying.abort_handle()],
        disk,
    }
}

async fn apply(node: Node, applied: Arc<watch::Sender<Applied>>, more: Arc<Notify>) {
    let mut reader = Reader::default();
    loop {
        match reader.take(&node, 1 << 16).await.unwrap() {
            None => more.notified().await,
            Some(Delivered::Install(snapshot)) => {
                let mut bytes = Vec::new();
                let mut content = snapshot.snapshot.open_content().unwrap();
                content.read_to_end(&mut bytes).unwrap();
                applied.send_modify(|applied| {
                    applied.bodies = bytes
                        .chunks_exact(8)
                        .map(|body| u64::from_be_bytes(body.try_into().unwrap()))
                        .collect();
                    applied.last = snapshot.meta.last_log_id;
                    applied.membership = snapshot.meta.last_membership;
                    applied.delivery = reader.delivery().clone();
                    applied.installed += 1;
                });
            }
            Some(Delivered::Entries(entries)) => applied.send_modify(|applied| {
                for entry in entries {
                    applied.last = Some(entry.log_id);
                    for counted in entry.commands {
                        let body = counted.command.body[..8].try_into().unwrap();
                        applied.bodies.push(u64::from_be_bytes(body));
                    }
                    if let Some(membership) = entry.membership {
                        applied.membership = StoredMembership::new(Some(entry.log_id), membership);
                    }
                }
                applied.delivery = reader.delivery().clone();
            }),
        }
    }
}

impl Running {
    async fn stop(self) {
        self.node.shutdown().await.unwrap();
        for task in &self.tasks {
            task.abort();
        }
        drop((self.node, self.snapshots));
        // The tasks drop their handles when they are polled next, which ends the disk's thread.
        let disk = tokio::task::spawn_blocking(|| self.disk.join().unwrap());
        timeout(TIMEOUT, disk).await.unwrap().unwrap().close().unwrap();
    }

    /// Saves a snapshot of what was applied, which removes the log's front.
    async fn save_snapshot(&self) {
        let (meta, delivery, content) = {
            let applied = self.applied.borrow();
            let content: Vec<u8> = applied
                .bodies
                .iter()
                .flat_map(|body| body.to_be_bytes())
                .collect();
            let meta = SnapshotMeta {
                last_log_id: applied.last,
                last_membership: applied.membership.clone(),
            };
            (meta, applied.delivery.clone(), content)
        };
        let mut writer = self.snapshots.begin(meta, delivery).unwrap();
        for chunk in content.chunks(1_000) {
            writer.write(chunk).unwrap();
        }
        self.snapshots.finish(writer).unwrap();
        self.node.take_snapshot().await;
    }

    async fn has_applied(&self, expected: &BTreeSet<u64>) {
        let mut applied = self.applied.subscribe();
        let enough = applied.wait_for(|applied| applied.bodies.len() >= expected.len());
        let in_time = timeout(TIMEOUT, enough).await.is_ok();
        let bodies = self.applied.borrow().bodies.clone();
        assert!(in_time, "member {} applied {bodies:?}", self.id);
        // Each command counts once.
        assert_eq!(bodies.len(), expected.len());
        assert_eq!(&BTreeSet::from_iter(bodies), expected);
    }
}

/// Proposes numbers at all members in turn.
fn propose(nodes: &[Running], numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut body = number.to_be_bytes().to_vec();
        body.resize(2_000, 1);
        let node = &nodes[number as usize % nodes.len()].node;
        node.proposals().propose(body.into()).unwrap();
    }
}

async fn leader(nodes: &[Running]) -> usize {
    let found = nodes[0].node.raft().wait(Some(TIMEOUT));
    let leads = found.metrics(|metrics| metrics.current_leader.is_some(), "a leader");
    let leader = leads.await.unwrap().current_leader.unwrap();
    nodes.iter().position(|node| node.id == leader).unwrap()
}

/// If this failed, members would not agree, or one that was down for long could not catch up from a snapshot.
#[test]
fn members_agree_and_catch_up() {
    TokioRuntime::new(2).block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = |id: MemberId| dir.path().join(id.to_string());
        let mut servers = BTreeMap::new();
        let mut listeners = Vec::new();
        for server in 1..=3 {
            let id = member_id(server, 0);
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = Address {
                host: "127.0.0.1".to_owned(),
                port: listener.local_addr().unwrap().port(),
            };
            let server = Server {
                id: server,
                quorum: vec![address],
                ..Server::default()
            };
            servers.insert(id, server);
            listeners.push((id, listener));
        }
        let mut nodes = Vec::new();
        for (id, listener) in listeners {
            nodes.push(start(id, 1, &path(id), listener).await);
        }
        nodes[0].node.initialize(servers.clone()).await.unwrap();
        propose(&nodes, 0..100);
        let all: BTreeSet<u64> = (0..100).collect();
        for node in &nodes {
            node.has_applied(&all).await;
        }

        // The leader stops. The others go on, and remove the front of their logs.
        let stopped = nodes.remove(leader(&nodes).await);
        let id = stopped.id;
        stopped.stop().await;
        for first in (100..300).step_by(20) {
            propose(&nodes, first..first + 20);
            let all: BTreeSet<u64> = (0..first + 20).collect();
            for node in &nodes {
                node.has_applied(&all).await;
            }
        }
        let all: BTreeSet<u64> = (0..300).collect();
        for node in &nodes {
            node.save_snapshot().await;
            let purged = node.node.raft().wait(Some(TIMEOUT));
            // There was at least one entry a round.
            let enough = |id: LogId| id.index >= 10;
            purged
                .metrics(|metrics| metrics.purged.is_some_and(enough), "purged")
                .await
                .unwrap();
        }

        // The stopped member starts again; only a snapshot has what it lacks.
        let address = &servers[&id].quorum[0];
        let listener = TcpListener::bind((address.host.as_str(), address.port))
            .await
            .unwrap();
        let back = start(id, 2, &path(id), listener).await;
        back.has_applied(&all).await;
        assert!(back.applied.borrow().installed >= 1);
        let newest: Snapshot<SnapshotFile> = Snapshots::newest(&back.snapshots).unwrap();
        assert!(newest.meta.last_log_id.is_some());
        nodes.push(back);
        refuses_strangers(&servers[&id]).await;
        propose(&nodes, 300..320);
        let all: BTreeSet<u64> = (0..320).collect();
        for node in &nodes {
            node.has_applied(&all).await;
        }
        for node in nodes {
            node.stop().await;
        }
    });
}

/// Passes bytes on. When `cut` changes, the connections that exist pass nothing more, and stay open.
async fn relay(listener: TcpListener, to: String, cut: watch::Receiver<u64>) {
    loop {
        let (here, _) = listener.accept().await.unwrap();
        let Ok(there) = TcpStream::connect(&to).await else {
            continue;
        };
        let (from_here, to_here) = here.into_split();
        let (from_there, to_there) = there.into_split();
        let mut cut = cut.clone();
        cut.mark_unchanged();
        tokio::spawn(forward(from_here, to_there, cut.clone()));
        tokio::spawn(forward(from_there, to_here, cut));
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<u64>) {
    let copying = async {
        let _ = tokio::io::copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    };
    tokio::select! {
        () = copying => return,
        _ = cut.changed() => {}
    }
    // Both ends stay open.
    std::future::pending::<()>().await;
}

/// If this failed, a connection whose peer vanished would stop the ensemble.
#[test]
fn a_silent_connection_is_replaced() {
    TokioRuntime::new(2).block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (cuts, cut) = watch::channel(0);
        let mut servers = BTreeMap::new();
        let mut nodes = Vec::new();
        for server in 1..=3 {
            let (behind, front) = ("127.0.0.1:0", "127.0.0.1:0");
            let behind = TcpListener::bind(behind).await.unwrap();
            let front = TcpListener::bind(front).await.unwrap();
            let address = Address {
                host: "127.0.0.1".to_owned(),
                port: front.local_addr().unwrap().port(),
            };
            let to = behind.local_addr().unwrap().to_string();
            tokio::spawn(relay(front, to, cut.clone()));
            let id = member_id(server, 0);
            let path = dir.path().join(server.to_string());
            nodes.push(start(id, 1, &path, behind).await);
            let server = Server {
                id: server,
                quorum: vec![address],
                ..Server::default()
            };
            servers.insert(id, server);
        }
        nodes[0].node.initialize(servers).await.unwrap();
        let mut all = BTreeSet::new();
        for first in (0..40).step_by(10) {
            propose(&nodes, first..first + 10);
            all.extend(first..first + 10);
            for node in &nodes {
                node.has_applied(&all).await;
            }
            cuts.send_modify(|cut| *cut += 1);
        }
        for node in nodes {
            node.stop().await;
        }
    });
}

/// Sends bytes on a new connection, and returns everything that comes back before its end.
async fn converse(server: &Server, bytes: &[u8]) -> String {
    let address = &server.quorum[0];
    let mut connection = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .unwrap();
    connection.write_all(bytes).await.unwrap();
    let mut received = Vec::new();
    // The connection may be reset, because the member did not read everything.
    let _ = timeout(TIMEOUT, connection.read_to_end(&mut received))
        .await
        .unwrap();
    String::from_utf8_lossy(&received).into_owned()
}

async fn refuses_strangers(server: &Server) {
    // Silent connections are closed, and do not keep others out.
    let address = &server.quorum[0];
    let mut silent = Vec::new();
    for _ in 0..200 {
        let address = (address.host.as_str(), address.port);
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(converse(server, b"GET / HTTP/1.1\r\n\r\n").await, "");
    for mut connection in silent {
        let ended = timeout(TIMEOUT, connection.read(&mut [0])).await;
        // It may have been reset.
        assert_eq!(ended.expect("it is closed").unwrap_or(0), 0);
    }
    let hello = |ensemble: &[u8; 16], to: u64| {
        let mut body = b"LCQ1\x01\x00".to_vec();
        body.extend(ensemble);
        body.extend(9u64.to_be_bytes());
        body.extend(to.to_be_bytes());
        let mut frame = (body.len() as u32 + 5).to_be_bytes().to_vec();
        frame.extend([1, 0, 0, 0, 0]);
        frame.extend(body);
        frame
    };
    assert_eq!(converse(server, b"GET / HTTP/1.1\r\n\r\n").await, "");
    assert_eq!(converse(server, &[255; 64]).await, "");
    let member = member_id(server.id, 0);
    let refused = converse(server, &hello(b"another ensemble", member)).await;
    assert!(
        refused.contains("member 9 belongs to another ensemble"),
        "{refused}"
    );
    let refused = converse(server, &hello(&ENSEMBLE, member + 1)).await;
    assert!(refused.contains("the connection is for member"), "{refused}");
    let refused = converse(server, &hello(&ENSEMBLE, 77)).await;
    assert!(refused.contains("the connection is for server 77"), "{refused}");
    // A connection to any member of a server may not ask for more.
    let mut frames = hello(b"another ensemble", server.id.into());
    frames.extend([0, 0, 0, 5, 16, 0, 0, 0, 0]);
    let welcomed = converse(server, &frames).await;
    assert_eq!(welcomed.as_bytes(), [0, 0, 0, 5, 2, 0, 0, 0, 0]);
    // A connection to the member, and then a malformed request.
    let mut frames = hello(&ENSEMBLE, member);
    frames.extend([0, 0, 0, 9, 10, 0, 0, 0, 0, 1, 2, 3, 4]);
    let welcomed = converse(server, &frames).await;
    assert!(welcomed.as_bytes().starts_with(&[0, 0, 0, 5, 2]), "{welcomed:?}");
}
