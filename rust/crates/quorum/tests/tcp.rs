//! Three members on real disks, over real sockets.
#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use logcore_quorum::delivery::Delivery;
use logcore_quorum::directory::{self, Directory, DirectoryReader};
use logcore_quorum::entry::Commands;
use logcore_quorum::machine::{Feed, Snapshot, Snapshots};
use logcore_quorum::member::{Member, Parts, Timing, config};
use logcore_quorum::network::{Answer, NoAnswer, Request};
use logcore_quorum::proposals::Proposals;
use logcore_quorum::reader::{Delivered, Reader};
use logcore_quorum::snapshots::{Received, SnapshotDir, SnapshotFile};
use logcore_quorum::store;
use logcore_quorum::tcp::{Answers, Identity, TcpLinks, serve};
use logcore_quorum::types::{
    Address, LeaderId, LogId, MemberId, Server, SnapshotMeta, StoredMembership, member_id, server_of,
};
use openraft::AsyncRuntime;
use openraft_rt_tokio::TokioRuntime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

openraft::declare_raft_types!(
    pub Served:
        D = Commands,
        R = (),
        NodeId = MemberId,
        Node = Server,
        LeaderId = LeaderId,
        AsyncRuntime = TokioRuntime,
);

type Kept = Arc<SnapshotDir<Served>>;
type Node = Member<Served, DirectoryReader<Served>, Kept>;

/// Nothing here takes as long unless it never ends.
const PATIENCE: Duration = Duration::from_secs(60);
const ENSEMBLE: [u8; 16] = *b"an ensemble's id";

#[derive(Clone)]
struct Answering(Identity, Node, Kept);

impl Answers<Served> for Answering {
    fn identity(&self) -> Identity {
        self.0
    }

    async fn answer(&self, request: Request<Served, SnapshotFile>) -> Result<Answer<Served>, NoAnswer> {
        self.1.answer(request).await
    }

    fn receive(&self) -> io::Result<Received> {
        self.2.receive()
    }
}

/// What a member applied: the number in each command's body.
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
    snapshots: Kept,
    applied: Arc<watch::Sender<Applied>>,
    tasks: Vec<AbortHandle>,
    disk: JoinHandle<Directory>,
}

async fn begin(id: MemberId, start: u32, path: &Path, listener: TcpListener) -> Running {
    let (disk, reader, found) = directory::open::<Served>(path).unwrap();
    let (store, writer) = store::open(disk, reader, found);
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
    let config = Arc::new(config("test", &Timing::default(), 2).unwrap());
    let links = TcpLinks::new(me);
    let node = Member::start(Parts {
        id,
        config,
        links,
        store,
        snapshots: Arc::new(snapshots.clone()),
        feed,
        proposals: Arc::new(Proposals::new(id, start)),
        clock: || 1_000,
    });
    let node = node.await.unwrap();
    let answering = Answering(me, node.clone(), snapshots.clone());
    let serving = tokio::spawn(serve(listener, answering, |_| {}));
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
        self.node.raft().shutdown().await.unwrap();
        for task in &self.tasks {
            task.abort();
        }
        drop((self.node, self.snapshots));
        // The tasks' own handles are dropped when they are next looked at.
        let disk = tokio::task::spawn_blocking(|| self.disk.join().unwrap());
        timeout(PATIENCE, disk).await.unwrap().unwrap().close().unwrap();
    }

    /// Makes a snapshot of what was applied, and has the log's front removed.
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
        self.node.raft().trigger().snapshot().await.unwrap();
    }

    async fn has_applied(&self, expected: &BTreeSet<u64>) {
        let mut applied = self.applied.subscribe();
        let enough = applied.wait_for(|applied| applied.bodies.len() >= expected.len());
        let in_time = timeout(PATIENCE, enough).await.is_ok();
        let bodies = self.applied.borrow().bodies.clone();
        assert!(in_time, "member {} applied {bodies:?}", self.id);
        // Each once.
        assert_eq!(bodies.len(), expected.len());
        assert_eq!(&BTreeSet::from_iter(bodies), expected);
    }
}

/// Proposes numbers at all members in turn, whoever leads.
fn propose(nodes: &[Running], numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut body = number.to_be_bytes().to_vec();
        body.resize(2_000, 1);
        let node = &nodes[number as usize % nodes.len()].node;
        node.proposals().propose(body.into()).unwrap();
    }
}

