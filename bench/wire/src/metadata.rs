//! Metadata version 4: the brokers of a cluster, and the leaders of partitions.
//!
//! The fields are those of Kafka's `MetadataRequest.json` and `MetadataResponse.json`. No request creates a
//! topic.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::cursor::Cursor;
use crate::error::BenchError;
use crate::frames::Frames;
use crate::load::connect;
use crate::messages;

const METADATA: i16 = 3;
const VERSION: i16 = 4;
const RESPONSE_BUFFER: usize = 64 << 10;

/// The leader of a partition that has none.
pub(crate) const NO_LEADER: i32 = -1;

/// Host and port of a broker.
pub(crate) type Address = (String, u16);

/// What one broker knows of the cluster.
#[derive(Debug, PartialEq)]
pub(crate) struct Cluster {
    pub(crate) brokers: Vec<(i32, Address)>,
    pub(crate) topics: Vec<Topic>,
}

impl Cluster {
    /// The address of the broker that leads the partition. `None` without a leader that is alive.
    pub(crate) fn leader(&self, topic: &str, partition: i32) -> Option<&Address> {
        let topic = self.topics.iter().find(|found| found.name == topic)?;
        let partition = topic.partitions.iter().find(|found| found.index == partition)?;
        let (_, address) = self.brokers.iter().find(|(id, _)| *id == partition.leader)?;
        Some(address)
    }
}

/// A topic. One that the broker does not know has no partitions.
#[derive(Debug, PartialEq)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) partitions: Vec<Partition>,
}

/// A partition's leader, and the number of its in-sync replicas.
#[derive(Debug, PartialEq)]
pub(crate) struct Partition {
    pub(crate) index: i32,
    pub(crate) leader: i32,
    pub(crate) in_sync: usize,
}

/// A Metadata request for some topics.
pub(crate) fn request(topics: &[&str]) -> Vec<u8> {
    let mut out = messages::begin(METADATA, VERSION);
    out.extend_from_slice(&(topics.len() as i32).to_be_bytes());
    for topic in topics {
        messages::put_string(&mut out, topic);
    }
    out.push(0); // create no topics
    messages::finish(out)
}

fn text(frame: &[u8], cursor: &mut Cursor<'_>) -> Result<String, BenchError> {
    Ok(String::from_utf8_lossy(&frame[cursor.string()?]).into_owned())
}

/// Decodes a response.
pub(crate) fn read_response(frame: &[u8]) -> Result<Cluster, BenchError> {
    let mut cursor = Cursor::new(frame);
    cursor.skip(4 + 4)?; // correlation id, throttle time
    let mut brokers = Vec::new();
    for _ in 0..cursor.i32()? {
        let id = cursor.i32()?;
        let host = text(frame, &mut cursor)?;
        brokers.push((id, (host, cursor.i32()? as u16)));
        cursor.string()?; // rack
    }
    cursor.string()?; // cluster id
    cursor.i32()?; // controller
    let mut topics = Vec::new();
    for _ in 0..cursor.i32()? {
        cursor.i16()?; // an error code also has no partitions or no leader
        let name = text(frame, &mut cursor)?;
        cursor.skip(1)?; // internal
        let mut partitions = Vec::new();
        for _ in 0..cursor.i32()? {
            cursor.i16()?;
            let (index, leader) = (cursor.i32()?, cursor.i32()?);
            let replicas = cursor.i32()?.max(0) as usize;
            cursor.skip(4 * replicas)?;
            let in_sync = cursor.i32()?.max(0) as usize;
            cursor.skip(4 * in_sync)?;
            partitions.push(Partition {
                index,
                leader,
                in_sync,
            });
        }
        topics.push(Topic { name, partitions });
    }
    Ok(Cluster { brokers, topics })
}

/// A connection for Metadata requests.
pub(crate) struct Asking {
    frames: Frames<TcpStream>,
}

impl Asking {
    /// Connects. Each answer may take `patience`.
    pub(crate) fn connect((host, port): &Address, patience: Duration) -> Result<Self, BenchError> {
        let stream = connect(host, *port)?;
        let limited = stream.set_read_timeout(Some(patience));
        limited.map_err(BenchError::io("setting a timeout"))?;
        Ok(Self {
            frames: Frames::with_buffer(stream, RESPONSE_BUFFER),
        })
    }

    /// What the broker knows of these topics.
    pub(crate) fn ask(&mut self, topics: &[&str]) -> Result<Cluster, BenchError> {
        let sent = self.frames.get_ref().write_all(&request(topics));
        sent.map_err(BenchError::io("sending a metadata request"))?;
        read_response(self.frames.expect()?)
    }
}
