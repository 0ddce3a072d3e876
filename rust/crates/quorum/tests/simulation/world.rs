//! The members, their disks, the network between them, and the faults.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::select;
use logcore_quorum::raft::requests::{Links, Request, RequestError, Response};
use logcore_quorum::servers::{Address, MemberId, Server, member_id, server_of};
use openraft::{AsyncRuntime, Instant};
use openraft_rt_sim::{SimInstant, SimRuntime};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::disk::MemoryDisk;
use crate::history::{History, Model};
use crate::life::Life;
use crate::support::random::Random;
use crate::{Simulated, sleep};

pub(crate) struct World {
    random: Mutex<Random>,
    pub(crate) members: Vec<MemberId>,
    disks: BTreeMap<MemberId, MemoryDisk>,
    lives: Mutex<BTreeMap<MemberId, Arc<Life>>>,
    /// The numbers of the lives that go on.
    living: Mutex<BTreeSet<u64>>,
    faults: Mutex<Faults>,
    /// Notified whenever a fault ends.
    calmer: Notify,
    history: Mutex<History>,
    /// Notified whenever a member has applied something.
    progress: Notify,
    next_writer: AtomicU64,
    next_life: AtomicU64,
    clients_stop: AtomicBool,
    /// The voters that are wanted, if they are to change.
    wanted: Mutex<Option<BTreeSet<MemberId>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Messages from the first to the second do not arrive.
    pub(crate) cut: BTreeSet<(MemberId, MemberId)>,
    /// Members that do nothing.
    pub(crate) paused: BTreeSet<MemberId>,
    /// Extra time of these members' disks, in milliseconds.
    pub(crate) slow_disks: BTreeMap<MemberId, usize>,
    /// One in so many messages breaks its connection; 0 means none.
    pub(crate) breaking: usize,
    /// The longest time of a message, in microseconds.
    pub(crate) delay_us: usize,
}

pub(crate) fn server(member: MemberId) -> Server {
    let address = |port| Address {
        host: format!("member-{member}"),
        port,
    };
    Server {
        id: server_of(member),
        quorum: vec![address(2888)],
        election: vec![address(3888)],
        client: Some(address(2181)),
        observer: false,
    }
}

impl World {
    pub(crate) fn new(random: &mut Random) -> Arc<Self> {
        Self::of(*random.pick(&[1, 3, 3, 3, 5, 5]), random)
    }

    pub(crate) fn of(count: u16, random: &mut Random) -> Arc<Self> {
        let members: Vec<MemberId> = (1..=count).map(|server| member_id(server, 0)).collect();
        let disks = members.iter().map(|id| (*id, MemoryDisk::default()));
        Arc::new(Self {
            disks: disks.collect(),
            members,
            lives: Mutex::default(),
            living: Mutex::default(),
            faults: Mutex::new(Faults {
                delay_us: random.between(50, 2_000),
                ..Faults::default()
            }),
            calmer: Notify::new(),
            history: Mutex::default(),
            progress: Notify::new(),
            next_writer: AtomicU64::new(1 << 32),
            next_life: AtomicU64::new(1),
            clients_stop: AtomicBool::new(false),
            wanted: Mutex::default(),
            random: Mutex::new(random.clone()),
        })
    }

