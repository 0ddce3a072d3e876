//! Why a store, a key or a certificate cannot be used.

use p12_keystore::error::Error as StoreError;
use thiserror::Error;

/// The result of every function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why bytes cannot be used. The texts complete a sentence that names the file.
#[derive(Debug, Error)]
pub enum Error {
    /// Encrypted with another password.
    #[error("the password is wrong")]
    Password,
    /// The password cannot be that of a PKCS #12 file.
    #[error("PKCS #12 passwords cannot have characters beyond U+FFFF, such as emoji")]
    PasswordCharacter,
    /// A cipher or a digest that is not supported.
    #[error("its encryption is not supported: {0}")]
    Encryption(StoreError),
    /// A key that takes long to derive from the password.
    #[error("its encryption has more than 1,000,000 iterations, needs more than 1 GiB, or is damaged")]
    Work,
    /// Not a PKCS #12 file, or not an encrypted PKCS #8 key.
    #[error("its structure cannot be read: {0}")]
    Structure(StoreError),
    /// Not a PKCS #8 key, or an elliptic-curve key that cannot be read.
    #[error("the private key cannot be read: {0}")]
    Key(pkcs8::der::Error),
    /// Not an X.509 certificate.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
}

impl Error {
    /// For a file that was opened with `password`.
    pub(crate) fn of_store(error: StoreError, password: &str) -> Self {
        match error {
            StoreError::MacError(_) | StoreError::UnpadError => Self::Password,
            StoreError::Pkcs5Error(text) if text == pkcs5::Error::DecryptFailed.to_string() => Self::Password,
            StoreError::DerError(_) if password.chars().any(|each| each > '\u{FFFF}') => {
                Self::PasswordCharacter
            }
            StoreError::InvalidParameters => Self::Work,
            StoreError::UnsupportedEncryptionScheme
            | StoreError::UnsupportedMacAlgorithm
            | StoreError::Pkcs5Error(_) => Self::Encryption(error),
            StoreError::DerError(_)
            | StoreError::InvalidVersion
            | StoreError::UnsupportedContentType
            | StoreError::UnsupportedCertificateType
            | StoreError::X509Error(_)
            | StoreError::InvalidLength
            | StoreError::InvalidData
            | StoreError::InvalidPrivateKey
            | StoreError::IoError(_) => Self::Structure(error),
        }
    }
}
