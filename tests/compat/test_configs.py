"""Dynamic settings and client quotas, compared with Apache Kafka 3.9.1's.

If one failed, kafka-configs.sh would not work on our broker, our responses would differ from Apache's, or
data that one broker wrote into the coordinator would mean something else to the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cluster.broker import Broker, BrokerConfig
from cluster.errors import for_code
from cluster.properties import parse_properties
from tests.broker.wire import Wire
from tests.compat.apache import STOP_TIMEOUT, ApacheKafka, coordinator
from tests.compat.conftest import KafkaTools
from tests.conftest import BrokerProcess

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

T = TypeVar("T")

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC = (1, 2, 3)


# ---- kafka-configs.sh on our broker ----


def test_kafkas_tool_changes_and_describes_everything(broker: BrokerProcess, kafka_tools: KafkaTools) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    topic = "configs-tool"
    kafka_tools.topics("--create", "--topic", topic, *server)

    def alter(*arguments: str) -> str:
        return kafka_tools.configs(*server, "--alter", *arguments)

    def describe(*arguments: str) -> str:
        return kafka_tools.configs(*server, "--describe", *arguments)

    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    added = alter(*of_topic, "--add-config", "retention.ms=3600000,cleanup.policy=[compact,delete]")
    assert added == f"Completed updating config for topic {topic}.\n"
    shown = describe(*of_topic)
    assert (
        "  retention.ms=3600000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=3600000}" in shown
    )
    assert "cleanup.policy=compact,delete" in shown
    alter(*of_topic, "--delete-config", "cleanup.policy")
    assert "cleanup.policy" not in describe(*of_topic)

    every = ("--entity-type", "brokers", "--entity-default")
    assert alter(*every, "--add-config", "log.segment.bytes=200000000") == (
        "Completed updating default config for brokers in the cluster.\n"
    )
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=200000000" in describe(*every)
    one = ("--entity-type", "brokers", "--entity-name", "0")
    alter(*one, "--add-config", "log.segment.bytes=300000000")
    assert (
        "  log.segment.bytes=300000000 sensitive=false "
        "synonyms={DYNAMIC_BROKER_CONFIG:log.segment.bytes=300000000, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=200000000, "
        "DEFAULT_CONFIG:log.segment.bytes=1073741824}"
    ) in describe(*one)
    refused = kafka_tools.configs(*server, "--alter", *one, "--add-config", "num.partitions=3", status=1)
    assert "Cannot update these configs dynamically: Set(num.partitions)" in refused
    alter(*one, "--delete-config", "log.segment.bytes")
    alter(*every, "--delete-config", "log.segment.bytes")

    loggers = ("--entity-type", "broker-loggers", "--entity-name", "0")
    alter(*loggers, "--add-config", "cluster.broker.bridge=DEBUG")
    assert "  cluster.broker.bridge=DEBUG sensitive=false" in describe(*loggers)


def test_kafkas_tool_changes_and_describes_quotas(broker: BrokerProcess, kafka_tools: KafkaTools) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    for entity, quota, said in (
        (
            ("--entity-type", "users", "--entity-name", "ann b"),
            "producer_byte_rate=1024",
            "user-principal 'ann b'",
        ),
        (
            (
                "--entity-type",
                "users",
                "--entity-name",
                "ann b",
                "--entity-type",
                "clients",
                "--entity-default",
            ),
            "request_percentage=50.5",
            "user-principal 'ann b', the default client-id",
        ),
        (("--entity-type", "clients", "--entity-name", "c"), "consumer_byte_rate=2048", "client-id 'c'"),
        (("--entity-type", "ips", "--entity-default"), "connection_creation_rate=2000", "the default ip"),
    ):
        kafka_tools.configs(*server, "--alter", *entity, "--add-config", quota)
        key, _, value = quota.partition("=")
        shown = kafka_tools.configs(*server, "--describe", *entity)
        assert shown.splitlines() == [f"Quota configs for {said} are {key}={float(value)}"]
        kafka_tools.configs(*server, "--alter", *entity, "--delete-config", key)
        assert kafka_tools.configs(*server, "--describe", *entity) == ""


# ---- the same requests to both ----


@contextlib.contextmanager
def our_broker(settings: Mapping[str, str]) -> Iterator[str]:
    """Our broker in this process, on a running coordinator; its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def done(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(STOP_TIMEOUT)

    try:
        broker = Broker(BrokerConfig.parse(settings))
        done(broker.start())
        try:
            yield broker.bootstrap
        finally:
            done(broker.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_TIMEOUT)
        loop.close()


def ours_in_place_of(apache: ApacheKafka, **changes: str) -> dict[str, str]:
    """The settings of Apache's broker without its port."""
    settings = parse_properties((apache.directory / "server.properties").read_text())
    others = {name.replace("_", "."): value for name, value in changes.items()}
    return settings | {"listeners": "PLAINTEXT://127.0.0.1:0"} | others


@pytest.fixture(scope="module")
def both(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Apache's broker and ours with the same settings, each with its own coordinator and a topic `t`."""
    base = tmp_path_factory.mktemp("both")
    (base / "apache").mkdir()
    with coordinator(base / "theirs") as theirs, coordinator(base / "ours") as ours:
        apache = ApacheKafka(base / "apache", zookeeper=f"127.0.0.1:{theirs}")
        try:
            apache.start()
            changes = {"zookeeper_connect": f"127.0.0.1:{ours}", "log_dirs": str(base / "our-logs")}
            with our_broker(ours_in_place_of(apache, **changes)) as address:
                for bootstrap in (apache.bootstrap, address):
                    asyncio.run(create_topic(bootstrap))
                yield apache.bootstrap, address
        finally:
            apache.close()


async def create_topic(bootstrap: str) -> None:
    async with Wire(bootstrap) as wire:
        topic = {
            "name": "t",
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": "segment.bytes", "value": "1000000"}],
        }
        answer = await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
        assert answer["topics"][0]["error_code"] == 0
    await topic_known(bootstrap)


async def topic_known(bootstrap: str) -> None:
    """Repeats a request until Apache's broker knows the topic, which takes a while after its creation or a
    start.
    """
    async with Wire(bootstrap) as wire:
        while (await wire.ask("Metadata", 8, topics=[{"name": "t"}]))["topics"][0]["error_code"] != 0:
            pass


def ask_each(both: tuple[str, ...], name: str, version: int, **message: Any) -> list[dict[str, Any]]:
    async def ask(bootstrap: str) -> dict[str, Any]:
        async with Wire(bootstrap) as wire:
            return await asyncio.wait_for(wire.ask(name, version, **message), STOP_TIMEOUT)

    return [asyncio.run(ask(bootstrap)) for bootstrap in both]


def entries(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    [result] = answer["results"]
    assert (result["error_code"], result["error_message"]) == (0, "")
    return {entry["name"]: entry for entry in result["configs"]}


UNTHROTTLED = {"throttle_time_ms": 0}
"""A busy broker may delay a response."""

OTHERWISE_HERE = {"listeners", "log.dirs", "zookeeper.connect", "advertised.listeners"}
"""Settings whose values differ between the two brokers."""

ONLY_HERE = {
    "log.format",
    "logcore.produce.check.compressed",
    "metrics.listener",
    "slow.request.log.ms",
    "socket.busy.poll.us",
}
"""Settings of a broker that Kafka does not have."""


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "0"), (BROKER, "")])
def test_descriptions_are_the_same(both: tuple[str, str], kind: int, name: str) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    theirs, ours = map(
        entries, ask_each(both, "DescribeConfigs", 3, resources=[resource], include_synonyms=True)
    )
    assert set(ours) == set(theirs) | (ONLY_HERE if kind == BROKER and name else set())
    differing = {
        key: (theirs[key], ours[key])
        for key in theirs
        if theirs[key] != ours[key] and key not in OTHERWISE_HERE
    }
    assert differing == {}
    for key in OTHERWISE_HERE & set(theirs):
        assert shape(theirs[key]) == shape(ours[key])


