//! The cipher suites of TLS listeners, by Java's names.

use std::sync::LazyLock;

use rustls::crypto::{CipherSuiteCommon, CryptoProvider, ring};
use rustls::{SupportedCipherSuite, Tls12CipherSuite};

/// The suites of `ring`, without rustls' limit of records for TLS 1.2. At that limit rustls ends a session
/// between two records and drops later writes silently. Java and OpenSSL have no such limit.
static SUITES: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
    let suites = ring::default_provider().cipher_suites;
    suites.into_iter().map(without_limit).collect()
});

fn without_limit(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let SupportedCipherSuite::Tls12(suite) = suite else {
        // TLS 1.3 changes its keys at the limit.
        return suite;
    };
    let common = CipherSuiteCommon {
        suite: suite.common.suite,
        hash_provider: suite.common.hash_provider,
        confidentiality_limit: u64::MAX,
    };
    SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite { common, ..*suite })))
}

/// All cipher suites, by Java's names.
pub fn cipher_suites() -> Vec<String> {
    SUITES.iter().map(|suite| java_name(suite.suite())).collect()
}

/// rustls has its own names for the suites of TLS 1.3.
fn java_name(suite: rustls::CipherSuite) -> String {
    let name = suite.as_str().unwrap_or_default();
    name.replacen("TLS13_", "TLS_", 1)
}

/// The cryptography of a listener with the named suites. An empty list stands for all.
pub(super) fn provider(names: &[String]) -> CryptoProvider {
    let mut provider = CryptoProvider {
        cipher_suites: SUITES.clone(),
        ..ring::default_provider()
    };
    if !names.is_empty() {
        let is_named = |suite: &rustls::SupportedCipherSuite| names.contains(&java_name(suite.suite()));
        provider.cipher_suites.retain(is_named);
    }
    provider
}
