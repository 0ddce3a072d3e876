//! Incremental fetch sessions (KIP-227): a client names its partitions once and later only says what changed.
//!
//! Owns the bounded cache of sessions and their rules; knows nothing of logs or bytes. Called from connection tasks; one lock
//! for the cache, held for no I/O. A session not used for [`STALE_AFTER`] gives way to a new one, as does a smaller session
//! that is no longer young, and a consumer's to a follower's whatever its age; otherwise the newcomer gets none and sends full
//! requests, which is always correct.
//!
//! Kafka has no limit for what is in a session. Here all together have [`PARTITIONS_PER_SLOT`] times as many partitions as there
//! may be sessions. Beyond that the largest gives way to those that are smaller, a consumer's to a follower's. Partitions that there
//! are not take no place from others: a session has few of them, and they are not counted with those that there are.
//!
//! Source: `FetchSession`, `FetchManager`. A crash loses all sessions; clients are told so and send a full request.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::codes::ErrorCode;
use crate::partitions::registry::TopicRef;

/// How long a session must be unused, or old, to be evicted (`FetchSessionCache`'s two minutes).
const STALE_AFTER: Duration = Duration::from_secs(120);
/// How many partitions a session may have when all have as many, and how many in any case that there are not.
const PARTITIONS_PER_SLOT: usize = 200;
/// The longest name of a topic, in bytes (`Topic.MAX_NAME_LENGTH`), and a byte.
const TOPIC_NAME_MAX: usize = 250;
/// The id of no session.
pub(crate) const NO_SESSION: i32 = 0;
/// The epoch of a full request that asks for a session.
const INITIAL_EPOCH: i32 = 0;
/// The epoch of a full request that wants none.
const FINAL_EPOCH: i32 = -1;

/// What a client wants of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) topic: TopicRef,
    /// The name that the topic had when a session first looked at it.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) index: i32,
    pub(crate) offset: i64,
    /// -1: the client does not say.
    pub(crate) current_leader_epoch: i32,
    /// -1: the client does not say.
    pub(crate) last_fetched_epoch: i32,
    /// Where a follower's own log begins; -1 from consumers.
    pub(crate) log_start_offset: i64,
    pub(crate) bytes_max: u64,
}

impl Wanted {
    fn key(&self) -> (TopicRef, i32) {
        (self.topic.clone(), self.index)
    }
}

/// What a response says of one partition, as far as it decides whether the partition must be in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told<'a> {
    /// The topic's name, if there is one.
    pub(crate) topic: Option<&'a Arc<str>>,
    pub(crate) high_watermark: i64,
    pub(crate) log_start_offset: i64,
    /// There are records, an error or a divergence: it must be in the response whatever the offsets.
    pub(crate) is_news: bool,
    pub(crate) is_error: bool,
    /// There is no such partition.
    pub(crate) is_unknown: bool,
    pub(crate) has_records: bool,
}

/// The session part of a request.
#[derive(Debug)]
pub(crate) struct SessionRequest {
    pub(crate) id: i32,
    pub(crate) epoch: i32,
    pub(crate) uses_topic_ids: bool,
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) forgotten: Vec<(TopicRef, i32)>,
}

/// How a request is to be answered.
#[derive(Debug)]
pub(crate) enum Context {
    /// Everything asked for, no session.
    Sessionless(Vec<Wanted>),
    /// Everything asked for, and a session if there is room.
    Full(Vec<Wanted>),
    /// What changed in a session; the epoch is the one the session has until the answer.
    Incremental {
        id: i32,
        epoch: i32,
        wanted: Vec<Wanted>,
    },
}

impl Context {
    pub(crate) fn wanted(&self) -> &[Wanted] {
        match self {
            Self::Sessionless(wanted) | Self::Full(wanted) | Self::Incremental { wanted, .. } => wanted,
        }
    }

    /// The session that the request is part of.
    pub(crate) fn session_id(&self) -> i32 {
        match self {
            Self::Incremental { id, .. } => *id,
            Self::Sessionless(_) | Self::Full(_) => NO_SESSION,
        }
    }
}

struct Cached {
    wanted: Wanted,
    high_watermark: i64,
    log_start_offset: i64,
}

