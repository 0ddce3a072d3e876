//! PKCS #12 files (RFC 7292), in DER or BER, and private keys (PKCS #8, RFC 5958).

use p12_keystore::error::Error as StoreError;
use p12_keystore::{CertificateBag, Pkcs12Archive};
use pkcs8::PrivateKeyInfoRef;
use pkcs8::der::asn1::OctetStringRef;
use pkcs8::der::oid::ObjectIdentifier;
use pkcs8::der::{Decode, Encode};
use sec1::EcPrivateKey;

use crate::ber::{Content, EXPLICIT_0, Element, OCTET_STRING, SEQUENCE, encode};
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
    /// [`Error::Password`], [`Error::PasswordCharacter`], [`Error::Encryption`], [`Error::Work`],
    /// [`Error::Structure`].
    pub fn open(file: &[u8], password: &str) -> Result<Self> {
        let archive = read(file, password).map_err(|error| Error::of_store(error, password))?;
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

/// Reads a file in DER or BER.
fn read(file: &[u8], password: &str) -> std::result::Result<Pkcs12Archive, StoreError> {
    let as_it_is = Pkcs12Archive::from_pkcs12(file, password);
    let (Err(StoreError::DerError(_)), Some(parsed)) = (&as_it_is, Element::parse(file)) else {
        return as_it_is;
    };
    let in_der = Pkcs12Archive::from_pkcs12(&parsed.to_der(), password);
    let (Err(StoreError::DerError(_)), Some(safes)) = (&in_der, safes(&parsed)) else {
        return in_der;
    };
    // `p12-keystore` checks the MAC before it reads the safes. The MAC does not fit the safes in DER.
    Pkcs12Archive::from_pkcs12(&without_mac(&safes), password)
}

/// The safes of a PKCS #12 file in DER. `None` if they are in DER already, or cannot be read.
fn safes(file: &Element) -> Option<Vec<u8>> {
    let Content::Bytes(safes) = &file.at(&[1, 1, 0])?.content else {
        return None;
    };
    Some(Element::parse(safes)?.to_der()).filter(|der| der != safes)
}

/// Decrypts a PKCS #8 key (`ENCRYPTED PRIVATE KEY`): PBES2 with AES or 3DES, or PKCS #12's PBE with 3DES or
/// RC2.
///
/// # Errors
/// [`Error::Password`], [`Error::PasswordCharacter`], [`Error::Encryption`], [`Error::Work`],
/// [`Error::Structure`].
pub fn decrypt_key(key: &[u8], password: &str) -> Result<Vec<u8>> {
    let archive = Pkcs12Archive::from_pkcs12(&as_pkcs12(key), password);
    match archive.map(|mut archive| archive.keys.pop()) {
        Ok(Some(bag)) => Ok(bag.key.as_der().to_vec()),
        Ok(None) => Err(Error::Structure(StoreError::InvalidPrivateKey)),
        Err(error) => Err(match Error::of_store(error, password) {
            // A wrong password gives a right padding now and then, and bytes that are no key.
            Error::Structure(_) if is_encrypted_key(key) => Error::Password,
            other => other,
        }),
    }
}

/// Whether there is a cipher and a string (RFC 5958).
fn is_encrypted_key(key: &[u8]) -> bool {
    let parsed = Element::parse(key);
    let tag = |index| Some(parsed.as_ref()?.at(&[index])?.tag);
    (tag(0), tag(1), tag(2)) == (Some(SEQUENCE), Some(OCTET_STRING), None)
}

/// A PKCS #12 file without a MAC that holds one encrypted key. In this form `p12-keystore` takes all of its
/// ciphers.
fn as_pkcs12(encrypted_key: &[u8]) -> Vec<u8> {
    /// 1.2.840.113549.1.12.10.1.2, pkcs8ShroudedKeyBag.
    const SHROUDED_KEY: &[u8] = &[
        0x06, 0x0B, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x0C, 0x0A, 0x01, 0x02,
    ];
    let bag = [SHROUDED_KEY, &encode(EXPLICIT_0, encrypted_key)].concat();
    let bags = encode(SEQUENCE, &encode(SEQUENCE, &bag));
    without_mac(&encode(SEQUENCE, &data(&bags)))
}

/// A PKCS #12 file of safes.
fn without_mac(safes: &[u8]) -> Vec<u8> {
    /// INTEGER 3, the version of PKCS #12.
    const VERSION: &[u8] = &[0x02, 0x01, 0x03];
    encode(SEQUENCE, &[VERSION, &data(safes)].concat())
}

/// `ContentInfo` (RFC 5652) of plain bytes.
fn data(content: &[u8]) -> Vec<u8> {
    /// 1.2.840.113549.1.7.1, pkcs7-data.
    const DATA: &[u8] = &[0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x01];
    let content = encode(EXPLICIT_0, &encode(OCTET_STRING, content));
    encode(SEQUENCE, &[DATA, &content].concat())
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
    use crate::ber::tests::{STORE, to_ber};

    /// The keys and the certificates.
    fn opened(file: &[u8], password: &str) -> Result<[Vec<Vec<u8>>; 2]> {
        Pkcs12::open(file, password).map(|store| [store.keys, store.certificates])
    }

    /// If this failed, stores of Bouncy Castle could not be opened, or would open with a wrong password.
    #[test]
    fn stores_in_ber_are_opened() {
        let expected = opened(STORE, "secret").unwrap();
        assert_eq!([expected[0].len(), expected[1].len()], [1, 1]);
        let mut store = Element::parse(STORE).unwrap();
        for piece in [1, 100, 1 << 20] {
            let ber = to_ber(&store, piece);
            assert_eq!(opened(&ber, "secret").unwrap(), expected);
            assert!(matches!(opened(&ber, "other"), Err(Error::Password)));
        }

        let Content::Elements(parts) = &mut store.content else {
            panic!("{store:?}")
        };
        let mac = parts.pop().unwrap();
        let safes = Element::parse(contents(&store)).unwrap();
        let mut inside = Element::parse(&without_mac(&to_ber(&safes, 100))).unwrap();
        for ber in [inside.to_der(), to_ber(&inside, 100)] {
            assert_eq!(opened(&ber, "secret").unwrap(), expected);
            assert!(matches!(opened(&ber, "other"), Err(Error::Password)));
        }
        let Content::Elements(parts) = &mut inside.content else {
            panic!("{inside:?}")
        };
        parts.push(mac); // of other bytes
        assert!(matches!(opened(&inside.to_der(), "secret"), Err(Error::Password)));
        assert!(matches!(
            opened(&to_ber(&inside, 100), "secret"),
            Err(Error::Password)
        ));
    }

    fn contents(store: &Element) -> &[u8] {
        match &store.at(&[1, 1, 0]).unwrap().content {
            Content::Bytes(bytes) => bytes,
            Content::Elements(_) => panic!("{store:?}"),
        }
    }

    /// If this failed, an operator would look for a wrong password where the file or the cipher is the cause.
    #[test]
    fn a_wrong_password_is_told_from_other_causes() {
        assert!(matches!(opened(STORE, "other"), Err(Error::Password)));
        assert!(matches!(
            opened(STORE, "\u{1F600}"),
            Err(Error::PasswordCharacter)
        ));
        let damaged = [&STORE[..4], &[2, 1, 4], &STORE[7..]].concat();
        assert!(matches!(opened(&damaged, "secret"), Err(Error::Structure(_))));
        for at in 0..STORE.len() {
            let mut damaged = STORE.to_vec();
            damaged[at] ^= 0x55;
            let _no_panic = opened(&damaged, "secret");
        }
    }

    /// If this failed, a damaged file would end the process, or be taken for another one.
    #[test]
    fn damaged_input_is_an_error() {
        for bytes in [&b""[..], b"0", b"\x30\x03\x02\x01\x03", &[0x30; 64]] {
            assert!(matches!(Pkcs12::open(bytes, "x"), Err(Error::Structure(_))));
            assert!(matches!(decrypt_key(bytes, "x"), Err(Error::Structure(_))));
            assert!(matches!(with_public_key(bytes, bytes), Err(Error::Key(_))));
        }
    }
}
