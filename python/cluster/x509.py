"""What a certificate says: whom it is for, in the words Java has for it, how long, and with which key.

Owns the subject of a certificate in DER (X.509, RFC 5280 4.1) as ``X500Principal.getName()`` gives it, which is RFC
2253 with Java's escapes, and which names ``new X500Principal(text)`` takes. Pure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""RFC 2253, 2.3. Other types are written as their numbers, with the value in hexadecimal."""

_STRINGS = {0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E}
"""Tags of strings: UTF8, Printable, T61, IA5, General, Universal, BMP."""

_ESCAPED = re.compile(r'[,=+<>#;"\\]')
_OUTER_SPACE = re.compile(r"^[ \r]+|[ \r]+$")

_SEQUENCE, _OBJECT_IDENTIFIER = 0x30, 0x06
_OCTET_STRING = 0x04
_VERSION = 0xA0
_PUBLIC_KEY = 0xA1
_EXTENSIONS = 0xA3
_BOOLEAN = 0x01
_UTC_TIME = 0x17
_BASIC_CONSTRAINTS, _KEY_USAGE = b"\x55\x1d\x13", b"\x55\x1d\x0f"
"""2.5.29.19 and 2.5.29.15"""
_KEY_CERT_SIGN = 0x04
"""The sixth bit of keyUsage."""
_ECDSA = bytes.fromhex("2a8648ce3d0201")
"""1.2.840.10045.2.1"""


class _Element(NamedTuple):
    """``whole`` is tag, length and content."""

    tag: int
    content: bytes
    whole: bytes


def subject(certificate: bytes) -> str:
    """The subject of a certificate in DER. Raises ValueError for what is none."""
    try:
        relative = [_relative(each) for each in _elements(_fields(certificate)[4].content)]
    except (IndexError, StopIteration) as error:
        raise ValueError("the certificate ends early") from error
    return ",".join(reversed(relative))


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """The first and the last moment at which a certificate in DER is valid. Raises ValueError for what is none."""
    try:
        begin, end = map(_time, _elements(_fields(certificate)[3].content))
    except (IndexError, StopIteration) as error:
        raise ValueError("the certificate ends early") from error
    return begin, end


def may_vouch(certificate: bytes) -> bool:
    """Whether a certificate in DER may vouch for others, as Java asks of one in a trust store (``PKIXValidator``): one of
    version 1, or an authority's by basicConstraints, that may sign certificates if keyUsage says for what it is. Raises
    ValueError for what is none.
    """
    try:
        signed = _elements(_elements(_one(certificate).content)[0].content)
        if signed[0].tag != _VERSION:
            return True
        said = {parts[0].content: parts[-1].content for parts in map(_parts, _extensions(signed))}
        constraints = said.get(_BASIC_CONSTRAINTS, b"")
        is_authority = bool(constraints) and _is_true(_elements(_one(constraints).content)[:1])
        if not is_authority or _KEY_USAGE not in said:
            return is_authority
        bits = _elements(said[_KEY_USAGE])[0].content
        return len(bits) > 1 and bool(bits[1] & _KEY_CERT_SIGN)
    except (IndexError, StopIteration) as error:
        raise ValueError("the certificate ends early") from error


def with_public_key(key: bytes, certificate: bytes) -> bytes:
    """A private key in PKCS #8 with the public key that belongs to it, which Java leaves out of those of elliptic curves, and
    is that of its certificate. Any other key stays as it is. Raises ValueError for what is no key or no certificate.
    """
    try:
        version, algorithm, private = _elements(_one(key).content)[:3]
        if private.tag != _OCTET_STRING or _elements(algorithm.content)[0].content != _ECDSA:
            return key
        parts = _elements(_one(private.content).content)
        if any(part.tag == _PUBLIC_KEY for part in parts):
            return key
        public = _elements(_fields(certificate)[5].content)[1]
    except (IndexError, StopIteration) as error:
        raise ValueError("the private key ends early") from error
    whole = b"".join(part.whole for part in parts) + _der(_PUBLIC_KEY, public.whole)
    inner = _der(_OCTET_STRING, _der(_SEQUENCE, whole))
    return _der(_SEQUENCE, version.whole + algorithm.whole + inner)


