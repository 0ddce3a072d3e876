//! The client's half of an incremental fetch session (KIP-227): a request names only what has changed since
//! the last one.
//!
//! A plain value of one fetcher. Knows nothing of connections: a lost connection is reported by
//! [`Session::restart`]. Source: `FetchSessionHandler`.

use std::collections::HashMap;

use crate::partitions::registry::TopicRef;

/// A partition as requests name it.
pub(super) type Key = (TopicRef, i32);

/// What is asked of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) offset: i64,
    /// The epoch of the last record in the log, -1 if the log has no epochs.
    pub(super) last_epoch: i32,
    pub(super) leader_epoch: i32,
    /// The start of the follower's log.
    pub(super) log_start: i64,
}

/// The session's part of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) id: i32,
    pub(super) epoch: i32,
    pub(super) wanted: Vec<(Key, Asked)>,
    pub(super) forgotten: Vec<Key>,
    /// A session is asked for, and the leader did not decline the last time.
    pub(super) opens_session: bool,
}

impl Turn {
    /// The response names all partitions, with or without news.
    pub(super) fn is_full(&self) -> bool {
        self.epoch == INITIAL_EPOCH
    }
}

/// The id that stands for no session.
const NO_SESSION: i32 = 0;
/// The epoch of a request for a new session.
const INITIAL_EPOCH: i32 = 0;

#[derive(Debug, Default)]
pub(super) struct Session {
    id: i32,
    epoch: i32,
    /// What the leader knows of this session.
    sent: HashMap<Key, Asked>,
    uses_ids: bool,
    /// The leader gave no session when it was asked for one.
    is_declined: bool,
    /// Rotates the partitions of full requests. Without sessions the leader fills its response in their
    /// order.
    turns: usize,
}

impl Session {
    /// The next request for these partitions. `uses_ids`: the request's version has topic ids.
    pub(super) fn next(&mut self, mut wanted: Vec<(Key, Asked)>, uses_ids: bool) -> Turn {
        if self.uses_ids != uses_ids {
            self.restart();
            self.uses_ids = uses_ids;
        }
        let mut forgotten = Vec::new();
        if self.epoch == INITIAL_EPOCH {
            self.sent = wanted.iter().cloned().collect();
            self.turns = self.turns.wrapping_add(1);
            let first = self.turns % wanted.len().max(1);
            wanted.rotate_left(first);
        } else {
            let mut gone = std::mem::take(&mut self.sent);
            self.sent.reserve(wanted.len());
            wanted.retain(|(key, asked)| {
                let before = gone.remove(key);
                self.sent.insert(key.clone(), *asked);
                before.as_ref() != Some(asked)
            });
            forgotten.extend(gone.into_keys());
        }
        Turn {
            id: self.id,
            epoch: self.epoch,
            wanted,
            forgotten,
            opens_session: self.epoch == INITIAL_EPOCH && !self.is_declined,
        }
    }

    /// Whether the leader may answer for a partition.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.sent.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// The response to `turn` has this session id.
    pub(super) fn answered(&mut self, turn: &Turn, id: i32) {
        if turn.is_full() {
            self.is_declined = id == NO_SESSION;
        }
        if id == NO_SESSION {
            self.forget();
        } else if turn.is_full() {
            (self.id, self.epoch) = (id, INITIAL_EPOCH + 1);
        } else {
            // After the largest epoch comes the first.
            self.epoch = self.epoch.checked_add(1).unwrap_or(INITIAL_EPOCH + 1);
        }
    }

    /// The leader does not know the session. The next request asks for a new one.
    pub(super) fn forget(&mut self) {
        (self.id, self.epoch) = (NO_SESSION, INITIAL_EPOCH);
    }

    /// It is not known what the leader knows. The next request closes the session and asks for a new one.
    pub(super) fn restart(&mut self) {
        self.epoch = INITIAL_EPOCH;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn key(index: i32) -> Key {
        (TopicRef::Name(Arc::from("t")), index)
    }

    fn asked(offset: i64) -> Asked {
        Asked {
            offset,
            last_epoch: 1,
            leader_epoch: 2,
            log_start: 0,
        }
    }

    // If this failed, a request for 2,000 idle partitions would name them all, or a leader would go on
    // looking into partitions that are not followed any more.
    #[test]
    fn a_request_names_what_changed() {
        let mut session = Session::default();
        let three = [(key(0), asked(5)), (key(1), asked(6)), (key(2), asked(7))];
        let turn = session.next(three.to_vec(), true);
        assert_eq!((turn.id, turn.epoch, turn.wanted.len()), (0, 0, 3));
        session.answered(&turn, 77);
        let changed = vec![(key(0), asked(5)), (key(1), asked(8)), (key(3), asked(0))];
        let turn = session.next(changed.clone(), true);
        assert_eq!((turn.id, turn.epoch), (77, 1));
        assert_eq!(turn.wanted, changed[1..]);
        assert_eq!(turn.forgotten, [key(2)]);
        assert!(session.has(&key(3)) && !session.has(&key(2)));
        session.answered(&turn, 77);
        let turn = session.next(changed.clone(), true);
        assert_eq!((turn.epoch, turn.wanted.len(), turn.forgotten.len()), (2, 0, 0));
        // After a lost connection the session is closed, and a new one begins with all partitions.
        session.restart();
        let turn = session.next(changed.clone(), true);
        assert_eq!((turn.id, turn.epoch, turn.wanted.len()), (77, 0, 3));
        session.answered(&turn, 78);
        // Topic names instead of ids need a new session, too.
        let turn = session.next(changed, false);
        assert_eq!((turn.id, turn.epoch, turn.wanted.len()), (78, 0, 3));
    }

    // If this failed, one busy partition would starve the others where the leader gives no session, or a
    // long-lived session would end with an epoch that nobody knows.
    #[test]
    fn requests_without_a_session_rotate_and_epochs_wrap() {
        let mut session = Session::default();
        let two = vec![(key(0), asked(5)), (key(1), asked(6))];
        let mut first = Vec::new();
        for _ in 0..4 {
            let turn = session.next(two.clone(), true);
            assert!(turn.is_full());
            session.answered(&turn, NO_SESSION);
            first.push(turn.wanted[0].0.1);
        }
        assert_eq!(first, [1, 0, 1, 0]);
        let turn = session.next(two.clone(), true);
        session.answered(&turn, 5);
        session.epoch = i32::MAX;
        let turn = session.next(two.clone(), true);
        assert_eq!(turn.epoch, i32::MAX);
        session.answered(&turn, 5);
        assert_eq!(session.next(two, true).epoch, 1);
    }
}
