//! Record batches become Arrow record batches, with the columns of Spark's Kafka source, and Arrow's rows become batches.
//!
//! Owns the column set, the Arrow buffers and the reading order of a partition's segment files. Does not own the batch
//! format (`logcore-records`) or the log's files (`logcore-storage`), and knows nothing of Python: the binding wraps
//! [`PartitionScan`], [`decode_batches`] and [`encode_rows`] and nothing else.
//!
//! Everything here is called from any one thread at a time, without the GIL. Nothing is written: a crash, or a broker
//! that appends to the same directory meanwhile, loses nothing and costs nothing but the rows not yet handed out.

mod aborted;
mod decode;
mod encode;
mod error;
mod rows;
mod scan;
mod schema;

pub use aborted::Aborted;
pub use decode::{AbortedTransaction, DecodeOptions, Decoded, decode_batches};
pub use encode::{EncodeOptions, check_schema, encode_rows};
pub use error::ColumnsError;
pub use scan::{
    LogSource, PartitionScan, ScanReader, partition_offset_for_timestamp, partition_offsets,
    partition_splits, split,
};
pub use schema::{Column, Projection};
