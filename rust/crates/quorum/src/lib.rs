//! Consensus for the coordinator's ensemble: one log of commands that a majority of its members has on disk.
//!
//! The protocol is openraft's. Owned here: what an entry is, the log and the vote on a member's disk, snapshots, who is told
//! what was agreed on, and how members reach each other. Not owned: what a command means; the coordinator applies them.
//!
//! | module | concept |
//! |---|---|
//! | [`types`] | what openraft is told of: ids, servers, entries, votes |
//! | [`entry`] | an entry's bytes |
//! | [`store`] | the log and the vote: in memory at once, on disk when it is said so |
//! | [`flushes`] | what bringing it to disk took |
//! | [`directory`] | a member's files |
//! | [`snapshots`] | what the log's front came to, in files |
//! | [`machine`] | what was agreed on, for whoever applies it |
//! | [`proposals`] | what a member proposes, until it is agreed on |
//! | `sending` | its way to whoever leads |
//! | [`delivery`] | each command counts once, in its member's order |
//! | [`reader`] | what was agreed on, entry by entry |
//! | [`network`] | requests to other members |
//! | [`wire`] | what members say to each other, in bytes |
//! | [`tcp`] | and over TCP |
//! | [`member`] | one member of an ensemble |
//! | [`members`] | who is listed, and what changes that |
//! | [`identity`] | which member a directory is |
//! | [`host`] | a member's thread, and its way into an ensemble |
//! | [`stored`] | a member's files, without its ensemble |
//!
//! One entry is one record is one batch: the offset is Raft's index, the leader epoch its term.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod committed;
pub mod delivery;
pub mod directory;
pub mod entry;
pub mod flushes;
pub mod host;
pub mod identity;
pub mod machine;
pub mod member;
pub mod members;
pub mod network;
pub mod proposals;
pub mod reader;
mod sending;
pub mod snapshots;
pub mod store;
pub mod stored;
pub mod tcp;
pub mod types;
pub mod wire;
