//! If these fail, fetched messages are lost, repeated, mixed up, or seen although their transaction was
//! aborted.

use std::sync::Arc;

use bytes::Bytes;
use logcore_records::{BatchBuilder, Compression, set_offsets_in_place};
use proptest::prelude::*;

use super::decode::{Aborted, Chunk, Message};
use crate::error::ClientError;

fn batch(codec: Compression, base: i64, values: &[&[u8]]) -> Vec<u8> {
    build(BatchBuilder::new(codec, None), base, values)
}

fn build(mut builder: BatchBuilder, base: i64, values: &[&[u8]]) -> Vec<u8> {
    for (index, value) in values.iter().enumerate() {
        let headers: &[(&[u8], Option<&[u8]>)] = &[(b"h", Some(b"1")), (b"n", None)];
        let headers = if index % 2 == 0 { headers } else { &[] };
        let key = (index % 3 != 0).then_some(*value);
        builder
            .append(1000 + index as i64, key, Some(value), headers)
            .expect("fits");
    }
    let mut bytes = builder.build().expect("builds");
    set_offsets_in_place(&mut bytes, base, 4);
    bytes
}

fn chunk(bytes: Vec<u8>, from: i64, aborted: Vec<Aborted>) -> Chunk {
    Chunk::new(Arc::from("t"), 0, Bytes::from(bytes), from, true, aborted).expect("a chunk")
}

fn read(mut chunk: Chunk) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(batch) = chunk.next_batch() {
        messages.extend(batch.expect("a good batch"));
    }
    messages
}

fn values(messages: &[Message]) -> Vec<&[u8]> {
    messages
        .iter()
        .map(|message| message.value().expect("a value"))
        .collect()
}

proptest! {
    #[test]
    fn the_records_that_were_built_are_read(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..20),
        codec in 0u8..5,
    ) {
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let codec = Compression::from_code(codec).expect("a codec");
        let messages = read(chunk(batch(codec, 10, &values), 10, vec![]));
        prop_assert_eq!(messages.len(), values.len());
        for (index, message) in messages.iter().enumerate() {
            prop_assert_eq!(message.offset, 10 + index as i64);
            prop_assert_eq!(message.timestamp, 1000 + index as i64);
            prop_assert_eq!(message.batch.leader_epoch, 4);
            prop_assert_eq!(message.value(), Some(values[index]));
            prop_assert_eq!(message.key(), (index % 3 != 0).then_some(values[index]));
            let headers: Vec<_> = message.headers().collect();
            prop_assert_eq!(headers.len(), if index % 2 == 0 { 2 } else { 0 });
        }
    }
}

#[test]
fn records_before_the_offset_asked_for_are_left_out() {
    let mut bytes = batch(Compression::Lz4, 0, &[b"a", b"b", b"c"]);
    bytes.extend(batch(Compression::None, 3, &[b"d"]));
    let chunk = chunk(bytes, 2, vec![]);
    assert_eq!(chunk.next_offset(), Some(4));
    assert_eq!(values(&read(chunk)), [b"c", b"d"]);
}

#[test]
fn a_batch_cut_short_is_left_for_the_next_fetch() {
    let mut bytes = batch(Compression::None, 0, &[b"a"]);
    let whole = bytes.len();
    bytes.extend(batch(Compression::None, 1, &[b"b"]));
    bytes.truncate(whole + 30);
    let chunk = chunk(bytes, 0, vec![]);
    assert_eq!(chunk.next_offset(), Some(1));
    assert_eq!(values(&read(chunk)), [b"a"]);
}

#[test]
fn a_damaged_batch_is_reported_and_the_next_one_read() {
    let mut bytes = batch(Compression::None, 0, &[b"aaaa"]);
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    bytes.extend(batch(Compression::None, 1, &[b"b"]));
    let mut chunk = chunk(bytes, 0, vec![]);
    let damaged = chunk.next_batch().expect("a batch");
    assert!(matches!(damaged, Err(ClientError::BadData { what }) if what.contains("offset 0")));
    assert_eq!(values(&read(chunk)), [b"b"]);
}

#[test]
fn only_aborted_transactions_are_left_out() {
    let transactional = |producer: i64, base: i64, value: &[u8]| {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.set_producer_state(producer, 0, 0);
        builder.set_transactional(true);
        build(builder, base, &[value])
    };
    let marker = |producer: i64, base: i64, commit: bool| {
        let mut builder = BatchBuilder::new(Compression::None, None);
        builder.set_producer_state(producer, 0, -1);
        builder.set_transactional(true);
        builder.set_control(true);
        builder
            .append(0, Some(&[0, 0, 0, u8::from(commit)]), Some(&[0; 6]), &[])
            .expect("fits");
        let mut bytes = builder.build().expect("builds");
        set_offsets_in_place(&mut bytes, base, 0);
        bytes
    };
    let parts = [
        transactional(1, 0, b"aborted"),
        transactional(2, 1, b"committed"),
        marker(1, 2, false),
        transactional(1, 3, b"after"),
        marker(2, 4, true),
        marker(1, 5, true),
    ];
    let chunk = chunk(
        parts.concat(),
        0,
        vec![Aborted {
            producer_id: 1,
            first_offset: 0,
        }],
    );
    assert_eq!(chunk.next_offset(), Some(6));
    let messages = read(chunk);
    assert_eq!(values(&messages), [&b"committed"[..], b"after"]);
}
