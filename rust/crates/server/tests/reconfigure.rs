//! Changes of settings and quotas while the server runs.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::collections::HashMap;

use common::{TestServer, batch, int, partition, produce, produced, properties, request};
use logcore_server::{ClientQuota, ServerError};

const MESSAGE_TOO_LARGE: i64 = 10;

fn produce_code(server: &TestServer, topic: &str, size: usize) -> i64 {
    let value = vec![b'x'; size];
    let message = produce(topic, 1, &[(0, &batch(&[&value]))]);
    int(&produced(&server.client().call(0, 9, message)), "error_code")
}

// If this failed, a changed broker setting would have no effect, or would replace a topic's own.
#[test]
fn logs_use_new_broker_defaults_and_keep_topic_settings() {
    let server = TestServer::start(&[("message.max.bytes", "1000")]);
    let mut own = partition("own", 0);
    own.config = properties(&[("max.message.bytes", "1500")]);
    server.server.create_partition(&own).unwrap();
    assert_eq!(produce_code(&server, "t", 2000), MESSAGE_TOO_LARGE);
    let change = |pairs: &[(&str, &str)]| server.server.update_config(&properties(pairs));
    change(&[("message.max.bytes", "3000"), ("log.cleaner.threads", "2")]).unwrap();
    assert_eq!(produce_code(&server, "t", 2000), 0);
    assert_eq!(produce_code(&server, "own", 2000), MESSAGE_TOO_LARGE);
    // Topic settings that change later use the new defaults.
    let topic = properties(&[("retention.ms", "1")]);
    server.server.update_topic_config("own", &topic).unwrap();
    assert_eq!(produce_code(&server, "own", 2000), 0);
    // A setting that is not named has its default again.
    change(&[]).unwrap();
    assert_eq!(produce_code(&server, "t", 1_000_000), 0);
}

// If this failed, a bad value would be accepted silently, or the settings beside it would be applied.
#[test]
fn a_bad_setting_is_named_and_changes_nothing() {
    let server = TestServer::start(&[("message.max.bytes", "1000")]);
    let bad = properties(&[("message.max.bytes", "3000"), ("max.connections", "many")]);
    for refused in [
        server.server.check_config(&bad),
        server.server.update_config(&bad),
    ] {
        let error = refused.unwrap_err();
        let named = matches!(&error, ServerError::InvalidConfig { name, .. } if name == "max.connections");
        assert!(named, "{error}");
        assert!(error.to_string().starts_with("max.connections=many "), "{error}");
    }
    // A check changes nothing either.
    let good = properties(&[("message.max.bytes", "3000")]);
    server.server.check_config(&good).unwrap();
    assert_eq!(produce_code(&server, "t", 2000), MESSAGE_TOO_LARGE);
    server.client().call(18, 0, request(18));
}

// If this failed, a mistyped quota would be ignored silently.
#[test]
fn bad_quotas_are_refused() {
    let server = TestServer::start(&[]);
    for (name, value) in [
        ("producer_bite_rate", 1.0),
        ("producer_byte_rate", -1.0),
        ("request_percentage", f64::NAN),
    ] {
        let quota = ClientQuota {
            user: None,
            client_id: Some(String::new()),
            values: HashMap::from([(name.to_owned(), value)]),
        };
        let error = server.server.set_client_quotas(&[quota]).unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
    }
    for quota in [
        (None, -1.0),
        (None, f64::NAN),
        (Some("no address".to_owned()), 1.0),
    ] {
        assert!(server.server.set_ip_quotas(&[quota]).is_err());
    }
}
