//! The APIs a server answers: which there are, in which versions, and whether Rust or Python answers them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use logcore_protocol::Direction;

use crate::error::{Result, ServerError};

pub(crate) const PRODUCE: i16 = 0;
pub(crate) const FETCH: i16 = 1;
pub(crate) const LIST_OFFSETS: i16 = 2;
pub(crate) const API_VERSIONS: i16 = logcore_protocol::API_VERSIONS;
pub(crate) const OFFSET_FOR_LEADER_EPOCH: i16 = 23;

/// The versions of an API that are answered in Rust; `None` for APIs that cross to Python.
pub(crate) fn native_versions(key: i16) -> Option<RangeInclusive<i16>> {
    match key {
        PRODUCE => Some(0..=11),
        FETCH => Some(0..=17),
        LIST_OFFSETS => Some(0..=9),
        API_VERSIONS => Some(0..=4),
        OFFSET_FOR_LEADER_EPOCH => Some(0..=4),
        _ => None,
    }
}

/// JoinGroup and SyncGroup are answered when others have come: most of their handlers' time is nobody's work.
pub(crate) const WAITING_APIS: [i16; 2] = [11, 14];

/// The APIs a server answers, in Rust or in Python, fixed at its start.
pub(crate) struct ApiTable(BTreeMap<i16, (i16, i16)>);

impl ApiTable {
    /// Takes what is to be advertised; the ranges of APIs answered in Rust are narrowed to what Rust answers.
    ///
    /// # Errors
    /// [`ServerError::UnservedApi`] when nothing of a range can be answered or read.
    pub(crate) fn new(apis: &[(i16, i16, i16)]) -> Result<Self> {
        let mut table = BTreeMap::new();
        for &(key, first, last) in apis {
            let unserved = |reason: String| ServerError::UnservedApi {
                key,
                first,
                last,
                reason,
            };
            let schema = logcore_protocol::schema(key, Direction::Request)
                .ok_or_else(|| unserved("the key is not in the message table".to_owned()))?;
            let valid = schema.valid_versions();
            let mut served = (first, last);
            if let Some(native) = native_versions(key) {
                served = (first.max(*native.start()), last.min(*native.end()));
            }
            if served.0 > served.1 || !valid.contains(served.0) || !valid.contains(served.1) {
                return Err(unserved(format!("{schema} has the versions {valid}")));
            }
            table.insert(key, served);
        }
        Ok(Self(table))
    }

    /// Whether this version of this API is answered.
    pub(crate) fn serves(&self, key: i16, version: i16) -> bool {
        let served = self.0.get(&key);
        served.is_some_and(|(first, last)| (*first..=*last).contains(&version))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (i16, (i16, i16))> {
        self.0.iter().map(|(key, versions)| (*key, *versions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, a client would be told of versions that nobody answers.
    #[test]
    fn what_rust_cannot_answer_is_not_advertised() {
        let table = ApiTable::new(&[(1, 0, 18), (3, 0, 12), (18, 0, 4)]).unwrap();
        assert!(!table.serves(1, 18));
        assert!(table.serves(1, 0) && table.serves(1, 17) && table.serves(3, 0));
        assert!(!table.serves(0, 9));
        assert!(ApiTable::new(&[(3, 0, 99)]).is_err());
        assert!(ApiTable::new(&[(999, 0, 0)]).is_err());
    }
}
