//! Incremental fetch sessions (KIP-227): a client names its partitions once, and later only the changes.
//!
//! Owns the bounded cache of sessions and their rules. Knows nothing of logs or bytes. Called from connection
//! tasks; one lock for the cache, never held during I/O. For a new session, these are evicted: a session that
//! was not used for [`STALE_AFTER`], a smaller session that is no longer young, and any consumer's session
//! for a follower's. If there is none, the client gets no session and goes on with full requests.
//!
//! Kafka does not limit the partitions of a session. Here all sessions together have [`PARTITIONS_PER_SLOT`]
//! times as many partitions as there may be sessions. Above that, the largest session is evicted for a
//! smaller one, and a consumer's for a follower's. Unknown partitions do not count in this limit; each
//! session may have a few.
//!
//! Source: `FetchSession`, `FetchManager`. A crash loses all sessions. Clients learn that and send a full
//! request.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::partitions::registry::TopicRef;
use logcore_protocol::ErrorCode;

/// The time without use, or the age, after which a session may be evicted (two minutes in
/// `FetchSessionCache`).
const STALE_AFTER: Duration = Duration::from_secs(120);
/// The average number of partitions of a session, and the most unknown partitions of one.
const PARTITIONS_PER_SLOT: usize = 200;
/// One more than the longest topic name in bytes (`Topic.MAX_NAME_LENGTH`).
const TOPIC_NAME_MAX: usize = 250;
/// The id that stands for no session.
pub(crate) const NO_SESSION: i32 = 0;
/// The epoch of a full request that asks for a session.
const INITIAL_EPOCH: i32 = 0;
/// The epoch of a full request without a session.
const FINAL_EPOCH: i32 = -1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) topic: TopicRef,
    /// The topic's name when its session first saw it.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) index: i32,
    pub(crate) offset: i64,
    /// -1 if the client does not say.
    pub(crate) current_leader_epoch: i32,
    /// -1 if the client does not say.
    pub(crate) last_fetched_epoch: i32,
    /// The start of a follower's own log, -1 from consumers.
    pub(crate) log_start_offset: i64,
    pub(crate) bytes_max: u64,
}

impl Wanted {
    fn key(&self) -> (TopicRef, i32) {
        (self.topic.clone(), self.index)
    }
}

/// The data of one partition that decides whether an incremental response includes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionData<'a> {
    /// The topic's name, if it is known.
    pub(crate) topic: Option<&'a Arc<str>>,
    pub(crate) high_watermark: i64,
    pub(crate) log_start_offset: i64,
    /// There are records, an error or a divergence, so it must be included.
    pub(crate) is_news: bool,
    pub(crate) is_error: bool,
    pub(crate) is_unknown: bool,
    pub(crate) has_records: bool,
}

#[derive(Debug)]
pub(crate) struct SessionRequest {
    pub(crate) id: i32,
    pub(crate) epoch: i32,
    pub(crate) uses_topic_ids: bool,
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) forgotten: Vec<(TopicRef, i32)>,
}

