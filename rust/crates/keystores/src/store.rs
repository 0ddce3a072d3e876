//! PKCS #12 files (RFC 7292) and private keys (PKCS #8, RFC 5958).

use p12_keystore::{CertificateBag, Pkcs12Archive};
use pkcs8::PrivateKeyInfoRef;
use pkcs8::der::asn1::OctetStringRef;
use pkcs8::der::oid::ObjectIdentifier;
use pkcs8::der::{Decode, Encode};
use sec1::EcPrivateKey;

use crate::certificate::Certificate;
use crate::error::{Error, Result};

/// id-ecPublicKey (RFC 5480).
const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// The contents of a PKCS #12 file, in DER.
pub struct Pkcs12 {
    /// Private keys, as PKCS #8.
    pub keys: Vec<Vec<u8>>,
    /// The certificates that belong to a key first, then the others, each in the file's order.
    pub certificates: Vec<Vec<u8>>,
}

impl Pkcs12 {
    /// Checks the file's MAC and decrypts everything in it.
    ///
    /// # Errors
    /// [`Error::Store`]: this is no PKCS #12 file, its password is another one, or its cipher is not
    /// supported.
    pub fn open(file: &[u8], password: &str) -> Result<Self> {
        let archive = Pkcs12Archive::from_pkcs12(file, password).map_err(Error::Store)?;
        let is_own = |bag: &CertificateBag| {
            let id = bag.local_key_id.as_deref();
            let mut keys = archive.keys.iter().filter_map(|key| key.local_key_id.as_ref());
            id.is_some_and(|id| keys.any(|key| key.as_ref() == id))
        };
        let (own, others): (Vec<_>, Vec<_>) = archive.certs.iter().partition(|bag| is_own(bag));
        let certificates = own.into_iter().chain(others);
        Ok(Self {
            keys: archive.keys.iter().map(|bag| bag.key.as_der().to_vec()).collect(),
            certificates: certificates.map(|bag| bag.cert.as_der().to_vec()).collect(),
        })
    }
}

/// Decrypts a PKCS #8 key (`ENCRYPTED PRIVATE KEY`): PBES2 with AES or 3DES, or PKCS #12's PBE with 3DES or
/// RC2.
///
/// # Errors
/// [`Error::EncryptedKey`]: this is no such key, its password is another one, or its cipher is not supported.
pub fn decrypt_key(key: &[u8], password: &str) -> Result<Vec<u8>> {
    let archive = Pkcs12Archive::from_pkcs12(&as_pkcs12(key), password).map_err(Error::EncryptedKey)?;
    let key = archive
        .keys
        .first()
        .ok_or(p12_keystore::error::Error::InvalidPrivateKey);
    Ok(key.map_err(Error::EncryptedKey)?.key.as_der().to_vec())
}

/// A PKCS #12 file without a MAC that holds one encrypted key. In this form `p12-keystore` takes all of its
/// ciphers.
fn as_pkcs12(encrypted_key: &[u8]) -> Vec<u8> {
    const SEQUENCE: u8 = 0x30;
    const OCTET_STRING: u8 = 0x04;
    const EXPLICIT_0: u8 = 0xA0;
    /// INTEGER 3, the version of PKCS #12.
    const VERSION: &[u8] = &[0x02, 0x01, 0x03];
    /// 1.2.840.113549.1.7.1, pkcs7-data.
    const DATA: &[u8] = &[0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x01];
    /// 1.2.840.113549.1.12.10.1.2, pkcs8ShroudedKeyBag.
    const SHROUDED_KEY: &[u8] = &[
        0x06, 0x0B, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x0C, 0x0A, 0x01, 0x02,
    ];
    let data = |content: &[u8]| {
        let content = element(EXPLICIT_0, &element(OCTET_STRING, content));
        element(SEQUENCE, &[DATA, &content].concat())
    };
    let bag = [SHROUDED_KEY, &element(EXPLICIT_0, encrypted_key)].concat();
    let bags = element(SEQUENCE, &element(SEQUENCE, &bag));
    let authenticated = data(&element(SEQUENCE, &data(&bags)));
    element(SEQUENCE, &[VERSION, &authenticated].concat())
}

/// Tag, length and content in DER.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let size = content.len().to_be_bytes();
    let size = &size[size.iter().take_while(|byte| **byte == 0).count()..];
    let mut encoded = vec![tag];
    match size {
        [] => encoded.push(0),
        [short] if *short < 0x80 => encoded.push(*short),
        long => {
            encoded.push(0x80 | long.len() as u8);
            encoded.extend(long);
        }
    }
    encoded.extend(content);
    encoded
}

/// A PKCS #8 key with its public key. Java leaves the public key out of elliptic-curve keys, and `ring` needs
/// it, so it is taken from the certificate. Any other key stays as it is.
///
/// # Errors
/// [`Error::Key`] and [`Error::Certificate`]: one of them cannot be read.
pub fn with_public_key(key: &[u8], certificate: &[u8]) -> Result<Vec<u8>> {
    let info = PrivateKeyInfoRef::from_der(key).map_err(Error::Key)?;
    if info.algorithm.oid != EC_PUBLIC_KEY {
        return Ok(key.to_vec());
    }
    let inner = EcPrivateKey::from_der(info.private_key.as_bytes()).map_err(Error::Key)?;
    if inner.public_key.is_some() {
        return Ok(key.to_vec());
    }
    let public_key = Certificate::parse(certificate)?.public_key();
    let inner = EcPrivateKey {
        public_key: Some(&public_key),
        ..inner
    };
    let inner = inner.to_der().map_err(Error::Key)?;
    let private_key = OctetStringRef::new(&inner).map_err(Error::Key)?;
    PrivateKeyInfoRef::new(info.algorithm, private_key)
        .to_der()
        .map_err(Error::Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this failed, keys of some sizes could not be decrypted.
    #[test]
    fn lengths_are_encoded_as_der_wants_them() {
        assert_eq!(element(4, &[]), [4, 0]);
        assert_eq!(element(4, &[7; 0x7F])[..3], [4, 0x7F, 7]);
        assert_eq!(element(4, &[7; 0x80])[..4], [4, 0x81, 0x80, 7]);
        assert_eq!(element(4, &[7; 0x1234])[..5], [4, 0x82, 0x12, 0x34, 7]);
    }

    /// If this failed, a damaged file would end the process, or be taken for another one.
    #[test]
    fn damaged_input_is_an_error() {
        for bytes in [&b""[..], b"0", b"\x30\x03\x02\x01\x03", &[0x30; 64]] {
            assert!(matches!(Pkcs12::open(bytes, "x"), Err(Error::Store(_))));
            assert!(matches!(decrypt_key(bytes, "x"), Err(Error::EncryptedKey(_))));
            assert!(matches!(with_public_key(bytes, bytes), Err(Error::Key(_))));
        }
    }
}
