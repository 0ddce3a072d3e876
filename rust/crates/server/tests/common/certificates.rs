//! Certificates for tests of TLS: an authority and the certificates that it signs, made by `openssl`.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::{ClientAuth, TlsOptions};

const NEW_KEY: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

pub(crate) struct Authority(tempfile::TempDir);

/// A certificate and its key.
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("authority", 0)
    }

    /// An authority with so many unknown extensions.
    pub(crate) fn named(name: &str, extensions: usize) -> Self {
        let authority = Self(tempfile::tempdir().unwrap());
        let subject = format!("/CN={name}");
        let unknown = |each| format!("1.2.3.{}.{}=DER:0500", 1 + each / 100, 1 + each % 100);
        let unknown: Vec<_> = (0..extensions).map(unknown).collect();
        let mut rest = vec!["-out", "ca.crt", "-subj", &subject];
        rest.extend(["-addext", "keyUsage=critical,keyCertSign"]);
        rest.extend(unknown.iter().flat_map(|each| ["-addext", each]));
        authority.openssl(
            &["req", "-x509", "-days", "2", "-nodes", "-keyout", "ca.key"],
            &rest,
        );
        authority
    }

    /// An authority that this one signs.
    pub(crate) fn subordinate(&self, name: &str) -> Self {
        let made = Self::named(name, 0);
        let at = |name| made.path(name).to_string_lossy().into_owned();
        std::fs::write(
            made.path("ca.cnf"),
            "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n",
        )
        .unwrap();
        made.openssl(
            &["x509", "-x509toreq", "-in", "ca.crt", "-signkey", "ca.key"],
            &["-out", "ca.csr"],
        );
        self.openssl(
            &["x509", "-req", "-days", "2", "-in", &at("ca.csr")],
            &[
                "-out",
                &at("ca.crt"),
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-extfile",
                &at("ca.cnf"),
            ],
        );
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn openssl(&self, first: &[&str], rest: &[&str]) {
        let is_new = first[0] == "req";
        let done = Command::new("openssl")
            .current_dir(self.0.path())
            .args(first)
            .args(if is_new { &NEW_KEY[..] } else { &[] })
            .args(rest)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{stderr}");
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path("ca.crt")).unwrap()
    }

    /// A certificate for localhost. `subject` is in openssl's form, `/CN=name`.
    pub(crate) fn issue(&self, subject: &str) -> Identity {
        self.openssl(
            &["req", "-new", "-nodes", "-keyout", "one.key"],
            &["-out", "one.csr", "-subj", subject],
        );
        std::fs::write(self.path("one.cnf"), "subjectAltName=DNS:localhost\n").unwrap();
        self.openssl(
            &["x509", "-req", "-days", "2", "-in", "one.csr", "-out", "one.crt"],
            &[
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-extfile",
                "one.cnf",
            ],
        );
        Identity {
            certificate: CertificateDer::from_pem_file(self.path("one.crt")).unwrap(),
            key: PrivateKeyDer::from_pem_file(self.path("one.key")).unwrap(),
        }
    }

    /// Options of a listener with a certificate of this authority. A client's principal is the length of its
    /// certificate.
    pub(crate) fn options(&self, client_auth: ClientAuth) -> TlsOptions {
        let own = self.issue("/CN=broker");
        TlsOptions {
            certificates: vec![own.certificate.to_vec()],
            key: own.key.secret_der().to_vec(),
            authorities: vec![self.certificate().to_vec()],
            trusted: vec![],
            client_auth,
            protocols: vec!["TLSv1.2".to_owned(), "TLSv1.3".to_owned()],
            cipher_suites: Vec::new(),
            principal: Arc::new(|certificate| Ok(format!("{} bytes", certificate.len()))),
        }
    }

    /// A client that trusts the authority and sends `identity`, if there is one.
    pub(crate) fn client(&self, identity: Option<Identity>) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut trusted = RootCertStore::empty();
        trusted.add(self.certificate()).unwrap();
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted);
        Arc::new(match identity {
            Some(own) => config
                .with_client_auth_cert(vec![own.certificate], own.key)
                .unwrap(),
            None => config.with_no_client_auth(),
        })
    }
}