def test_descriptions_of_the_first_version_are_the_same(both: tuple[str, str]) -> None:
    """In this version Kafka marks no setting as a default."""
    keys = ["segment.bytes", "retention.ms"]
    resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": keys}
    theirs, ours = map(entries, ask_each(both, "DescribeConfigs", 0, resources=[resource]))
    assert ours == theirs


def test_a_value_is_described_as_it_is_parsed(both: tuple[str, str]) -> None:
    resource = change(TOPIC, "t", ("segment.ms", SET, " 100 "), ("preallocate", SET, "FALSE"))
    for answer in ask_each(both, "IncrementalAlterConfigs", 0, resources=[resource], validate_only=False):
        assert answer["responses"][0]["error_code"] == 0
    try:
        resource = {"resource_type": TOPIC, "resource_name": "t"}
        asked = resource | {"configuration_keys": ["segment.ms", "preallocate"]}
        until_applied = time.monotonic() + STOP_TIMEOUT
        while True:
            theirs, ours = map(
                entries, ask_each(both, "DescribeConfigs", 3, resources=[asked], include_synonyms=True)
            )
            if theirs["segment.ms"]["config_source"] in DYNAMIC:
                break
            assert time.monotonic() < until_applied
        assert ours == theirs
    finally:
        undo = change(TOPIC, "t", ("segment.ms", DELETE, None), ("preallocate", DELETE, None))
        ask_each(both, "IncrementalAlterConfigs", 0, resources=[undo], validate_only=False)


