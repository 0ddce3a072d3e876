"""Key stores and trust stores for TLS: PEM or PKCS #12 files.

Owns how a store is read. The content decides the format, whatever a setting says. Rust opens PKCS #12 files
and encrypted keys (`logcore._native`); decrypted keys stay in memory. A Java key store (JKS, JCEKS) is
refused with the command that converts it. No error holds a password. The broker and the coordinator call this
from threads at their start. The parameter `what` names the setting and the file in errors.
"""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from logcore import _native

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATES = ("CERTIFICATE", "X509 CERTIFICATE")
_KEY = "PRIVATE KEY"
_ENCRYPTED_KEY = "ENCRYPTED PRIVATE KEY"
_OPENSSL_ENCRYPTED = "4,ENCRYPTED"
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC = b"\xce\xce\xce\xce"
_DER_SEQUENCE = b"\x30"


class KeyStoreError(ValueError):
    """A store that cannot be used; the text names it and says what to do."""


@dataclass(frozen=True)
class Store:
    """A file with certificates, and with a key if it is a key store. The password opens it."""

    path: Path
    password: str = field(default="", repr=False)


class Identity(NamedTuple):
    """A private key and its certificate chain in DER. The key's own certificate is the first."""

    key: bytes
    certificates: list[bytes]


def read_key_store(store: Store, what: str) -> tuple[str, str]:
    """Key and certificates as PEM, and the password that the key is still encrypted with. Raises
    KeyStoreError.
    """
    data = _content(store, what)
    if data[:1] == _DER_SEQUENCE:
        keys, certificates = _from_pkcs12(data, store, what)
        return "".join(map(_key_pem, keys)) + "".join(map(ssl.DER_cert_to_PEM_cert, certificates)), ""
    return data.decode("utf-8", "replace"), store.password


def read_trust_store(store: Store, what: str, *, asked: bool) -> list[bytes]:
    """The certificates of a store, in DER. `asked` says that clients are asked for certificates.

    Raises KeyStoreError if there are none, or if `asked` and the store is PKCS #12 with a private key.
    """
    data = _content(store, what)
    if data[:1] != _DER_SEQUENCE:
        return certificates(data.decode("utf-8", "replace"), what)
    keys, found = _from_pkcs12(data, store, what)
    if asked and keys:
        # Java trusts the key's own certificate and none of its issuers.
        raise KeyStoreError(
            f"{what} has a private key in it, so it is unclear which of its certificates to trust: make a "
            "trust store of the trusted ones with keytool -importcert -storetype PKCS12 and name that file, "
            "or do not ask clients for certificates"
        )
    return _not_empty(found, what)


def certificates(pem: str, what: str) -> list[bytes]:
    """The certificates in `pem`, in DER. Raises KeyStoreError, also if there are none."""
    return _not_empty(
        [_bytes(body, what) for label, body in _BLOCK.findall(pem) if label in _CERTIFICATES], what
    )


def identity(pem: str, password: str, what: str, password_setting: str) -> Identity:
    """The key and the certificates in `pem`.

    Raises KeyStoreError. If the key is encrypted and the password is missing or wrong, it names
    `password_setting`.
    """
    keys = [block for block in _BLOCK.finditer(pem) if block[1].endswith(_KEY)]
    if len(keys) != 1:
        raise KeyStoreError(f"{what} has {len(keys) or 'no'} private keys, and exactly one is needed")
    chain = certificates(pem, what)
    label, body = keys[0][1], keys[0][2]
    if _OPENSSL_ENCRYPTED in body:
        raise KeyStoreError(
            f"{what} has a private key in OpenSSL's old encrypted form: convert it with openssl pkcs8 -topk8"
        )
    key = _bytes(body, what)
    if label == _ENCRYPTED_KEY:
        key = _decrypted(key, password, what, password_setting)
    if label in (_KEY, _ENCRYPTED_KEY):
        try:
            key = _native.key_with_public_key(key, chain[0])
        except ValueError as error:
            raise KeyStoreError(f"{what}: {error}") from None
    return Identity(key, chain)


def _not_empty(found: list[bytes], what: str) -> list[bytes]:
    if not found:
        raise KeyStoreError(f"{what} has no certificates in it: PEM or PKCS12 with at least one is needed")
    return found


def _bytes(body: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error as error:
        raise KeyStoreError(
            f"{what} is not PEM: the text between BEGIN and END is not base64: {error}"
        ) from None


def _key_pem(key: bytes) -> str:
    return f"-----BEGIN {_KEY}-----\n{base64.encodebytes(key).decode()}-----END {_KEY}-----\n"


def _decrypted(key: bytes, password: str, what: str, setting: str) -> bytes:
    if not password:
        raise KeyStoreError(f"{what} has an encrypted private key: set its password in {setting}")
    _require_text(password, what)
    try:
        decrypted = _native.decrypt_key(key, password)
    except ValueError as error:
        raise KeyStoreError(
            f"{what} has a private key that cannot be decrypted ({error}): convert the key with "
            "openssl pkcs8 -topk8"
        ) from None
    if decrypted is None:
        raise KeyStoreError(
            f"{what} has a private key that its password, {setting}, does not open: correct the password"
        )
    return decrypted


def _require_text(password: str, what: str) -> None:
    try:
        password.encode()
    except UnicodeEncodeError:
        raise KeyStoreError(
            f"{what}: its password has half a surrogate pair, which is no character: correct the password"
        ) from None


def _content(store: Store, what: str) -> bytes:
    _require_text(store.password, what)
    try:
        data = store.path.read_bytes()
    except OSError as error:
        raise KeyStoreError(f"{what} cannot be read: {error.strerror or error}") from None
    if data[:4] in (_JKS_MAGIC, _JCEKS_MAGIC):
        raise KeyStoreError(
            f"{what} is a Java key store (JKS), which is not supported: convert it with keytool "
            f"-importkeystore -srckeystore {store.path} -destkeystore {store.path.with_suffix('.p12')} "
            "-deststoretype PKCS12, and name that file"
        )
    return data


def _from_pkcs12(data: bytes, store: Store, what: str) -> tuple[list[bytes], list[bytes]]:
    """The private keys and the certificates of a PKCS #12 file, in DER."""
    try:
        opened = _native.open_pkcs12(data, store.password)
    except ValueError as error:
        raise KeyStoreError(
            f"{what} cannot be opened as PKCS12 ({error}): convert it to PEM with openssl pkcs12 -in "
            f"{store.path} -out {store.path.with_suffix('.pem')}, which needs -legacy for an old cipher, and "
            "name that file"
        ) from None
    if opened is None:
        raise KeyStoreError(f"{what} is not opened by its password: correct the password")
    return opened
