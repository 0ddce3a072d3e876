//! Fetch, ListOffsets and OffsetForLeaderEpoch as consumers see them.
#![allow(clippy::unwrap_used)] // a test may panic

mod budgets;
#[path = "../common/mod.rs"]
mod common;
mod long_polls;
mod offsets;
mod old_versions;
mod responses;
mod sessions;

use common::{Client, batch, int, produce, produced};
use logcore_records::{BatchBuilder, Compression};

fn write(client: &mut Client, index: i32, value: &[u8]) -> Vec<u8> {
    let sent = batch(&[value]);
    let body = client.call(0, 9, produce("t", 1, &[(index, &sent)]));
    assert_eq!(int(&produced(&body), "error_code"), 0);
    sent
}

fn write_batch(client: &mut Client, codec: Compression, values: &[&[u8]]) {
    let mut builder = BatchBuilder::new(codec, None);
    for value in values {
        let header = [(&b"h"[..], None)];
        builder.append(1000, Some(b"key"), Some(value), &header).unwrap();
    }
    let sent = builder.build().unwrap();
    let body = client.call(0, 9, produce("t", 1, &[(0, &sent)]));
    assert_eq!(int(&produced(&body), "error_code"), 0);
}
