//! Random and damaged bytes, as from an open port or a foreign disk: no panic, and no memory above the limit.
#![allow(clippy::unwrap_used)]

mod support;

use logcore_records::compression::{compress, decompress, decompress_lz4_legacy};
use logcore_records::{Batch, BatchBuilder, Compression, RecordError, TimestampType, batches, legacy};
use support::allocation::most_during;
use support::for_each_seed;
use support::mutate::mutated;
use support::random::Random;

/// Seeds of a normal run. Each makes an input for every decoder.
const SEEDS: u64 = 1_000;
/// The decompression limit. It is small, so that many inputs exceed it.
const LIMIT: usize = 64 << 10;
/// The codecs' own state: two blocks of 4 MiB of an lz4 frame, and deflate's window.
const CODEC_STATE: usize = 10 << 20;

fn record_batch(random: &mut Random, codec: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec, None);
    if random.one_in(2) {
        builder.set_producer_state(5, 1, 7);
    }
    for number in 0..random.between(1, 9) {
        let value = vec![b'v'; random.below(300)];
        let headers: [(&[u8], Option<&[u8]>); 2] = [(b"h", Some(b"1")), (b"n", None)];
        let key = random.one_in(2).then_some(&b"key"[..]);
        builder
            .append(
                1000 + number as i64,
                key,
                Some(&value),
                &headers[..random.below(3)],
            )
            .unwrap();
    }
    builder.build().unwrap()
}

fn message(magic: u8, attributes: u8, offset: i64, value: &[u8]) -> Vec<u8> {
    let mut body = vec![magic, attributes];
    if magic == 1 {
        body.extend(1000i64.to_be_bytes());
    }
    body.extend((-1i32).to_be_bytes());
    body.extend((value.len() as i32).to_be_bytes());
    body.extend(value);
    let mut out = offset.to_be_bytes().to_vec();
    out.extend((body.len() as i32 + 4).to_be_bytes());
    out.extend(crc32fast::hash(&body).to_be_bytes());
    out.extend(body);
    out
}

fn message_set(random: &mut Random, codec: Compression) -> Vec<u8> {
    let magic = random.below(2) as u8;
    let count = random.between(1, 5);
    let set: Vec<u8> = (0..count)
        .flat_map(|number| message(magic, 0, number as i64, b"a legacy value"))
        .collect();
    if codec == Compression::None {
        return set;
    }
    let mut value = Vec::new();
    compress(codec, None, &set, &mut value).unwrap();
    message(magic, codec.code(), count as i64 - 1, &value)
}

/// A few bytes that decompress to far more than the limit.
fn bomb(codec: Compression) -> Vec<u8> {
    let mut out = Vec::new();
    compress(codec, None, &vec![0; 8 << 20], &mut out).unwrap();
    out
}

/// A batch with this payload and a valid checksum.
fn batch_around(codec: Compression, payload: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    builder.append(1, None, None, &[]).unwrap();
    let mut batch = builder.build().unwrap();
    batch.truncate(61);
    batch[22] = codec.code();
    batch.extend(payload);
    let length = (batch.len() - 12) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    mend_checksums(&mut batch);
    batch
}

/// Gives the first entry a valid checksum, so that the code after that check is reached.
fn mend_checksums(bytes: &mut [u8]) {
    match bytes.get(16) {
        Some(2) if bytes.len() > 21 => {
            let length = i32::from_be_bytes(bytes[8..12].try_into().unwrap());
            let end = (i64::from(length) + 12).clamp(21, bytes.len() as i64) as usize;
            let checksum = logcore_records::crc32c(&bytes[21..end]);
            bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
        }
        Some(0 | 1) => {
            let length = i32::from_be_bytes(bytes[8..12].try_into().unwrap());
            let end = (i64::from(length) + 12).clamp(16, bytes.len() as i64) as usize;
            let checksum = crc32fast::hash(&bytes[16..end]);
            bytes[12..16].copy_from_slice(&checksum.to_be_bytes());
        }
        _ => {}
    }
}

