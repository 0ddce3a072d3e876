"""TLS as `zoo.cfg` describes it: key stores, trust stores, protocols and cipher suites, made into a context.

Owns the settings ``ssl.*`` of the client ports and ``ssl.quorum.*`` of the admin server (``X509Util``,
``ClientX509Util``). :mod:`cluster.keystores` opens the stores.

Revocation (``ssl.crl``, ``ssl.ocsp``) and host names of clients (``ssl.clientHostnameVerification``) cannot
be checked, and settings that ask for it are refused.
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
    """The settings of a port.

    ``prefix`` is that of the settings' names, for errors. All versions between the oldest and the newest of
    ``protocols`` are served. ``cipher_suites`` are Java's names, empty for the defaults; OpenSSL chooses
    among those of TLS 1.3. ``reloads``: new connections use changed stores (:mod:`.renewal`).
    """

    key_store: Store
    trust_store: Store | None = None
    client_auth: str = "need"
    protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    prefix: str = "ssl."
    reloads: bool = False


class SecurePort(NamedTuple):
    """A client port with TLS. Port 0 means any free one."""

    host: str
    port: int
    tls: TlsSettings


def tls_settings(values: Values, prefix: str = "ssl.", client_auth: str = "") -> TlsSettings:
    """Returns the settings with a prefix. ``client_auth`` replaces the setting of that name if it is given.

    Raises CoordinatorError, which names the setting that is missing or refused.
    """
    for name in _NOT_CHECKED:
        if values.boolean(prefix + name, False):
            raise CoordinatorError(
                f"{prefix}{name} is true, and this server cannot check that: leave the line out, and "
                "restrict access to the port by other means"
            )
    key_store = _store(values, prefix, "keyStore")
    if key_store is None:
        raise CoordinatorError(
            f"{prefix}keyStore.location is not set: name the PEM or PKCS12 file with the server's key and "
            "certificate"
        )
    trust_store = _store(values, prefix, "trustStore")
    asked = client_auth or values.choice(prefix + "clientAuth", CLIENT_AUTH[0], CLIENT_AUTH)
    if asked != "none" and trust_store is None:
        raise CoordinatorError(
            f"{prefix}clientAuth is {asked} and {prefix}trustStore.location is not set, so no client could "
            "connect: name the file with the authorities of clients' certificates, or set "
            f"{prefix}clientAuth=none"
        )
    newest = values.choice(prefix + "protocol", DEFAULT_PROTOCOLS[0], tuple(_VERSIONS))
    protocols = _list(values, prefix + "enabledProtocols")
    for protocol in protocols:
        if protocol not in _VERSIONS:
            raise CoordinatorError(
                f"{prefix}enabledProtocols has {protocol!r}, and may have {', '.join(_VERSIONS)}"
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
    """Returns a server's context. Raises CoordinatorError, which names the file or the setting."""
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
    # As in Java, a certificate in the trust store is trusted even if it is not an authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _set_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Sets the protocols, except those without an enabled cipher suite."""
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
                    f"{settings.prefix}ciphersuites: this OpenSSL ({ssl.OPENSSL_VERSION}) has none of "
                    f"{', '.join(older)}"
                ) from None
    if not protocols:
        raise CoordinatorError(
            f"{settings.prefix}ciphersuites has none for {', '.join(settings.protocols)}: name some, or "
            "leave the line out"
        )
    versions = [_VERSIONS[protocol] for protocol in protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _openssl_name(suite: str, prefix: str) -> str:
    """Returns OpenSSL's name for Java's name of a cipher suite.

    Raises CoordinatorError for an unknown one.
    """
    if suite in _SUITES_OF_1_3:
        return suite
    found = _SUITE.fullmatch(suite)
    if found is None:
        raise CoordinatorError(
            f"{prefix}ciphersuites has {suite!r}, which is not a suite with RSA or ECDSA and AES or "
            "ChaCha20; leave it out"
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
    # OpenSSL reads keys only from files; this file is in memory.
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
