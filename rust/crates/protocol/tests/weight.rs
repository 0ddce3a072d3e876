//! The weights of requests. If one of these failed, a request could take more memory than a server reserved
//! for it.
//!
//! The allocator counts this thread's memory, now and at its peak.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use common::{all_versions, random_struct};
use logcore_protocol::{
    Decoded, Direction, FieldType, Problem, ProtocolError, Schema, Struct, StructSchema, Value,
    decode_request, decode_request_within, encode_request, schemas,
};
use proptest::prelude::*;

struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = NOW.try_with(|now| {
            now.set(now.get().wrapping_add(layout.size()));
            let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
        });
        // SAFETY: the caller keeps GlobalAlloc's contract, which is System's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = NOW.try_with(|now| now.set(now.get().wrapping_sub(layout.size())));
        // SAFETY: the pointer came from System.alloc with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The memory of a decode without its values: the first clone of the buffer, an error and its path.
const FIXED: usize = 1024;
const METADATA: i16 = 3;
const KEEP: usize = 16 * 1024;

/// The result, and the peak of the memory while `run` ran.
fn peak_of<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = run();
    (result, PEAK.get() - before)
}

fn requests() -> Vec<(&'static Schema, i16)> {
    let all = all_versions().into_iter();
    all.filter(|(schema, _)| schema.direction == Some(Direction::Request))
        .collect()
}

fn key(schema: &Schema) -> i16 {
    schema.api_key.unwrap()
}

fn encoded(schema: &Schema, version: i16, message: Struct) -> Option<Bytes> {
    let mut out = Vec::new();
    encode_request(key(schema), version, &message.into(), &mut out).ok()?;
    Some(Bytes::from(out))
}

fn decoded(schema: &Schema, version: i16, body: &Bytes, keep: usize) -> Decoded {
    decode_request_within(key(schema), version, body, keep, usize::MAX).unwrap()
}

/// A Metadata request of so many topics with empty names. In version 1 each has two bytes.
fn nameless(topics: u32) -> Bytes {
    let mut body = topics.to_be_bytes().to_vec();
    body.resize(4 + 2 * topics as usize, 0);
    Bytes::from(body)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// If this failed, a request would take more memory than it weighs, or weigh another amount when it is
    /// not kept.
    #[test]
    fn no_message_takes_more_than_it_weighs(
        ((schema, version), body) in (prop::sample::select(requests()), any::<()>()).prop_perturb(
            |((schema, version), ()), mut random| {
                let message = random_struct(schema.root, version, &mut random);
                ((schema, version), encoded(schema, version, message).unwrap())
            },
        ),
    ) {
        let (whole, peak) = peak_of(|| decoded(schema, version, &body, usize::MAX));
        prop_assert!(peak <= whole.weight + FIXED, "{schema} {version}: {peak} > {}", whole.weight);
        prop_assert_eq!(&whole.message, &decode_request(key(schema), version, &body).ok());
        // The weight does not depend on what is kept.
        let weighed = decoded(schema, version, &body, 0);
        prop_assert!(weighed.message.is_none() && weighed.weight == whole.weight);
        let again = decoded(schema, version, &body, whole.weight);
        prop_assert_eq!(again.message, whole.message);
        // One byte less than the weight is too little.
        let refused = decode_request_within(key(schema), version, &body, 0, whole.weight - 1);
        let problem = match refused {
            Err(ProtocolError::Decode { problem, .. }) => Some(problem),
            _ => None,
        };
        prop_assert_eq!(problem, Some(Problem::TooHeavy(whole.weight - 1)));
    }
}

/// If this failed, many small elements of some request's array would take more memory than they weigh.
#[test]
fn many_small_elements_weigh_what_they_take() {
    const MANY: usize = 2000;
    let mut tried = 0;
    for (schema, version) in requests() {
        for field in &schema.root.fields {
            let FieldType::Array(element) = field.kind else {
                continue;
            };
            if !field.versions.contains(version) {
                continue;
            }
            let mut message = schema.message();
            let small = match element {
                FieldType::Struct(_) => Value::Struct(message.element(field.name)),
                FieldType::String => Value::from(""),
                FieldType::Int32 => Value::I32(0),
                _ => continue,
            };
            message.set(field.name, vec![small; MANY]);
            let Some(body) = encoded(schema, version, message) else {
                continue;
            };
            tried += 1;
            let (whole, peak) = peak_of(|| decoded(schema, version, &body, usize::MAX));
            let name = field.name;
            assert!(
                peak <= whole.weight,
                "{schema} {version} {name}: {peak} > {}",
                whole.weight
            );
            assert!(peak >= MANY * size_of::<Value>(), "{schema} {version} {name}");
            let (weighed, peak) = peak_of(|| decoded(schema, version, &body, KEEP));
            assert!(weighed.message.is_none() && weighed.weight == whole.weight);
            assert!(peak <= KEEP + 4096, "{schema} {version} {name}: {peak}");
        }
    }
    assert!(tried > 200, "{tried}");
}

/// If this failed, a small request that decodes to gigabytes would take them before it is refused.
#[test]
fn a_bomb_is_refused_before_it_takes_memory() {
    let body = nameless(5_000_000);
    let limit = 1 << 20;
    let (refused, peak) = peak_of(|| decode_request_within(METADATA, 1, &body, KEEP, limit).map(|_| ()));
    let error = refused.unwrap_err();
    assert!(peak <= KEEP + FIXED, "{peak}");
    let text = error.to_string();
    assert!(
        text.contains("decodes to more than 1048576 bytes of memory"),
        "{text}"
    );
    // The count alone is enough to refuse it.
    let ProtocolError::Decode { position, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(position, 4);
}

/// If this failed, a request of many light arrays would be kept until it is refused.
#[test]
fn a_request_that_is_refused_late_is_not_kept() {
    // DeleteRecords version 0: a topic with an empty name and no partitions has six bytes.
    let body = {
        let topics = 100_000u32;
        let mut body = topics.to_be_bytes().to_vec();
        body.resize(4 + 6 * topics as usize + 4, 0);
        Bytes::from(body)
    };
    let weight = decode_request_within(21, 0, &body, 0, usize::MAX).unwrap().weight;
    let (refused, peak) = peak_of(|| decode_request_within(21, 0, &body, KEEP, weight - 1).map(|_| ()));
    assert!(refused.is_err());
    assert!(peak <= KEEP + 4096, "{peak}");
}

/// If this failed, the weight would not follow the size of a request.
#[test]
fn the_weight_grows_with_the_message() {
    let weight = |topics| {
        let body = nameless(topics);
        decode_request_within(METADATA, 1, &body, 0, usize::MAX)
            .unwrap()
            .weight
    };
    let none = weight(0);
    let thousand = weight(1000) - none;
    assert!(thousand >= 1000 * (size_of::<Value>() + 8), "{thousand}");
    assert_eq!(weight(2000) - none, 2 * thousand);
    assert_eq!(weight(100_000) - none, 100 * thousand);
}

/// If this failed, a struct's dict could weigh more than was measured: up to 42 keys.
#[test]
fn no_struct_has_more_fields_than_were_measured() {
    fn widest(schema: &StructSchema) -> usize {
        let nested = schema.fields.iter().filter_map(|field| match field.kind {
            FieldType::Struct(inner) | FieldType::Array(&FieldType::Struct(inner)) => Some(widest(inner)),
            _ => None,
        });
        nested.max().unwrap_or(0).max(schema.fields.len())
    }
    let widest = schemas().map(|schema| widest(schema.root)).max();
    assert!(widest <= Some(42), "{widest:?}");
}
