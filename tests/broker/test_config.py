"""Settings. If one failed, an operator's file would be read wrongly, or a mistake in it would be found too
late.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from cluster.broker import BrokerStartError, run_properties
from cluster.broker.config import BrokerConfig, ConfigError
from cluster.broker.dynamic.description import (
    SOURCE_BROKER_FILE,
    SOURCE_DEFAULT,
    SOURCE_TOPIC,
    topic_entries,
    topic_synonyms,
    topic_value,
)
from cluster.broker.dynamic.live import LiveConfig
from cluster.broker.settings import Setting, as_text, broker_settings, rate_settings, topic_settings
from cluster.broker.topic_policy import check_topic_config
from cluster.errors import InvalidConfig
from cluster.model import Endpoint

BASE = {"zookeeper.connect": "localhost:2181", "listeners": "PLAINTEXT://localhost:9092"}

ROOT = Path(__file__).parents[2]

READ_OTHERWISE = {"node.id", "listeners", "advertised.listeners", "listener.security.protocol.map"}
"""Settings that have an effect and that no code reads by name."""

NOT_ACTED_ON = {"process.roles", "compression.lz4.level"}
"""Settings that are read only to be refused, and settings that are only checked: the lz4 codec has one level.
"""


def parse(**changes: str) -> BrokerConfig:
    return BrokerConfig.parse(BASE | {name.replace("_", "."): value for name, value in changes.items()})


def test_every_default_has_its_own_type_and_is_within_its_own_bounds() -> None:
    for setting in [*broker_settings().values(), *topic_settings().values()]:
        if setting.default:
            assert setting.parse(setting.default) == setting.default_value()


def test_topic_settings_name_existing_broker_settings() -> None:
    for setting in topic_settings().values():
        assert all(name in broker_settings() for name, _ in setting.synonyms)


def test_the_tables_say_which_settings_have_an_effect() -> None:
    """The start warns of settings without effect, and DescribeConfigs says so."""

    def named(path: str) -> set[str]:
        return set(re.findall(r'"([a-z0-9.]+)"', (ROOT / path).read_text().partition("mod tests {")[0]))

    def acted_on(table: dict[str, Setting]) -> set[str]:
        return {name for name, setting in table.items() if setting.has_effect}

    python = "".join(path.read_text() for path in (ROOT / "python/cluster").rglob("*.py"))
    asked = set(re.findall(r"""(?:\.(?:number|flag|text)\(|\.values\[)\s*"([a-z0-9.]+)\"""", python))
    of_tls = named("python/cluster/broker/tls_settings.py")
    of_broker = named("rust/crates/server/src/config.rs") | asked | of_tls | READ_OTHERWISE
    assert acted_on(broker_settings()) == (of_broker & set(broker_settings())) - NOT_ACTED_ON
    of_topic = named("rust/crates/storage/src/config.rs") | named(
        "rust/crates/server/src/quotas/replication.rs"
    )
    assert acted_on(topic_settings()) == (of_topic & set(topic_settings())) - NOT_ACTED_ON


def test_settings_of_the_data_plane_reach_it() -> None:
    """If this failed, a setting would be accepted, stored and described, and have no effect."""
    source = (ROOT / "rust/crates/server/src/config.rs").read_text().partition("mod tests {")[0]
    named = set(re.findall(r'"([a-z]+(?:\.[a-z0-9]+)+)"', source))
    known = broker_settings() | rate_settings()
    assert named - set(known) <= set(topic_settings()), "unknown settings of the broker"
    for name in named & set(known):
        setting = known[name]
        text = "PLAINTEXT" if name == "inter.broker.listener.name" else setting.default or "1"
        given = parse(**{name: text}).server_settings()
        assert name in given, f"{name} does not reach the data plane"
        assert setting.has_effect or name in NOT_ACTED_ON


def test_the_file_that_kafka_ships() -> None:
    config = BrokerConfig.parse(
        BASE
        | {
            "broker.id": "0",
            "num.network.threads": "3",
            "num.io.threads": "8",
            "socket.send.buffer.bytes": "102400",
            "log.dirs": "/tmp/kafka-logs",
            "num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "log.retention.hours": "168",
            "zookeeper.connection.timeout.ms": "18000",
            "group.initial.rebalance.delay.ms": "0",
        }
    )
    assert config.broker_id == 0
    assert config.log_dirs == ["/tmp/kafka-logs"]
    assert config.listeners == config.advertised == (Endpoint("PLAINTEXT", "localhost", 9092),)
    assert config.number("group.initial.rebalance.delay.ms") == 0
    assert config.number("offsets.topic.num.partitions") == 50
    assert config.warnings == ()


