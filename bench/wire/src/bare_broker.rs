//! The least work that answers `produce`, in one thread for each connection.
//!
//! The thread reads a request, verifies the batch's CRC-32C, sets its offset, writes it to the connection's
//! own file and answers. There is no index and no lock. The file is unlinked at once, so its space is free
//! when the connection ends.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use logcore_records::{Batch, set_offsets_in_place};

use crate::args::Args;
use crate::descriptors;
use crate::error::BenchError;
use crate::frames::Frames;
use crate::messages;
use crate::report::Report;

/// The flags of `bare-broker`.
pub(crate) struct Options {
    pub(crate) port: u16,
    pub(crate) dir: PathBuf,
}

impl Options {
    pub(crate) fn take(args: &mut Args) -> Result<Self, BenchError> {
        let options = Self {
            port: args.optional("port", 0)?,
            dir: args.required("dir")?,
        };
        args.finish()?;
        Ok(options)
    }
}

/// Listens on the loopback address, and prints the port.
pub(crate) fn listen(command: &str, port: u16) -> Result<TcpListener, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .map_err(BenchError::io(format!("listening on port {port}")))?;
    let address = listener
        .local_addr()
        .map_err(BenchError::io("reading the port"))?;
    Report::new(command)
        .with("ready", true)
        .with("port", address.port())
        .print();
    Ok(listener)
}

/// Serves each connection in a thread of its own, for ever. An error ends its own connection only.
pub(crate) fn accept(
    listener: &TcpListener,
    serve: impl Fn(u64, TcpStream) -> Result<(), BenchError> + Sync,
) -> Result<(), BenchError> {
    thread::scope(|scope| {
        let serve = &serve;
        for number in 0.. {
            let (stream, _) = listener
                .accept()
                .map_err(BenchError::io("accepting a connection"))?;
            stream
                .set_nodelay(true)
                .map_err(BenchError::io("setting TCP_NODELAY"))?;
            scope.spawn(move || {
                if let Err(error) = serve(number, stream) {
                    eprintln!("connection {number}: {error}");
                }
            });
        }
        Ok(())
    })
}

/// Serves one connection until the peer closes it. Appends its batches to `file`; errors name `path`.
pub(crate) fn serve(mut file: File, path: &Path, stream: TcpStream) -> Result<(), BenchError> {
    let mut writer = &stream;
    let mut frames = Frames::new(&stream);
    let mut response = Vec::new();
    let mut next_offset = 0i64;
    while let Some(frame) = frames.next()? {
        let request = messages::read_produce_request(frame)?;
        let batch = Batch::parse(&frame[request.records.clone()])?;
        batch.verify_crc()?;
        let base_offset = next_offset;
        next_offset += i64::from(batch.header.last_offset_delta) + 1;
        let records = &mut frame[request.records];
        set_offsets_in_place(records, base_offset, 0);
        file.write_all(records)
            .map_err(BenchError::io(format!("writing to {}", path.display())))?;
        if request.acks == 0 {
            continue;
        }
        messages::produce_response(
            &mut response,
            request.correlation_id,
            &frame[request.topic],
            request.partition,
            base_offset,
        );
        writer.write_all(&response).map_err(BenchError::io("answering"))?;
    }
    Ok(())
}

/// Serves until the process is killed.
pub(crate) fn run(options: &Options) -> Result<(), BenchError> {
    descriptors::raise()?;
    std::fs::create_dir_all(&options.dir).map_err(BenchError::io(format!(
        "creating the directory {}",
        options.dir.display()
    )))?;
    let listener = listen("bare-broker", options.port)?;
    accept(&listener, |number, stream| {
        let path = options.dir.join(format!("bare-{number}.log"));
        let file = File::create(&path).map_err(BenchError::io(format!("creating {}", path.display())))?;
        std::fs::remove_file(&path).map_err(BenchError::io(format!("removing {}", path.display())))?;
        serve(file, &path, stream)
    })
}
