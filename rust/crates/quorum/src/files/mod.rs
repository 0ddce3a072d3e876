//! The files of a member. A crash at any point leaves files that the next start can use, or refuses with a
//! reason.
//!
//! | module | concept |
//! |---|---|
//! | [`directory`] | the log and the vote |
//! | `small` | files of a few bytes, with a checksum |
//! | `committed` | a note of what is committed |
//! | [`identity`] | which member a directory is |
//! | [`snapshots`] | snapshots of the application's state |
//! | [`stored`] | a member's files read without its ensemble |

mod committed;
pub mod directory;
mod error;
pub mod identity;
mod small;
pub mod snapshots;
pub mod stored;

pub use self::error::OpenError;
