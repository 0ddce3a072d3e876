//! Malformed messages. If one of these failed, a short message from any client could take the broker's
//! memory.
//!
//! The allocator counts this thread's allocations, so a decode that trusts a length is noticed even on a
//! machine with enough memory.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use common::{Golden, all_versions, golden_messages};
use logcore_protocol::{
    Direction, FieldType, MAX_VALUES, Problem, ProtocolError, RequestHeader, StructSchema, Value,
    decode_request, decode_response, decode_response_header, decode_with, schema,
};
use proptest::prelude::*;

struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|total| total.set(total.get() + layout.size()));
        // SAFETY: the caller keeps GlobalAlloc's contract, which is System's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from System.alloc with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes allocated while `run` runs.
fn allocated_by<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATED.get();
    let result = run();
    (result, ALLOCATED.get() - before)
}

/// A value has 40 bytes. The worst element has several values for each byte of input, and an error has a
/// message.
fn bound(input: usize) -> usize {
    input * 40 * 16 + 4096
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// If this failed, random bytes could take much more memory than they have.
    #[test]
    fn allocation_is_bounded_by_the_input(
        (schema, version) in prop::sample::select(all_versions()),
        bytes in prop::collection::vec(prop_oneof![4 => 0u8..4, 1 => Just(0x7f), 1 => Just(0xff)], 0..300),
    ) {
        let input = Bytes::from(bytes);
        let (_, allocated) = allocated_by(|| decode_with(schema, version, &input));
        prop_assert!(allocated <= bound(input.len()), "{} version {}: {} bytes", schema, version, allocated);
    }
}

/// If this failed, an array that claims 2³¹ elements would take memory for them.
#[test]
fn absurd_counts_allocate_nothing() {
    for (schema, version) in all_versions() {
        for claim in [
            &[0x7f, 0xff, 0xff, 0xff][..],
            &[0xff, 0xff, 0xff, 0xff, 0x0f],
            &[0xff; 16],
        ] {
            let mut bytes = claim.to_vec();
            bytes.resize(64, 0);
            for offset in 0..16 {
                let mut input = vec![0; offset];
                input.extend_from_slice(&bytes);
                let input = Bytes::from(input);
                let (_, allocated) = allocated_by(|| decode_with(schema, version, &input));
                assert!(
                    allocated <= bound(input.len()),
                    "{schema} version {version}: {allocated} bytes"
                );
            }
        }
    }
}

/// If this failed, a valid message that is cut, or has an absurd length at any byte, would take much memory.
#[test]
fn damage_anywhere_allocates_little() {
    for Golden {
        schema,
        version,
        body,
        ..
    } in golden_messages()
    {
        let checked = |input: Bytes, position: usize, what: &str| {
            let length = input.len();
            let (result, allocated) = allocated_by(|| decode_with(schema, version, &input));
            assert!(
                allocated <= bound(length),
                "{schema} version {version}, {what} at {position}: {allocated} bytes"
            );
            result
        };
        for position in 0..body.len() {
            let cut = checked(body.slice(..position), position, "cut");
            assert!(cut.is_err(), "{schema} version {version} cut at {position}");
            for claim in [&[0x7f, 0xff, 0xff, 0xff][..], &[0xff, 0xff, 0xff, 0xff, 0x0f]] {
                let mut damaged = body.to_vec();
                let end = body.len().min(position + claim.len());
                damaged[position..end].copy_from_slice(&claim[..end - position]);
                let _ = checked(damaged.into(), position, "a length");
            }
        }
    }
}