def test_an_unknown_kind_of_resource_is_answered_the_same(both: tuple[str, str]) -> None:
    """Except the text, which is our own."""
    resources = [{"resource_type": 99, "resource_name": "r"}, {"resource_type": TOPIC, "resource_name": "t"}]
    theirs, ours = ask_each(both, "DescribeConfigs", 1, resources=resources)
    for answer in (theirs, ours):
        for result in answer["results"]:
            result["error_message"] = result["error_message"] is not None
    assert ours | UNTHROTTLED == theirs | UNTHROTTLED


def shape(entry: dict[str, Any]) -> dict[str, Any]:
    synonyms = [(item["name"], item["source"]) for item in entry["synonyms"]]
    return {**entry, "value": None, "synonyms": synonyms}


def change(kind: int, name: str, *ops: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


PRINCIPAL_BUILDER = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
SSL_ENGINES = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"

SAME_WORDS = [
    change(TOPIC, "t", ("retention.ms", SET, "1000")),
    change(TOPIC, "t", ("nobody.knows", SET, "1")),
    change(TOPIC, "t", ("retention.ms", APPEND, "1")),
    change(TOPIC, "t", ("retention.ms", SUBTRACT, "1")),
    change(TOPIC, "t", ("retention.ms", SET, None)),
    change(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
    change(TOPIC, "t", ("min.compaction.lag.ms", SET, "2"), ("max.compaction.lag.ms", SET, "1")),
    change(TOPIC, "t", ("remote.log.copy.disable", SET, "true")),
    change(TOPIC, "unknown", ("retention.ms", SET, "1")),
    change(TOPIC, "", ("retention.ms", SET, "1")),
    change(BROKER, "0", ("log.segment.bytes", SET, "2048")),
    change(BROKER, "", ("log.cleaner.backoff.ms", SET, "7")),
    change(BROKER, "", ("somebodys.plugin", SET, "7")),
    change(BROKER, "0", ("log.dirs", SET, "/x")),
    change(BROKER, "", ("num.partitions", SET, "3")),
    change(BROKER, "", ("log.cleaner.io.buffer.load.factor", SET, "2")),
    change(BROKER, "", ("log.cleaner.io.max.bytes.per.second", SET, "0")),
    change(BROKER, "", ("log.cleaner.io.max.bytes.per.second", SET, "1e400")),
    change(BROKER, "", ("log.retention.ms", SET, "-3")),
    change(BROKER, "", ("max.connections.per.ip.overrides", SET, "::1:3,127.0.0.1:7")),
    change(BROKER, "", ("metric.reporters", SET, "org.apache.kafka.common.metrics.JmxReporter")),
    change(BROKER, "", ("metric.reporters", SET, "")),
    change(BROKER, "0", ("principal.builder.class", SET, PRINCIPAL_BUILDER)),
    change(BROKER, "0", ("ssl.engine.factory.class", SET, SSL_ENGINES)),
    change(BROKER, "0", ("listener.name.plaintext.max.connections", SET, "5")),
    change(BROKER, "1", ("log.segment.bytes", SET, "2048")),
    change(BROKER, "x", ("log.segment.bytes", SET, "2048")),
    change(BROKER, "0", ("ssl.keystore.type", SET, "PEM")),
    change(BROKER, "", ("advertised.listeners", SET, "PLAINTEXT://h:1")),
    change(BROKER, "0", ("log.segment.bytes", 7, "1")),
    change(LOGGER, "0", ("root", DELETE, None)),
    change(LOGGER, "0", ("root", APPEND, "INFO")),
    change(LOGGER, "0", ("root", SET, "LOUD")),
    change(LOGGER, "0", ("nobody.knows", SET, "INFO")),
    change(LOGGER, "x", ("root", SET, "INFO")),
    change(16, "m", ("interval.ms", SET, "1")),
    change(32, "g"),
]
"""Changes that both answer with the same code and the same text."""

SAME_CODE = [
    change(TOPIC, "t", ("retention.ms", SET, "x")),
    change(TOPIC, "t", ("cleanup.policy", SET, "none")),
    change(TOPIC, "t", ("leader.replication.throttled.replicas", SET, "1")),
    change(TOPIC, "t", ("remote.storage.enable", SET, "true")),
    change(TOPIC, "t", ("message.format.version", SET, "zzz")),
    change(BROKER, "0", ("log.segment.bytes", SET, "x")),
    change(BROKER, "0", ("log.segment.bytes", SET, "1")),
    change(BROKER, "0", ("num.io.threads", SET, "100")),
    change(BROKER, "0", ("advertised.listeners", SET, "OTHER://h:1")),
    change(BROKER, "", ("listener.name.plaintext.ssl.key.password", SET, "p")),
    change(BROKER, "", ("metric.reporters", SET, "nope")),
    change(BROKER, "", ("metric.reporters", APPEND, "org.apache.kafka.common.metrics.MetricsReporter")),
    change(BROKER, "0", ("principal.builder.class", SET, "nope")),
    change(BROKER, "0", ("listener.name.other.principal.builder.class", SET, "nope")),
    change(BROKER, "0", ("ssl.engine.factory.class", SET, "nope")),
    change(BROKER, "", ("log.cleaner.dedupe.buffer.size", SET, "1000")),
    change(BROKER, "", ("log.cleaner.dedupe.buffer.size", SET, "1048576")),
    change(BROKER, "", ("max.connections.per.ip", SET, "0")),
    change(BROKER, "", ("max.connections.per.ip.overrides", SET, "1000")),
    change(BROKER, "", ("max.connections.per.ip.overrides", SET, "[::1]:3")),
    change(BROKER, "0", ("advertised.listeners", SET, "")),
    change(BROKER, "", ("log.roll.ms", SET, "0")),
    change(BROKER, "", ("log.roll.jitter.ms", SET, "-1")),
    change(BROKER, "", ("log.retention.ms", SET, "0")),
    change(BROKER, "", ("log.local.retention.ms", SET, str(2**62))),
    change(BROKER, "", ("log.local.retention.ms", SET, "-1")),
    change(BROKER, "0", ("listener.name.plaintext.max.connections", SET, "0")),
    change(BROKER, "0", ("listener.name.plaintext.num.network.threads", SET, "100")),
    change(LOGGER, "5", ("root", SET, "INFO")),
]
"""Changes that both refuse with the same code. The texts about values are our own."""


def outcomes(both: tuple[str, str], resource: dict[str, Any]) -> list[tuple[str, str]]:
    answers = ask_each(both, "IncrementalAlterConfigs", 0, resources=[resource], validate_only=True)
    return [outcome(answer["responses"][0]) for answer in answers]


def outcome(item: dict[str, Any]) -> tuple[str, str]:
    """The name of a response's error and its text, in which Scala's sets have names of several classes."""
    code = item["error_code"]
    return for_code(code).name if code else "NONE", str(item["error_message"]).replace("HashSet(", "Set(")


def test_changes_are_answered_with_the_same_text(both: tuple[str, str]) -> None:
    for resource in SAME_WORDS:
        theirs, ours = outcomes(both, resource)
        assert ours == theirs, resource


def test_changes_are_refused_with_the_same_code(both: tuple[str, str]) -> None:
    for resource in SAME_CODE:
        theirs, ours = outcomes(both, resource)
        assert ours[0] == theirs[0] != "NONE", (resource, theirs, ours)


VERSIONS = (
    "3.0,3.0-IV0,3.0-IV1,3.0-IV2,3.0-iv1,3.0-IV1.2,2.8,2.8.1, 2.8 ,2.8-,2,3.0.,0.8.2,0.8.2.1,0.8.2-IV0,0.9,"
    "0.10.2,0.10.2-IV0,3.9.1,4.0,4.0-IV1,,zzz"
)


@pytest.mark.parametrize("version", VERSIONS.split(","))
def test_the_same_versions_are_accepted(both: tuple[str, str], version: str) -> None:
    config = [{"name": "message.format.version", "value": version}]
    topic = {"name": "v", "num_partitions": 1, "replication_factor": 1, "configs": config}
    created = ask_each(both, "CreateTopics", 4, topics=[topic], timeout_ms=30_000, validate_only=True)
    altered = outcomes(both, change(TOPIC, "t", ("message.format.version", SET, version)))
    wanted = replacement(TOPIC, "t", message_format_version=version)
    replaced = ask_each(both, "AlterConfigs", 1, resources=[wanted], validate_only=True)
    codes = [code for code, _ in altered]
    codes += [outcome(answer["topics"][0])[0] for answer in created]
    codes += [outcome(answer["responses"][0])[0] for answer in replaced]
    assert codes == [codes[0]] * 6


def test_a_topic_with_an_assignment_and_a_number_is_refused_the_same(both: tuple[str, str]) -> None:
    """Although the assignment names a partition twice."""
    twice = [{"partition_index": 0, "broker_ids": [0]}] * 2
    for count, factor in ((1, -1), (-1, 1), (2, 1)):
        topic = {"name": "a", "num_partitions": count, "replication_factor": factor, "assignments": twice}
        answers = ask_each(both, "CreateTopics", 4, topics=[topic], timeout_ms=30_000, validate_only=True)
        theirs, ours = map(without_texts, answers)
        assert ours == theirs != [("a", 0)]


def replacement(kind: int, name: str, **config: str | None) -> dict[str, Any]:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


@pytest.mark.parametrize(
    "resources",
    [
        [replacement(TOPIC, "t", retention_ms="1000"), replacement(TOPIC, "unknown")],
        [replacement(TOPIC, "t", retention_ms=None, segment_ms=None)],
        [replacement(BROKER, "0", log_dirs="/x"), replacement(BROKER, "0x")],
        [replacement(LOGGER, "0", root="INFO"), replacement(16, "m"), replacement(32, "g")],
    ],
)
def test_replacements_are_answered_with_the_same_text(
    both: tuple[str, str], resources: list[dict[str, Any]]
) -> None:
    answers = ask_each(both, "AlterConfigs", 1, resources=resources, validate_only=True)
    theirs, ours = ([outcome(item) for item in answer["responses"]] for answer in answers)
    assert ours == theirs


QUOTA_ENTITIES: list[dict[str, str | None]] = [
    {"user": "ann"},
    {"user": None},
    {"user": "ann", "client-id": "c"},
    {"user": "ann", "client-id": None},
    {"client-id": "c 1"},
    {"client-id": None},
]


def alteration(entity: dict[str, str | None], **values: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()
        ],
    }


def test_changes_of_topics_above_the_quota_are_answered_the_same(both: tuple[str, str]) -> None:
    """KIP-599: newer versions are refused, older ones are served, and both are throttled."""

    def limited(rate: float | None) -> None:
        entry = alteration({"client-id": "test"}, controller_mutation_rate=rate)
        for answer in ask_each(both, "AlterClientQuotas", 0, entries=[entry], validate_only=False):
            assert answer["entries"][0]["error_code"] == 0
        until_changes_are_applied(both)

    def same(waits: bool, name: str, version: int, **message: Any) -> None:
        answers = ask_each(both, name, version, timeout_ms=30_000, **message)
        assert [answer.pop("throttle_time_ms") > 0 for answer in answers] == [waits] * 2
        theirs, ours = map(without_texts, answers)
        assert ours == theirs

    def created(name: str, count: int) -> dict[str, Any]:
        return {"name": name, "num_partitions": count, "replication_factor": 1}

    # One partition in a hundred seconds: after nine the client is above its quota, however long the requests
    # take.
    limited(0.01)
    try:
        same(False, "CreateTopics", 6, topics=[created("mutated", 9)])
        same(False, "CreateTopics", 6, topics=[created("more", 1), created("mutated", 1)], validate_only=True)
        same(True, "CreateTopics", 6, topics=[created("more", 1), created("mutated", 1)])
        same(True, "CreatePartitions", 3, topics=[{"name": "mutated", "count": 10, "assignments": None}])
        same(True, "DeleteTopics", 5, topic_names=["mutated", "nowhere"])
        same(True, "CreateTopics", 5, topics=[created("more", 1)])
        same(True, "CreatePartitions", 2, topics=[{"name": "more", "count": 2, "assignments": None}])
        same(True, "DeleteTopics", 4, topic_names=["mutated", "more"])
    finally:
        limited(None)


def until_changes_are_applied(both: tuple[str, str]) -> None:
    """Waits until Apache has applied earlier changes, which it does in order, after it has answered. It makes
    one more change, waits until it is described, and undoes it.
    """

    def entries_of_marker() -> list[dict[str, Any]]:
        asked = {"resource_type": BROKER, "resource_name": "0", "configuration_keys": [marker]}
        answers = ask_each(both, "DescribeConfigs", 3, resources=[asked], include_synonyms=True)
        return [entries(answer)[marker] for answer in answers]

    marker, until_applied = "log.cleaner.io.max.bytes.per.second", time.monotonic() + STOP_TIMEOUT
    for op, value in ((SET, "123456789.0"), (DELETE, None)):
        resource = change(BROKER, "0", (marker, op, value))
        for answer in ask_each(both, "IncrementalAlterConfigs", 0, resources=[resource], validate_only=False):
            assert answer["responses"][0]["error_code"] == 0, answer
        while any((entry["config_source"] in DYNAMIC) != (op == SET) for entry in entries_of_marker()):
            assert time.monotonic() < until_applied, f"{marker} is not applied after {STOP_TIMEOUT} s"


def without_texts(answer: dict[str, Any]) -> list[tuple[str, int]]:
    [results] = [value for value in answer.values() if isinstance(value, list)]
    return sorted((result["name"], result["error_code"]) for result in results)


def test_quotas_are_answered_and_found_the_same(both: tuple[str, str]) -> None:
    refused = [
        alteration({}, producer_byte_rate=1.0),
        alteration({"user": ""}, producer_byte_rate=1.0),
        alteration({"group": "g"}, producer_byte_rate=1.0),
        alteration({"user": "u", "ip": "1.2.3.4"}, producer_byte_rate=1.0),
        alteration({"ip": "1.2.3.4"}, producer_byte_rate=1.0),
        alteration({"ip": "::1"}, connection_creation_rate=1.0),
        alteration({"user": "u"}, nobody_knows=1.0),
        alteration({"user": "u"}, producer_byte_rate=1.5),
    ]
    for entry in refused:
        theirs, ours = ask_each(both, "AlterClientQuotas", 0, entries=[entry], validate_only=False)
        assert theirs | UNTHROTTLED == ours | UNTHROTTLED
        assert theirs["entries"][0]["error_code"] != 0
    entries = [
        alteration(entity, producer_byte_rate=1e9 + number, request_percentage=90000.5)
        for number, entity in enumerate(QUOTA_ENTITIES)
    ] + [alteration({"ip": "127.0.0.77"}, connection_creation_rate=9.0)]
    for answer in ask_each(both, "AlterClientQuotas", 0, entries=entries, validate_only=False):
        assert all(item["error_code"] == 0 for item in answer["entries"])
    any_of, exact, default = 2, 0, 1
    filters: list[list[tuple[str, int, str | None]]] = [
        [],
        [("user", any_of, None)],
        [("user", exact, "ann")],
        [("user", default, None)],
        [("client-id", exact, "c 1")],
        [("client-id", any_of, None)],
        [("user", exact, "ann"), ("client-id", default, None)],
        [("user", any_of, None), ("client-id", any_of, None)],
        [("ip", any_of, None)],
        [("ip", exact, "127.0.0.78")],
        [("user", any_of, None), ("user", default, None)],
        [("user", any_of, None), ("ip", any_of, None)],
        [("group", any_of, None)],
    ]
    for parts in filters:
        components = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in parts]
        for strict in (True, False):
            theirs, ours = ask_each(both, "DescribeClientQuotas", 0, components=components, strict=strict)
            assert found(theirs) == found(ours), (parts, strict)


