"""Turns a client's TLS properties into KazooClient's arguments. Keys and certificates are PEM.

Names: ZooKeeper's ZKClientConfig and ClientX509Util, and those of Kafka's -zk-tls-config-file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster.cli._common import CommandError
from cluster.properties import PropertiesError, read_properties

INVALID_CONFIGURATION = 2
"""zkCli's exit code for a client configuration that it cannot read."""

_SECURE = ("zookeeper.client.secure", "zookeeper.ssl.client.enable")
_KEYS = "zookeeper.ssl.keystore"
_TRUSTED = "zookeeper.ssl.truststore"
_CHECK_HOST = "zookeeper.ssl.hostnameverification"
_ENDPOINT = "zookeeper.ssl.endpoint.identification.algorithm"
_KNOWN = {
    *_SECURE,
    _CHECK_HOST,
    _ENDPOINT,
    # Chooses Java's socket implementation, so it has no effect here.
    "zookeeper.clientcnxnsocket",
    *(f"{store}.{part}" for store in (_KEYS, _TRUSTED) for part in ("location", "password", "type")),
}


def client_arguments(name: str) -> tuple[dict[str, Any], list[str]]:
    """KazooClient's arguments from a properties file, and the settings in it that have no effect.

    Raises CommandError for a file that cannot be read, or stores that are not PEM.
    """
    try:
        properties = read_properties(Path(name))
    except (OSError, PropertiesError) as error:
        raise CommandError(
            f"the client's configuration {name} cannot be read: {error}", INVALID_CONFIGURATION
        ) from None
    unknown = sorted(key for key in properties if key.lower() not in _KNOWN)
    settings = {key.lower(): value.strip() for key, value in properties.items()}
    if not any(settings.get(key, "").lower() == "true" for key in _SECURE):
        return {}, unknown
    checked = settings.get(_CHECK_HOST, "true").lower() == "true" and settings.get(_ENDPOINT, "https") != ""
    arguments: dict[str, Any] = {"use_ssl": True, "verify_certs": True, "check_hostname": checked}
    keys, trusted = (_store(name, settings, store) for store in (_KEYS, _TRUSTED))
    if keys:
        arguments |= {
            "keyfile": keys,
            "certfile": keys,
            "keyfile_password": settings.get(f"{_KEYS}.password"),
        }
    if trusted:
        arguments["ca"] = trusted
    return arguments, unknown


def _store(name: str, settings: dict[str, str], store: str) -> str | None:
    location = settings.get(f"{store}.location")
    if not location:
        return None
    kind = settings.get(f"{store}.type", "PEM" if location.endswith(".pem") else "JKS").upper()
    if kind != "PEM":
        raise CommandError(
            f"{name}: {store}.location={location} is of type {kind}; convert the keys and certificates to "
            f"PEM (and set {store}.type=PEM)",
            INVALID_CONFIGURATION,
        )
    if not Path(location).is_file():
        raise CommandError(f"{name}: {store}.location={location} is not a file", INVALID_CONFIGURATION)
    return location
