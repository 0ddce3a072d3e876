"""What the settings of a listener say about TLS: `ssl.*`, and `listener.name.NAME.ssl.*` over them.

Owns Kafka's names and the rules between them (SslConfigs, BrokerSecurityConfigs, DefaultSslEngineFactory). Pure: what the
files hold is `tls.py`'s to see. A store's type is told by its content, whatever `ssl.keystore.type` says.
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
    """The settings as one listener has them. Errors name the setting that was given."""

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
        """What the setting is called in the file."""
        own = f"listener.name.{self.listener.lower()}.{setting}"
        return own if own in self._given else setting

    def value(self, setting: str) -> Value:
        """The listener's own, else everybody's."""
        name = self.name(setting)
        if name == setting:
            return self._values[setting]
        return replace(self._table[setting], name=name).parse(self._given[name])

    def text(self, setting: str) -> str:
        """The same of a text; empty where there is none."""
        value = self.value(setting)
        return value if isinstance(value, str) else ""

    def words(self, setting: str) -> list[str]:
        """The same of a list."""
        value = self.value(setting)
        return [word for word in value if word] if isinstance(value, list) else []

    def error(self, setting: str, value: str, allowed: str) -> ConfigError:
        """An error about the setting."""
        return ConfigError(self.name(setting), value, f"listener {self.listener}: {allowed}")


@dataclass(frozen=True)
class Material:
    """Where keys or certificates are: a file, or PEM in the settings. `setting` is what to call it."""

    setting: str
    location: str = ""
    pem: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    password_setting: str = ""


@dataclass(frozen=True)
class TlsSettings:
    """TLS of one listener. `cipher_suites` are Java's names, none stands for all."""

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
        """Whom certificates name."""
        return PrincipalMapper(self.mapping_rules)


def tls_settings(of: ListenerSettings) -> TlsSettings:
    """Checks a listener's settings; ConfigError for what is missing or cannot be had."""
    for setting in _JAVA_ONLY:
        if of.text(setting):
            raise of.error(
                setting, of.text(setting), "classes of Java's cannot be had here: leave the line out"
            )
    if of.text("ssl.protocol") not in _CONTEXTS:
        raise of.error("ssl.protocol", of.text("ssl.protocol"), f"{', '.join(_CONTEXTS)} are what there is")
    keys = _keys(of)
    trust = _trust(of)
    client_auth = of.text("ssl.client.auth")
    if client_auth != "none" and trust is None:
        raise of.error(
            "ssl.client.auth",
            client_auth,
            f"clients' certificates are asked for, and nothing says which to trust: set {TRUSTSTORE}, or "
            f"{CERTIFICATES}, to the authorities of clients' certificates",
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
        warnings = (f"{name}: {', '.join(older)} are not served, {', '.join(protocols)} are",)
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
            setting, kind, f"{', '.join(_TYPES)} are what there is, of which JKS has to be converted"
        )


def _keys(of: ListenerSettings) -> Material:
    _check_type(of, "ssl.keystore.type")
    location, key, chain = of.text(KEYSTORE), of.text(KEY), of.text(CHAIN)
    for this, other, present, missing in ((KEY, CHAIN, key, chain), (CHAIN, KEY, chain, key)):
        if present and not missing:
            raise of.error(this, "[hidden]", f"it needs {other} beside it")
        if present and location:
            raise of.error(this, "[hidden]", f"only one of it and {KEYSTORE} can be")
    key_password = of.text("ssl.key.password")
    if key:
        setting, password_setting = of.name(KEY), of.name("ssl.key.password")
        pem = f"{key}\n{chain}"
        return Material(setting, pem=pem, key_password=key_password, password_setting=password_setting)
    if not location:
        raise of.error(
            KEYSTORE,
            "",
            "a listener with the security protocol SSL needs a key: name the PEM or PKCS12 file with the broker's key "
            f"and certificate, or set {KEY} and {CHAIN}",
        )
    password = of.text("ssl.keystore.password")
    asked = "ssl.key.password" if key_password or not password else "ssl.keystore.password"
    return Material(
        of.name(KEYSTORE), location, "", password or key_password, key_password or password, of.name(asked)
    )


def _trust(of: ListenerSettings) -> Material | None:
    _check_type(of, "ssl.truststore.type")
    location, certificates = of.text(TRUSTSTORE), of.text(CERTIFICATES)
    if location and certificates:
        raise of.error(CERTIFICATES, "[hidden]", f"only one of it and {TRUSTSTORE} can be")
    if certificates:
        return Material(of.name(CERTIFICATES), pem=certificates)
    if location:
        return Material(of.name(TRUSTSTORE), location, password=of.text("ssl.truststore.password"))
    return None


def _protocols(of: ListenerSettings) -> tuple[tuple[str, ...], list[str]]:
    """Those that are served, and those that are not."""
    name = "ssl.enabled.protocols"
    enabled = of.words(name) or list(PROTOCOLS)
    for word in enabled:
        if word not in (*PROTOCOLS, *_OLDER):
            raise of.error(
                name, ",".join(enabled), f"there is no {word}; {' and '.join(PROTOCOLS)} are served"
            )
    served = tuple(protocol for protocol in PROTOCOLS if protocol in enabled)
    if not served:
        raise of.error(name, ",".join(enabled), f"none of them is served: {' and '.join(PROTOCOLS)} are")
    return served, [word for word in enabled if word not in PROTOCOLS]
