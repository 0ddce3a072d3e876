//! Streams of requests of every API and version: random ones, valid ones for existing partitions, and damaged
//! ones.

use logcore_protocol::{Direction, Field, RequestHeader, Struct, Value, encode_request, schema};
use logcore_records::{BatchBuilder, Compression, crc32c};
use logcore_server::apis;

use crate::common::TOPIC_ID;
use crate::expected::is_native;
use crate::support::mutate::mutated;
use crate::support::random::Random;
use crate::{FRAME_MAX, messages, messages_of};

// Offsets in a frame: the key, the version and the length of the client id.
const KEY_AT: usize = 4;
const VERSION_AT: usize = 6;
const CLIENT_ID_AT: usize = 12;
const NUMBERS: [i16; 8] = [-1, 0, 1, 2, 18, 99, i16::MAX, i16::MIN];
/// Varints of large numbers, or without an end.
const VARINTS: [&[u8]; 4] = [
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xff, 0xff, 0xff, 0xff, 0x07],
    &[0x80, 0x80, 0x80, 0x80, 0x00],
    &[0xff; 10],
];

/// The parts of which streams are made.
pub(crate) struct Requests {
    versions: Vec<(i16, i16)>,
    native_versions: Vec<(i16, i16)>,
    batches: Vec<Vec<u8>>,
}

fn record_batch(random: &mut Random, codec: Compression, size: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, None);
    if random.one_in(3) {
        builder.set_producer_state(random.below(3) as i64, random.below(2) as i16, 0);
    }
    for number in 0..random.between(1, 5) {
        let time = 1_700_000_000_000 + number as i64;
        let key = random.one_in(2).then_some(&b"key"[..]);
        let value = random.bytes(size);
        builder.append(time, key, Some(&value), &[]).unwrap();
    }
    builder.build().unwrap()
}

/// A message of format v0 or v1: offset, size, CRC-32, magic, attributes, timestamp (v1 only), key, value.
fn legacy_message(magic: u8) -> Vec<u8> {
    let mut body = vec![magic, 0];
    if magic == 1 {
        body.extend(1_700_000_000_000i64.to_be_bytes());
    }
    body.extend((-1i32).to_be_bytes());
    body.extend(5i32.to_be_bytes());
    body.extend(b"value");
    let mut message = 0i64.to_be_bytes().to_vec();
    message.extend((body.len() as i32 + 4).to_be_bytes());
    message.extend(crc32fast::hash(&body).to_be_bytes());
    message.extend(body);
    message
}

/// Sets the right checksum of a batch, so that the server checks more than that.
fn set_checksum(batch: &mut [u8]) {
    if batch.len() > 21 && batch[16] == 2 {
        let checksum = crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    }
}

