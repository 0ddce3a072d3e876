"""Opens a listener's TLS: its key, its certificates, and the certificates it trusts.

Turns settings into the data plane's `ListenerTls`. Reads files; the start calls it in a thread, once for each
listener.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.broker.errors import BrokerStartError
from cluster.broker.tls_settings import Material, TlsSettings
from cluster.keystores import (
    Identity,
    KeyStoreError,
    Store,
    certificates,
    identity,
    read_key_store,
    read_trust_store,
)
from cluster.x509 import is_authority, subject, validity

if TYPE_CHECKING:
    from logcore._native import ListenerTls

log = logging.getLogger(__name__)


def open_tls(settings: TlsSettings) -> ListenerTls:
    """Opens the stores. BrokerStartError says which file or setting cannot be used, and what to do."""
    from logcore._native import ListenerTls, ServerConfigError

    listener = settings.listener
    for warning in settings.warnings:
        log.warning("listener %s: %s", listener, warning)
    suites = _suites(settings)
    mapper = settings.mapper
    try:
        own = _identity(settings.keys)
        asks_clients = settings.client_auth != "none"
        trusted = _trusted(settings.trust, asks_clients) if settings.trust is not None else []
        authorities = _authorities(settings.trust, trusted) if settings.trust is not None else []
    except KeyStoreError as error:
        raise BrokerStartError(f"listener {listener}: {error}") from None
    _check_validity(settings, own)
    try:
        return ListenerTls(
            certificates=own.certificates,
            key=own.key,
            authorities=authorities,
            trusted=trusted,
            client_auth=settings.client_auth,
            protocols=list(settings.protocols),
            cipher_suites=suites,
            principal=lambda certificate: mapper.name(subject(certificate)),
        )
    except ServerConfigError as error:
        stores = [_name(material) for material in (settings.keys, settings.trust) if material is not None]
        raise BrokerStartError(
            f"listener {listener} cannot serve TLS ({', '.join(stores)}): {error}"
        ) from None


def _name(material: Material) -> str:
    return f"{material.setting}={material.location}" if material.location else material.setting


def _identity(keys: Material) -> Identity:
    what = _name(keys)
    pem, password = keys.pem, keys.key_password
    if keys.location:
        pem, password = read_key_store(Store(Path(keys.location), keys.password), what)
        password = password and keys.key_password
    return identity(pem, password, what, keys.password_setting)


def _trusted(trust: Material, asks_clients: bool) -> list[bytes]:
    what = _name(trust)
    if trust.location:
        return read_trust_store(Store(Path(trust.location), trust.password), what, asked=asks_clients)
    return certificates(trust.pem, what)


def _authorities(trust: Material, trusted: list[bytes]) -> list[bytes]:
    """The certificates that may sign others."""
    try:
        return [certificate for certificate in trusted if is_authority(certificate)]
    except ValueError as error:
        raise KeyStoreError(f"{_name(trust)}: {error}") from None


def _check_validity(settings: TlsSettings, own: Identity) -> None:
    what = f"listener {settings.listener}: {_name(settings.keys)}"
    for certificate in own.certificates:
        try:
            begin, end = validity(certificate)
            name = subject(certificate)
        except ValueError as error:
            raise BrokerStartError(f"{what}: {error}") from None
        now = datetime.now(UTC)
        if now > end:
            raise BrokerStartError(
                f"{what} has the certificate of {name}, which was valid until {end:%Y-%m-%d %H:%M:%S} UTC: "
                "replace it"
            )
        if now < begin:
            raise BrokerStartError(
                f"{what} has the certificate of {name}, which is valid from {begin:%Y-%m-%d %H:%M:%S} UTC: "
                "replace it, or set this machine's clock"
            )


def _suites(settings: TlsSettings) -> list[str]:
    """The supported suites of `ssl.cipher.suites`. An empty list stands for all."""
    from logcore._native import tls_cipher_suites

    known = tls_cipher_suites()
    missing = [suite for suite in settings.cipher_suites if suite not in known]
    found = [suite for suite in settings.cipher_suites if suite in known]
    if missing and not found:
        raise BrokerStartError(
            f"listener {settings.listener}: ssl.cipher.suites={','.join(missing)}: none of these is "
            f"supported; name some of {', '.join(known)}, or leave the line out"
        )
    if missing:
        log.warning(
            "listener %s: ssl.cipher.suites has suites that are not supported and are left out: %s",
            settings.listener,
            ", ".join(missing),
        )
    return found
