//! The commands of one entry of the log, as they are on disk and between members. What a command means is up
//! to the application.
//!
//! ```text
//! i64 time (ms) | u32 count | count × { u64 member | u64 ticket | u32 length | body }
//! ```

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::codec::{Malformed, end, take};
use crate::servers::MemberId;

const FRONT_BYTES: usize = 12;
const COMMAND_FRONT_BYTES: usize = 20;

/// Commands that are committed together.
#[derive(Clone, PartialEq, Eq)]
pub struct Commands(Bytes);

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The member that proposed it.
    pub member: MemberId,
    /// Its number among the commands of that member; see [`crate::delivery`].
    pub ticket: u64,
    pub body: Bytes,
}

impl Commands {
    /// `time_ms` is the proposer's clock, in milliseconds since 1970.
    pub fn new(time_ms: i64, commands: &[Command]) -> Self {
        let bodies: usize = commands.iter().map(|command| command.body.len()).sum();
        let mut bytes = BytesMut::with_capacity(FRONT_BYTES + bodies + commands.len() * COMMAND_FRONT_BYTES);
        bytes.put_i64(time_ms);
        bytes.put_u32(commands.len() as u32);
        for command in commands {
            bytes.put_u64(command.member);
            bytes.put_u64(command.ticket);
            bytes.put_u32(command.body.len() as u32);
            bytes.put_slice(&command.body);
        }
        Self(bytes.freeze())
    }

    /// Checks every length of bytes that [`Commands::as_bytes`] gave.
    pub fn parse(bytes: Bytes) -> Result<Self, Malformed> {
        let mut rest = bytes.clone();
        rest.try_get_i64()?;
        for _ in 0..rest.try_get_u32()? {
            rest.try_get_u64()?;
            rest.try_get_u64()?;
            let length = rest.try_get_u32()? as usize;
            take(&mut rest, length)?;
        }
        end(&rest)?;
        Ok(Self(bytes))
    }

    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The proposer's clock, in milliseconds since 1970.
    pub fn time_ms(&self) -> i64 {
        (&self.0[..]).get_i64()
    }

    pub fn count(&self) -> u32 {
        (&self.0[8..]).get_u32()
    }

    /// The member that proposed the first command.
    pub fn proposer(&self) -> Option<MemberId> {
        (self.count() > 0).then(|| (&self.0[FRONT_BYTES..]).get_u64())
    }

    /// Each command, in order.
    pub fn iter(&self) -> impl Iterator<Item = Command> {
        let mut rest = self.0.slice(FRONT_BYTES..);
        (0..self.count()).map(move |_| {
            let (member, ticket) = (rest.get_u64(), rest.get_u64());
            let length = rest.get_u32() as usize;
            let body = rest.split_to(length);
            Command { member, ticket, body }
        })
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands in {} bytes", self.count(), self.0.len())
    }
}