struct Session {
    epoch: i32,
    uses_topic_ids: bool,
    is_follower: bool,
    /// In the order they are answered: those that had records last go to the end, so that none starves.
    partitions: Vec<Cached>,
    /// How many of them there were not when it was told of them last.
    unknown: usize,
    created: Instant,
    used: Instant,
}

/// The cache.
pub(crate) struct FetchSessions {
    sessions: Mutex<HashMap<i32, Session>>,
    slots: usize,
    random: RandomState,
}

impl FetchSessions {
    /// `slots` is how many sessions there may be; 0 turns sessions off.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            sessions: Mutex::default(),
            slots,
            random: RandomState::new(),
        }
    }

    /// How many partitions the session has that `request` is the next request of, as things are; 0 when there is none.
    pub(crate) fn partitions_of(&self, request: &SessionRequest) -> usize {
        let sessions = self.sessions.lock();
        let session = sessions.get(&request.id);
        let session = session.filter(|session| session.epoch == request.epoch);
        session.map_or(0, |session| session.partitions.len())
    }

    /// Decides how to answer, and brings the session up to what the request says.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, for the whole response.
    pub(crate) fn begin(&self, request: SessionRequest) -> Result<Context, ErrorCode> {
        let now = Instant::now();
        let mut sessions = self.sessions.lock();
        if request.epoch == INITIAL_EPOCH || request.epoch == FINAL_EPOCH {
            sessions.remove(&request.id);
            return Ok(if request.epoch == FINAL_EPOCH {
                Context::Sessionless(request.wanted)
            } else {
                Context::Full(request.wanted)
            });
        }
        let session = sessions
            .get_mut(&request.id)
            .ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        if session.epoch != request.epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        if session.uses_topic_ids != request.uses_topic_ids {
            return Err(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
        }
        let before = session.partitions.len();
        session.update(request.wanted, request.forgotten);
        session.used = now;
        let count = session.partitions.len();
        let worth = session.worth();
        if count == 0 {
            sessions.remove(&request.id);
            return Ok(Context::Sessionless(Vec::new()));
        }
        if count > before && !self.make_room(&mut sessions, worth, 0, now) {
            sessions.remove(&request.id);
            return Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        }
        let session = sessions
            .get_mut(&request.id)
            .ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        session.epoch = next_epoch(session.epoch);
        Ok(Context::Incremental {
            id: request.id,
            epoch: session.epoch,
            wanted: session
                .partitions
                .iter()
                .map(|cached| cached.wanted.clone())
                .collect(),
        })
    }

    /// Closes the request: the session's id, and for each of the context's partitions whether it must be in the response.
    ///
    /// # Errors
    /// INVALID_FETCH_SESSION_EPOCH when another request of the same session came in between.
    pub(crate) fn finish(
        &self,
        context: &Context,
        uses_topic_ids: bool,
        is_follower: bool,
        told: &[Told<'_>],
    ) -> Result<(i32, Vec<bool>), ErrorCode> {
        match context {
            Context::Sessionless(_) => Ok((NO_SESSION, vec![true; told.len()])),
            Context::Full(wanted) => {
                let id = self.create(wanted, uses_topic_ids, is_follower, told);
                Ok((id, vec![true; told.len()]))
            }
            Context::Incremental { id, epoch, .. } => {
                let mut sessions = self.sessions.lock();
                let session = sessions.get_mut(id).filter(|session| session.epoch == *epoch);
                let session = session.ok_or(ErrorCode::INVALID_FETCH_SESSION_EPOCH)?;
                let wanted = session.partitions.iter().map(|cached| &cached.wanted);
                let weight = weight_of_unknown(wanted, told);
                let must = session.tell(told);
                if weight > PARTITIONS_PER_SLOT {
                    // Its client learns it with the next request, and begins again.
                    sessions.remove(id);
                }
                Ok((*id, must))
            }
        }
    }

    /// What [`FetchSessions::finish`] would say must be in the response, with nothing remembered.
    pub(crate) fn must_tell(&self, context: &Context, told: &[Told<'_>]) -> Vec<bool> {
        if let Context::Incremental { id, epoch, .. } = context {
            let sessions = self.sessions.lock();
            let session = sessions.get(id).filter(|session| session.epoch == *epoch);
            // Of one that is not there any more nothing is told but that.
            return session.map_or_else(|| vec![false; told.len()], |session| session.must_tell(told));
        }
        vec![true; told.len()]
    }

    /// The id of the session that a request with this context belongs to, for an answer that tells it nothing.
    ///
    /// # Errors
    /// As [`FetchSessions::finish`].
    pub(crate) fn still(&self, context: &Context) -> Result<i32, ErrorCode> {
        let Context::Incremental { id, epoch, .. } = context else {
            return Ok(NO_SESSION);
        };
        let sessions = self.sessions.lock();
        let session = sessions.get(id).filter(|session| session.epoch == *epoch);
        session.map(|_| *id).ok_or(ErrorCode::INVALID_FETCH_SESSION_EPOCH)
    }

    /// How many sessions there are.
    pub(crate) fn len(&self) -> usize {
        self.sessions.lock().len()
    }

    fn create(&self, wanted: &[Wanted], uses_topic_ids: bool, is_follower: bool, told: &[Told<'_>]) -> i32 {
        let now = Instant::now();
        let unknown = count_unknown(told);
        let known = wanted.len() - unknown;
        if weight_of_unknown(wanted, told) > PARTITIONS_PER_SLOT || known > self.partitions_max() {
            return NO_SESSION;
        }
        let mut sessions = self.sessions.lock();
        let worth = (is_follower, known);
        while sessions.len() >= self.slots {
            if !evict(&mut sessions, worth, now) {
                return NO_SESSION;
            }
        }
        if !self.make_room(&mut sessions, worth, known, now) {
            return NO_SESSION;
        }
        let partitions = wanted.iter().zip(told).map(|(wanted, told)| Cached {
            wanted: Wanted {
                name: told.topic.cloned(),
                ..wanted.clone()
            },
            high_watermark: if told.is_error { -1 } else { told.high_watermark },
            log_start_offset: told.log_start_offset,
        });
        let session = Session {
            epoch: next_epoch(INITIAL_EPOCH),
            uses_topic_ids,
            is_follower,
            partitions: partitions.collect(),
            unknown,
            created: now,
            used: now,
        };
        let id = self.new_id(&sessions);
        sessions.insert(id, session);
        id
    }

    fn partitions_max(&self) -> usize {
        self.slots.saturating_mul(PARTITIONS_PER_SLOT)
    }

    /// Makes room for so many partitions more of a session that is worth so much; false when nobody gives way.
    fn make_room(&self, sessions: &mut HashMap<i32, Session>, to: Worth, more: usize, now: Instant) -> bool {
        let all = sessions.values().map(Session::known);
        let mut all = all.sum::<usize>() + more;
        while all > self.partitions_max() {
            let Some(victim) = stalest(sessions, now).or_else(|| largest(sessions, to)) else {
                return false;
            };
            all -= sessions.remove(&victim).map_or(0, |session| session.known());
        }
        true
    }

    /// A positive number that no session has and nobody can guess.
    fn new_id(&self, sessions: &HashMap<i32, Session>) -> i32 {
        let mut seed = sessions.len() as u64;
        loop {
            seed = self.random.hash_one((seed, Instant::now()));
            let id = (seed & 0x7fff_ffff) as i32;
            if id != NO_SESSION && !sessions.contains_key(&id) {
                return id;
            }
        }
    }
}

/// What a session is worth: a follower's more than a consumer's, then by how many of its partitions there are.
type Worth = (bool, usize);

/// What a session keeps of partitions that there are not: each is one, and one more for each length of a name that a topic can have.
fn weight_of_unknown<'w>(wanted: impl IntoIterator<Item = &'w Wanted>, told: &[Told<'_>]) -> usize {
    let all = wanted.into_iter().zip(told);
    let unknown = all.filter(|(_, told)| told.is_unknown);
    let weight = |topic: &TopicRef| match topic {
        TopicRef::Name(name) => 1 + name.len() / TOPIC_NAME_MAX,
        TopicRef::Id(_) => 1,
    };
    unknown.map(|(wanted, _)| weight(&wanted.topic)).sum()
}

fn count_unknown(told: &[Told<'_>]) -> usize {
    told.iter().filter(|told| told.is_unknown).count()
}

/// The session that was not used for longest, if that is long.
fn stalest(sessions: &HashMap<i32, Session>, now: Instant) -> Option<i32> {
    let stale = sessions
        .iter()
        .filter(|(_, session)| now - session.used > STALE_AFTER);
    stale.min_by_key(|(_, session)| session.used).map(|(id, _)| *id)
}

/// The largest session that gives way to one worth so much because all have too much: one of its kind that is larger than it,
/// or any consumer's for a follower's, and those first.
fn largest(sessions: &HashMap<i32, Session>, (to_follower, size): Worth) -> Option<i32> {
    let giving = sessions.iter().filter(|(_, session)| {
        let more = session.known();
        match (to_follower, session.is_follower) {
            (true, false) => more > 0,
            (false, true) => false,
            _ => more > size,
        }
    });
    giving
        .max_by_key(|(id, session)| (!session.is_follower, session.known(), **id))
        .map(|(id, _)| *id)
}

/// Makes room for a session that is worth so much, if one may be evicted (`FetchSessionCacheShard.tryEvict`).
fn evict(sessions: &mut HashMap<i32, Session>, newcomer: Worth, now: Instant) -> bool {
    let victim = stalest(sessions, now).or_else(|| {
        let evictable = sessions
            .iter()
            .filter(|(_, session)| session.gives_way_to(newcomer));
        let least = evictable.min_by_key(|(id, session)| (session.worth(), **id));
        least
            .filter(|(_, session)| session.worth() < newcomer)
            .map(|(id, _)| *id)
    });
    victim.is_some_and(|id| sessions.remove(&id).is_some())
}

fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}

impl Session {
    fn worth(&self) -> Worth {
        (self.is_follower, self.known())
    }

    /// How many of its partitions there are, as far as it was told.
    fn known(&self) -> usize {
        self.partitions.len().saturating_sub(self.unknown)
    }

    /// A session that was old when it was last used gives way, and a young consumer's to a follower's.
    fn gives_way_to(&self, (to_follower, _): Worth) -> bool {
        self.used - self.created > STALE_AFTER || (to_follower && !self.is_follower)
    }

    fn update(&mut self, wanted: Vec<Wanted>, forgotten: Vec<(TopicRef, i32)>) {
        if !wanted.is_empty() {
            let order: Vec<_> = wanted.iter().map(Wanted::key).collect();
            let mut updates: HashMap<_, _> =
                wanted.into_iter().map(|wanted| (wanted.key(), wanted)).collect();
            for cached in &mut self.partitions {
                if let Some(update) = updates.remove(&cached.wanted.key()) {
                    // A topic that was created anew is told from the one that was asked for.
                    let name = cached.wanted.name.take();
                    cached.wanted = Wanted { name, ..update };
                }
            }
            let added = order.iter().filter_map(|key| updates.remove(key));
            self.partitions.extend(added.map(|wanted| Cached {
                wanted,
                high_watermark: -1,
                log_start_offset: -1,
            }));
        }
        if !forgotten.is_empty() {
            let forgotten: std::collections::HashSet<_> = forgotten.into_iter().collect();
            self.partitions
                .retain(|cached| !forgotten.contains(&cached.wanted.key()));
        }
    }

    /// What must be in a response. `told` is in the order of the partitions.
    fn must_tell(&self, told: &[Told<'_>]) -> Vec<bool> {
        let each = self.partitions.iter().zip(told);
        let must = each.map(|(cached, told)| {
            told.is_news
                || cached.high_watermark != told.high_watermark
                || cached.log_start_offset != told.log_start_offset
        });
        must.collect()
    }

    /// Remembers what a response says and returns what must be in it. `told` is in the order of the partitions.
    fn tell(&mut self, told: &[Told<'_>]) -> Vec<bool> {
        self.unknown = count_unknown(told);
        let must = self.must_tell(told);
        for (cached, told) in self.partitions.iter_mut().zip(told) {
            cached.high_watermark = if told.is_error { -1 } else { told.high_watermark };
            cached.log_start_offset = told.log_start_offset;
            if cached.wanted.name.is_none() {
                cached.wanted.name = told.topic.cloned();
            }
        }
        let had_records = |position: usize| told.get(position).is_some_and(|told| told.has_records);
        let partitions = std::mem::take(&mut self.partitions).into_iter().enumerate();
        let (last, first): (Vec<_>, Vec<_>) = partitions.partition(|(position, _)| had_records(*position));
        self.partitions = first.into_iter().chain(last).map(|(_, cached)| cached).collect();
        must
    }
}

#[cfg(test)]
#[path = "fetch_session_tests.rs"]
mod tests;
