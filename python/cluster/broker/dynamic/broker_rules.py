"""Rules for dynamic broker settings: which may change while a broker runs, for all brokers or for one, and to
what.

Owns the rules of kafka.server.DynamicBrokerConfig and of the parts it reconfigures (LogCleaner, SocketServer,
DynamicThreadPool, DynamicListenerConfig, DynamicLogConfig), with their errors. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from cluster.broker.config import BrokerConfig
from cluster.broker.dynamic.alteration import Alteration
from cluster.broker.dynamic.live import LISTENER_PREFIX, LiveConfig, base_name, overlaid
from cluster.broker.settings import ConfigError, Setting, broker_settings, rate_settings, topic_settings
from cluster.errors import InvalidConfig, InvalidRequest

SECURITY = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Can change for one listener only, with its prefix (`SslConfigs.RECONFIGURABLE_CONFIGS`)."""

_LISTENERS = frozenset({"advertised.listeners", "listeners", "listener.security.protocol.map"})
_AT_START = ("listeners", "listener.security.protocol.map")
"""This broker, unlike Kafka's, reads these at its start only."""

THREADS_AT_START = ("num.network.threads", "num.recovery.threads.per.data.dir")
"""Numbers of threads that can be changed. A change takes effect at the next start."""

_LISTENER_LIMITS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
"""Settings of a listener that can be set for all brokers (`ClusterLevelListenerConfigs`)."""

_HALF_TO_DOUBLE = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "num.network.threads",
    "log.cleaner.threads",
)
"""Numbers of threads that change by at most a factor of two at a time."""

_LOCAL_RETENTION = (
    ("log.local.retention.ms", "retention.ms"),
    ("log.local.retention.bytes", "retention.bytes"),
)
"""Local retention is at most the whole retention."""

_CLASSES = {
    "metric.reporters": ("org.apache.kafka.common.metrics.JmxReporter",),
    "principal.builder.class": (
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    ),
    "ssl.engine.factory.class": (
        "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
        "org.apache.kafka.common.security.ssl.CommonNameLoggingSslEngineFactory",
    ),
}
"""Settings that name classes, with the classes of Kafka's jars that need no further settings. With another
class stored, a broker of Kafka may not start. This broker loads no class.
"""


@cache
def described_settings() -> dict[str, Setting]:
    """The broker's settings, with those that are only dynamic (`QuotaConfigs.brokerQuotaConfigs`)."""
    return broker_settings() | rate_settings()


def is_dynamic(name: str) -> bool:
    """DescribeConfigs shows the setting as one that can be changed (`AllDynamicConfigs`)."""
    setting = broker_settings().get(name)
    return setting is not None and setting.dynamic


def is_password(name: str) -> bool:
    """The setting, general or of a listener, is stored encrypted."""
    return any(name.endswith(password) for password in _passwords())


@cache
def _passwords() -> tuple[str, ...]:
    return tuple(name for name, setting in broker_settings().items() if setting.dynamic and setting.sensitive)


def _of_one_broker(name: str) -> bool:
    found = LISTENER_PREFIX.fullmatch(name)
    if found is not None:
        return found[1] not in _LISTENER_LIMITS
    listed = name in _LISTENERS or name == "principal.builder.class"
    return listed or (name.startswith(("ssl.", "sasl.")) and is_dynamic(name))


def _is_static(name: str) -> bool:
    setting = broker_settings().get(name)
    return setting is not None and not setting.dynamic


def _bad_type(name: str, text: str) -> str | None:
    setting = described_settings().get(base_name(name))
    try:
        if setting is not None:
            setting.parse(text)
    except ConfigError as error:
        return str(error)
    return None


def unreadable(config: Mapping[str, str], own: bool) -> dict[str, str]:
    """The settings of a znode that cannot be applied, with the reasons. The others are applied."""
    reasons: dict[str, str] = {}
    for name, text in config.items():
        reason = _bad_type(name, text)
        if _is_static(name):
            reason = "it cannot be changed while a broker runs"
        elif name in SECURITY:
            reason = "it can be changed for one listener only, with the listener's prefix"
        elif not own and _of_one_broker(name):
            reason = "it can be set for one broker only, not for all"
        elif is_password(name):
            reason = "passwords in the coordinator are encrypted, and this broker cannot decrypt them"
        if reason is not None:
            reasons[name] = reason
    return reasons


def check_broker_config(live: LiveConfig, news: Mapping[str, str], own: bool) -> None:
    """Refuses new dynamic settings of this broker (`own`) or of all brokers that are not allowed."""
    _refuse("Cannot update these configs dynamically", filter(_is_static, news))
    _refuse(
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        SECURITY.intersection(news),
    )
    for name, text in news.items():
        reason = _bad_type(name, text)
        if reason is not None:
            raise InvalidRequest(reason)
    if not own:
        _refuse(
            "Cannot update these configs at default cluster level, broker id must be specified",
            filter(_of_one_broker, news),
        )
    try:
        after = live.effective(live.cluster, news) if own else live.effective(news, live.own)
        for check in _CHECKS:
            check(live.current, after)
    except ConfigError as error:
        raise InvalidRequest(f"Invalid dynamic configuration: {error}") from None


def checked(alter: Alteration, live: LiveConfig, own: bool) -> Alteration:
    """`alter` with the checks of a broker's settings.

    Settings in the znode that cannot be applied stay there, unless the alteration changes them.
    """

    def alter_and_check(config: Mapping[str, str]) -> dict[str, str]:
        altered = alter(config)
        ignored = unreadable(config, own)
        news = {
            name: text for name, text in altered.items() if name not in ignored or text != config.get(name)
        }
        check_broker_config(live, news, own)
        _check_classes({name: text for name, text in news.items() if text != config.get(name)})
        _check_passwords(news, live.static, own)
        return altered

    return alter_and_check


