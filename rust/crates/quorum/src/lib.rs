//! Consensus for the coordinator's ensemble: one log of commands that a majority of its members has on disk.
//!
//! The protocol is openraft's. This crate owns the bytes of an entry, the log, the vote and the snapshots on
//! a member's disk, the delivery of committed commands, and the connections between members. What a command
//! means is up to the application, which is the coordinator.
//!
//! | module | concept |
//! |---|---|
//! | [`host`] | a member behind calls that return at once: what the coordinator uses |
//! | [`raft`] | the consensus; only this module names openraft |
//! | [`files`] | a member's files |
//! | [`transport`] | members that reach each other over TCP |
//! | [`servers`] | the servers of an ensemble, and the ids of their members |
//! | [`commands`] | the commands of an entry |
//! | [`proposals`] | commands that this member proposes, until they are delivered |
//! | [`delivery`] | each command counts once, in its member's order |
//! | [`reader`] | the committed entries, one after another |
//! | [`flushes`] | measurements of the disk |
//! | `codec` | checked reading of bytes |
//!
//! Each entry is one record in one batch: its offset is Raft's index, its leader epoch the term.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod codec;
pub mod commands;
pub mod delivery;
pub mod files;
pub mod flushes;
pub mod host;
pub mod proposals;
pub mod raft;
pub mod reader;
pub mod servers;
pub mod transport;

pub use codec::Malformed;
