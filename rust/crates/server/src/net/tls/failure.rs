//! Failures of handshakes, with their likely cause.

use std::io;

use rustls::{AlertDescription, CertificateError};

/// Why a handshake did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The peer closed the connection.
    Gone,
    /// One side refused the other.
    Refused(String),
    /// The peer's certificate is trusted, but `ssl.principal.mapping.rules` maps it to no principal.
    NoPrincipal(String),
}

impl Failure {
    pub(super) fn of(error: io::Error) -> Self {
        let refusal = error.get_ref();
        match refusal.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(ours))) => {
                Self::Refused(format!("invalid peer certificate: {ours}"))
            }
            Some(refusal) => Self::Refused(format!("{refusal}{}", advice(refusal))),
            None => Self::Gone,
        }
    }
}

/// The likely cause, and the setting to change.
fn advice(refusal: &rustls::Error) -> &'static str {
    match refusal {
        rustls::Error::InvalidMessage(_) => {
            "; the peer does not speak TLS: its security.protocol must be SSL"
        }
        rustls::Error::NoCertificatesPresented => {
            "; ssl.client.auth=required: the client needs a certificate of its own (ssl.keystore.location)"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "; no authority in the trust store (ssl.truststore.location) signed the client's certificate",
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => "; the client does not trust this listener's certificate, or it is for another host name",
        rustls::Error::PeerIncompatible(_) => {
            "; the two have no protocol or cipher suite in common (ssl.enabled.protocols, ssl.cipher.suites)"
        }
        _ => "",
    }
}