#[derive(Debug)]
pub(crate) enum Context {
    /// All requested partitions, without a session.
    Sessionless(Vec<Wanted>),
    /// All requested partitions, with a session if the cache has space.
    Full(Vec<Wanted>),
    /// The changes in a session. The session has this epoch until the response.
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
    /// In the order of responses. Partitions that had records move to the end, so that none starves.
    partitions: Vec<Cached>,
    /// The number of unknown partitions in the last response.
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
    /// `slots` is the largest number of sessions. 0 turns sessions off.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            sessions: Mutex::default(),
            slots,
            random: RandomState::new(),
        }
    }

    /// The number of partitions in the session of `request`, if it is that session's next request; else 0.
    pub(crate) fn partitions_of(&self, request: &SessionRequest) -> usize {
        let sessions = self.sessions.lock();
        let session = sessions.get(&request.id);
        let session = session.filter(|session| session.epoch == request.epoch);
        session.map_or(0, |session| session.partitions.len())
    }

    /// Chooses the kind of response, and applies the request's changes to its session.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, for the whole
    /// response.
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
        if count > before && !self.make_space(&mut sessions, worth, 0, now) {
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

    /// Finishes the request. Returns the session's id, and for each partition of the context whether the
    /// response includes it.
    ///
    /// # Errors
    /// INVALID_FETCH_SESSION_EPOCH if another request of the session came in between.
    pub(crate) fn finish(
        &self,
        context: &Context,
        uses_topic_ids: bool,
        is_follower: bool,
        data: &[PartitionData<'_>],
    ) -> Result<(i32, Vec<bool>), ErrorCode> {
        match context {
            Context::Sessionless(_) => Ok((NO_SESSION, vec![true; data.len()])),
            Context::Full(wanted) => {
                let id = self.create(wanted, uses_topic_ids, is_follower, data);
                Ok((id, vec![true; data.len()]))
            }
            Context::Incremental { id, epoch, .. } => {
                let mut sessions = self.sessions.lock();
                let session = sessions.get_mut(id).filter(|session| session.epoch == *epoch);
                let session = session.ok_or(ErrorCode::INVALID_FETCH_SESSION_EPOCH)?;
                let wanted = session.partitions.iter().map(|cached| &cached.wanted);
                let weight = weight_of_unknown(wanted, data);
                let included = session.record(data);
                if weight > PARTITIONS_PER_SLOT {
                    // The client learns it from its next request, and begins a new session.
                    sessions.remove(id);
                }
                Ok((*id, included))
            }
        }
    }

    /// The partitions that [`FetchSessions::finish`] would include, without a change of the session.
    pub(crate) fn included(&self, context: &Context, data: &[PartitionData<'_>]) -> Vec<bool> {
        if let Context::Incremental { id, epoch, .. } = context {
            let sessions = self.sessions.lock();
            let session = sessions.get(id).filter(|session| session.epoch == *epoch);
            // The response to a lost session includes none.
            return session.map_or_else(|| vec![false; data.len()], |session| session.included(data));
        }
        vec![true; data.len()]
    }

    /// The id of the request's session, for a response without partitions.
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

    pub(crate) fn len(&self) -> usize {
        self.sessions.lock().len()
    }

    fn create(
        &self,
        wanted: &[Wanted],
        uses_topic_ids: bool,
        is_follower: bool,
        data: &[PartitionData<'_>],
    ) -> i32 {
        let now = Instant::now();
        let unknown = count_unknown(data);
        let known = wanted.len() - unknown;
        if weight_of_unknown(wanted, data) > PARTITIONS_PER_SLOT || known > self.partitions_max() {
            return NO_SESSION;
        }
        let mut sessions = self.sessions.lock();
        let worth = (is_follower, known);
        while sessions.len() >= self.slots {
            if !evict(&mut sessions, worth, now) {
                return NO_SESSION;
            }
        }
        if !self.make_space(&mut sessions, worth, known, now) {
            return NO_SESSION;
        }
        let partitions = wanted.iter().zip(data).map(|(wanted, data)| Cached {
            wanted: Wanted {
                name: data.topic.cloned(),
                ..wanted.clone()
            },
            high_watermark: if data.is_error { -1 } else { data.high_watermark },
            log_start_offset: data.log_start_offset,
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

    /// Evicts sessions until `more` partitions fit for a session of this worth. Returns false if no session
    /// may be evicted.
    fn make_space(&self, sessions: &mut HashMap<i32, Session>, to: Worth, more: usize, now: Instant) -> bool {
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

    /// A positive id that no session has and that is hard to guess.
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

/// The worth of a session: a follower's is worth more than a consumer's, then the number of known partitions
/// counts.
type Worth = (bool, usize);

/// The weight of unknown partitions: one each, and one more for every [`TOPIC_NAME_MAX`] bytes of the name.
fn weight_of_unknown<'w>(wanted: impl IntoIterator<Item = &'w Wanted>, data: &[PartitionData<'_>]) -> usize {
    let all = wanted.into_iter().zip(data);
    let unknown = all.filter(|(_, data)| data.is_unknown);
    let weight = |topic: &TopicRef| match topic {
        TopicRef::Name(name) => 1 + name.len() / TOPIC_NAME_MAX,
        TopicRef::Id(_) => 1,
    };
    unknown.map(|(wanted, _)| weight(&wanted.topic)).sum()
}

fn count_unknown(data: &[PartitionData<'_>]) -> usize {
    data.iter().filter(|data| data.is_unknown).count()
}

/// The longest unused session, if it is stale.
fn stalest(sessions: &HashMap<i32, Session>, now: Instant) -> Option<i32> {
    let stale = sessions
        .iter()
        .filter(|(_, session)| now - session.used > STALE_AFTER);
    stale.min_by_key(|(_, session)| session.used).map(|(id, _)| *id)
}

/// The largest session that may be evicted for one of this worth when there are too many partitions: a larger
/// one of the same kind, or any consumer's for a follower's. Consumers' sessions come first.
fn largest(sessions: &HashMap<i32, Session>, (to_follower, size): Worth) -> Option<i32> {
    let evictable = sessions.iter().filter(|(_, session)| {
        let more = session.known();
        match (to_follower, session.is_follower) {
            (true, false) => more > 0,
            (false, true) => false,
            _ => more > size,
        }
    });
    evictable
        .max_by_key(|(id, session)| (!session.is_follower, session.known(), **id))
        .map(|(id, _)| *id)
}

/// Evicts a session for one of this worth, if one may be evicted (`FetchSessionCacheShard.tryEvict`).
fn evict(sessions: &mut HashMap<i32, Session>, new: Worth, now: Instant) -> bool {
    let victim = stalest(sessions, now).or_else(|| {
        let evictable = sessions
            .iter()
            .filter(|(_, session)| session.is_evictable_for(new));
        let least = evictable.min_by_key(|(id, session)| (session.worth(), **id));
        least
            .filter(|(_, session)| session.worth() < new)
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

    /// The number of known partitions.
    fn known(&self) -> usize {
        self.partitions.len().saturating_sub(self.unknown)
    }

    /// Whether the session was old at its last use, or is a consumer's and the new one a follower's.
    fn is_evictable_for(&self, (to_follower, _): Worth) -> bool {
        self.used - self.created > STALE_AFTER || (to_follower && !self.is_follower)
    }

    fn update(&mut self, wanted: Vec<Wanted>, forgotten: Vec<(TopicRef, i32)>) {
        if !wanted.is_empty() {
            let order: Vec<_> = wanted.iter().map(Wanted::key).collect();
            let mut updates: HashMap<_, _> =
                wanted.into_iter().map(|wanted| (wanted.key(), wanted)).collect();
            for cached in &mut self.partitions {
                if let Some(update) = updates.remove(&cached.wanted.key()) {
                    // The name distinguishes a topic that was created again from the requested one.
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

    /// The partitions that a response includes. `data` has the order of the partitions.
    fn included(&self, data: &[PartitionData<'_>]) -> Vec<bool> {
        let each = self.partitions.iter().zip(data);
        let included = each.map(|(cached, data)| {
            data.is_news
                || cached.high_watermark != data.high_watermark
                || cached.log_start_offset != data.log_start_offset
        });
        included.collect()
    }

    /// Stores the data of a response, and returns which partitions it includes. `data` has the order of the
    /// partitions.
    fn record(&mut self, data: &[PartitionData<'_>]) -> Vec<bool> {
        self.unknown = count_unknown(data);
        let included = self.included(data);
        for (cached, data) in self.partitions.iter_mut().zip(data) {
            cached.high_watermark = if data.is_error { -1 } else { data.high_watermark };
            cached.log_start_offset = data.log_start_offset;
            if cached.wanted.name.is_none() {
                cached.wanted.name = data.topic.cloned();
            }
        }
        let had_records = |position: usize| data.get(position).is_some_and(|data| data.has_records);
        let partitions = std::mem::take(&mut self.partitions).into_iter().enumerate();
        let (last, first): (Vec<_>, Vec<_>) = partitions.partition(|(position, _)| had_records(*position));
        self.partitions = first.into_iter().chain(last).map(|(_, cached)| cached).collect();
        included
    }
}

#[cfg(test)]
#[path = "fetch_session_tests.rs"]
mod tests;
