//! What clients are told of the cluster's features. Python decides on them.

/// The features of brokers and cluster (KIP-584). None by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// What this broker supports: name, first and last version.
    pub supported: Vec<(String, i16, i16)>,
    /// What is finalized in the cluster: name and version.
    pub finalized: Vec<(String, i16)>,
    /// The epoch of what is finalized, -1 if it is unknown.
    pub epoch: i64,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            supported: Vec::new(),
            finalized: Vec::new(),
            epoch: -1,
        }
    }
}