def found(answer: dict[str, Any]) -> tuple[int, str | None, list[str]]:
    """A response's parts, sorted."""
    entries = [
        str(
            (
                sorted((part["entity_type"], str(part["entity_name"])) for part in entry["entity"]),
                sorted((value["key"], value["value"]) for value in entry["values"]),
            )
        )
        for entry in answer["entries"] or ()
    ]
    return answer["error_code"], answer["error_message"], sorted(entries)


def test_an_infinite_quota_is_stored_the_same(both: tuple[str, str]) -> None:
    """Kafka accepts an infinite number only for a quota that may have a fraction."""
    refused = alteration({"user": "i"}, producer_byte_rate=math.inf)
    for entry in (refused, alteration({"user": "i"}, request_percentage=math.inf)):
        theirs, ours = ask_each(both, "AlterClientQuotas", 0, entries=[entry], validate_only=False)
        assert theirs | UNTHROTTLED == ours | UNTHROTTLED
    components = [{"entity_type": "user", "match_type": 0, "match": "i"}]
    theirs, ours = ask_each(both, "DescribeClientQuotas", 0, components=components, strict=True)
    assert found(theirs) == found(ours)
    assert ours["entries"][0]["values"] == [{"key": "request_percentage", "value": math.inf}]
    gone = alteration({"user": "i"}, request_percentage=None)
    for answer in ask_each(both, "AlterClientQuotas", 0, entries=[gone], validate_only=False):
        assert answer["entries"][0]["error_code"] == 0


