//! The verification of clients' certificates, by the rules of Java's trust managers.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, SignatureScheme,
};
use webpki::EndEntityCert;

use super::bad;
use crate::error::Result;

/// Certificates in a client's chain: JSSE's `jdk.tls.server.maxInboundCertificateChainLength`.
const CHAIN_LENGTH_MAX: usize = 8;
/// Bytes of a client's chain: JSSE's `jdk.tls.maxHandshakeMessageSize`.
const CHAIN_BYTES_MAX: usize = 32 * 1024;

/// Bytes of the authorities' names that clients get. Java clients fail at messages above [`CHAIN_BYTES_MAX`];
/// without any name they send the certificate that they have.
const NAMES_BYTES_MAX: usize = CHAIN_BYTES_MAX - 1024;

/// The verifier of a listener that asks clients for certificates.
pub(super) fn verifier(
    authorities: &[Vec<u8>],
    trusted: Vec<Vec<u8>>,
    required: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots
            .add(CertificateDer::from(certificate.clone()))
            .map_err(|error| {
                bad(format!(
                    "a certificate of the trust store cannot be read: {error}"
                ))
            })?;
    }
    let trusted: Vec<_> = trusted.into_iter().map(CertificateDer::from).collect();
    let subjects = subjects(&roots, &trusted);
    let authorities = match roots.is_empty() {
        true => None,
        false => {
            let provider = Arc::clone(provider);
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let built = builder.build();
            Some(built.map_err(|error| bad(format!("the trust store cannot be used: {error}")))?)
        }
    };
    Ok(Arc::new(Verifier {
        authorities,
        trusted,
        subjects,
        required,
        provider: Arc::clone(provider),
    }))
}

/// The subjects of the certificates, each once (`X509TrustManager.getAcceptedIssuers`). None at all if they
/// are larger than [`NAMES_BYTES_MAX`].
fn subjects(authorities: &RootCertStore, trusted: &[CertificateDer<'static>]) -> Vec<DistinguishedName> {
    let mut all = authorities.clone();
    // A certificate that cannot be parsed is never accepted, so its name is not needed.
    all.add_parsable_certificates(trusted.iter().cloned());
    let mut subjects: Vec<DistinguishedName> = Vec::new();
    for subject in all.subjects() {
        let is_same = |known: &DistinguishedName| known.as_ref() == subject.as_ref();
        if !subjects.iter().any(is_same) {
            subjects.push(subject);
        }
    }
    if subjects.iter().map(|each| 2 + each.as_ref().len()).sum::<usize>() > NAMES_BYTES_MAX {
        subjects.clear();
    }
    subjects
}

/// As in Java, accepts certificates that an authority signed, and certificates that the trust store itself
/// has.
#[derive(Debug)]
struct Verifier {
    /// `None` if the trust store has no authority.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    trusted: Vec<CertificateDer<'static>>,
    /// The names that clients get, to choose a certificate by.
    subjects: Vec<DistinguishedName>,
    required: bool,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_size(end_entity, intermediates)?;
        if self.trusted.contains(end_entity) {
            return Ok(ClientCertVerified::assertion());
        }
        match &self.authorities {
            Some(authorities) => {
                let chain = chain(end_entity, intermediates);
                authorities.verify_client_cert(end_entity, &chain, now)
            }
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Refuses a chain that is too long or too large.
fn check_size(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), CertificateError> {
    let count = 1 + intermediates.len();
    let size = end_entity.len() + intermediates.iter().map(|each| each.len()).sum::<usize>();
    if count <= CHAIN_LENGTH_MAX && size <= CHAIN_BYTES_MAX {
        return Ok(());
    }
    Err(CertificateError::Other(OtherError(Arc::new(bad(format!(
        "the client sent {count} certificates of {size} bytes, and at most {CHAIN_LENGTH_MAX} of \
         {CHAIN_BYTES_MAX} bytes are accepted: its key store (ssl.keystore.location) needs only its own \
         certificate and those between it and its authority"
    ))))))
}

/// The path from a peer's own certificate up, by the issuers' names. Of certificates with one name the first
/// counts. webpki would try every order of all certificates, which can take seconds.
pub(super) fn chain<'a>(
    end_entity: &CertificateDer<'_>,
    intermediates: &'a [CertificateDer<'a>],
) -> Vec<CertificateDer<'a>> {
    // A certificate that cannot be parsed cannot be an issuer.
    let parsed = intermediates.iter().map(EndEntityCert::try_from);
    let parsed: Vec<_> = parsed.filter_map(Result::ok).collect();
    let mut chain: Vec<&EndEntityCert<'_>> = Vec::new();
    let Ok(own) = EndEntityCert::try_from(end_entity) else {
        return Vec::new();
    };
    let mut last = &own;
    while let Some(issuer) = parsed.iter().find(|each| each.subject() == last.issuer()) {
        if chain.iter().any(|each| std::ptr::eq(*each, issuer)) {
            break;
        }
        chain.push(issuer);
        last = issuer;
    }
    chain.into_iter().map(|each| each.der()).collect()
}