    pub(crate) fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock()
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock()
    }

    pub(crate) fn disk(&self, member: MemberId) -> MemoryDisk {
        self.disks[&member].clone()
    }

    pub(crate) fn next_writer(&self) -> MemberId {
        self.next_writer.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn stop_clients(&self) {
        self.clients_stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn clients_stop(&self) -> bool {
        self.clients_stop.load(Ordering::Relaxed)
    }

    /// Sets the voters that the leader is to make.
    pub(crate) fn want(&self, voters: BTreeSet<MemberId>) {
        *self.wanted.lock() = Some(voters);
    }

    pub(crate) fn wanted(&self) -> Option<Vec<Server>> {
        let wanted = self.wanted.lock().clone()?;
        Some(wanted.into_iter().map(server).collect())
    }

    pub(crate) fn life(&self, member: MemberId) -> Option<Arc<Life>> {
        self.lives.lock().get(&member).cloned()
    }

    pub(crate) fn lives(&self) -> Vec<Arc<Life>> {
        self.lives.lock().values().cloned().collect()
    }

    pub(crate) async fn start(self: &Arc<Self>, member: MemberId) {
        if self.life(member).is_none() {
            let number = self.next_life.fetch_add(1, Ordering::Relaxed);
            self.living.lock().insert(number);
            let life = Life::start(self, member, number).await;
            self.lives.lock().insert(member, life);
        }
    }

    pub(crate) async fn start_all(self: &Arc<Self>) {
        for member in self.members.clone() {
            self.start(member).await;
        }
    }

    /// Founds the ensemble at all members at once, as servers without data do.
    pub(crate) async fn initialize(&self) {
        let servers: BTreeMap<_, _> = self.members.iter().map(|id| (*id, server(*id))).collect();
        for life in self.lives() {
            life.member.initialize(servers.clone()).await.unwrap();
        }
    }

    /// Kills a member. With `power`, its disk loses what was not flushed.
    pub(crate) async fn crash(&self, member: MemberId, power: bool) {
        let life = self.lives.lock().remove(&member);
        if let Some(life) = life {
            self.living.lock().remove(&life.number);
            life.end().await;
            if power {
                self.disk(member).lose_power(&mut self.random());
            }
        }
    }

    pub(crate) async fn stop_all(&self) {
        for member in &self.members {
            self.crash(*member, false).await;
        }
    }

    /// Ends all faults, and starts all members.
    pub(crate) async fn heal(self: &Arc<Self>) {
        {
            let mut faults = self.faults();
            *faults = Faults {
                delay_us: 500,
                ..Faults::default()
            };
        }
        self.calmer.notify_waiters();
        self.start_all().await;
    }

    pub(crate) fn calmer(&self) {
        self.calmer.notify_waiters();
    }

    pub(crate) async fn while_paused(&self, member: MemberId) {
        loop {
            let calmer = self.calmer.notified();
            if !self.faults().paused.contains(&member) {
                return;
            }
            calmer.await;
        }
    }

    pub(crate) async fn disk_delay(&self, member: MemberId) {
        let delay_us = self.random().between(20, 3_000) as u64;
        sleep(Duration::from_micros(delay_us)).await;
        let begun = SimInstant::now();
        loop {
            let calmer = self.calmer.notified();
            let slow_ms = self.faults().slow_disks.get(&member).copied().unwrap_or(0) as u64;
            let end = begun + Duration::from_millis(slow_ms);
            if SimInstant::now() >= end {
                break;
            }
            select(pin!(SimRuntime::sleep_until(end)), pin!(calmer)).await;
        }
        self.while_paused(member).await;
    }

    /// The way of a message. The sender of one that does not arrive waits.
    async fn travel(&self, from: MemberId, to: MemberId) -> Result<(), RequestError> {
        self.while_paused(from).await;
        let (delay_us, breaks) = {
            let faults = self.faults();
            let mut random = self.random();
            let breaks = faults.breaking > 0 && random.one_in(faults.breaking);
            (random.between(20, faults.delay_us), breaks)
        };
        sleep(Duration::from_micros(delay_us as u64)).await;
        if breaks {
            return Err(RequestError::Broken("the connection broke".to_owned()));
        }
        loop {
            let calmer = self.calmer.notified();
            if !self.faults().cut.contains(&(from, to)) {
                break;
            }
            calmer.await;
        }
        self.while_paused(to).await;
        Ok(())
    }

    /// Checks that no member failed, and notes which members lead.
    pub(crate) fn look(&self) {
        for life in self.lives() {
            let metrics = life.member.metrics();
            if let Some(why) = metrics.failure() {
                panic!("member {} failed: {why}", life.id);
            }
            if metrics.is_leader() {
                self.history().leads(life.id, metrics.term());
            }
        }
    }

    pub(crate) fn progress(&self) {
        self.progress.notify_waiters();
    }

    /// Returns once `is_so` says yes. It is asked again whenever a member applies something.
    pub(crate) async fn progress_to(&self, is_so: impl Fn() -> bool) {
        loop {
            let progress = self.progress.notified();
            if is_so() {
                return;
            }
            progress.await;
        }
    }

    pub(crate) async fn all_apply_everything(&self, within: Duration) {
        let wanted = self.history().applied_next();
        let is_behind = |life: &Arc<Life>| life.applied() < wanted;
        let caught_up = self.progress_to(|| !self.lives().iter().any(is_behind));
        if SimRuntime::timeout(within, caught_up).await.is_err() {
            let applied: Vec<_> = self
                .lives()
                .iter()
                .map(|life| (life.id, life.applied()))
                .collect();
            panic!("not all members applied the {wanted} entries: {applied:?}");
        }
    }

    /// Checks that all members have the wanted voters within this time.
    pub(crate) async fn all_have_the_members(&self, within: Duration) {
        let Some(wanted) = self.wanted() else { return };
        let have = async {
            while !self
                .lives()
                .iter()
                .all(|life| life.listed() == Some(wanted.clone()))
            {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if SimRuntime::timeout(within, have).await.is_err() {
            let listed: Vec<_> = self.lives().iter().map(|life| (life.id, life.listed())).collect();
            panic!("not all members have {wanted:?}: {listed:?}");
        }
    }

    pub(crate) fn check(&self) {
        self.look();
        self.history().check();
    }
}

/// A member's connections to the others, while it lives.
#[derive(Clone)]
pub(crate) struct Wires {
    pub(crate) world: Arc<World>,
    pub(crate) from: MemberId,
    pub(crate) life: u64,
}

impl Wires {
    fn is_alive(&self) -> Result<(), RequestError> {
        if self.world.living.lock().contains(&self.life) {
            return Ok(());
        }
        Err(gone(self.from))
    }
}

fn gone(member: MemberId) -> RequestError {
    RequestError::Unreachable(format!("member {member} is down"))
}

impl Links<Simulated, Arc<Model>> for Wires {
    async fn request(
        &self,
        member: MemberId,
        _server: &Server,
        request: Request<Simulated, Arc<Model>>,
        timeout: Duration,
    ) -> Result<Response<Simulated>, RequestError> {
        let wires = self.clone();
        let exchange = async move {
            wires.is_alive()?;
            wires.world.travel(wires.from, member).await?;
            let Some(life) = wires.world.life(member) else {
                return Err(gone(member));
            };
            // It is carried out whether the sender waits or not.
            let receiver = life.member.clone();
            let response = SimRuntime::spawn(async move { receiver.answer(request).await });
            let response = response
                .await
                .map_err(|error| RequestError::Broken(error.to_string()))??;
            if wires
                .world
                .life(member)
                .is_none_or(|now| now.number != life.number)
            {
                return Err(RequestError::Broken(format!("member {member} crashed")));
            }
            wires.world.travel(member, wires.from).await?;
            wires.is_alive()?;
            Ok(response)
        };
        match SimRuntime::timeout(timeout, exchange).await {
            Ok(response) => response,
            Err(_) => Err(RequestError::TimedOut),
        }
    }
}
