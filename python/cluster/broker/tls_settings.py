"""A listener's TLS settings: `ssl.*`, and `listener.name.NAME.ssl.*`, which take precedence.

Owns Kafka's names and the rules between them (SslConfigs, BrokerSecurityConfigs, DefaultSslEngineFactory).
Pure: `tls.py` reads the files. The content of a store decides its type, whatever `ssl.keystore.type` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.broker.principal_mapping import PrincipalMapper, RuleError
from cluster.broker.settings import ConfigError, Setting, Value

PROTOCOLS = ("TLSv1.2", "TLSv1.3")
_OLDER = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
_CONTEXTS = ("TLS", "TLSv1", "TLSv1.1", *PROTOCOLS)
_TYPES = ("JKS", "PKCS12", "PEM")
_JAVA_ONLY = ("ssl.provider", "ssl.engine.factory.class")

KEYSTORE = "ssl.keystore.location"
TRUSTSTORE = "ssl.truststore.location"
KEY = "ssl.keystore.key"
CHAIN = "ssl.keystore.certificate.chain"
CERTIFICATES = "ssl.truststore.certificates"


class ListenerSettings:
    """The settings of one listener. Errors name the setting that is in the file."""

    def __init__(
        self,
        listener: str,
        given: Mapping[str, str],
        values: Mapping[str, Value],
        table: Mapping[str, Setting],
    ) -> None:
        self.listener = listener
        self._given = given
        self._values = values
        self._table = table

    def name(self, setting: str) -> str:
        """The setting's name in the file."""
        own = f"listener.name.{self.listener.lower()}.{setting}"
        return own if own in self._given else setting

    def value(self, setting: str) -> Value:
        """The listener's own value, else the general one."""
        name = self.name(setting)
        if name == setting:
            return self._values[setting]
        return replace(self._table[setting], name=name).parse(self._given[name])

    def text(self, setting: str) -> str:
        """The value of a text setting; empty if there is none."""
        value = self.value(setting)
        return value if isinstance(value, str) else ""

    def words(self, setting: str) -> list[str]:
        """The value of a list setting."""
        value = self.value(setting)
        return [word for word in value if word] if isinstance(value, list) else []

    def error(self, setting: str, value: str, allowed: str) -> ConfigError:
        """An error about the setting."""
        return ConfigError(self.name(setting), value, f"listener {self.listener}: {allowed}")


@dataclass(frozen=True)
class Material:
    """Keys or certificates: a file, or PEM in the settings. `setting` is its name in errors."""

    setting: str
    location: str = ""
    pem: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    password_setting: str = ""


@dataclass(frozen=True)
class TlsSettings:
    """TLS of one listener. `cipher_suites` has Java's names; empty stands for all."""

    listener: str
    keys: Material
    trust: Material | None
    client_auth: str
    protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    mapping_rules: str
    warnings: tuple[str, ...] = ()

    @property
    def mapper(self) -> PrincipalMapper:
        """Maps names in certificates to principals."""
        return PrincipalMapper(self.mapping_rules)


def tls_settings(of: ListenerSettings) -> TlsSettings:
    """Checks a listener's settings. Raises ConfigError for a missing or unsupported one."""
    for setting in _JAVA_ONLY:
        if of.text(setting):
            raise of.error(
                setting, of.text(setting), "Java classes are not supported here: leave the line out"
            )
    if of.text("ssl.protocol") not in _CONTEXTS:
        raise of.error("ssl.protocol", of.text("ssl.protocol"), f"one of {', '.join(_CONTEXTS)} is needed")
    keys = _keys(of)
    trust = _trust(of)
    client_auth = of.text("ssl.client.auth")
    if client_auth != "none" and trust is None:
        raise of.error(
            "ssl.client.auth",
            client_auth,
            f"there are no trusted certificates to check those of clients with: set {TRUSTSTORE} or "
            f"{CERTIFICATES} to the authorities of clients' certificates",
        )
    protocols, older = _protocols(of)
    rules = of.text("ssl.principal.mapping.rules")
    try:
        PrincipalMapper(rules)
    except RuleError as error:
        raise of.error("ssl.principal.mapping.rules", rules, str(error)) from None
    warnings: tuple[str, ...] = ()
    if older:
        name = of.name("ssl.enabled.protocols")
        warnings = (f"{name}: {', '.join(older)} is not supported; {', '.join(protocols)} is served",)
    return TlsSettings(
        of.listener,
        keys,
        trust,
        client_auth,
        protocols,
        tuple(of.words("ssl.cipher.suites")),
        rules,
        warnings,
    )


def _check_type(of: ListenerSettings, setting: str) -> None:
    kind = of.text(setting)
    if kind.upper() not in _TYPES:
        raise of.error(
            setting,
            kind,
            f"PKCS12 or PEM is needed; {_TYPES[0]} is accepted, but the file must be one of them",
        )


def _keys(of: ListenerSettings) -> Material:
    _check_type(of, "ssl.keystore.type")
    location, key, chain = of.text(KEYSTORE), of.text(KEY), of.text(CHAIN)
    for this, other, present, missing in ((KEY, CHAIN, key, chain), (CHAIN, KEY, chain, key)):
        if present and not missing:
            raise of.error(this, "[hidden]", f"{other} must be set too")
        if present and location:
            raise of.error(this, "[hidden]", f"only one of it and {KEYSTORE} can be set")
    key_password = of.text("ssl.key.password")
    if key:
        setting, password_setting = of.name(KEY), of.name("ssl.key.password")
        pem = f"{key}\n{chain}"
        return Material(setting, pem=pem, key_password=key_password, password_setting=password_setting)
    if not location:
        raise of.error(
            KEYSTORE,
            "",
            "a listener with the security protocol SSL needs a key: name the PEM or PKCS12 file with the "
            f"broker's key and certificate, or set {KEY} and {CHAIN}",
        )
    password = of.text("ssl.keystore.password")
    named = "ssl.key.password" if key_password or not password else "ssl.keystore.password"
    return Material(
        of.name(KEYSTORE), location, "", password or key_password, key_password or password, of.name(named)
    )


def _trust(of: ListenerSettings) -> Material | None:
    _check_type(of, "ssl.truststore.type")
    location, certificates = of.text(TRUSTSTORE), of.text(CERTIFICATES)
    if location and certificates:
        raise of.error(CERTIFICATES, "[hidden]", f"only one of it and {TRUSTSTORE} can be set")
    if certificates:
        return Material(of.name(CERTIFICATES), pem=certificates)
    if location:
        return Material(of.name(TRUSTSTORE), location, password=of.text("ssl.truststore.password"))
    return None


def _protocols(of: ListenerSettings) -> tuple[tuple[str, ...], list[str]]:
    """The enabled protocols that are served, and those that are not supported."""
    name = "ssl.enabled.protocols"
    enabled = of.words(name) or list(PROTOCOLS)
    for word in enabled:
        if word not in (*PROTOCOLS, *_OLDER):
            raise of.error(
                name, ",".join(enabled), f"{word} is unknown; {' and '.join(PROTOCOLS)} are supported"
            )
    served = tuple(protocol for protocol in PROTOCOLS if protocol in enabled)
    if not served:
        raise of.error(name, ",".join(enabled), f"none of these is supported; {' and '.join(PROTOCOLS)} are")
    return served, [word for word in enabled if word not in PROTOCOLS]
