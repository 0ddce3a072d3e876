//! What requests and responses may have of memory.
//!
//! | module | what it bounds |
//! |---|---|
//! | `frames` | request frames, and the responses that take over their memory |
//! | `decoded` | decoded requests, in Rust and in Python |
//! | `answers` | large answers of APIs that Python answers |
//! | `produce`, `fetch`, `lookups` | what Produce, Fetch and ListOffsets requests of many partitions keep while they wait |
//! | `unpacking` | batches that are decompressed at once |

pub(crate) mod answers;
pub(crate) mod decoded;
pub(crate) mod fetch;
pub(crate) mod frames;
pub(crate) mod lookups;
pub(crate) mod produce;
pub(crate) mod unpacking;
