//! Record batches and legacy message sets: their layout, checksums, varints and compression.
//!
//! Owns: the bytes of Kafka's record batch v2 (KIP-98, `DefaultRecordBatch`, `DefaultRecord`) in both directions,
//! and reading the message sets v0 and v1 that came before it (`LegacyRecord`, KIP-31, KIP-32).
//! Does not own: files, sockets, offsets that are assigned, producer state; there is no I/O and no clock in here.
//! Callable from any thread; nothing is shared except per-thread codec contexts. A crash leaves nothing behind.
//!
//! Everything read here may come from an open port or a foreign file. Every length and count is checked against the
//! bytes that remain before anything is allocated, decompression stops at a limit the caller names, and no input
//! panics.
//!
//! Checksums. Batches v2 carry CRC-32C (Castagnoli), computed with the `crc32c` crate: it runs the SSE 4.2
//! instruction on three strands at once (ARMv8's likewise), falls back to tables, and is small and pure Rust.
//! `crc-fast`, the other candidate, brings in far more code for its wide vector folding. Legacy messages carry
//! CRC-32 (IEEE), computed with `crc32fast`.
//!
//! | module | concept |
//! |---|---|
//! | [`header`] | the 61 bytes in front of a batch |
//! | [`batch`] | one batch: checksum, shape, records, changes in place; iterating over many |
//! | [`record`] | one record inside a batch and its headers |
//! | [`builder`] | encoding records into a batch |
//! | [`control`] | the markers that end a transaction |
//! | [`varint`] | zigzag varints |
//! | [`compression`] | the five codecs, bounded |
//! | [`legacy`] | message sets v0 and v1 |
//! | [`error`] | what can be wrong with bytes |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod batch;
pub mod builder;
pub mod compression;
pub mod control;
pub mod error;
pub mod header;
pub mod legacy;
pub mod record;
pub mod varint;

pub use batch::{
    Batch, Batches, batches, set_log_append_time_in_place, set_offsets_in_place,
    set_producer_state_in_place,
};
pub use builder::BatchBuilder;
pub use compression::Compression;
pub use control::{EndTxnMarker, end_txn_marker};
pub use error::RecordError;
pub use header::{BatchHeader, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, TimestampType};
pub use record::{Headers, Record, RecordIter, Records};
