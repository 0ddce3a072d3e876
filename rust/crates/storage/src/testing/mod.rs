//! Set-up that several tests share.

mod fuzz;

use std::fs;
use std::path::Path;

use logcore_records::{BatchBuilder, Compression};

/// A directory in memory if possible: where the disk is modelled, a real one is only slower.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// A batch of records without keys, from timestamps and values; of a producer with a first sequence, if
/// given.
pub(crate) fn batch_of(records: &[(i64, &[u8])], producer: Option<(i64, i32)>) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None, None);
    if let Some((id, sequence)) = producer {
        builder.set_producer_state(id, 0, sequence);
    }
    for (timestamp, value) in records {
        builder.append(*timestamp, None, Some(value), &[]).unwrap();
    }
    builder.build().unwrap()
}

/// Flips the bits of `mask` in one byte of a file.
pub(crate) fn flip(path: &Path, position: usize, mask: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[position] ^= mask;
    fs::write(path, bytes).unwrap();
}
