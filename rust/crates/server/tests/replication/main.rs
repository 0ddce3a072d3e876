//! Replication: a leader as its followers' requests see it, and servers that follow each other over loopback.
#![allow(clippy::unwrap_used)] // a test may panic

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod divergence;
mod following;
mod isr;
mod leader;
#[path = "../../../records/tests/support/mod.rs"]
mod support;
mod throttles;
