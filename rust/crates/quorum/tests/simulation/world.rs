//! The members, their disks, the network between them and the faults.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::select;
use logcore_quorum::network::{Answer, Links, NoAnswer, Request};
use logcore_quorum::types::{Address, MemberId, Server, member_id, server_of};
use openraft::errors::{InitializeError, RaftError};
use openraft::{AsyncRuntime, Instant, ServerState};
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
    /// The numbers of those that have begun and not ended.
    living: Mutex<BTreeSet<u64>>,
    faults: Mutex<Faults>,
    /// Told whenever a fault ends.
    calmer: Notify,
    history: Mutex<History>,
    /// Told whenever a member has applied something.
    progress: Notify,
    next_writer: AtomicU64,
    next_life: AtomicU64,
    clients_stop: AtomicBool,
    /// Who is to vote, if that is to change.
    wanted: Mutex<Option<BTreeSet<MemberId>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// What is sent from the first to the second does not arrive.
    pub(crate) cut: BTreeSet<(MemberId, MemberId)>,
    /// Says and does nothing.
    pub(crate) paused: BTreeSet<MemberId>,
    /// How long these members' disks take longer, in milliseconds.
    pub(crate) slow_disks: BTreeMap<MemberId, usize>,
    /// One in so many messages breaks its connection; 0 for none.
    pub(crate) breaking: usize,
    /// The longest way of a message, in microseconds.
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

    /// Who votes from some time on.
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

    /// All at once, as servers do that find themselves with nothing.
    pub(crate) async fn initialize(&self) {
        let servers: BTreeMap<_, _> = self.members.iter().map(|id| (*id, server(*id))).collect();
        for life in self.lives() {
            match life.member.raft().initialize(servers.clone()).await {
                // Another was so quick that its first entry is here already.
                Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Kills a member; with it goes what its disk has not, if the power is lost.
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

    /// No fault any more, and everybody is there.
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

    /// A message's way. One that does not arrive is waited for by its sender.
    async fn travel(&self, from: MemberId, to: MemberId) -> Result<(), NoAnswer> {
        self.while_paused(from).await;
        let (delay_us, breaks) = {
            let faults = self.faults();
            let mut random = self.random();
            let breaks = faults.breaking > 0 && random.one_in(faults.breaking);
            (random.between(20, faults.delay_us), breaks)
        };
        sleep(Duration::from_micros(delay_us as u64)).await;
        if breaks {
            return Err(NoAnswer::Broken("the connection broke".to_owned()));
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

    /// Looks at who leads and whether anybody failed.
    pub(crate) fn look(&self) {
        for life in self.lives() {
            let metrics = life.member.raft().metrics();
            let metrics = openraft::async_runtime::watch::WatchReceiver::borrow_watched(&metrics).clone();
            if let Err(fatal) = &metrics.running_state {
                panic!("member {} failed: {fatal}", life.id);
            }
            if metrics.state == ServerState::Leader {
                self.history().leads(life.id, metrics.current_term);
            }
        }
    }

    pub(crate) fn progress(&self) {
        self.progress.notify_waiters();
    }

    /// Returns once what members apply makes it so.
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

    /// Who was wanted as voters votes, by all that know of it.
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

/// A member's way to the others, while it lives.
#[derive(Clone)]
pub(crate) struct Wires {
    pub(crate) world: Arc<World>,
    pub(crate) from: MemberId,
    pub(crate) life: u64,
}

impl Wires {
    fn lives(&self) -> Result<(), NoAnswer> {
        if self.world.living.lock().contains(&self.life) {
            return Ok(());
        }
        Err(gone(self.from))
    }
}

fn gone(member: MemberId) -> NoAnswer {
    NoAnswer::Unreachable(format!("member {member} is not there"))
}

impl Links<Simulated, Arc<Model>> for Wires {
    async fn ask(
        &self,
        member: MemberId,
        _server: &Server,
        request: Request<Simulated, Arc<Model>>,
        patience: Duration,
    ) -> Result<Answer<Simulated>, NoAnswer> {
        let wires = self.clone();
        let conversation = async move {
            wires.lives()?;
            wires.world.travel(wires.from, member).await?;
            let Some(life) = wires.world.life(member) else {
                return Err(gone(member));
            };
            // It is done whether or not the asker waits.
            let done = life.member.clone();
            let answer = SimRuntime::spawn(async move { done.answer(request).await });
            let answer = answer
                .await
                .map_err(|error| NoAnswer::Broken(error.to_string()))??;
            if wires
                .world
                .life(member)
                .is_none_or(|now| now.number != life.number)
            {
                return Err(NoAnswer::Broken(format!("member {member} died")));
            }
            wires.world.travel(member, wires.from).await?;
            wires.lives()?;
            Ok(answer)
        };
        match SimRuntime::timeout(patience, conversation).await {
            Ok(answer) => answer,
            Err(_) => Err(NoAnswer::TimedOut),
        }
    }
}