fn set_size(frame: &mut [u8]) {
    let size = frame.len() as i32 - 4;
    if let Some(prefix) = frame.first_chunk_mut() {
        *prefix = size.to_be_bytes();
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, value: &[u8]) {
    let at = at.min(bytes.len());
    let end = (at + value.len()).min(bytes.len());
    bytes.splice(at..end, value.iter().copied());
}

impl Requests {
    pub(crate) fn new() -> Self {
        let versions: Vec<_> = apis()
            .iter()
            .flat_map(|api| (api.first..=api.last).map(move |version| (api.key, version)))
            .collect();
        let native = versions.iter().copied().filter(|(key, _)| is_native(*key));
        let random = &mut Random::new(1);
        let mut batches = vec![legacy_message(0), legacy_message(1), Vec::new()];
        for codec in Compression::ALL {
            for size in [0, 100, 3_000] {
                batches.push(record_batch(random, codec, size));
            }
        }
        batches.push(record_batch(random, Compression::None, 30_000));
        Self {
            native_versions: native.collect(),
            versions,
            batches,
        }
    }

    /// The bytes that one connection sends.
    pub(crate) fn stream(&self, random: &mut Random) -> Vec<u8> {
        let mut frames = Vec::new();
        for _ in 0..random.between(1, 30) {
            frames.push(self.frame(random));
        }
        if random.one_in(2) {
            let at = random.below(frames.len());
            frames[at] = damaged(random, &frames[at], &frames);
        }
        if random.one_in(6) {
            let at = random.below(frames.len());
            frames.insert(at, noise(random));
        }
        if random.one_in(6) {
            let again = random.pick(&frames).clone();
            frames.push(again);
        }
        frames.concat()
    }

    /// A whole request: random in every field, or mostly valid.
    fn frame(&self, random: &mut Random) -> Vec<u8> {
        let is_native = random.one_in(2);
        let versions = if is_native {
            &self.native_versions
        } else {
            &self.versions
        };
        let (key, version) = *random.pick(versions);
        let schema = schema(key, Direction::Request).unwrap();
        let mut message = messages::random_struct(schema.root, version, &mut messages_of(random));
        if !random.one_in(4) {
            let misses = *random.pick(&[4, 1000]);
            self.set_valid(random, &mut message, version, misses);
        }
        let client_ids = ["fuzz", "", "é日🦀"];
        let header = RequestHeader {
            api_key: key,
            api_version: version,
            correlation_id: random.next() as i32,
            client_id: (!random.one_in(8)).then(|| (*random.pick(&client_ids)).into()),
        };
        let mut frame = vec![0; 4];
        header.encode(&mut frame).unwrap();
        encode_request(key, version, &message.into(), &mut frame).unwrap();
        set_size(&mut frame);
        frame
    }

    /// Sets valid values, so that requests get further: names that exist, offsets near existing ones,
    /// batches. One field in `misses` stays random.
    fn set_valid(&self, random: &mut Random, message: &mut Struct, version: i16, misses: usize) {
        for (index, field) in message.schema().fields.iter().enumerate() {
            if !field.versions.contains(version) || random.one_in(misses) {
                continue;
            }
            if let Some(value) = self.valid_value(random, field, version) {
                message[index] = value;
                continue;
            }
            match &mut message[index] {
                Value::Struct(inner) => self.set_valid(random, inner, version, misses),
                Value::Array(values) => {
                    for value in values {
                        if let Value::Struct(inner) = value {
                            self.set_valid(random, inner, version, misses);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn valid_value(&self, random: &mut Random, field: &Field, version: i16) -> Option<Value> {
        let near = |random: &mut Random| random.below(12) as i64 - 5;
        Some(match (field.name, &field.default) {
            ("topic" | "name", Value::Str(_)) => Value::from("t"),
            ("topic_id", Value::Uuid(_)) => Value::Uuid(TOPIC_ID),
            ("partition" | "index" | "partition_index", Value::I32(_)) => Value::I32(random.below(3) as i32),
            ("current_leader_epoch" | "leader_epoch", Value::I32(_)) => {
                Value::I32(*random.pick(&[-1, 2, 3, 3, 4]))
            }
            ("acks", _) => Value::I16(*random.pick(&[-1, 0, 1, 1, 7])),
            ("max_wait_ms", _) => Value::I32(*random.pick(&[0, 0, 0, -1, 3, i32::MAX])),
            ("session_id" | "session_epoch", _) => Value::I32(near(random) as i32),
            ("replica_id", Value::I32(_)) => Value::I32(*random.pick(&[-1, -1, -2, 1, 2])),
            ("fetch_offset" | "timestamp" | "log_start_offset", Value::I64(_)) => Value::I64(near(random)),
            ("partition_max_bytes" | "max_bytes", _) => {
                Value::I32(*random.pick(&[0, 1, 100, 60_000, i32::MAX]))
            }
            ("transactional_id", _) if field.nullable.contains(version) => Value::Null,
            ("records", _) => Value::Bytes(self.records(random).into()),
            _ => return None,
        })
    }

    fn records(&self, random: &mut Random) -> Vec<u8> {
        if random.one_in(2) {
            return random.pick(&self.batches).clone();
        }
        let mut records = mutated(random, &self.batches);
        if random.one_in(2) {
            set_checksum(&mut records);
        }
        records.truncate(FRAME_MAX / 2);
        records
    }
}

/// Bytes that are not a request, with the size of a frame or without.
fn noise(random: &mut Random) -> Vec<u8> {
    let length = random.below(200);
    let mut bytes = random.bytes(4 + length);
    if random.one_in(2) {
        set_size(&mut bytes);
    }
    bytes
}

/// A frame with a defect. Its size is right or wrong.
fn damaged(random: &mut Random, frame: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    match random.below(8) {
        0 => put(&mut bytes, KEY_AT, &random.pick(&NUMBERS).to_be_bytes()),
        1 => put(&mut bytes, VERSION_AT, &random.pick(&NUMBERS).to_be_bytes()),
        2 => put(&mut bytes, CLIENT_ID_AT, &random.pick(&NUMBERS).to_be_bytes()),
        3 => put(&mut bytes, CLIENT_ID_AT + 2, &[0xff, 0xc0, 0x80]),
        4 => {
            let at = random.between(CLIENT_ID_AT.min(bytes.len()), bytes.len());
            let varint = *random.pick(&VARINTS);
            put(&mut bytes, at, varint);
        }
        // The last byte of a flexible message counts its tagged fields.
        5 => put_tagged_fields(random, &mut bytes),
        6 => {
            let at = random.below(bytes.len());
            bytes.truncate(at);
        }
        _ => {
            let body = [bytes.split_off(4.min(bytes.len()))];
            let body = if random.one_in(2) {
                mutated(random, &body)
            } else {
                mutated(random, &[&body, others].concat())
            };
            bytes.extend(body);
        }
    }
    if random.one_in(8) {
        let wrong = *random.pick(&[-1, 0, 7, frame.len() as i32, FRAME_MAX as i32 + 1, i32::MAX]);
        put(&mut bytes, 0, &wrong.to_be_bytes());
    } else {
        set_size(&mut bytes);
    }
    bytes
}

fn put_tagged_fields(random: &mut Random, bytes: &mut Vec<u8>) {
    bytes.pop();
    let count = random.below(4) as u8;
    bytes.push(count);
    for _ in 0..random.below(5) {
        let size = random.below(6);
        let tag = random.below(120) as u8;
        bytes.extend([tag, *random.pick(&[size as u8, size as u8, 0x7f])]);
        bytes.extend(random.bytes(size));
    }
}
