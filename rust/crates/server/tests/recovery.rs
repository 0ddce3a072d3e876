//! A server on directories that a crash or a bad disk left.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{batch, partition, properties};
use logcore_server::{Server, ServerOptions};

fn open(dir: &Path) -> Server {
    Server::open(&ServerOptions {
        node_id: 1,
        cluster_id: "abcdefghijklmnopqrstug".to_owned(),
        log_dirs: vec![dir.to_string_lossy().into_owned()],
        properties: properties(&[]),
        progress: Arc::default(),
    })
    .unwrap()
}

fn lines(server: &Server) -> String {
    let lines = server.take_log_lines();
    let lines: Vec<_> = lines.into_iter().map(|line| line.message).collect();
    lines.join("\n")
}

// Broken if it failed: one damaged log would keep the server from starting, be served or replaced by an empty one; or the
// operator would not be told where the damage is and what was cut off.
#[test]
fn a_damaged_log_stays_offline_and_the_others_are_served() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let server = open(dir);
    for index in 0..3 {
        server.create_partition(&partition("t", index)).unwrap();
        for _ in 0..5 {
            server.append("t", index, &batch(&[b"value"])).unwrap();
        }
    }
    server.stop(Duration::ZERO).unwrap();
    assert_eq!(lines(&server), "", "a new directory is no news");
    drop(server);
    // As if it had been killed after everything was brought to disk; one log then lost a bit, another was torn.
    std::fs::remove_file(dir.join(".kafka_cleanshutdown")).unwrap();
    let damaged = dir.join("t-1/00000000000000000000.log");
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[90] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let torn = dir.join("t-2/00000000000000000000.log");
    let mut longer = std::fs::read(&torn).unwrap();
    longer.extend([1; 10]);
    std::fs::write(&torn, &longer).unwrap();

    let server = open(dir);
    let text = lines(&server);
    assert!(
        text.contains("t-1 stays offline")
            && text.contains("t-1/00000000000000000000.log is corrupt at byte"),
        "{text}"
    );
    assert!(text.contains("10 bytes and 0 later segments"), "{text}");
    assert!(
        text.contains("2 logs of") && text.contains("by recovery"),
        "{text}"
    );
    let figure = |name| {
        let figures = server.metrics();
        figures
            .into_iter()
            .find(|(found, _)| *found == name)
            .unwrap()
            .1
    };
    let kept = std::fs::metadata(dir.join("t-0/00000000000000000000.log"))
        .unwrap()
        .len();
    assert_eq!(figure("offline_logs"), 1);
    assert_eq!(figure("recovered_bytes"), 2 * kept + 10);
    for index in [0, 2] {
        server.create_partition(&partition("t", index)).unwrap();
        assert_eq!(server.append("t", index, &batch(&[b"next"])).unwrap(), 5);
    }
    let error = server.create_partition(&partition("t", 1)).unwrap_err();
    assert!(error.to_string().contains("is offline"), "{error}");
    assert!(server.append("t", 1, &batch(&[b"lost"])).is_err());
    assert_eq!(std::fs::read(&damaged).unwrap(), bytes);
    let error = server.stop(Duration::ZERO).unwrap_err().to_string();
    assert!(
        error.contains("1 log was not closed cleanly") && error.contains("t-1"),
        "{error}"
    );
}