/// Reads everything a batch has.
fn read_batch(batch: &Batch<'_>) {
    let _ = (batch.verify_crc(), batch.validate(LIMIT));
    let mut scratch = Vec::new();
    if let Ok(records) = batch.records_in(&mut scratch, LIMIT) {
        for record in records.flatten() {
            let headers = record.headers();
            assert_eq!(headers.len(), headers.count());
        }
    }
}

fn within(limit: usize, what: &str, call: impl FnOnce()) {
    let (most, ()) = most_during(call);
    assert!(most <= limit, "{what} took {most} bytes, {limit} is the limit");
}

/// Valid inputs to start from: one of each codec, and the bombs.
struct Corpus {
    batches: Vec<Vec<u8>>,
    sets: Vec<Vec<u8>>,
    payloads: Vec<(Compression, Vec<Vec<u8>>)>,
}

impl Corpus {
    fn new() -> Self {
        let random = &mut Random::new(1);
        let (mut batches, mut sets, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
        for codec in Compression::ALL {
            batches.extend((0..4).map(|_| record_batch(random, codec)));
            let whole = record_batch(random, codec);
            let mut inputs = vec![whole[61..].to_vec()];
            if codec != Compression::None {
                inputs.push(bomb(codec));
                batches.push(batch_around(codec, &bomb(codec)));
            }
            if codec != Compression::Zstd {
                sets.extend((0..4).map(|_| message_set(random, codec)));
            }
            if !matches!(codec, Compression::None | Compression::Zstd) {
                sets.push(message(1, codec.code(), 0, &bomb(codec)));
            }
            payloads.push((codec, inputs));
        }
        Self {
            batches,
            sets,
            payloads,
        }
    }
}

// Broken if it failed: a client, or a damaged file, could end the process or take all of its memory.
#[test]
fn no_input_takes_more_memory_than_its_limit() {
    let corpus = Corpus::new();
    for_each_seed(SEEDS, |random| {
        let mut bytes = mutated(random, &corpus.batches);
        if random.one_in(2) {
            mend_checksums(&mut bytes);
        }
        within(2 * LIMIT + CODEC_STATE, "reading batches", || {
            batches(&bytes).flatten().for_each(|batch| read_batch(&batch));
        });
        let mut bytes = mutated(random, &corpus.sets);
        if random.one_in(2) {
            mend_checksums(&mut bytes);
        }
        let limit = 4 * LIMIT + 4 * bytes.len() + 2 * CODEC_STATE;
        within(limit, "converting a message set", || {
            let _ = legacy::to_v2(&bytes, TimestampType::CreateTime, LIMIT);
        });
        let (codec, inputs) = random.pick(&corpus.payloads);
        let bytes = mutated(random, inputs);
        within(LIMIT + CODEC_STATE, "decompressing", || {
            let mut out = Vec::new();
            let _ = decompress(*codec, &bytes, LIMIT, &mut out);
            assert!(out.len() <= LIMIT && out.capacity() <= LIMIT);
            let _ = decompress_lz4_legacy(&bytes, LIMIT, &mut out);
            assert!(out.len() <= LIMIT && out.capacity() <= LIMIT);
        });
    });
}

// Broken if it failed: a bomb would be reported as damage, or be decompressed.
#[test]
fn bombs_are_refused_as_too_large() {
    for codec in Compression::ALL.into_iter().skip(1) {
        let payload = bomb(codec);
        assert!(payload.len() < 2 << 20, "{codec}: {}", payload.len());
        let state = if codec == Compression::Lz4 {
            CODEC_STATE
        } else {
            256 << 10
        };
        within(LIMIT + state, codec.name(), || {
            let error = decompress(codec, &payload, LIMIT, &mut Vec::new()).unwrap_err();
            let limit = LIMIT;
            assert_eq!(error, RecordError::DecompressedTooLarge { codec, limit });
        });
    }
}
