//! Hosts of one ensemble in one process, on real disks, over loopback.
#![allow(clippy::unwrap_used)] // a test may panic

mod disks;
mod ensemble;
mod founding;
mod members;
mod refusals;
mod serving;
