//! The consensus of one member, built on openraft. Only this folder names openraft.
//!
//! | module | concept |
//! |---|---|
//! | [`types`] | the types that openraft is used with |
//! | [`entry`] | the bytes of an entry, and of Raft's ids |
//! | [`store`] | the log and the vote: readable at once, reported as written once they are on disk |
//! | [`state_machine`] | what is committed, for the application that applies it |
//! | [`requests`] | what members ask each other |
//! | [`messages`] | the bytes of openraft's requests and responses |
//! | `network` | openraft's connection to the other members |
//! | `commit_notices` | requests that only say what is committed wait a moment for entries to travel with |
//! | `sending` | this member's proposals on their way to the leader |
//! | [`metrics`] | what openraft reports of itself |
//! | [`members`] | which servers the configuration lists, and how it changes |
//! | [`member`] | all of it together |

mod commit_notices;
pub mod entry;
pub mod member;
pub mod members;
pub mod messages;
pub mod metrics;
mod network;
pub mod requests;
mod sending;
pub mod state_machine;
pub mod store;
pub mod types;