def test_producers_of_unknown_partitions_are_described_the_same(both: tuple[str, str]) -> None:
    """Except the text, which is our own."""
    names = ("unknown", "no name", "", ".", "n" * 250)
    topics = [{"name": "t", "partition_indexes": [0, 7]}]
    topics += [{"name": name, "partition_indexes": [0]} for name in names]
    theirs, ours = ask_each(both, "DescribeProducers", 0, topics=topics)
    for answer in (theirs, ours):
        for topic in answer["topics"]:
            for partition in topic["partitions"]:
                partition["error_message"] = partition["error_message"] is not None
    assert ours | UNTHROTTLED == theirs | UNTHROTTLED


def test_clusters_are_described_the_same(both: tuple[str, str]) -> None:
    theirs, ours = ask_each(both, "DescribeCluster", 0, include_cluster_authorized_operations=True)
    for answer, bootstrap in ((theirs, both[0]), (ours, both[1])):
        [broker] = answer["brokers"]
        assert f"{broker.pop('host')}:{broker.pop('port')}" == bootstrap
        assert len(answer.pop("cluster_id")) == 22
    assert theirs | UNTHROTTLED == ours | UNTHROTTLED


# ---- metadata ----


NO_ID = bytes(16)
UNKNOWN_ID = bytes([7] * 16)


