//! The one place where the crates' errors become Python exceptions.
//!
//! Every variant is named: there is no catch-all arm, so a new error in a crate does not compile until it has a Python class here.
