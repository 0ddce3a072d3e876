//! If these fail, fetched messages are lost, doubled or mixed up.
