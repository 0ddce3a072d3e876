"""Files with keys and certificates, opened for whoever serves TLS.

Owns how a store is read: PEM or PKCS12, told apart by its content. PKCS12 and keys under a password are opened with the
program ``openssl``; what comes out of it stays in memory. A Java key store (JKS, JCEKS) is refused with the command that
converts it. A password is in no error. ``what`` in each call is the setting and the file, for errors.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cluster.x509 import with_public_key

OPENSSL_SECONDS = 30.0

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATES = ("CERTIFICATE", "X509 CERTIFICATE")
_KEY = "PRIVATE KEY"
_ENCRYPTED = ("ENCRYPTED PRIVATE KEY", "4,ENCRYPTED")
_LINE = 64
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC = b"\xce\xce\xce\xce"
_DER_SEQUENCE = b"\x30"
_PASSWORD = "LOGCORE_STORE_PASSWORD"


class KeyStoreError(ValueError):
    """A store that cannot be used; the text names it and says what to do."""


@dataclass(frozen=True)
class Store:
    """A file with certificates, and a key if it is a key store; the password opens it."""

    path: Path
    password: str = field(default="", repr=False)


class Identity(NamedTuple):
    """A private key and its certificate with those between it and its authority, in DER, its own first."""

    key: bytes
    certificates: list[bytes]


def read_key_store(store: Store, what: str) -> tuple[str, str]:
    """Key and certificates as PEM, and the password that the key is still under. Raises KeyStoreError."""
    data = _content(store, what)
    if data[:1] == _DER_SEQUENCE:
        own = _from_pkcs12(store, what, "-clcerts")
        return own + _from_pkcs12(store, what, "-cacerts", "-nokeys"), ""
    return data.decode("utf-8", "replace"), store.password


def read_trust_store(store: Store, what: str, *, asked: bool) -> list[bytes]:
    """The certificates of a store, in DER, for who asks peers for theirs or only has the store. Raises KeyStoreError: there are
    none; PKCS12 with a private key in it, if peers are ``asked``.
    """
    data = _content(store, what)
    if data[:1] == _DER_SEQUENCE:
        pem = _from_pkcs12(store, what)
        if asked and _KEY in pem:
            # Java trusts the key's own certificate, and not those it was issued by.
            raise KeyStoreError(
                f"{what} has a private key in it, with certificates of which it is not said whether they are to be trusted: make a "
                "trust store of those that are with keytool -importcert -storetype PKCS12, and name that file, or ask clients for no "
                "certificates"
            )
        return certificates(pem, what)
    return certificates(data.decode("utf-8", "replace"), what)


def certificates(pem: str, what: str) -> list[bytes]:
    """The certificates in ``pem``, in DER. Raises KeyStoreError, also if there are none."""
    found = [_bytes(body, what) for label, body in _BLOCK.findall(pem) if label in _CERTIFICATES]
    if not found:
        raise KeyStoreError(f"{what} has no certificates in it: PEM or PKCS12 with at least one is needed")
    return found


def identity(pem: str, password: str, what: str, password_setting: str) -> Identity:
    """The key and the certificates in ``pem``. Raises KeyStoreError, which names ``password_setting`` if the key is under a
    password that is missing or wrong.
    """
    keys = [block for block in _BLOCK.finditer(pem) if block[1].endswith(_KEY)]
    if len(keys) != 1:
        raise KeyStoreError(f"{what} has {len(keys) or 'no'} private keys, and exactly one is needed")
    chain = certificates(pem, what)
    block = keys[0]
    if any(word in block[0] for word in _ENCRYPTED):
        key = _decrypted(block, password, what, password_setting)
    else:
        key = _bytes(block[2], what)
    try:
        return Identity(with_public_key(key, chain[0]), chain)
    except ValueError as error:
        raise KeyStoreError(f"{what} has a key or certificate that cannot be read: {error}") from None


def _bytes(body: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error as error:
        raise KeyStoreError(
            f"{what} is no PEM: what stands between BEGIN and END is no base64: {error}"
        ) from None


def _decrypted(block: re.Match[str], password: str, what: str, setting: str) -> bytes:
    if not password:
        raise KeyStoreError(f"{what} has a private key under a password: give it in {setting}")
    text = block[0]
    if block[1] == _ENCRYPTED[0]:
        # In a properties file all may be one line.
        body = "".join(block[2].split())
        lines = [body[start : start + _LINE] for start in range(0, len(body), _LINE)]
        text = "\n".join([f"-----BEGIN {block[1]}-----", *lines, f"-----END {block[1]}-----"])
    way_out = "openssl pkey -in FILE -out FILE.pem, and name that one"
    done = _openssl(
        what, password, way_out, "pkey", "-passin", f"env:{_PASSWORD}", "-outform", "DER", given=text.encode()
    )
    if done.returncode != 0:
        raise KeyStoreError(
            f"{what} has a private key that its password, {setting}, does not open; openssl says: {_said(done)}"
        )
    return done.stdout


def _content(store: Store, what: str) -> bytes:
    try:
        data = store.path.read_bytes()
    except OSError as error:
        raise KeyStoreError(f"{what} cannot be read: {error.strerror or error}") from None
    if data[:4] in (_JKS_MAGIC, _JCEKS_MAGIC):
        raise KeyStoreError(
            f"{what} is a Java key store, which only Java reads; convert it with keytool -importkeystore -srckeystore "
            f"{store.path} -destkeystore {store.path.with_suffix('.p12')} -deststoretype PKCS12, and name that file"
        )
    return data


def _from_pkcs12(store: Store, what: str, *options: str) -> str:
    """What a PKCS12 file holds, as PEM; the ciphers of older ones are OpenSSL's ``-legacy`` provider's."""
    way_out = f"openssl pkcs12 -in {store.path} -nodes -out {store.path.with_suffix('.pem')}"
    command = ("pkcs12", "-in", str(store.path), "-nodes", "-passin", f"env:{_PASSWORD}", *options)
    done = _openssl(what, store.password, way_out, *command)
    if done.returncode != 0:
        first = done
        done = _openssl(what, store.password, way_out, *command, "-legacy")
        if done.returncode != 0:
            raise KeyStoreError(
                f"{what} is no PKCS12 file that its password opens; openssl says: {_said(first)}"
            )
    return done.stdout.decode("utf-8", "replace")


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
    return lines[0]


def _openssl(
    what: str, password: str, way_out: str, *arguments: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["openssl", *arguments],
            env={**os.environ, _PASSWORD: password},
            input=given,
            capture_output=True,
            timeout=OPENSSL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise KeyStoreError(
            f"{what} is opened with the program openssl, and there is none: install it, or convert the file where there "
            f"is one with {way_out}"
        ) from None
    except subprocess.TimeoutExpired:
        raise KeyStoreError(f"{what}: openssl did not end within {OPENSSL_SECONDS:g} s") from None
