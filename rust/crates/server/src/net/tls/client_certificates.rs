//! Which certificates of clients are trusted, as Java's trust managers decide it.

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

/// So many certificates at most are read of one peer, its own among them: JSSE's
/// `jdk.tls.server.maxInboundCertificateChainLength`.
const CERTIFICATES: usize = 8;
/// So many bytes they have together: JSSE's `jdk.tls.maxHandshakeMessageSize`.
const CERTIFICATES_SIZE: usize = 32 * 1024;

/// So many bytes of names at most are told to clients that are asked for certificates. Java's end at messages that are longer
/// than [`CERTIFICATES_SIZE`], and show what they have where no name is told.
const NAMES_SIZE: usize = CERTIFICATES_SIZE - 1024;

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

/// Whom the certificates are for, each name once: `X509TrustManager.getAcceptedIssuers`. None at all where they are more than
/// [`NAMES_SIZE`].
fn subjects(authorities: &RootCertStore, trusted: &[CertificateDer<'static>]) -> Vec<DistinguishedName> {
    let mut all = authorities.clone();
    // Who cannot be read cannot come in, and needs no name.
    all.add_parsable_certificates(trusted.iter().cloned());
    let mut subjects: Vec<DistinguishedName> = Vec::new();
    for subject in all.subjects() {
        let is_told = |known: &DistinguishedName| known.as_ref() == subject.as_ref();
        if !subjects.iter().any(is_told) {
            subjects.push(subject);
        }
    }
    if subjects.iter().map(|each| 2 + each.as_ref().len()).sum::<usize>() > NAMES_SIZE {
        subjects.clear();
    }
    subjects
}

/// As Java trusts: those an authority vouches for, and whoever is in the trust store itself.
#[derive(Debug)]
struct Verifier {
    /// `None` where the trust store has no authority.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    trusted: Vec<CertificateDer<'static>>,
    /// What clients are told of the certificates that they may show one of.
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

/// Refuses what is more than a client needs to say who it is.
fn check_size(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), CertificateError> {
    let count = 1 + intermediates.len();
    let size = end_entity.len() + intermediates.iter().map(|each| each.len()).sum::<usize>();
    if count <= CERTIFICATES && size <= CERTIFICATES_SIZE {
        return Ok(());
    }
    Err(CertificateError::Other(OtherError(Arc::new(bad(format!(
        "the client sent {count} certificates of {size} bytes, and at most {CERTIFICATES} of {CERTIFICATES_SIZE} bytes are read: its \
         key store (ssl.keystore.location) needs its own and those between it and its authority"
    ))))))
}

/// Those that lead from a peer's own certificate up, each by the name of the issuer, of those that share one the first: webpki
/// tries every order of them, which takes seconds.
pub(super) fn chain<'a>(
    end_entity: &CertificateDer<'_>,
    intermediates: &'a [CertificateDer<'a>],
) -> Vec<CertificateDer<'a>> {
    // Who cannot be read vouches for nobody.
    let read = intermediates.iter().map(EndEntityCert::try_from);
    let read: Vec<_> = read.filter_map(Result::ok).collect();
    let mut chain: Vec<&EndEntityCert<'_>> = Vec::new();
    let Ok(own) = EndEntityCert::try_from(end_entity) else {
        return Vec::new();
    };
    let mut last = &own;
    while let Some(issuer) = read.iter().find(|each| each.subject() == last.issuer()) {
        if chain.iter().any(|each| std::ptr::eq(*each, issuer)) {
            break;
        }
        chain.push(issuer);
        last = issuer;
    }
    chain.into_iter().map(|each| each.der()).collect()
}
