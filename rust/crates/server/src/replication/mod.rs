//! The follower's half of replication: this server copies the partitions that other brokers lead.
//!
//! [`Fetchers`] has one thread for each leader's broker and `num.replica.fetchers`. A thread has one
//! connection and sends one Fetch at a time, for all its partitions (`ReplicaFetcherThread`). Python decides
//! which partitions are followed; the leader's half is in [`crate::partitions::replicas`].
//!
//! | module | what |
//! |---|---|
//! | `fetchers` | all fetchers: which partition is with which, the addresses of brokers |
//! | `fetcher` | one fetcher: its thread, its connection, its requests |
//! | `exchange` | one Fetch and what its response means for each partition |
//! | `following` | one partition: appends, truncation, errors |
//! | `address` | where a broker listens |
//! | `session` | the client's half of an incremental fetch session |
//! | `messages` | requests to a leader and their responses |
//!
//! Memory: a fetcher has one response at a time, of at most `replica.fetch.response.max.bytes` or one batch.
//!
//! A crash loses nothing but the fetchers themselves: the logs are on disk, and a follower begins again by
//! comparing its last epoch with its leader's.

mod address;
mod exchange;
mod fetcher;
mod fetchers;
mod following;
mod messages;
mod session;

pub use address::BrokerAddress;
pub(crate) use fetchers::Fetchers;