fn problem(error: ProtocolError) -> Problem {
    match error {
        ProtocolError::Decode { problem, .. } | ProtocolError::Header { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

/// If this failed, a wrong length would be reported as another problem, or not at all.
#[test]
fn wrong_lengths_are_reported() {
    // Metadata v1: an int32 count of topics.
    let metadata = |bytes: &[u8]| problem(decode_request(3, 1, &Bytes::copy_from_slice(bytes)).unwrap_err());
    assert_eq!(
        metadata(&[0x7f, 0xff, 0xff, 0xff, 0, 0]),
        Problem::CountTooLarge {
            count: 0x7fff_ffff,
            element_size: 2,
            remaining: 2
        }
    );
    assert_eq!(metadata(&[0, 0, 0, 1, 0xff, 0xfe]), Problem::UnexpectedNull);
    assert_eq!(metadata(&[0, 0, 0, 1, 0xff, 0xff]), Problem::UnexpectedNull);
    assert_eq!(
        metadata(&[0, 0, 0, 1, 0, 9, b'x']),
        Problem::Truncated {
            needed: 9,
            remaining: 1
        }
    );
    // In version 0 an array cannot be null.
    assert_eq!(
        problem(decode_request(3, 0, &Bytes::from_static(&[0xff; 4])).unwrap_err()),
        Problem::UnexpectedNull
    );
    // Version 9 has compact lengths. A varint has at most five bytes and 32 bits.
    let compact = |bytes: &[u8]| problem(decode_request(3, 9, &Bytes::copy_from_slice(bytes)).unwrap_err());
    assert_eq!(
        compact(&[0x80, 0x80, 0x80, 0x80, 0x80, 0]),
        Problem::InvalidVarint
    );
    assert_eq!(compact(&[0xff, 0xff, 0xff, 0xff, 0x1f]), Problem::InvalidVarint);
    assert!(matches!(
        compact(&[0xff, 0xff, 0xff, 0xff, 0x07]),
        Problem::CountTooLarge {
            count: 0x7fff_fffe,
            ..
        }
    ));
}

/// If this failed, clients that Apache's broker accepts would be refused: there every negative length is
/// null, and bytes that are not UTF-8 are U+FFFD.
#[test]
fn lenient_input_is_read_as_apache_reads_it() {
    let topics = |version, bytes: &[u8]| {
        let request = decode_request(3, version, &Bytes::copy_from_slice(bytes)).unwrap();
        request.get("topics").unwrap().clone()
    };
    let none = Value::Null;
    assert_eq!(topics(1, &[0xff, 0xff, 0xff, 0xfe]), none);
    assert_eq!(topics(1, &[0x80, 0, 0, 0]), none);
    assert_eq!(topics(9, &[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 0, 0, 0]), none);
    let Value::Array(named) = topics(1, &[0, 0, 0, 1, 0, 5, b'a', 0xff, b'b', 0xe2, 0x82]) else {
        panic!("topics are an array");
    };
    assert_eq!(named[0].get("name").unwrap().as_str(), Some("a\u{fffd}b\u{fffd}"));
    // With U+FFFD in it, the string does not fit in a response.
    let mut body = vec![0, 0, 0, 1, 0x2a, 0xab];
    body.resize(body.len() + 0x2aab, 0xff);
    assert_eq!(
        problem(decode_request(3, 1, &Bytes::from(body)).unwrap_err()),
        Problem::StringTooLong(3 * 0x2aab)
    );
}

/// If this failed, a tagged field could read into the next one, or hide bytes.
#[test]
fn a_tagged_field_has_exactly_its_size() {
    // Fetch version 12 without topics, and one tagged field: cluster_id (tag 0), a compact nullable string.
    let with_tags = |tags: &[u8]| {
        let mut body = vec![0; 4 + 4 + 4 + 4 + 1 + 4 + 4];
        body.extend_from_slice(&[1, 1, 1]);
        body.extend_from_slice(tags);
        decode_request(1, 12, &Bytes::from(body))
    };
    let decoded = with_tags(&[1, 0, 3, 3, b'i', b'd']).unwrap();
    assert_eq!(decoded.get("cluster_id").unwrap().as_str(), Some("id"));
    assert_eq!(
        problem(with_tags(&[1, 0, 4, 3, b'i', b'd', 0]).unwrap_err()),
        Problem::TaggedFieldSize(1)
    );
    let short = problem(with_tags(&[1, 0, 2, 3, b'i', b'd']).unwrap_err());
    assert_eq!(
        short,
        Problem::Truncated {
            needed: 2,
            remaining: 1
        }
    );
    let long = problem(with_tags(&[1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]).unwrap_err());
    assert!(matches!(long, Problem::Truncated { .. }));
    // An unknown tag is skipped. A count of 2³² - 1 tags fails at the first missing one.
    assert!(with_tags(&[1, 99, 2, 7, 7]).is_ok());
    assert!(with_tags(&[0xff, 0xff, 0xff, 0xff, 0x0f, 99, 0]).is_err());
}

/// If this failed, an array of int8 could take 40 times its size in memory.
#[test]
fn the_number_of_values_is_bounded() {
    let mut body = vec![0; 4 + 2 + 16 + 4];
    let mut count = MAX_VALUES as u32 + 1;
    while count >= 0x80 {
        body.push(count as u8 | 0x80);
        count >>= 7;
    }
    body.push(count as u8);
    body.resize(body.len() + MAX_VALUES, 0);
    let body = Bytes::from(body);
    let (result, allocated) = allocated_by(|| decode_response(71, 0, &body));
    assert_eq!(problem(result.unwrap_err()), Problem::TooManyValues(MAX_VALUES));
    assert!(allocated < 4096, "{allocated} bytes");
}

/// If this failed, a malformed header would take memory, or be taken for another request.
#[test]
fn malformed_headers_are_refused() {
    let request = |bytes: &[u8]| RequestHeader::decode(&mut Bytes::copy_from_slice(bytes));
    assert!(matches!(
        request(&[]),
        Err(ProtocolError::Header { position: 0, .. })
    ));
    assert_eq!(
        request(&[0x7f, 0xff, 0, 0, 0, 0, 0, 0]),
        Err(ProtocolError::UnknownApi(0x7fff))
    );
    assert_eq!(
        request(&[0xff, 0xff, 0, 0, 0, 0, 0, 0]),
        Err(ProtocolError::UnknownApi(-1))
    );
    let absurd = request(&[0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff]);
    assert_eq!(
        problem(absurd.unwrap_err()),
        Problem::Truncated {
            needed: 0x7fff,
            remaining: 0
        }
    );
    let mut response = Bytes::from_static(&[
        0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 0xff, 0xff, 0xff, 0xff, 0x0f,
    ]);
    assert!(decode_response_header(3, 9, &mut response).is_err());
    assert_eq!(response.len(), 15, "a refused header is not consumed");
}

/// If this failed, a message could overflow the stack: the decoder's recursion is as deep as the table.
#[test]
fn the_table_bounds_depth_and_element_size() {
    fn depth(schema: &StructSchema) -> usize {
        let nested = schema.fields.iter().filter_map(|field| match field.kind {
            FieldType::Struct(inner) | FieldType::Array(&FieldType::Struct(inner)) => Some(depth(inner)),
            _ => None,
        });
        1 + nested.max().unwrap_or(0)
    }
    let deepest = logcore_protocol::schemas().map(|schema| depth(schema.root)).max();
    assert!(deepest <= Some(6), "{deepest:?}");
    assert_eq!(
        schema(0, Direction::Request).map(|schema| depth(schema.root)),
        Some(3)
    );
}
