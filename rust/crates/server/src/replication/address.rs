//! The address of a broker for other brokers. A plain value from Python.

/// Where another broker listens for brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    /// The broker's id.
    pub id: i32,
    /// A name or an IP address.
    pub host: String,
    /// The port of its inter-broker listener.
    pub port: u16,
}