async fn leader(nodes: &[Running]) -> usize {
    let found = nodes[0].node.raft().wait(Some(PATIENCE));
    let leads = found.metrics(|metrics| metrics.current_leader.is_some(), "a leader");
    let leader = leads.await.unwrap().current_leader.unwrap();
    nodes.iter().position(|node| node.id == leader).unwrap()
}

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
            nodes.push(begin(id, 1, &path(id), listener).await);
        }
        nodes[0].node.raft().initialize(servers.clone()).await.unwrap();
        propose(&nodes, 0..100);
        let all: BTreeSet<u64> = (0..100).collect();
        for node in &nodes {
            node.has_applied(&all).await;
        }

        // The leader goes; the others go on, and remove what is old.
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
            let purged = node.node.raft().wait(Some(PATIENCE));
            // An entry a round, at least.
            let enough = |id: LogId| id.index >= 10;
            purged
                .metrics(|metrics| metrics.purged.is_some_and(enough), "purged")
                .await
                .unwrap();
        }

        // It comes back so late that what it misses is in a snapshot only.
        let address = &servers[&id].quorum[0];
        let listener = TcpListener::bind((address.host.as_str(), address.port))
            .await
            .unwrap();
        let back = begin(id, 2, &path(id), listener).await;
        back.has_applied(&all).await;
        assert!(back.applied.borrow().installed >= 1);
        let there: Snapshot<SnapshotFile> = Snapshots::newest(&back.snapshots).unwrap();
        assert!(there.meta.last_log_id.is_some());
        nodes.push(back);
        strangers(&servers[&id]).await;
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

/// Passes bytes on. What is connected when `cut` changes hears nothing from then on, and is not told.
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
        tokio::spawn(pass_on(from_here, to_there, cut.clone()));
        tokio::spawn(pass_on(from_there, to_here, cut));
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<u64>) {
    let copying = async {
        let _ = tokio::io::copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    };
    tokio::select! {
        () = copying => return,
        _ = cut.changed() => {}
    }
    // Both ends stay open, and nobody looks at them.
    std::future::pending::<()>().await;
}

#[test]
fn a_peer_that_says_nothing_any_more_is_noticed() {
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
            nodes.push(begin(id, 1, &path, behind).await);
            let server = Server {
                id: server,
                quorum: vec![address],
                ..Server::default()
            };
            servers.insert(id, server);
        }
        nodes[0].node.raft().initialize(servers).await.unwrap();
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

/// What a stranger sends, and what comes back before the connection ends.
async fn say(server: &Server, bytes: &[u8]) -> String {
    let address = &server.quorum[0];
    let mut connection = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .unwrap();
    connection.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // It may end with what was sent unread.
    let _ = timeout(PATIENCE, connection.read_to_end(&mut answer))
        .await
        .unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn strangers(server: &Server) {
    // However many say nothing, one who says who it is gets through, and they are not kept.
    let address = &server.quorum[0];
    let mut silent = Vec::new();
    for _ in 0..200 {
        let place = (address.host.as_str(), address.port);
        silent.push(TcpStream::connect(place).await.unwrap());
    }
    assert_eq!(say(server, b"GET / HTTP/1.1\r\n\r\n").await, "");
    for mut connection in silent {
        let ended = timeout(PATIENCE, connection.read(&mut [0])).await;
        // It may have been reset.
        assert_eq!(ended.expect("it is ended").unwrap_or(0), 0);
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
    assert_eq!(say(server, b"GET / HTTP/1.1\r\n\r\n").await, "");
    assert_eq!(say(server, &[255; 64]).await, "");
    let member = member_id(server.id, 0);
    let refused = say(server, &hello(b"another ensemble", member)).await;
    assert!(
        refused.contains("member 9 belongs to another ensemble"),
        "{refused}"
    );
    let refused = say(server, &hello(&ENSEMBLE, member + 1)).await;
    assert!(refused.contains("is meant, and this is member"), "{refused}");
    let refused = say(server, &hello(&ENSEMBLE, 77)).await;
    assert!(
        refused.contains("server 77 is meant, and this is server"),
        "{refused}"
    );
    // One that means the server, whichever member it is, may not ask for more.
    let mut frames = hello(b"another ensemble", server.id.into());
    frames.extend([0, 0, 0, 5, 16, 0, 0, 0, 0]);
    let welcomed = say(server, &frames).await;
    assert_eq!(welcomed.as_bytes(), [0, 0, 0, 5, 2, 0, 0, 0, 0]);
    // One that is let in, and then says what cannot be.
    let mut frames = hello(&ENSEMBLE, member);
    frames.extend([0, 0, 0, 9, 10, 0, 0, 0, 0, 1, 2, 3, 4]);
    let welcomed = say(server, &frames).await;
    assert!(welcomed.as_bytes().starts_with(&[0, 0, 0, 5, 2]), "{welcomed:?}");
}
