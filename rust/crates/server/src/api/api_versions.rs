//! ApiVersions (key 18): what this server answers. KIP-35, KIP-511.
//!
//! The one API a client calls before it knows anything, so a version nobody has is answered too: at version 0, with
//! UNSUPPORTED_VERSION and the versions of ApiVersions itself.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use logcore_protocol::{Direction, RequestHeader, Struct, Value};

use super::{Fields, Outcome, native_versions, response_message};
use crate::codes::ErrorCode;
use crate::error::{Result, ServerError};
use crate::metrics::ErrorCounts;
use crate::response::{self, Response};

pub(crate) const KEY: i16 = logcore_protocol::API_VERSIONS;
pub(crate) const VERSIONS: RangeInclusive<i16> = 0..=4;

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

    fn entries(&self) -> impl Iterator<Item = (i16, (i16, i16))> {
        self.0.iter().map(|(key, versions)| (*key, *versions))
    }
}

/// Answers a request of a version that is served.
pub(crate) fn handle(table: &ApiTable, header: &RequestHeader, request: &Struct) -> Outcome {
    let mut message = response_message(KEY);
    if header.api_version >= 3 && !is_valid(request) {
        message.set("error_code", ErrorCode::INVALID_REQUEST.0);
    } else {
        add_entries(&mut message, table.entries());
    }
    Response::new(header, &message.into()).into()
}

/// Answers a request of a version that is not served; its body is not looked at.
pub(crate) fn handle_unsupported(table: &ApiTable, header: &RequestHeader) -> Outcome {
    let mut message = response_message(KEY);
    message.set("error_code", ErrorCode::UNSUPPORTED_VERSION.0);
    add_entries(&mut message, table.entries().filter(|(key, _)| *key == KEY));
    response::encode_as(header, 0, &message.into())
        .map(|frame| Response::from_frame(frame, ErrorCounts::one(ErrorCode::UNSUPPORTED_VERSION.0)))
        .into()
}

fn add_entries(message: &mut Struct, entries: impl Iterator<Item = (i16, (i16, i16))>) {
    let entry = message.element("api_keys");
    let entries = entries.map(|(key, (first, last))| {
        let mut entry = entry.clone();
        entry
            .set("api_key", key)
            .set("min_version", first)
            .set("max_version", last);
        Value::Struct(entry)
    });
    message.set("api_keys", entries.collect::<Vec<_>>());
}

fn is_valid(request: &Struct) -> bool {
    is_software_name(request.text("client_software_name"))
        && is_software_name(request.text("client_software_version"))
}

/// Letters, digits, `-` and `.`, the last two not at the ends.
fn is_software_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let ends = (name.bytes().next(), name.bytes().last());
    matches!(ends, (Some(first), Some(last)) if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
        && name.bytes().all(inner)
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

    // If this failed, real clients would be refused or nonsense accepted (KIP-511).
    #[test]
    fn software_names() {
        for name in ["apache-kafka-java", "librdkafka", "2.3.0", "a"] {
            assert!(is_software_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "a b", "kafka/3", "ä"] {
            assert!(!is_software_name(name), "{name}");
        }
    }
}