def _check_passwords(names: Iterable[str], static: BrokerConfig, own: bool) -> None:
    """Refuses passwords: Kafka stores them encrypted (`PasswordEncoder`), which is not supported here."""
    if not any(map(is_password, names)):
        return
    if not own:
        raise InvalidConfig("Password config can be defined only at broker level")
    if "password.encoder.secret" not in static.given:
        raise InvalidConfig("Password encoder secret not configured")
    raise InvalidConfig("this broker cannot encrypt passwords: set them in its file")


def _check_classes(changed: Mapping[str, str]) -> None:
    for name, text in changed.items():
        known = _CLASSES.get(base_name(name))
        if known is None:
            continue
        value = described_settings()[base_name(name)].parse(text)
        for word in value if isinstance(value, list) else [value]:
            if word not in known:
                raise InvalidRequest(
                    f"{name}={text} is not allowed: {' or '.join(known)} is needed, because a broker of "
                    "Kafka does not start with a class that it cannot load or that needs other settings, as "
                    f"'{word}' may"
                )


def _refuse(what: str, names: Iterable[str]) -> None:
    found = sorted(names)
    if found:
        raise InvalidRequest(f"{what}: Set({', '.join(found)})")


def _of_listeners(config: BrokerConfig, listeners: BrokerConfig, name: str) -> dict[str, int]:
    """A setting's number for the broker and for each listener that sets its own, by the name that sets it."""
    numbers = {name: config.number(name)}
    for endpoint in listeners.listeners:
        own = f"listener.name.{endpoint.listener.lower()}.{name}"
        if own in config.given:
            number = broker_settings()[name].parse(config.given[own])
            assert isinstance(number, int)
            numbers[own] = number
    return numbers


def _check_threads(before: BrokerConfig, after: BrokerConfig) -> None:
    for name in _HALF_TO_DOUBLE:
        olds, news = _of_listeners(before, before, name), _of_listeners(after, before, name)
        for own, new in news.items():
            old = olds.get(own, olds[name])
            if new != old and (new < max(1, old // 2) or new > old * 2):
                raise ConfigError(own, new, f"at least 1, and from half to double the current value {old}")


def with_open_listeners(live: LiveConfig) -> dict[str, str]:
    """This broker's dynamic settings, with the open listeners in place of the configured ones."""
    others = {name: text for name, text in live.own.items() if name not in _AT_START}
    return others | {name: live.current.given[name] for name in _AT_START if name in live.current.given}


def other_listeners(live: LiveConfig) -> bool:
    """The next start opens other listeners."""
    after = overlaid(live.static.given, live.own)
    return any(after.get(name) != live.current.given.get(name) for name in _AT_START)


def at_start(live: LiveConfig) -> BrokerConfig:
    """The configuration that opens the data plane: the file, and the dynamic numbers of threads."""
    numbers = {name: live.current.given[name] for name in THREADS_AT_START if name in live.current.given}
    return BrokerConfig.parse(overlaid(live.static.given, numbers))


def of_next_start(before: BrokerConfig, after: BrokerConfig) -> list[str]:
    """The changed settings that take effect at the next start."""
    return [name for name in THREADS_AT_START if before.values[name] != after.values[name]]


def _check_listeners(before: BrokerConfig, after: BrokerConfig) -> None:
    for name in _AT_START:
        if after.values[name] != before.values[name]:
            raise ConfigError(
                name,
                after.given.get(name),
                "this broker opens its listeners at its start only: change its file",
            )
    for endpoint in before.listeners:
        prefix = f"listener.name.{endpoint.listener.lower()}."
        if _fixed_of(before, prefix) != _fixed_of(after, prefix):
            raise ConfigError(
                f"{prefix}*",
                "",
                f"Configs cannot be updated dynamically for existing listener {endpoint.listener}, restart "
                "the broker",
            )
        if before.tls.get(endpoint.listener) != after.tls.get(endpoint.listener):
            raise ConfigError(
                f"{prefix}ssl.*",
                "",
                "this broker opens keys and certificates at its start only: change its file, and restart it",
            )


def _fixed_of(config: BrokerConfig, prefix: str) -> dict[str, str]:
    """The settings of a listener that cannot change while it is open."""
    changing = SECURITY | _LISTENER_LIMITS
    return {
        name: text
        for name, text in config.given.items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in changing
    }


def _check_limits(before: BrokerConfig, after: BrokerConfig) -> None:
    limits = ("max.connections", "max.connection.creation.rate")
    for limit in limits:
        olds, news = _of_listeners(before, before, limit), _of_listeners(after, before, limit)
        for own, new in news.items():
            if new != olds.get(own, olds[limit]) and new <= 0:
                raise ConfigError(own, new, "a number of at least 1 is needed")
    remote = (
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.fetch.max.bytes.per.second",
    )
    for name in remote:
        if after.values[name] != before.values[name] and after.number(name) <= 0:
            raise ConfigError(name, after.number(name), "a number of at least 1 is needed")


def _check_local_retention(before: BrokerConfig, after: BrokerConfig) -> None:
    for local, whole in _LOCAL_RETENTION:
        setting = topic_settings()[whole]
        kept, most = after.number(local), after.topic_default(setting)
        unchanged = (kept, most) == (before.number(local), before.topic_default(setting))
        assert isinstance(most, int)
        if unchanged or most < 0 or kept == -2:
            continue
        if kept == -1 or kept > most:
            raise ConfigError(local, kept, f"at most log.{whole}, {most}, is needed")


_CHECKS: tuple[Callable[[BrokerConfig, BrokerConfig], None], ...] = (
    _check_threads,
    _check_listeners,
    _check_limits,
    _check_local_retention,
)
