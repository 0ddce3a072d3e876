//! Key stores and certificates for TLS, as bytes: PKCS #12 files, encrypted PKCS #8 keys, X.509 certificates.
//!
//! Owns their decoding and decryption, and a certificate's name in Java's form. Does no I/O and knows no
//! settings: callers read the files and name them in errors. Pure; any thread. No error holds a password or a
//! key.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ber;
mod certificate;
mod error;
mod store;

pub use certificate::Certificate;
pub use error::{Error, Result};
pub use store::{Pkcs12, decrypt_key, with_public_key};
