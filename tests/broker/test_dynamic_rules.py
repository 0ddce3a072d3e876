"""The rules of settings that change while the broker runs.

If one failed, a setting that cannot change would be accepted, an allowed one refused, a list lose its
members, a value be shown with the wrong source, or a quota apply to another client.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cluster.broker.config import BrokerConfig
from cluster.broker.dynamic import loggers, quotas
from cluster.broker.dynamic.alteration import Change, Op, check_changes, increments, replacement
from cluster.broker.dynamic.broker_rules import (
    check_broker_config,
    checked,
    other_listeners,
    unreadable,
    with_open_listeners,
)
from cluster.broker.dynamic.description import (
    SOURCE_BROKER,
    SOURCE_BROKER_FILE,
    SOURCE_CLUSTER,
    SOURCE_DEFAULT,
    SOURCE_TOPIC,
    Entry,
    broker_entries,
    cluster_entries,
    topic_entries,
)
from cluster.broker.dynamic.live import LiveConfig, overlaid, synonyms
from cluster.broker.settings import ConfigError, broker_settings, topic_settings
from cluster.errors import InvalidConfig, InvalidRequest, KafkaProtocolError, UnsupportedVersion
from cluster.model import BrokerId

FILE = {
    "zookeeper.connect": "localhost:2181",
    "listeners": "PLAINTEXT://localhost:9092",
    "broker.id": "7",
    "log.retention.hours": "2",
    "log.segment.bytes": "2048",
    "my.own": "x",
}


def live(cluster: dict[str, str] | None = None, own: dict[str, str] | None = None, **file: str) -> LiveConfig:
    changes = {name.replace("_", "."): value for name, value in file.items()}
    made = LiveConfig(BrokerConfig.parse(FILE | changes))
    made.cluster, made.own = cluster or {}, own or {}
    made.current = made.effective(made.cluster, made.own)
    return made


# ---- the operations of a request ----


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({}, Change("retention.ms", Op.SET, "1"), {"retention.ms": "1"}),
        ({"retention.ms": "1"}, Change("retention.ms", Op.DELETE, None), {}),
        ({}, Change("retention.ms", Op.DELETE, None), {}),
        ({}, Change("cleanup.policy", Op.APPEND, "compact"), {"cleanup.policy": "delete,compact"}),
        (
            {"cleanup.policy": ""},
            Change("cleanup.policy", Op.APPEND, "compact"),
            {"cleanup.policy": "compact"},
        ),
        (
            {"cleanup.policy": "compact"},
            Change("cleanup.policy", Op.APPEND, "compact,delete"),
            {"cleanup.policy": "compact,delete"},
        ),
        (
            {"cleanup.policy": "compact,delete"},
            Change("cleanup.policy", Op.SUBTRACT, "compact"),
            {"cleanup.policy": "delete"},
        ),
        ({}, Change("cleanup.policy", Op.SUBTRACT, "delete,other"), {"cleanup.policy": ""}),
        (
            {"cleanup.policy": "a,b,a,c,a"},
            Change("cleanup.policy", Op.SUBTRACT, "c,a,a"),
            {"cleanup.policy": "b,a"},
        ),
        (
            {"cleanup.policy": "b,a"},
            Change("cleanup.policy", Op.APPEND, "c,a,c"),
            {"cleanup.policy": "b,a,c,c"},
        ),
    ],
)
def test_operations(before: dict[str, str], change: Change, after: dict[str, str]) -> None:
    kept = {"other": "stays"}
    assert increments([change], topic_settings())(before | kept) == after | kept


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            Change("retention.ms", Op.APPEND, "1"),
            InvalidConfig,
            "append is not allowed for config key: retention.ms",
        ),
        (Change("retention.ms", Op.SUBTRACT, "1"), InvalidConfig, "subtract is not allowed"),
        (Change("nobody.knows", Op.APPEND, "1"), InvalidConfig, "Unknown config name: nobody.knows"),
        (Change("retention.ms", 9, "1"), InvalidRequest, "Unknown operations type 9"),
    ],
)
def test_invalid_operations(change: Change, error: type[KafkaProtocolError], says: str) -> None:
    with pytest.raises(error, match=says):
        increments([change], topic_settings())({})


@pytest.mark.timeout(60)
def test_a_long_list_is_read_once() -> None:
    """Reading it once for each word of the other list would take minutes."""
    name, words = "leader.replication.throttled.replicas", [f"{number}:0" for number in range(200_000)]
    before, others = {name: ",".join(words)}, [f"{number}:1" for number in range(200_000)]
    added = Change(name, Op.APPEND, ",".join(words + others))
    assert increments([added], topic_settings())(before) == {name: ",".join(words + others)}
    gone = Change(name, Op.SUBTRACT, ",".join(reversed(words[1:] + others)))
    assert increments([gone], topic_settings())(before) == {name: words[0]}


def test_a_replacement_removes_all_other_settings() -> None:
    assert replacement([Change("a", Op.SET, "1")])({"a": "0", "b": "2"}) == {"a": "1"}
    assert replacement([])({"a": "0"}) == {}


def test_contradicting_changes() -> None:
    check_changes([Change("a", Op.DELETE, None), Change("b", Op.SET, "")])
    with pytest.raises(InvalidRequest, match="duplicate config keys"):
        check_changes([Change("a", Op.SET, "1"), Change("a", Op.DELETE, None)])
    with pytest.raises(InvalidRequest, match="Null value not supported for : a, b"):
        check_changes([Change("a", Op.SET, None), Change("b", Op.APPEND, None)])


# ---- layers ----


def test_the_upper_layer_replaces_all_synonyms_below() -> None:
    below = {"log.retention.ms": "1", "log.retention.hours": "2", "log.roll.ms": "3"}
    assert overlaid(below, {"log.retention.minutes": "4"}) == {
        "log.roll.ms": "3",
        "log.retention.minutes": "4",
    }
    assert overlaid({"log.flush.interval.ms": "1"}, {"log.flush.scheduler.interval.ms": "2"}) == {
        "log.flush.interval.ms": "1",
        "log.flush.scheduler.interval.ms": "2",
    }
    listener = "listener.name.x.ssl.keystore.type"
    assert overlaid({"ssl.keystore.type": "JKS"}, {listener: "PEM"}) == {
        "ssl.keystore.type": "JKS",
        listener: "PEM",
    }
    assert synonyms(listener) == (listener, "ssl.keystore.type")
    assert synonyms("listener.name.x.plain.sasl.jaas.config")[1] == "sasl.jaas.config"


def test_a_topics_default_follows_the_layers() -> None:
    retention = topic_settings()["retention.ms"]
    assert live().current.topic_default(retention) == 7_200_000
    cluster = {"log.retention.minutes": "3"}
    assert live(cluster).current.topic_default(retention) == 180_000
    assert live(cluster, {"log.retention.ms": "5"}).current.topic_default(retention) == 5


# ---- rules of broker settings ----


@pytest.mark.parametrize(
    ("news", "own", "says"),
    [
        (
            {"log.dirs": "/x", "broker.id": "1"},
            True,
            r"Cannot update these configs dynamically: Set\(broker.id, log.dirs\)",
        ),
        ({"num.partitions": "2"}, False, r"Cannot update these configs dynamically: Set\(num.partitions\)"),
        ({"ssl.keystore.type": "PEM"}, True, "only per-listener using the listener prefix: Set"),
        ({"log.segment.bytes": "many"}, True, "log.segment.bytes=many is not allowed"),
        ({"log.segment.bytes": "1"}, False, "log.segment.bytes=1 is not allowed"),
        ({"leader.replication.throttled.rate": "-1"}, False, "leader.replication.throttled.rate=-1"),
        ({"listener.name.plaintext.max.connections": "x"}, True, "max.connections=x is not allowed"),
        ({"advertised.listeners": "PLAINTEXT://h:1"}, False, "broker id must be specified: Set"),
        ({"listener.name.plaintext.ssl.keystore.type": "PEM"}, False, "broker id must be specified"),
        ({"advertised.listeners": "OTHER://h:1"}, True, "Invalid dynamic configuration: .*"),
        ({"listeners": "PLAINTEXT://localhost:9999"}, True, "opens its listeners at its start only"),
        ({"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"}, True, "restart the broker"),
        ({"num.io.threads": "17"}, True, "from half to double the current value 8"),
        ({"num.io.threads": "3"}, False, "from half to double the current value 8"),
        ({"log.cleaner.threads": "3"}, False, "from half to double the current value 1"),
        ({"max.connections": "0"}, True, "max.connections=0 is not allowed"),
        (
            {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"},
            True,
            "at most",
        ),
        (
            {"log.local.retention.bytes": "11", "log.retention.bytes": "10"},
            True,
            "log.local.retention.bytes=11",
        ),
        ({"log.local.retention.ms": "7200001"}, True, "at most log.retention.ms, 7200000, is needed"),
        ({"log.local.retention.ms": "-1"}, True, "at most log.retention.ms, 7200000, is needed"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, False, "more than 1048576 for each"),
        ({"listener.name.plaintext.max.connections": "0"}, True, "listener.name.plaintext.max.connections=0"),
        ({"listener.name.plaintext.num.network.threads": "7"}, True, "double the current value 3"),
    ],
)
def test_broker_settings_that_are_refused(news: dict[str, str], own: bool, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check_broker_config(live(), news, own)


@pytest.mark.parametrize(
    ("news", "own"),
    [
        ({"log.segment.bytes": "4096", "log.retention.ms": "-1"}, False),
        ({"num.io.threads": "16", "num.network.threads": "2"}, True),
        ({"num.io.threads": "4"}, True),
        ({"advertised.listeners": "PLAINTEXT://elsewhere:1"}, True),
        ({"listener.name.plaintext.max.connections": "5"}, False),
        ({"listener.name.plaintext.num.network.threads": "6"}, True),
        ({"listener.name.other.max.connections": "0"}, True),
        ({"log.local.retention.ms": "7200000"}, False),
        ({"log.cleaner.dedupe.buffer.size": "1048577"}, False),
        ({"listener.name.plaintext.ssl.keystore.type": "PEM"}, True),
        ({"leader.replication.throttled.rate": "1000"}, False),
        ({"somebodys.plugin": "x"}, False),
        ({}, True),
    ],
)
def test_broker_settings_that_are_accepted(news: dict[str, str], own: bool) -> None:
    check_broker_config(live(), news, own)


def test_a_brokers_own_settings_are_checked_over_the_clusters() -> None:
    most = {"log.cleaner.max.compaction.lag.ms": "10"}
    with pytest.raises(InvalidRequest, match="at most"):
        check_broker_config(live(most), {"log.cleaner.min.compaction.lag.ms": "11"}, own=True)
    own = {"log.cleaner.min.compaction.lag.ms": "5"}
    check_broker_config(live(most, own), {"log.cleaner.max.compaction.lag.ms": "5"}, own=False)
    with pytest.raises(InvalidRequest, match="at most"):
        check_broker_config(live(most, own), {"log.cleaner.max.compaction.lag.ms": "4"}, own=False)


KAFKAS = "org.apache.kafka.common.metrics.JmxReporter"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metric.reporters", "nope"),
        ("metric.reporters", f"{KAFKAS},nope"),
        ("metric.reporters", "org.apache.kafka.tools.PushHttpMetricsReporter"),
        ("principal.builder.class", "nope"),
        ("listener.name.other.principal.builder.class", ""),
        ("ssl.engine.factory.class", KAFKAS),
    ],
)
def test_classes_that_kafka_does_not_have_are_refused(name: str, value: str) -> None:
    with pytest.raises(
        InvalidRequest, match=f"{name}={value} is not allowed: .* a class that it cannot load"
    ):
        checked(replacement([Change(name, Op.SET, value)]), live(), own=True)({})


def test_stored_classes_stay() -> None:
    stored = {"metric.reporters": "com.example.Reporter"}
    added = increments([Change("metric.reporters", Op.APPEND, "nope")], broker_settings())
    with pytest.raises(InvalidRequest, match=r"'com\.example\.Reporter' may"):
        checked(added, live(), own=False)(stored)
    other = increments([Change("log.segment.bytes", Op.SET, "4096")], broker_settings())
    assert checked(other, live(), own=False)(stored) == stored | {"log.segment.bytes": "4096"}
    for value in ("", KAFKAS, f" {KAFKAS} , {KAFKAS}"):
        taken = replacement([Change("metric.reporters", Op.SET, value)])
        assert checked(taken, live(), own=False)(stored) == {"metric.reporters": value}


PASSWORD = "listener.name.plaintext.ssl.key.password"


def test_passwords_are_refused_with_the_reason() -> None:
    change = replacement([Change(PASSWORD, Op.SET, "secret")])
    with pytest.raises(InvalidConfig, match="Password encoder secret not configured"):
        checked(change, live(), own=True)({})
    with pytest.raises(InvalidConfig, match="cannot encrypt passwords"):
        checked(change, live(password_encoder_secret="s"), own=True)({})


def test_settings_of_other_programs_that_cannot_be_applied_stay_in_the_znode() -> None:
    stored = {PASSWORD: "keyFactoryAlgorithm:...", "log.dirs": "/x", "log.segment.bytes": "4096"}
    assert set(unreadable(stored, own=True)) == {PASSWORD, "log.dirs"}
    assert set(unreadable({"advertised.listeners": "PLAINTEXT://h:1"}, own=False)) == {"advertised.listeners"}
    alter = increments([Change("log.segment.bytes", Op.DELETE, None)], {})
    assert set(checked(alter, live(), own=True)(stored)) == {PASSWORD, "log.dirs"}
    # A change that names it is checked like any other.
    again = increments([Change("log.dirs", Op.SET, "/y")], {})
    with pytest.raises(InvalidRequest, match="Cannot update these configs dynamically"):
        checked(again, live(), own=True)(stored)
    away = increments([Change("log.dirs", Op.DELETE, None)], {})
    assert "log.dirs" not in checked(away, live(), own=True)(stored)


def test_open_listeners_stay() -> None:
    opened = live(own={"listeners": "PLAINTEXT://localhost:1"})
    assert not other_listeners(opened)
    opened.own = {"log.segment.bytes": "4096"}
    assert other_listeners(opened)
    assert with_open_listeners(opened) == {
        "listeners": "PLAINTEXT://localhost:1",
        "log.segment.bytes": "4096",
    }
    of_file = live()
    of_file.own = {"listeners": "PLAINTEXT://localhost:1"}
    assert other_listeners(of_file)
    assert with_open_listeners(of_file)["listeners"] == FILE["listeners"]


# ---- descriptions ----


def entry_of(entries: list[Entry], name: str) -> Entry:
    [found] = [entry for entry in entries if entry.name == name]
    return found


def test_every_source_of_a_brokers_value() -> None:
    layers = live({"log.segment.bytes": "3000"}, {"log.segment.bytes": "4000"})
    found = entry_of(broker_entries(BrokerId(7), layers), "log.segment.bytes")
    assert (found.value, found.source, found.read_only) == ("4000", SOURCE_BROKER, False)
    assert found.synonyms == (
        ("log.segment.bytes", "4000", SOURCE_BROKER),
        ("log.segment.bytes", "3000", SOURCE_CLUSTER),
        ("log.segment.bytes", "2048", SOURCE_BROKER_FILE),
        ("log.segment.bytes", "1073741824", SOURCE_DEFAULT),
    )
    [default] = cluster_entries(layers)
    assert (default.value, default.source) == ("3000", SOURCE_CLUSTER)
    assert default.synonyms == (("log.segment.bytes", "3000", SOURCE_CLUSTER),)


def test_flags_of_broker_settings() -> None:
    entries = broker_entries(BrokerId(7), live(own={"leader.replication.throttled.rate": "9"}))
    assert entry_of(entries, "num.partitions").read_only
    assert entry_of(entries, "node.id").source == SOURCE_BROKER_FILE
    rate = entry_of(entries, "leader.replication.throttled.rate")
    # As in Kafka, though it can be changed.
    assert (rate.value, rate.sensitive, rate.read_only) == ("9", False, True)
    unknown = entry_of(entries, "my.own")
    assert (unknown.value, unknown.sensitive, unknown.type) == (None, True, 0)
    assert unknown.synonyms == (("my.own", None, SOURCE_BROKER_FILE),)
    assert entry_of(entries, "ssl.key.password").sensitive


def test_a_topics_value_shows_the_brokers_dynamic_ones_below_it() -> None:
    layers = live({"log.retention.ms": "3"}, {"log.retention.minutes": "4"})
    own = {"retention.ms": "1", "nobody.knows": "x"}
    found = entry_of(topic_entries(own, layers), "retention.ms")
    assert (found.value, found.source) == ("1", SOURCE_TOPIC)
    assert entry_of(topic_entries(own, layers), "nobody.knows").value is None
    inherited = entry_of(topic_entries({}, layers), "retention.ms")
    assert inherited.value == "240000"
    # Kafka leaves out sources that do not lead to log.retention.ms.
    assert inherited.synonyms[0] == ("log.retention.ms", "3", SOURCE_CLUSTER)


# ---- loggers ----


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("tests.dynamic.levels")
    made.setLevel(logging.NOTSET)
    yield made
    made.setLevel(logging.NOTSET)


def test_levels_of_loggers(logger: logging.Logger) -> None:
    loggers.alter([Change(logger.name, Op.SET, "TRACE")], validate_only=True)
    assert logger.level == logging.NOTSET
    for level in ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"):
        loggers.alter([Change(logger.name, Op.SET, level)])
        assert loggers.levels()[logger.name] == level
    assert logger.isEnabledFor(loggers.TRACE)
    loggers.alter([Change(logger.name, Op.DELETE, None)])
    assert loggers.levels()[logger.name] == loggers.levels()["root"]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            Change("tests.dynamic.levels", Op.SET, "LOUD"),
            InvalidConfig,
            "DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
        (Change("tests.dynamic.levels", Op.SET, "debug"), InvalidConfig, "not a supported log level"),
        (Change("tests.dynamic.nobody", Op.SET, "INFO"), InvalidConfig, "does not exist"),
        (Change("tests.dynamic.nobody", Op.DELETE, None), InvalidConfig, "does not exist"),
        (Change("root", Op.DELETE, None), InvalidRequest, "root logger is not allowed"),
        (
            Change("tests.dynamic.levels", Op.APPEND, "INFO"),
            InvalidRequest,
            "APPEND operation is not allowed",
        ),
        (Change("tests.dynamic.levels", 8, "INFO"), InvalidRequest, "Unknown operation type 8"),
    ],
)
def test_levels_that_are_refused(
    logger: logging.Logger, change: Change, error: type[KafkaProtocolError], says: str
) -> None:
    with pytest.raises(error, match=says):
        loggers.alter([Change(logger.name, Op.SET, "DEBUG"), change])
    assert logger.level == logging.NOTSET


# ---- quotas ----


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        ({"user": "a b"}, "users/a%20b"),
        ({"user": None}, "users/<default>"),
        ({"user": "a", "client-id": "c/1"}, "users/a/clients/c%2F1"),
        ({"user": None, "client-id": None}, "users/<default>/clients/<default>"),
        ({"client-id": "c"}, "clients/c"),
        ({"client-id": None}, "clients/<default>"),
        ({"ip": "10.0.0.1"}, "ips/10.0.0.1"),
        ({"ip": None}, "ips/<default>"),
    ],
)
def test_entities_and_their_znodes(entity: dict[str, str | None], path: str) -> None:
    assert quotas.entity_path(entity) == path
    assert quotas.entity_of(path) == entity


@pytest.mark.parametrize(
    ("entity", "says"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"user": ""}, "Empty user not supported"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"ip": "1.2.3.4", "user": "u"}, "IP entity should not be used with user/client ID entity"),
    ],
)
def test_invalid_entities(entity: dict[str, str | None], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        quotas.entity_path(entity)


def test_quotas_are_written_as_kafka_writes_them() -> None:
    ops = [
        quotas.QuotaOp("producer_byte_rate", 1024.0),
        quotas.QuotaOp("request_percentage", 12.5),
        quotas.QuotaOp("controller_mutation_rate", 1e7),
        quotas.QuotaOp("consumer_byte_rate", None),
    ]
    before = {"consumer_byte_rate": "5", "SCRAM-SHA-256": "salt=..."}
    assert quotas.alteration({"user": "u"}, ops)(before) == {
        "producer_byte_rate": "1024",
        "request_percentage": "12.5",
        "controller_mutation_rate": "1.0E7",
        "SCRAM-SHA-256": "salt=...",
    }
    # A credential is not a quota, and no request removes it here.
    gone = quotas.alteration({"user": "u"}, [quotas.QuotaOp("SCRAM-SHA-256", None)])(before)
    assert gone == before


@pytest.mark.parametrize(
    ("entity", "key", "value", "says"),
    [
        ("user", "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        ("ip", "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        ("user", "SCRAM-SHA-256", 1.0, "Invalid configuration key SCRAM-SHA-256"),
        ("user", "producer_byte_rate", 1.5, "producer_byte_rate must be a LONG value"),
        ("user", "producer_byte_rate", 1e300, "producer_byte_rate must be a LONG value"),
        ("ip", "connection_creation_rate", 3e9, "connection_creation_rate must be a INT value"),
        ("user", "request_percentage", float("nan"), "a number of at least 0"),
        ("client-id", "consumer_byte_rate", -1.0, "a number of at least 0"),
    ],
)
def test_invalid_quotas(entity: str, key: str, value: float, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        quotas.alteration({entity: "x"}, [quotas.QuotaOp(key, value)])


ENTITIES: list[dict[str, str | None]] = [
    {"user": "u"},
    {"user": None},
    {"user": "u", "client-id": "c"},
    {"user": "u", "client-id": None},
    {"client-id": "c"},
    {"ip": "1.2.3.4"},
]
ANY, DEFAULT = quotas.Component(False), quotas.Component(True)


def exact(name: str) -> quotas.Component:
    return quotas.Component(True, name)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ({}, False, [0, 1, 2, 3, 4, 5]),
        ({}, True, []),
        ({"user": exact("u")}, True, [0]),
        ({"user": exact("u")}, False, [0, 2, 3]),
        ({"user": DEFAULT}, False, [1]),
        ({"user": ANY}, True, [0, 1]),
        ({"user": ANY}, False, [0, 1, 2, 3]),
        ({"user": exact("u"), "client-id": DEFAULT}, True, [3]),
        ({"user": ANY, "client-id": ANY}, True, [2, 3]),
        ({"client-id": exact("c")}, True, [4]),
        ({"client-id": exact("c")}, False, [2, 4]),
        ({"ip": ANY}, False, [5]),
        ({"ip": exact("4.3.2.1")}, True, []),
    ],
)
def test_the_entities_that_a_filter_finds(
    components: dict[str, quotas.Component], strict: bool, found: list[int]
) -> None:
    assert [ENTITIES[index] for index in found] == [
        entity for entity in ENTITIES if quotas.matches(components, strict, entity)
    ]


@pytest.mark.parametrize(
    ("types", "error"),
    [
        (["user", "user"], InvalidRequest),
        (["user", "ip"], InvalidRequest),
        ([""], InvalidRequest),
        (["group"], UnsupportedVersion),
    ],
)
def test_invalid_filters(types: list[str], error: type[KafkaProtocolError]) -> None:
    with pytest.raises(error):
        quotas.check_filter(types)


def test_the_quotas_of_the_data_plane() -> None:
    configs = {
        "users/a%20b": {"producer_byte_rate": "10", "SCRAM-SHA-256": "salt=..."},
        "users/only-a-credential": {"SCRAM-SHA-256": "salt=..."},
        "users/<default>/clients/c": {"request_percentage": "1.0E2", "consumer_byte_rate": "none"},
        "clients/<default>": {"consumer_byte_rate": "-5"},
        "ips/<default>": {"connection_creation_rate": "7"},
        "ips/10.0.0.1": {"connection_creation_rate": "8"},
    }
    assert quotas.client_quotas(configs) == [
        ("a b", None, {"producer_byte_rate": 10.0}),
        ("", "c", {"request_percentage": 100.0}),
        (None, "", {"consumer_byte_rate": 0.0}),
    ]
    assert quotas.ip_rates(configs) == {None: 7.0, "10.0.0.1": 8.0}


def test_layers_that_contradict_the_file_are_an_error() -> None:
    with pytest.raises(ConfigError):
        live().effective({}, {"advertised.listeners": "nowhere"})