@pytest.mark.parametrize("version", [10, 11, 12])
def test_topics_are_found_by_id_the_same(both: tuple[str, str], version: int) -> None:
    """Apache accepts ids since version 12, and then answers no names in the same request (KIP-516)."""
    for asked in (
        [(None, "t")],
        [("t", "t")],
        [("unknown", "t")],
        [("t", "t"), ("unknown", None)],
        [("t", "t"), (None, "t")],
        [(None, "unknown")],
        [("t", "unknown"), ("t", None)],
        [("t", None), ("bad name", None), ("t", None)],
        [("__consumer_offsets", "unknown")],
        *([] if version == 12 else [[(None, None)], [("t", None), (None, None)]]),
    ):
        theirs, ours = (metadata(bootstrap, version, asked) for bootstrap in both)
        assert ours == theirs, asked


def metadata(bootstrap: str, version: int, asked: list[tuple[str | None, str | None]]) -> dict[str, Any]:
    """The response for topics with these names and ids, without fields that differ between brokers."""
    [known] = ask_each((bootstrap,), "Metadata", 12, topics=[{"name": "t", "topic_id": NO_ID}])
    ids = {None: NO_ID, "t": known["topics"][0]["topic_id"], "unknown": UNKNOWN_ID}
    topics = [{"name": name, "topic_id": ids[of]} for name, of in asked]
    [answer] = ask_each((bootstrap,), "Metadata", version, topics=topics, allow_auto_topic_creation=False)
    names = {value: name for name, value in ids.items()}
    for topic in answer["topics"]:
        topic["topic_id"] = names[topic["topic_id"]]
    answer["topics"].sort(key=lambda topic: (str(topic["name"]), str(topic["topic_id"])))
    assert len(answer.pop("cluster_id") or "") in (0, 22)
    return answer | UNTHROTTLED | {"brokers": [broker["node_id"] for broker in answer["brokers"]]}