def test_unknown_settings_and_those_without_effect_are_named() -> None:
    config = parse(log_dirz="x", ssl_trustmanager_algorithm="X", num_io_threads="4", background_threads="5")
    assert config.warnings == (
        "unknown settings, ignored: log.dirz",
        "settings of Kafka that have no effect here: background.threads, num.io.threads, "
        "ssl.trustmanager.algorithm",
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("num.partitions", "many", "a whole number is needed"),
        ("num.partitions", "0", "a number of at least 1 is needed"),
        ("num.partitions", "99999999999", "from -2147483648 to 2147483647"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("compression.type", "zip", "uncompressed, zstd, lz4, snappy, gzip or producer is needed"),
        ("log.cleanup.policy", "compact,shred", "a list of compact or delete is needed"),
        ("log.message.timestamp.type", "Now", "CreateTime or LogAppendTime"),
        ("log.segment.bytes", "13", "of at least 14"),
        ("compression.gzip.level", "0", "-1 or from 1 to 9"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "from 0 to 1"),
        ("listeners", "localhost:9092", "NAME://HOST:PORT"),
        ("listeners", "PLAINTEXT://localhost:99999", "NAME://HOST:PORT"),
        ("listeners", "SASL_PLAINTEXT://localhost:9093", "PLAINTEXT and SSL, not SASL_PLAINTEXT"),
        ("listeners", "OTHER://localhost:9093", "listener.security.protocol.map has no protocol for OTHER"),
        ("listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", "needs its own name"),
        ("listeners", "", "at least one listener"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "not a wildcard"),
        ("advertised.listeners", "SASL_SSL://host:9092", "PLAINTEXT and SSL, not SASL_SSL"),
        ("process.roles", "broker", "ZooKeeper mode only"),
        ("zookeeper.connect", "", "the address of the coordinator"),
        ("broker.id", "-2", "at least 0"),
        ("broker.id", "1001", "at most reserved.broker.max.id"),
        ("log.dirs", ",", "at least one directory"),
        ("log.retention.ms", "0", "at least 1"),
        ("group.min.session.timeout.ms", "1800001", "at most group.max.session.timeout.ms"),
        ("inter.broker.listener.name", "OTHER", "one of the listeners is needed"),
        ("inter.broker.protocol.version", "zzz", "Version zzz is not a valid version"),
        ("log.message.format.version", "4.0", "Version 4.0 is not a valid version"),
        ("log.cleaner.dedupe.buffer.size", "1048576", "more than 1048576 for each of log.cleaner.threads, 1"),
        ("log.cleaner.threads", "0", "at least 1"),
        ("advertised.listeners", "", "at least one listener"),
        ("max.connections.per.ip.overrides", "10.0.0.1:7,[::1]:3", "without brackets"),
        ("log.cleaner.threads", "128", "log.cleaner.dedupe.buffer.size=134217728 is not allowed"),
    ],
)
def test_a_bad_value_is_one_clear_error(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(BASE | {name: value})
    assert name in str(caught.value)
    assert allowed in str(caught.value)


def test_several_listeners() -> None:
    config = parse(
        listeners="CLIENT://:9092,BROKER://[::1]:9093",
        listener_security_protocol_map="CLIENT:PLAINTEXT,BROKER:PLAINTEXT",
        advertised_listeners="CLIENT://kafka.example:19092,BROKER://[::1]:9093",
        inter_broker_listener_name="BROKER",
    )
    assert config.listeners == (Endpoint("CLIENT", "", 9092), Endpoint("BROKER", "::1", 9093))
    assert str(config.advertised[0]) == "CLIENT://kafka.example:19092"
    assert str(config.advertised[1]) == "BROKER://[::1]:9093"
    assert config.inter_broker_listener == "BROKER"


def test_listener_and_protocol_names_may_have_any_case() -> None:
    """Kafka has them in upper case."""
    listeners = "internal://127.0.0.1:1,EXTERNAL://127.0.0.1:2"
    protocols = "INTERNAL:plaintext,external:Plaintext"
    config = BrokerConfig.parse(
        {
            "zookeeper.connect": "localhost:2181",
            "listeners": listeners,
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "Internal",
        }
    )
    assert config.listeners == (Endpoint("INTERNAL", "127.0.0.1", 1), Endpoint("EXTERNAL", "127.0.0.1", 2))
    assert config.inter_broker_listener == "INTERNAL"
    assert config.server_settings()["inter.broker.listener.name"] == "INTERNAL"


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [
        (("127.0.0.1", "[::1]"), True),
        (("[::]", "0.0.0.0"), True),
        (("127.0.0.1", "127.0.0.2"), False),
        (("[::1]", "[::2]"), False),
        (("localhost", "[::1]"), False),
        (("127.0.0.1", ""), False),
        (("127.0.0.1", "[::1]", "localhost"), False),
    ],
)
def test_two_listeners_share_a_port_if_one_has_ipv4_and_one_ipv6(
    hosts: tuple[str, ...], allowed: bool
) -> None:
    def listeners(port: int) -> dict[str, str]:
        names = [f"L{number}" for number in range(len(hosts))]
        return {
            "zookeeper.connect": "localhost:2181",
            "listeners": ",".join(f"{name}://{host}:{port}" for name, host in zip(names, hosts, strict=True)),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "inter.broker.listener.name": "L0",
        }

    assert {item.port for item in BrokerConfig.parse(listeners(0)).listeners} == {0}
    if allowed:
        assert {item.port for item in BrokerConfig.parse(listeners(9)).listeners} == {9}
        return
    with pytest.raises(ConfigError, match="each listener needs its own port"):
        BrokerConfig.parse(listeners(9))


