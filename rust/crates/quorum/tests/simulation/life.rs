//! A member from its start to its crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::{Either, select};
use logcore_quorum::proposals::Proposals;
use logcore_quorum::raft::member::{Member, Parts, Timing};
use logcore_quorum::raft::members::listed;
use logcore_quorum::raft::state_machine::Feed;
use logcore_quorum::raft::store::{self, Appended, Change, Writer};
use logcore_quorum::raft::types::{LogId, Membership, Snapshot, SnapshotMeta, StoredMembership};
use logcore_quorum::reader::{Delivered, Reader};
use logcore_quorum::servers::{MemberId, Server};
use openraft::AsyncRuntime;
use openraft_rt_sim::{SimJoinHandle, SimRuntime};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Simulated;
use crate::disk::MemoryDisk;
use crate::history::Model;
use crate::world::{Wires, World};

/// Entries that stay in a log after a snapshot, and entries between two snapshots.
const ENTRIES_KEPT: u64 = 20;
const ENTRIES_A_SNAPSHOT: u64 = 60;

pub(crate) struct Life {
    pub(crate) id: MemberId,
    pub(crate) number: u64,
    pub(crate) member: Member<Simulated, MemoryDisk, MemoryDisk>,
    over: Arc<Over>,
    applied: AtomicU64,
    tasks: Mutex<Vec<SimJoinHandle<()>>>,
}

#[derive(Default)]
struct Over {
    is: AtomicBool,
    ended: Notify,
}

impl Over {
    async fn wait(&self) {
        let ended = self.ended.notified();
        if !self.is.load(Ordering::Relaxed) {
            ended.await;
        }
    }
}

impl Life {
    pub(crate) async fn start(world: &Arc<World>, id: MemberId, number: u64) -> Arc<Self> {
        let disk = world.disk(id);
        let (store, writer) = store::open(disk.clone(), disk.clone(), disk.state());
        let over = Arc::new(Over::default());
        let writing = SimRuntime::spawn(write(world.clone(), id, writer, over.clone()));
        let more = Arc::new(Notify::new());
        let wake = more.clone();
        let feed = Arc::new(Feed::new(move || wake.notify_one()));
        let wires = Wires {
            world: world.clone(),
            from: id,
            life: number,
        };
        let member = Member::start(Parts {
            id,
            timing: Timing::default(),
            entries_kept: ENTRIES_KEPT,
            links: wires,
            store,
            snapshots: Arc::new(disk),
            feed,
            proposals: Arc::new(Proposals::new(id, number as u32)),
            clock: || 0,
        });
        let life = Arc::new(Self {
            id,
            number,
            member: member.await.unwrap(),
            over,
            applied: AtomicU64::new(0),
            tasks: Mutex::default(),
        });
        let applying = SimRuntime::spawn(apply(world.clone(), life.clone(), more));
        life.tasks.lock().extend([writing, applying]);
        life
    }

    /// Its connections to the others.
    pub(crate) fn wires(&self, world: &Arc<World>) -> Wires {
        Wires {
            world: world.clone(),
            from: self.id,
            life: self.number,
        }
    }

    /// The index of the next entry to apply.
    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// The membership that it knows.
    pub(crate) fn membership(&self) -> Membership {
        self.member.watch().membership().membership().clone()
    }

    pub(crate) fn listed(&self) -> Option<Vec<Server>> {
        listed(&self.membership())
    }

    fn is_over(&self) -> bool {
        self.over.is.load(Ordering::Relaxed)
    }

    /// Ends it wherever it is. Its disk is not used afterwards.
    pub(crate) async fn end(&self) {
        self.over.is.store(true, Ordering::Relaxed);
        self.over.ended.notify_waiters();
        let tasks: Vec<_> = self.tasks.lock().drain(..).collect();
        for task in tasks {
            task.await.unwrap();
        }
        let member = self.member.clone();
        SimRuntime::spawn(async move {
            // Without its disk it may have failed already.
            let _ = member.shutdown().await;
        });
    }
}

/// The thread of the disk. When the life ends, a part of the current changes may have reached the disk.
async fn write(
    world: Arc<World>,
    id: MemberId,
    mut writer: Writer<Simulated, MemoryDisk, MemoryDisk>,
    over: Arc<Over>,
) {
    loop {
        let next = match select(std::pin::pin!(writer.next()), std::pin::pin!(over.wait())).await {
            Either::Left((group, _)) => group,
            Either::Right(_) => None,
        };
        let Some(mut group) = next else { return };
        let delay = world.disk_delay(id);
        if let Either::Right(_) = select(std::pin::pin!(delay), std::pin::pin!(over.wait())).await {
            let done = world.random().between(0, group.len());
            group.truncate(done);
            writer.perform(unreported(group));
            return;
        }
        writer.perform(group);
    }
}

/// The same changes without reports to openraft.
fn unreported(group: Vec<Change<Simulated>>) -> Vec<Change<Simulated>> {
    let unreported = |change| match change {
        Change::Append(appended) => Change::Append(Appended {
            flushed: openraft::storage::IOFlushed::noop(),
            ..appended
        }),
        change => change,
    };
    group.into_iter().map(unreported).collect()
}

/// Applies committed entries, as the coordinator does.
async fn apply(world: Arc<World>, life: Arc<Life>, more: Arc<Notify>) {
    let mut reader = Reader::default();
    let mut model = Model::default();
    let mut membership = StoredMembership::default();
    let mut last_snapshot = 0;
    while !life.is_over() {
        let limit = world.random().between(100, 20_000);
        match reader.take(&life.member, limit).await.unwrap() {
            None => {
                let more = std::pin::pin!(more.notified());
                select(more, std::pin::pin!(life.over.wait())).await;
            }
            Some(Delivered::Install(snapshot)) => {
                world.history().installed(life.id, &snapshot.snapshot);
                model = (*snapshot.snapshot).clone();
                membership = snapshot.meta.last_membership;
                last_snapshot = model.next;
            }
            Some(Delivered::Entries(entries)) => {
                assert!(!entries.is_empty(), "committed entries can be read");
                let mut last = None;
                for entry in &entries {
                    model.apply(entry);
                    world.history().applied(life.id, entry, &model);
                    if let Some(new) = &entry.membership {
                        membership = StoredMembership::new(Some(entry.log_id), new.clone());
                    }
                    last = Some(entry.log_id);
                }
                model.delivery = reader.delivery().clone();
                if model.next - last_snapshot >= ENTRIES_A_SNAPSHOT {
                    last_snapshot = model.next;
                    save_snapshot(&world, &life, last, &membership, &model).await;
                }
            }
        }
        assert_eq!(reader.next(), model.next);
        life.applied.store(model.next, Ordering::Relaxed);
        world.progress();
    }
}

async fn save_snapshot(
    world: &World,
    life: &Life,
    last: Option<LogId>,
    membership: &StoredMembership,
    model: &Model,
) {
    let saving = std::pin::pin!(world.disk_delay(life.id));
    if let Either::Right(_) = select(saving, std::pin::pin!(life.over.wait())).await {
        return;
    }
    world.disk(life.id).save_snapshot(Snapshot {
        meta: SnapshotMeta {
            last_log_id: last,
            last_membership: membership.clone(),
        },
        snapshot: Arc::new(model.clone()),
    });
    life.member.take_snapshot().await;
}