# ---- one coordinator, one after the other ----


def everything(bootstrap: str) -> dict[str, Any]:
    """All dynamic settings and quotas, as the broker at this address describes them."""
    described: dict[str, Any] = {}
    for kind, name in ((TOPIC, "t"), (BROKER, "0"), (BROKER, "")):
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        [answer] = ask_each((bootstrap,), "DescribeConfigs", 3, resources=[resource], include_synonyms=True)
        described[f"{kind} {name}"] = {
            key: entry for key, entry in entries(answer).items() if entry["config_source"] in DYNAMIC
        }
    [quotas] = ask_each((bootstrap,), "DescribeClientQuotas", 0, components=[], strict=False)
    return described | {"quotas": found(quotas)}


def write(bootstrap: str, number: int) -> None:
    """Settings of every kind, with values made of `number`."""
    resources = [
        change(TOPIC, "t", ("retention.ms", SET, str(number)), ("cleanup.policy", SET, "compact,delete")),
        change(BROKER, "", ("log.segment.bytes", SET, str(2048 + number)), ("somebodys.plugin", SET, "x")),
        change(BROKER, "0", ("log.segment.bytes", SET, str(4096 + number))),
        change(BROKER, "0", ("log.cleaner.io.max.bytes.per.second", SET, str(1.5e8 + number))),
    ]
    for resource in resources:
        [answer] = ask_each(
            (bootstrap,), "IncrementalAlterConfigs", 0, resources=[resource], validate_only=False
        )
        assert answer["responses"][0]["error_code"] == 0, answer
    quotas = [
        alteration(entity, producer_byte_rate=1e9 + number, request_percentage=90000.0 / number)
        for entity in QUOTA_ENTITIES
    ]
    ips = [alteration({"ip": name}, connection_creation_rate=100.0 + number) for name in ("127.0.0.77", None)]
    gone = alteration({"client-id": None}, producer_byte_rate=None, request_percentage=None)
    [answer] = ask_each(
        (bootstrap,), "AlterClientQuotas", 0, entries=[*quotas, *ips, gone], validate_only=False
    )
    assert all(item["error_code"] == 0 for item in answer["entries"]), answer


