//! An X.509 certificate (RFC 5280): the name of its subject in Java's form, its validity, and its authority.

use std::fmt::{Display, Write};

use x509_parser::asn1_rs::{Tag, ToDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Version};

use crate::error::{Error, Result};

/// Attribute types that RFC 2253 names (2.3). Others are written as numbers, with the value in hexadecimal.
const KEYWORDS: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// The ASN.1 types whose values Java writes as text.
const STRINGS: [Tag; 7] = [
    Tag::Utf8String,
    Tag::PrintableString,
    Tag::T61String,
    Tag::Ia5String,
    Tag::GeneralString,
    Tag::UniversalString,
    Tag::BmpString,
];

/// A parsed certificate.
pub struct Certificate<'a>(X509Certificate<'a>);

impl<'a> Certificate<'a> {
    /// Parses DER.
    ///
    /// # Errors
    /// [`Error::Certificate`]: this is no X.509 certificate.
    pub fn parse(der: &'a [u8]) -> Result<Self> {
        match parse_x509_certificate(der) {
            Ok((_, certificate)) => Ok(Self(certificate)),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// The subject as `X500Principal.getName()` gives it: RFC 2253, with Java's escapes.
    ///
    /// # Errors
    /// [`Error::Certificate`]: an attribute cannot be encoded again.
    pub fn subject(&self) -> Result<String> {
        let names = self.0.subject().iter().map(relative_name);
        let mut names = names.collect::<Result<Vec<_>>>()?;
        names.reverse();
        Ok(names.join(","))
    }

    /// The first and the last second at which the certificate is valid, since 1970 UTC.
    pub fn validity(&self) -> (i64, i64) {
        let validity = self.0.validity();
        (validity.not_before.timestamp(), validity.not_after.timestamp())
    }

    /// Whether the certificate may sign others by Java's rules for a trust store (`PKIXValidator`): it is of
    /// version 1, or basicConstraints makes it an authority and keyUsage, if present, allows keyCertSign.
    ///
    /// # Errors
    /// [`Error::Certificate`]: an extension is there twice.
    pub fn is_authority(&self) -> Result<bool> {
        if self.0.version() == X509Version::V1 {
            return Ok(true);
        }
        let constraints = self.0.basic_constraints().map_err(unreadable)?;
        let usage = self.0.key_usage().map_err(unreadable)?;
        let may_sign = usage.is_none_or(|usage| usage.value.key_cert_sign());
        Ok(constraints.is_some_and(|constraints| constraints.value.ca) && may_sign)
    }

    /// The bits of the subject's public key.
    pub(crate) fn public_key(&self) -> Vec<u8> {
        self.0.public_key().subject_public_key.data.to_vec()
    }
}

fn unreadable(error: impl Display) -> Error {
    Error::Certificate(error.to_string())
}

fn relative_name(name: &RelativeDistinguishedName<'_>) -> Result<String> {
    let attributes = name.iter().map(attribute);
    Ok(attributes.collect::<Result<Vec<_>>>()?.join("+"))
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> Result<String> {
    let number = attribute.attr_type().to_id_string();
    let keyword = KEYWORDS
        .iter()
        .find(|(known, _)| *known == number)
        .map(|(_, keyword)| *keyword);
    let value = attribute.attr_value();
    match keyword {
        Some(keyword) if STRINGS.contains(&value.tag()) => Ok(format!(
            "{keyword}={}",
            escaped(&String::from_utf8_lossy(value.data))
        )),
        _ => {
            let encoded = value.to_der_vec_raw().map_err(unreadable)?;
            let mut text = format!("{}=#", keyword.unwrap_or(&number));
            for byte in encoded {
                let _ = write!(text, "{byte:02x}");
            }
            Ok(text)
        }
    }
}

/// Java's escapes: a backslash before RFC 2253's special characters and before each space or return at an
/// end.
fn escaped(value: &str) -> String {
    let is_outer = |character: char| character == ' ' || character == '\r';
    let begin = value.len() - value.trim_start_matches(is_outer).len();
    let end = value.trim_end_matches(is_outer).len();
    let mut escaped = String::with_capacity(value.len());
    for (index, character) in value.char_indices() {
        match character {
            '\0' => escaped.push_str("\\00"),
            ',' | '=' | '+' | '<' | '>' | '#' | ';' | '"' | '\\' => escaped.extend(['\\', character]),
            _ if index < begin || index >= end => escaped.extend(['\\', character]),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this failed, two clients could have the same name, or an ACL would not match a client.
    #[test]
    fn names_are_escaped_as_java_escapes_them() {
        assert_eq!(escaped("ann"), "ann");
        assert_eq!(
            escaped("a,b=c+d<e>f#g;h\"i\\j"),
            r#"a\,b\=c\+d\<e\>f\#g\;h\"i\\j"#
        );
        assert_eq!(escaped("  a b \r"), "\\ \\ a b\\ \\\r");
        assert_eq!(escaped("a\0b"), "a\\00b");
        assert_eq!(escaped(" "), "\\ ");
    }

    /// If this failed, a damaged certificate would end the process, or be taken for another one.
    #[test]
    fn damaged_input_is_an_error() {
        for bytes in [&b""[..], b"0", b"\x30\x03\x02\x01\x01", &[0x30; 64]] {
            assert!(matches!(Certificate::parse(bytes), Err(Error::Certificate(_))));
        }
    }
}
