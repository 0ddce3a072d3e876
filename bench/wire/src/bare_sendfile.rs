//! The least work that answers `fetch`: `sendfile` from a file of batches, after a small header.
//!
//! The positions of the batches are in memory. A nonblocking socket, chunks of 1 MiB and a send buffer of 320
//! KiB, which is logcore's default, were the fastest of all tried. A blocking `sendfile` of 4 MiB reached 0.7
//! of that. With the kernel's own buffer size, pages leave the CPU cache before the peer copies them.

use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use logcore_records::{BatchHeader, HEADER_SIZE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::args::Args;
use crate::bare_broker::{accept, listen};
use crate::error::BenchError;
use crate::frames::Frames;
use crate::messages::{self, FetchRequest};

/// The largest size of one `sendfile`.
const CHUNK: usize = 1 << 20;
/// logcore's default of `socket.send.buffer.bytes`.
const SEND_BUFFER: usize = 320 << 10;

/// The flags of `bare-sendfile`.
pub(crate) struct Options {
    pub(crate) port: u16,
    pub(crate) file: PathBuf,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            port: args.optional("port", 0)?,
            file: args.required("file")?,
        };
        args.finish()?;
        Ok(options)
    }
}

/// A file of batches, such as a segment, and their positions.
pub(crate) struct Batches {
    file: File,
    /// The last offset of each batch and the position of its first byte, both ascending.
    starts: Vec<(i64, u64)>,
    /// The bytes of all whole batches.
    size: u64,
    next_offset: i64,
}

impl Batches {
    /// Reads every batch header of the file once, up to the first incomplete batch.
    pub(crate) fn open(path: &Path) -> Result<Self, BenchError> {
        let failed = || BenchError::io(format!("reading {}", path.display()));
        let file = File::open(path).map_err(failed())?;
        let file_size = file.metadata().map_err(failed())?.len();
        let (mut starts, mut size, mut next_offset) = (Vec::new(), 0u64, 0);
        while size + HEADER_SIZE as u64 <= file_size {
            let mut header_bytes = [0; HEADER_SIZE];
            file.read_exact_at(&mut header_bytes, size).map_err(failed())?;
            let header = BatchHeader::parse(&header_bytes)?;
            if size + header.size() as u64 > file_size {
                break;
            }
            starts.push((header.last_offset(), size));
            next_offset = header.next_offset();
            size += header.size() as u64;
        }
        if starts.is_empty() {
            return Err(BenchError::Protocol(format!(
                "{} has no whole batch",
                path.display()
            )));
        }
        Ok(Self {
            file,
            starts,
            size,
            next_offset,
        })
    }

    /// The range of at most `max_bytes` from the batch with `offset` on. As in Kafka, a first batch that is
    /// longer is sent whole.
    fn range(&self, offset: i64, max_bytes: usize) -> (u64, usize) {
        let index = self.starts.partition_point(|(last, _)| *last < offset);
        let Some((_, start)) = self.starts.get(index) else {
            return (self.size, 0);
        };
        let after = self.starts.get(index + 1);
        let first = after.map_or(self.size, |(_, position)| *position) - start;
        let length = (self.size - start).min(max_bytes as u64).max(first);
        (*start, length as usize)
    }
}

fn wait_until_writable(stream: &TcpStream) -> Result<(), BenchError> {
    poll(&mut [PollFd::new(stream, PollFlags::OUT)], None)
        .map_err(|error| BenchError::io("waiting for the peer")(error.into()))?;
    Ok(())
}

/// Sends one response: the header, which the kernel sends together with the first records, and the records.
fn answer(
    stream: &TcpStream,
    batches: &Batches,
    header_bytes: &mut Vec<u8>,
    request: &FetchRequest,
    topic: &[u8],
) -> Result<(), BenchError> {
    let (mut position, mut left) = batches.range(request.offset, request.max_bytes);
    messages::fetch_response_header(header_bytes, request, topic, batches.next_offset, left);
    let mut unsent = &header_bytes[..];
    let flags = if left > 0 {
        SendFlags::MORE | SendFlags::NOSIGNAL
    } else {
        SendFlags::NOSIGNAL
    };
    while !unsent.is_empty() {
        let sent = rustix::net::send(stream, unsent, flags)
            .map_err(|error| BenchError::io("answering")(error.into()))?;
        unsent = &unsent[sent..];
    }
    set_nonblocking(stream, true)?;
    while left > 0 {
        let count = left.min(CHUNK);
        let sent = match rustix::fs::sendfile(stream, &batches.file, Some(&mut position), count) {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => {
                wait_until_writable(stream)?;
                continue;
            }
            Err(error) => return Err(BenchError::io("sending the file")(error.into())),
        };
        if sent == 0 {
            return Err(BenchError::Protocol("the file was truncated".to_owned()));
        }
        left -= sent;
    }
    set_nonblocking(stream, false)
}

fn set_nonblocking(stream: &TcpStream, nonblocking: bool) -> Result<(), BenchError> {
    stream
        .set_nonblocking(nonblocking)
        .map_err(BenchError::io("setting a socket's mode"))
}

/// Serves one connection until the peer closes it.
pub(crate) fn serve(batches: &Batches, stream: &TcpStream) -> Result<(), BenchError> {
    rustix::net::sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER)
        .map_err(|error| BenchError::io("setting a socket's buffer")(error.into()))?;
    let mut frames = Frames::new(stream);
    let mut header_bytes = Vec::new();
    while let Some(frame) = frames.next()? {
        let request = messages::read_fetch_request(frame)?;
        let topic = request.topic.clone();
        answer(stream, batches, &mut header_bytes, &request, &frame[topic])?;
    }
    Ok(())
}

/// Serves until the process is killed.
pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    let batches = Batches::open(&options.file)?;
    let listener = listen("bare-sendfile", options.port)?;
    accept(&listener, |_, stream| serve(&batches, &stream))
}