def test_settings_of_one_are_the_same_to_the_other(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    (tmp_path / "apache").mkdir()
    with coordinator(tmp_path / "coordinator") as port:
        apache = ApacheKafka(tmp_path / "apache", zookeeper=f"127.0.0.1:{port}")
        try:
            apache.start()
            asyncio.run(create_topic(apache.bootstrap))
            write(apache.bootstrap, 3)
            wait_until_applied(apache.bootstrap)
            theirs = everything(apache.bootstrap)
            apache.stop()
            with our_broker(ours_in_place_of(apache)) as address:
                assert everything(address) == theirs
                write(address, 5)
                ours = everything(address)
                assert ours != theirs
                kafka_tools.configs(
                    *("--zookeeper", f"127.0.0.1:{port}", "--alter", "--entity-type", "users"),
                    *("--entity-name", "ann", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=p]"),
                )
                wait_for_credential(address)
                assert everything(address) == ours
                write(address, 7)
                ours = everything(address)
            apache.start()
            asyncio.run(topic_known(apache.bootstrap))
            assert everything(apache.bootstrap) == ours
            wait_for_credential(apache.bootstrap)
        finally:
            apache.close()


def wait_until_applied(bootstrap: str) -> None:
    """Repeats the description until the settings are there: Apache applies them after it has answered."""
    while "log.cleaner.io.max.bytes.per.second" not in everything(bootstrap)[f"{BROKER} 0"]:
        pass


def wait_for_credential(bootstrap: str) -> None:
    """Repeats a request until the user's credential is known."""
    while True:
        [answer] = ask_each((bootstrap,), "DescribeUserScramCredentials", 0, users=[{"name": "ann"}])
        if answer["results"][0]["error_code"] == 0:
            assert answer["results"][0]["credential_infos"] == [{"mechanism": 1, "iterations": 4096}]
            return
