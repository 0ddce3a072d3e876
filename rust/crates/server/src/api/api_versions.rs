//! ApiVersions (key 18): the APIs that this server serves, and the features. KIP-35, KIP-511, KIP-584.
//!
//! Clients call it before they know any version. So an unknown version is answered, too: in version 0, with
//! UNSUPPORTED_VERSION and the versions of ApiVersions itself.

use logcore_protocol::{RequestHeader, Struct, Value};

use super::{Fields, Outcome, response_message};
use crate::apis::{self, Api, apis};
use crate::features::Features;
use crate::metrics::ErrorCounts;
use crate::net::response::{self, Response};
use logcore_protocol::ErrorCode;

pub(crate) const KEY: i16 = apis::API_VERSIONS;

/// From this version on, a supported feature may begin with version 0 (KAFKA-17011).
const KNOWS_ZERO: i16 = 4;

pub(crate) fn handle(features: &Features, header: &RequestHeader, request: &Struct) -> Outcome {
    let mut message = response_message(KEY);
    if header.api_version >= 3 && !is_valid(request) {
        message.set("error_code", ErrorCode::INVALID_REQUEST.0);
    } else {
        add_entries(&mut message, apis().iter());
        if header.api_version >= 3 {
            add_features(&mut message, features, header.api_version);
        }
    }
    Response::new(header, &message.into()).into()
}

/// Answers a request in an unserved version, without decoding it.
pub(crate) fn handle_unsupported(header: &RequestHeader) -> Outcome {
    let mut message = response_message(KEY);
    message.set("error_code", ErrorCode::UNSUPPORTED_VERSION.0);
    add_entries(&mut message, apis().iter().filter(|api| api.key == KEY));
    response::encode_as(header, 0, &message.into())
        .map(|frame| Response::from_frame(frame, ErrorCounts::one(ErrorCode::UNSUPPORTED_VERSION.0)))
        .into()
}

fn add_entries(message: &mut Struct, entries: impl Iterator<Item = &'static Api>) {
    let entry = message.element("api_keys");
    let entries = entries.map(|api| {
        let mut entry = entry.clone();
        entry
            .set("api_key", api.key)
            .set("min_version", api.first)
            .set("max_version", api.last);
        Value::Struct(entry)
    });
    message.set("api_keys", entries.collect::<Vec<_>>());
}

fn add_features(message: &mut Struct, features: &Features, version: i16) {
    let entry = message.element("supported_features");
    let known = |(_, first, _): &&(String, i16, i16)| version >= KNOWS_ZERO || *first > 0;
    let supported = features.supported.iter().filter(known);
    let supported = supported.map(|(name, first, last)| {
        let mut entry = entry.clone();
        entry
            .set("name", name.clone())
            .set("min_version", *first)
            .set("max_version", *last);
        Value::Struct(entry)
    });
    message.set("supported_features", supported.collect::<Vec<_>>());
    let entry = message.element("finalized_features");
    let finalized = features.finalized.iter().map(|(name, version)| {
        let mut entry = entry.clone();
        entry
            .set("name", name.clone())
            .set("min_version_level", *version)
            .set("max_version_level", *version);
        Value::Struct(entry)
    });
    message.set("finalized_features", finalized.collect::<Vec<_>>());
    message.set("finalized_features_epoch", features.epoch);
}

fn is_valid(request: &Struct) -> bool {
    is_software_name(request.text("client_software_name"))
        && is_software_name(request.text("client_software_version"))
}

/// Letters, digits, `-` and `.`, the last two not at either end.
fn is_software_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let ends = (name.bytes().next(), name.bytes().last());
    matches!(ends, (Some(first), Some(last)) if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
        && name.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

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
