"""TLS as `zoo.cfg` describes it: key stores, trust stores, protocols and cipher suites, made into a context.

Owns the settings ``ssl.*`` of the client port and ``ssl.quorum.*`` of the admin server (``X509Util``,
``ClientX509Util``). A store is PEM or PKCS12, told apart by its content; PKCS12 is opened with the program ``openssl``,
and what comes out of it stays in memory. A Java key store (JKS, BCFKS) is refused with the command that converts it.

Revocation (``ssl.crl``, ``ssl.ocsp``) and names of clients' hosts (``ssl.clientHostnameVerification``) are not checked:
who asks for them is refused rather than served without.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .errors import CoordinatorError
from .values import Values

DEFAULT_PROTOCOLS = ("TLSv1.3", "TLSv1.2")
CLIENT_AUTH = ("need", "want", "none")
STORE_TYPES = ("PEM", "PKCS12", "JKS", "BCFKS")
OPENSSL_SECONDS = 30.0

_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_NOT_CHECKED = ("crl", "ocsp", "clientHostnameVerification")
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC = b"\xce\xce\xce\xce"
_DER_SEQUENCE = b"\x30"
_SUITE = re.compile(
    r"TLS_(?:(ECDHE|DHE)_)?(RSA|ECDSA)_WITH_(AES_128|AES_256|CHACHA20)_(GCM|CBC|POLY1305)_SHA(256|384)?"
)
_SUITES_OF_1_3 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}


@dataclass(frozen=True)
class Store:
    """A file with certificates, and a key if it is a key store; the password opens it."""

    path: Path
    password: str = ""


@dataclass(frozen=True)
class TlsSettings:
    """``prefix`` is what the settings' names begin with, for errors. Of ``protocols`` all between the oldest and the newest
    are served. ``cipher_suites`` are Java's names, empty for the
    defaults; which of TLS 1.3's are used is OpenSSL's to say."""

    key_store: Store
    trust_store: Store | None = None
    client_auth: str = "need"
    protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    prefix: str = "ssl."


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
        _load_trust(context, settings.trust_store, prefix)
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
    data = _content(store, what)
    if data[:1] == _DER_SEQUENCE:
        data = _from_pkcs12(store, what, "-clcerts") + _from_pkcs12(store, what, "-cacerts", "-nokeys")
        password = ""
    else:
        password = store.password
    # OpenSSL reads keys from files only; this one is in memory.
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=password)
    except (ssl.SSLError, OSError) as error:
        raise CoordinatorError(
            f"{what} has no key with its certificate that {prefix}keyStore.password opens: {error}"
        ) from None
    finally:
        os.close(descriptor)


def _load_trust(context: ssl.SSLContext, store: Store, prefix: str) -> None:
    what = f"{prefix}trustStore.location={store.path}"
    data = _content(store, what)
    if data[:1] == _DER_SEQUENCE:
        data = _from_pkcs12(store, what, "-nokeys")
    certificates = _CERTIFICATE.findall(data.decode("ascii", "replace"))
    try:
        context.load_verify_locations(cadata="\n".join(certificates))
    except (ssl.SSLError, ValueError) as error:
        raise CoordinatorError(f"{what} has no certificates in it: {error}") from None


def _content(store: Store, what: str) -> bytes:
    try:
        data = store.path.read_bytes()
    except OSError as error:
        raise CoordinatorError(f"{what} cannot be read: {error.strerror or error}") from None
    if data[:4] in (_JKS_MAGIC, _JCEKS_MAGIC):
        raise CoordinatorError(
            f"{what} is a Java key store, which only Java reads; convert it with keytool -importkeystore -srckeystore "
            f"{store.path} -destkeystore {store.path.with_suffix('.p12')} -deststoretype PKCS12, and name that file"
        )
    return data


def _from_pkcs12(store: Store, what: str, *options: str) -> bytes:
    """What a PKCS12 file holds, as PEM; the ciphers of older ones are OpenSSL's ``-legacy`` provider's."""
    command = [
        "openssl",
        "pkcs12",
        "-in",
        str(store.path),
        "-nodes",
        "-passin",
        "env:LOGCORE_STORE_PASSWORD",
        *options,
    ]
    for legacy in ([], ["-legacy"]):
        try:
            done = subprocess.run(
                [*command, *legacy],
                env={**os.environ, "LOGCORE_STORE_PASSWORD": store.password},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=OPENSSL_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise CoordinatorError(
                f"{what} is PKCS12, which is opened with the program openssl, and there is none: install it, or convert "
                f"the file where there is one with openssl pkcs12 -in {store.path} -nodes -out {store.path.with_suffix('.pem')}"
            ) from None
        except subprocess.TimeoutExpired:
            raise CoordinatorError(f"{what}: openssl did not end within {OPENSSL_SECONDS:g} s") from None
        if done.returncode == 0:
            return done.stdout
    said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
    raise CoordinatorError(f"{what} is no PKCS12 file that its password opens; openssl says: {said[0]}")
