"""X.509 certificates (RFC 5280): the subject in Java's form, the validity, and whether it is an authority.

Owns the grammar of names that Java accepts. Certificates are parsed in Rust (`logcore._native`). Pure; any
thread.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from logcore import _native

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_KNOWN_TO_JAVA = (
    "CN|C|L|S|ST|O|OU|T|IP|STREET|DC|DNQUALIFIER|DNQ|SURNAME|GIVENNAME|INITIALS|GENERATION|EMAIL|EMAILADDRESS|"
    "UID|SERIALNUMBER"
)
_TYPE = rf"(?:{_KNOWN_TO_JAVA}|(?:OID\.)?[0-2](?:\.[0-9]+)+)"
_VALUE = r'(?:"(?:[^"\\]|\\.)*+"\s*+|#(?:[0-9A-F]{2})++\s*+|(?:[^,+;"\\#<>=\s]|\\.)(?:[^,+;"\\<>]|\\.)*+|)'
_PART = rf"\s*+{_TYPE}\s*+=\s*+{_VALUE}"
_NAME = re.compile(rf"{_PART}(?:[,;+]{_PART})*+", re.IGNORECASE | re.DOTALL)
NAME_LENGTH_MAX = 4096


def subject(certificate: bytes) -> str:
    """The subject of a DER certificate as Java's `X500Principal.getName()` writes it (RFC 2253).

    Raises ValueError if the bytes are not a certificate.
    """
    return _native.certificate_subject(certificate)


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """The first and the last moment at which a DER certificate is valid.

    Raises ValueError if the bytes are not a certificate.
    """
    begin, end = _native.certificate_validity(certificate)
    return _EPOCH + timedelta(seconds=begin), _EPOCH + timedelta(seconds=end)


def is_authority(certificate: bytes) -> bool:
    """Whether Java lets a DER certificate of a trust store sign others (`PKIXValidator`).

    Raises ValueError if the bytes are not a certificate.
    """
    return _native.certificate_is_authority(certificate)


def is_name(text: str) -> bool:
    """Whether `new X500Principal(text)` accepts the name. Texts longer than any certificate's name are
    refused.
    """
    return not text or (len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text) is not None)
