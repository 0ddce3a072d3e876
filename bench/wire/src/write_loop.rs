//! The speed of the disk or the page cache: `write(2)` of one block again and again into new files, without
//! fsync.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::args::{Args, Size};
use crate::error::BenchError;
use crate::report::Report;

/// The flags of `write-loop`.
pub(crate) struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) block: Size,
    pub(crate) total: Size,
    pub(crate) file_size: Size,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            dir: args.required("dir")?,
            block: args.optional("block", Size(1 << 20))?,
            total: args.optional("total", Size(1 << 30))?,
            file_size: args.optional("file-size", Size(1 << 30))?,
        };
        args.finish()?;
        Ok(options)
    }
}

/// Writes `total` bytes, rounded up to whole blocks, and removes each file when it is full. Only the writes
/// are timed.
pub(crate) fn run(options: &Options) -> Result<Report, BenchError> {
    std::fs::create_dir_all(&options.dir).map_err(BenchError::io(format!(
        "creating the directory {}",
        options.dir.display()
    )))?;
    let block: Vec<u8> = (0..options.block.0).map(|index| (index % 251) as u8).collect();
    let (mut written, mut files, mut time) = (0usize, 0u32, Duration::ZERO);
    while written < options.total.0 {
        let path = options.dir.join(format!("write-loop-{files}.data"));
        let begun = Instant::now();
        let mut file =
            File::create_new(&path).map_err(BenchError::io(format!("creating {}", path.display())))?;
        let mut in_file = 0;
        let mut result = Ok(());
        while result.is_ok() && in_file < options.file_size.0 && written < options.total.0 {
            result = file.write_all(&block);
            in_file += block.len();
            written += block.len();
        }
        time += begun.elapsed();
        files += 1;
        let removed = std::fs::remove_file(&path);
        result.map_err(BenchError::io(format!("writing to {}", path.display())))?;
        removed.map_err(BenchError::io(format!("removing {}", path.display())))?;
    }
    let seconds = time.as_secs_f64();
    Ok(Report::new("write-loop")
        .with_figure("mb_per_s", written as f64 / seconds / 1e6)
        .with("bytes", written)
        .with("block_bytes", block.len())
        .with("files", files)
        .with_figure("seconds", seconds))
}
