"""TLS as `zoo.cfg` describes it: key stores, trust stores, protocols and cipher suites, made into a context.

Owns the settings ``ssl.*`` of the client port and ``ssl.quorum.*`` of the admin server (``X509Util``,
``ClientX509Util``). How their stores are opened is ``cluster.keystores``'s.

Revocation (``ssl.crl``, ``ssl.ocsp``) and names of clients' hosts (``ssl.clientHostnameVerification``) are not checked:
who asks for them is refused rather than served without.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cluster.keystores import KeyStoreError, Store, read_key_store, read_trust_store

from ..errors import CoordinatorError
from ..settings.values import Values

DEFAULT_PROTOCOLS = ("TLSv1.3", "TLSv1.2")
CLIENT_AUTH = ("need", "want", "none")
STORE_TYPES = ("PEM", "PKCS12", "JKS", "BCFKS")

_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_NOT_CHECKED = ("crl", "ocsp", "clientHostnameVerification")
_SUITE = re.compile(
    r"TLS_(?:(ECDHE|DHE)_)?(RSA|ECDSA)_WITH_(AES_128|AES_256|CHACHA20)_(GCM|CBC|POLY1305)_SHA(256|384)?"
)
_SUITES_OF_1_3 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}


@dataclass(frozen=True)
class TlsSettings:
    """``prefix`` is what the settings' names begin with, for errors. Of ``protocols`` all between the oldest and the newest
    are served. ``cipher_suites`` are Java's names, empty for the
    defaults; which of TLS 1.3's are used is OpenSSL's to say. ``reloads``: stores that change count for new connections
    (:mod:`.renewal`)."""

    key_store: Store
    trust_store: Store | None = None
    client_auth: str = "need"
    protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    prefix: str = "ssl."
    reloads: bool = False


class SecurePort(NamedTuple):
    """A client port with TLS; port 0 is a free one."""

    host: str
    port: int
    tls: TlsSettings


def tls_settings(values: Values, prefix: str = "ssl.", client_auth: str = "") -> TlsSettings:
    """The settings that begin with ``prefix``, with ``client_auth`` in place of that one if it is given. Raises
    CoordinatorError, which names what is missing or refused."""
    for name in _NOT_CHECKED:
        if values.boolean(prefix + name, False):
            raise CoordinatorError(
                f"{prefix}{name} is true, and this server does not check that: leave the line out, and let only those "
                "reach the port who may"
            )
    key_store = _store(values, prefix, "keyStore")
    if key_store is None:
        raise CoordinatorError(
            f"{prefix}keyStore.location is not set: name the PEM or PKCS12 file with the server's key and certificate"
        )
    trust_store = _store(values, prefix, "trustStore")
    asked = client_auth or values.choice(prefix + "clientAuth", CLIENT_AUTH[0], CLIENT_AUTH)
    if asked != "none" and trust_store is None:
        raise CoordinatorError(
            f"{prefix}clientAuth is {asked} and {prefix}trustStore.location is not set, so no client could be let in: "
            f"name the file with the authorities of clients' certificates, or set {prefix}clientAuth=none"
        )
    newest = values.choice(prefix + "protocol", DEFAULT_PROTOCOLS[0], tuple(_VERSIONS))
    protocols = _list(values, prefix + "enabledProtocols")
    for protocol in protocols:
        if protocol not in _VERSIONS:
            raise CoordinatorError(
                f"{prefix}enabledProtocols has {protocol!r}, and can have {', '.join(_VERSIONS)}"
            )
    suites = _list(values, prefix + "ciphersuites")
    settings = TlsSettings(
        key_store,
        trust_store,
        asked,
        protocols or (DEFAULT_PROTOCOLS if newest == DEFAULT_PROTOCOLS[0] else (newest,)),
        suites,
        prefix,
    )
    for suite in suites:
        _openssl_name(suite, prefix)
    return settings


def _list(values: Values, name: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in values.text(name).split(",") if each.strip())


def _store(values: Values, prefix: str, which: str) -> Store | None:
    location = values.text(f"{prefix}{which}.location")
    password = values.text(f"{prefix}{which}.password")
    password_path = values.text(f"{prefix}{which}.passwordPath")
    values.choice(f"{prefix}{which}.type", "PEM", STORE_TYPES)
    if not location:
        return None
    if password_path:
        try:
            password = Path(password_path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CoordinatorError(f"{prefix}{which}.passwordPath cannot be read: {error}") from None
    return Store(Path(location), password)


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """A server's context. Raises CoordinatorError, which names the file or the setting."""
    prefix = settings.prefix
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_protocols(context, settings)
    _load_key(context, settings.key_store, prefix)
    if settings.trust_store is not None:
        asked = settings.client_auth != "none"
        _load_trust(context, settings.trust_store, prefix, asked)
    context.verify_mode = {"need": ssl.CERT_REQUIRED, "want": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}[
        settings.client_auth
    ]
    # A certificate in the trust store is trusted, also if it is nobody's authority: as in Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _set_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Enabled protocols, less those that no enabled cipher suite belongs to."""
    protocols = set(settings.protocols)
    if settings.cipher_suites:
        older = [suite for suite in settings.cipher_suites if suite not in _SUITES_OF_1_3]
        if not older:
            protocols &= {"TLSv1.3"}
        elif len(older) == len(settings.cipher_suites):
            protocols -= {"TLSv1.3"}
        names = [_openssl_name(suite, settings.prefix) for suite in older]
        if names:
            try:
                context.set_ciphers(":".join(names))
            except ssl.SSLError:
                raise CoordinatorError(
                    f"{settings.prefix}ciphersuites: this OpenSSL ({ssl.OPENSSL_VERSION}) has none of {', '.join(older)}"
                ) from None
    if not protocols:
        raise CoordinatorError(
            f"{settings.prefix}ciphersuites has none for {', '.join(settings.protocols)}: name some, or leave the line out"
        )
    versions = [_VERSIONS[protocol] for protocol in protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _openssl_name(suite: str, prefix: str) -> str:
    """OpenSSL's name of a cipher suite of Java's. Raises CoordinatorError for one that is not known."""
    if suite in _SUITES_OF_1_3:
        return suite
    found = _SUITE.fullmatch(suite)
    if found is None:
        raise CoordinatorError(
            f"{prefix}ciphersuites has {suite!r}, which is none of the suites with RSA or ECDSA and AES or ChaCha20; "
            "leave it out"
        )
    exchange, signature, cipher, mode, digest = found.groups()
    parts = [exchange, signature] if exchange else []
    if cipher == "CHACHA20":
        return "-".join([*parts, "CHACHA20-POLY1305"])
    parts.append(cipher.replace("_", ""))
    if mode == "GCM":
        parts.append("GCM")
    return "-".join([*parts, f"SHA{digest or ''}"])


def _load_key(context: ssl.SSLContext, store: Store, prefix: str) -> None:
    what = f"{prefix}keyStore.location={store.path}"
    try:
        data, password = read_key_store(store, what)
    except KeyStoreError as error:
        raise CoordinatorError(str(error)) from None
    # OpenSSL reads keys from files only; this one is in memory.
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=password)
    except (ssl.SSLError, OSError) as error:
        raise CoordinatorError(
            f"{what} has no key with its certificate that {prefix}keyStore.password opens: {error}"
        ) from None
    finally:
        os.close(descriptor)


def _load_trust(context: ssl.SSLContext, store: Store, prefix: str, asked: bool) -> None:
    what = f"{prefix}trustStore.location={store.path}"
    try:
        context.load_verify_locations(cadata=b"".join(read_trust_store(store, what, asked=asked)))
    except KeyStoreError as error:
        raise CoordinatorError(str(error)) from None
    except (ssl.SSLError, ValueError) as error:
        raise CoordinatorError(f"{what} has certificates that cannot be used: {error}") from None