def test_files_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# a comment\nzookeeper.connect=zk:2181/kafka\nnum.partitions = 3\nlisteners=PLAINTEXT://h:1\n"
    )
    config = BrokerConfig.load(path, {"num.partitions": "4"})
    assert config.number("num.partitions") == 4
    assert config.zookeeper_connect == "zk:2181/kafka"


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes("# café\nzookeeper.connect=zk:2181/café\n".encode("iso-8859-1"))
    assert BrokerConfig.load(path).zookeeper_connect == "zk:2181/café"
    path.write_text("zookeeper.connect=zk:2181\nx=\\u12\n")
    with pytest.raises(BrokerStartError, match=r"server\.properties: line 2: \\u12 of x is not a character"):
        asyncio.run(run_properties(path, overrides={}, ready=lambda _broker: None))


@pytest.mark.parametrize("port", ["9" * 5000, "65536", "²", ""])
@pytest.mark.parametrize(("name", "address"), [("listeners", "PLAINTEXT://h:"), ("metrics.listener", "h:")])
def test_an_invalid_port_is_refused(name: str, address: str, port: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT is needed"):
        BrokerConfig.parse({"zookeeper.connect": "zk:2181", name: address + port})


def test_the_data_plane_gets_the_given_settings() -> None:
    config = parse(
        log_segment_bytes="1048576",
        log_cleanup_policy="compact,delete",
        log_cleaner_min_cleanable_ratio="0.25",
        zookeeper_set_acl="true",
    )
    assert config.server_settings() == {
        "zookeeper.connect": "localhost:2181",
        "listeners": "PLAINTEXT://localhost:9092",
        "log.segment.bytes": "1048576",
        "log.cleanup.policy": "compact,delete",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "zookeeper.set.acl": "true",
    }


def test_the_data_plane_gets_numbers_in_its_range() -> None:
    factor, rate = "log.cleaner.io.buffer.load.factor", "log.cleaner.io.max.bytes.per.second"

    def taken(name: str, text: str) -> float:
        return float(parse(**{name: text}).server_settings()[name])

    assert [taken(factor, text) for text in ("0.5", "1", "2")] == [0.5, 1.0, 1.0]
    assert [taken(rate, text) for text in ("7", "-1", "1e400")] == [
        7.0,
        sys.float_info.max,
        sys.float_info.max,
    ]
    assert 0 < taken(rate, "0") < sys.float_info.min
    assert [taken("log.retention.minutes", text) for text in ("7", "-3")] == [7, -1]


def test_limits_of_one_listener_go_to_the_data_plane() -> None:
    name, unknown = "listener.name.external.max.connections", "listener.name.external.max.connection"
    config = parse(**{name: "7", unknown: "8"})
    assert config.warnings == (f"unknown settings, ignored: {unknown}",)
    assert config.server_settings()[name] == "7"
    assert unknown not in config.server_settings()


def test_the_source_of_a_topics_value() -> None:
    retention, segment = topic_settings()["retention.ms"], topic_settings()["segment.bytes"]
    config = LiveConfig(parse(log_retention_hours="2", log_segment_bytes="2048"))
    assert topic_value(retention, {}, config) == "7200000"
    # Kafka shows only the sources that lead to log.retention.ms, which was not set.
    sources = {entry.name: entry.source for entry in topic_entries({}, config)}
    assert sources["retention.ms"] == SOURCE_DEFAULT
    assert sources["segment.bytes"] == SOURCE_BROKER_FILE
    assert topic_synonyms(segment, {"segment.bytes": "4096"}, config) == (
        ("segment.bytes", "4096", SOURCE_TOPIC),
        ("log.segment.bytes", "2048", SOURCE_BROKER_FILE),
        ("log.segment.bytes", "1073741824", SOURCE_DEFAULT),
    )
    assert topic_value(segment, {"segment.bytes": "4096"}, config) == "4096"
    assert topic_value(retention, {}, LiveConfig(parse(log_retention_ms="-1"))) == "-1"


def test_topic_settings_are_checked() -> None:
    broker = parse()
    check_topic_config(
        {"retention.ms": "-1", "cleanup.policy": "compact", "segment.bytes": "1048576"}, broker
    )
    with pytest.raises(InvalidConfig, match=r"Unknown topic config name: retention\.bits"):
        check_topic_config({"retention.bits": "1"}, broker)
    check_topic_config({"message.format.version": "2.8.1"}, broker)
    with pytest.raises(
        InvalidConfig, match=r"message\.format\.version=zzz is not allowed: Version zzz is not"
    ):
        check_topic_config({"message.format.version": "zzz"}, broker)
    with pytest.raises(InvalidConfig, match=r"retention\.ms=-2 is not allowed"):
        check_topic_config({"retention.ms": "-2"}, broker)


@pytest.mark.parametrize(
    "config",
    [
        {"leader.replication.throttled.replicas": "0:1,2"},
        {"follower.replication.throttled.replicas": "*,0:1"},
        {"remote.storage.enable": "true"},
        {"remote.log.copy.disable": "true"},
    ],
)
def test_topic_settings_that_are_refused_here(config: dict[str, str]) -> None:
    check_topic_config({"leader.replication.throttled.replicas": "0:1,2:3"}, parse())
    check_topic_config({"follower.replication.throttled.replicas": "*"}, parse())
    with pytest.raises(InvalidConfig):
        check_topic_config(config, parse())


def test_contradicting_compaction_lags() -> None:
    # Broken if it failed: a log could be created, or a broker started, whose records must never be compacted
    # by Kafka's rule.
    least, most = "min.compaction.lag.ms", "max.compaction.lag.ms"
    with pytest.raises(ConfigError, match=r"log\.cleaner\.min\.compaction\.lag\.ms=11 .*at most"):
        parse(log_cleaner_min_compaction_lag_ms="11", log_cleaner_max_compaction_lag_ms="10")
    broker = parse(log_cleaner_min_compaction_lag_ms="10", log_cleaner_max_compaction_lag_ms="10")
    check_topic_config({}, broker)
    check_topic_config({least: "20", most: "20"}, broker)
    # Kafka's own text.
    for topic, text in (
        ({least: "11"}, f"{least} (11) > {most} (10)"),
        ({most: "9"}, f"{least} (10) > {most} (9)"),
        ({least: "3", most: "2"}, f"{least} (3) > {most} (2)"),
    ):
        with pytest.raises(InvalidConfig, match=re.escape(f"conflict topic config setting {text}")):
            check_topic_config(topic, broker)


def test_values_as_text() -> None:
    big = 1.7976931348623157e308
    assert [as_text(value) for value in (1e7, 12345678.5, 100.0, 1e-5, big)] == [
        "1.0E7",
        "1.23456785E7",
        "100.0",
        "1.0E-5",
        "1.7976931348623157E308",
    ]
    assert [as_text(value) for value in (None, True, False, 1, 0.5, ["a", "b"], "x")] == [
        None,
        "true",
        "false",
        "1",
        "0.5",
        "a,b",
        "x",
    ]
