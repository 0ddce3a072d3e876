//! Why a store, a key or a certificate cannot be used.

use thiserror::Error;

/// The result of every function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why bytes cannot be used. The texts complete a sentence that names the file.
#[derive(Debug, Error)]
pub enum Error {
    /// Not PKCS #12, or encrypted with another password.
    #[error("{0}")]
    Store(p12_keystore::error::Error),
    /// Not an encrypted PKCS #8 key, or encrypted with another password.
    #[error("{0}")]
    EncryptedKey(p12_keystore::error::Error),
    /// Not a PKCS #8 key, or an elliptic-curve key that cannot be read.
    #[error("the private key cannot be read: {0}")]
    Key(pkcs8::der::Error),
    /// Not an X.509 certificate.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
}
