//! Decodes record batches into Arrow record batches with the columns of Spark's Kafka source, and encodes
//! Arrow rows as record batches. Decodes keys and values in JSON, CSV, Avro and Protobuf into typed
//! columns.
//!
//! Owns the set of columns, the Arrow buffers, and the order in which a partition's segments are read. The
//! batch format is in `logcore-records`, the log's files are in `logcore-storage`. Python's binding
//! (`rust/src/columns.rs`, `rust/src/typed.rs`) calls [`PartitionScan`], [`decode_batches`], [`encode_rows`],
//! [`TypedDecoder`] and the functions on partitions. The producer's binding (`rust/src/client/producer.rs`)
//! reads [`ProduceRows`].
//!
//! An object is used by one thread at a time, without the GIL. No file is written, so a crash does no harm. A
//! broker may append to the same directory meanwhile.

mod aborted;
mod decode;
mod encode;
mod error;
mod input;
mod rows;
mod scan;
mod schema;
mod typed;

pub use aborted::{Aborted, AbortedTransaction};
pub use decode::{DecodeOptions, Decoded, decode_batches};
pub use encode::{EncodeOptions, check_schema, encode_rows};
pub use error::ColumnsError;
pub use input::{ProduceRows, Row, RowHeaders};
pub use scan::{
    LogSource, PartitionScan, ScanReader, partition_covers, partition_offset_for_timestamp,
    partition_offsets, partition_splits, split,
};
pub use schema::{Column, Projection};
pub use typed::{Format, Malformed, Typed, TypedDecoder, avro_schema, protobuf_schema};