def _extensions(signed: list[_Element]) -> list[_Element]:
    wrapped = [element for element in signed if element.tag == _EXTENSIONS]
    return _elements(_one(wrapped[0].content).content) if wrapped else []


def _parts(element: _Element) -> list[_Element]:
    return _elements(element.content)


def _is_true(elements: list[_Element]) -> bool:
    return any(element.tag == _BOOLEAN and element.content != b"\0" for element in elements)


def _fields(certificate: bytes) -> list[_Element]:
    """serialNumber, signature, issuer, validity, subject, subjectPublicKeyInfo and those that may follow."""
    signed = _elements(_one(certificate).content)[0]
    fields = _elements(signed.content)
    return fields[1:] if fields[0].tag == _VERSION else fields


def _time(element: _Element) -> datetime:
    """RFC 5280 4.1.2.5: years of two digits are from 1950 to 2049."""
    text = element.content.decode("ascii", "replace")
    if element.tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _relative(element: _Element) -> str:
    """One relative name: mostly one attribute, otherwise some with ``+`` between."""
    return "+".join(map(_attribute, _elements(element.content)))


def _attribute(element: _Element) -> str:
    kind, value = _elements(element.content)
    number = _number(kind)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or number}=#{value.whole.hex()}"
    text = _ESCAPED.sub(r"\\\g<0>", value.content.decode("utf-8", "replace")).replace("\0", "\\00")
    return f"{keyword}={_OUTER_SPACE.sub(_escape_each, text)}"


def _escape_each(found: re.Match[str]) -> str:
    return "".join("\\" + character for character in found[0])


def _number(element: _Element) -> str:
    """An object identifier with dots."""
    if element.tag != _OBJECT_IDENTIFIER:
        raise ValueError(f"tag {element.tag:#x} where an attribute's type belongs")
    numbers: list[int] = []
    value = 0
    for byte in element.content:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _one(data: bytes) -> _Element:
    element = next(iter(_elements(data)))
    if element.tag != _SEQUENCE:
        raise ValueError(f"tag {element.tag:#x} where a certificate begins")
    return element


def _elements(data: bytes) -> list[_Element]:
    """What follows one another in ``data``: each a tag, a length of one byte or more, and a content."""
    elements = []
    position = 0
    while position < len(data):
        start, tag, length = position, data[position], data[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        end = position + length
        if end > len(data):
            raise ValueError(f"an element of {length} bytes where {len(data) - position} are left")
        elements.append(_Element(tag, data[position:end], data[start:end]))
        position = end
    return elements


_KNOWN_TO_JAVA = (
    "CN|C|L|S|ST|O|OU|T|IP|STREET|DC|DNQUALIFIER|DNQ|SURNAME|GIVENNAME|INITIALS|GENERATION|EMAIL|EMAILADDRESS|UID|"
    "SERIALNUMBER"
)
_TYPE = rf"(?:{_KNOWN_TO_JAVA}|(?:OID\.)?[0-2](?:\.[0-9]+)+)"
_VALUE = r'(?:"(?:[^"\\]|\\.)*+"\s*+|#(?:[0-9A-F]{2})++\s*+|(?:[^,+;"\\#<>=\s]|\\.)(?:[^,+;"\\<>]|\\.)*+|)'
_PART = rf"\s*+{_TYPE}\s*+=\s*+{_VALUE}"
_NAME = re.compile(rf"{_PART}(?:[,;+]{_PART})*+", re.IGNORECASE | re.DOTALL)
NAME_LENGTH_MAX = 4096


def is_name(text: str) -> bool:
    """Whether Java takes it for a name; longer ones than any certificate's are none here."""
    return not text or (len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text) is not None)
