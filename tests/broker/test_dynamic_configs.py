"""Settings and quotas that are changed through a broker with its coordinator in this process.

If one failed, a change would be answered without effect, be lost at a restart, be hidden from the cluster's
other brokers, or destroy data of another program in the same znode.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from kazoo.protocol.serialization import Close, Connect

from cluster.broker import Broker, registration
from cluster.broker.dynamic.store import NOTICES_KEPT_MS, ConfigStore
from cluster.broker.settings import topic_settings
from cluster.client import KafkaError, Producer
from cluster.controller import ZooKeeper, znodes
from cluster.controller.zookeeper import ConnectionLostError
from cluster.model import BrokerId, BrokerInfo, Milliseconds

from .configs import (
    APPEND,
    BROKER,
    DELETE,
    LOGGER,
    METRICS,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    describe,
    described,
    embedded,
    notices,
    notify,
    outcome,
    quotas,
    replace,
    run,
    served,
    stored,
)
from .wire import Wire


def test_a_topics_settings_are_changed_one_by_one_and_all_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "5"), check=True) == "ok"
            assert await described(wire, TOPIC, "t", "retention.ms") == ("604800000", 5)
            assert (
                await alter(
                    wire, TOPIC, "t", ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")
                )
                == "ok"
            )
            assert await described(wire, TOPIC, "t", "retention.ms") == ("5", 1)
            assert await stored(zk, "topics/t") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
            assert await notices(zk) == ["topics/t"]
            assert (
                await alter(
                    wire, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)
                )
                == "ok"
            )
            assert await stored(zk, "topics/t") == {"cleanup.policy": "compact"}
            assert await replace(wire, TOPIC, "t", segment_bytes="2048") == "ok"
            assert await stored(zk, "topics/t") == {"segment.bytes": "2048"}
            assert await described(wire, TOPIC, "t", "cleanup.policy") == ("delete", 5)

    run(work)


@pytest.mark.parametrize(
    ("kind", "name", "ops", "says"),
    [
        (TOPIC, "t", [("retention.ms", SET, "x")], "INVALID_CONFIG: retention.ms=x is not allowed"),
        (TOPIC, "t", [("nobody.knows", SET, "x")], "INVALID_CONFIG: Unknown topic config name: nobody.knows"),
        (
            TOPIC,
            "t",
            [("retention.ms", SET, None)],
            "INVALID_REQUEST: Null value not supported for : retention.ms",
        ),
        (
            TOPIC,
            "t",
            [("a", SET, "1"), ("a", DELETE, None)],
            "INVALID_REQUEST: Error due to duplicate config keys",
        ),
        (
            TOPIC,
            "u",
            [("retention.ms", SET, "1")],
            "UNKNOWN_TOPIC_OR_PARTITION: The topic 'u' does not exist.",
        ),
        (
            TOPIC,
            "",
            [("retention.ms", SET, "1")],
            "INVALID_REQUEST: Default topic resources are not allowed.",
        ),
        (
            BROKER,
            "0",
            [("log.dirs", SET, "/x")],
            "INVALID_REQUEST: Cannot update these configs dynamically: Set(log.dirs)",
        ),
        (
            BROKER,
            "1",
            [("log.segment.bytes", SET, "2048")],
            "INVALID_REQUEST: Unexpected broker id, expected 0, but received 1",
        ),
        (
            BROKER,
            "me",
            [("log.segment.bytes", SET, "2048")],
            "INVALID_REQUEST: Node id must be an integer, but it is: me",
        ),
        # Java parses a number of 32 bits with any number of digits.
        (
            BROKER,
            "+" + "0" * 5000 + "1",
            [],
            "INVALID_REQUEST: Unexpected broker id, expected 0, but received +00",
        ),
        (
            BROKER,
            "2147483648",
            [],
            "INVALID_REQUEST: Node id must be an integer, but it is: 2147483648",
        ),
        (LOGGER, "7" * 5000, [], "INVALID_REQUEST: Node id must be an integer, but it is: 777"),
        (LOGGER, "0", [("nobody", SET, "INFO")], "INVALID_CONFIG: Logger nobody does not exist!"),
        (METRICS, "m", [], "INVALID_REQUEST: AlterConfigs is only supported for topics and brokers"),
        (32, "g", [], "INVALID_REQUEST: Unknown resource type 32"),
    ],
)
def test_changes_that_are_refused(
    tmp_path: Path, kind: int, name: str, ops: list[tuple[str, int, str | None]], says: str
) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            assert (await alter(wire, kind, name, *ops)).startswith(says)
            assert await notices(zk) == []

    run(work)


def test_each_resource_may_be_named_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            same = {
                "resource_type": TOPIC,
                "resource_name": "t",
                "configs": [{"name": "retention.ms", "value": "1"}],
            }
            other = {"resource_type": BROKER, "resource_name": "", "configs": []}
            answer = await wire.ask("AlterConfigs", 0, resources=[same, other, same], validate_only=False)
            said = [outcome(item) for item in answer["responses"]]
            assert said[0] == said[2] == "INVALID_REQUEST: Each resource must appear at most once."
            assert said[1] == "ok"
            assert await stored(zk, "topics/t") == {}

    run(work)


def test_a_brokers_settings_have_layers_that_survive_it(tmp_path: Path) -> None:
    async def first() -> None:
        async with served(tmp_path, log_retention_hours="2") as (wire, zk):
            assert (
                await alter(
                    wire, BROKER, "", ("log.segment.bytes", SET, "2048"), ("log.retention.ms", SET, "7")
                )
                == "ok"
            )
            assert await described(wire, BROKER, "0", "log.segment.bytes") == ("2048", 3)
            assert await alter(wire, BROKER, "0", ("log.segment.bytes", SET, "4096")) == "ok"
            assert await stored(zk, "brokers/<default>") == {
                "log.segment.bytes": "2048",
                "log.retention.ms": "7",
            }
            assert await notices(zk) == ["brokers/<default>", "brokers/0"]

    async def second() -> None:
        async with served(tmp_path, log_retention_hours="2") as (wire, zk):
            assert await described(wire, BROKER, "0", "log.segment.bytes") == ("4096", 2)
            assert await described(wire, BROKER, "", "log.segment.bytes") == ("2048", 3)
            assert await described(wire, TOPIC, "t", "segment.bytes") == ("4096", 2)
            assert await described(wire, TOPIC, "t", "retention.ms") == ("7", 3)
            assert await alter(wire, BROKER, "0", ("log.segment.bytes", DELETE, None)) == "ok"
            assert await described(wire, TOPIC, "t", "segment.bytes") == ("2048", 3)
            assert await replace(wire, BROKER, "") == "ok"
            assert await described(wire, TOPIC, "t", "segment.bytes") == ("1073741824", 5)
            assert await described(wire, TOPIC, "t", "retention.ms") == ("7200000", 5)
            # Kafka keeps the empty nodes of topics and brokers.
            assert await zk.find(znodes.config_path("brokers/0")) is not None

    run(first)
    run(second)


def test_a_new_limit_applies_to_open_logs(tmp_path: Path) -> None:
    def produce(bootstrap: str, size: int) -> str:
        said: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 1_000_000})
        producer.produce("t", bytes(size), on_delivery=lambda error, _message: said.append(error))
        assert producer.flush(30) == 0
        [error] = said
        return "ok" if error is None else error.name()

    async def work() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
            assert await asyncio.to_thread(produce, broker.bootstrap, 5000) == "ok"
            assert await alter(wire, BROKER, "", ("message.max.bytes", SET, "1000")) == "ok"
            assert await asyncio.to_thread(produce, broker.bootstrap, 5000) == "MSG_SIZE_TOO_LARGE"
            assert await alter(wire, TOPIC, "t", ("max.message.bytes", SET, "10000")) == "ok"
            assert await asyncio.to_thread(produce, broker.bootstrap, 5000) == "ok"
            assert await alter(wire, TOPIC, "t", ("max.message.bytes", DELETE, None)) == "ok"
            assert await alter(wire, BROKER, "", ("message.max.bytes", DELETE, None)) == "ok"
            assert await asyncio.to_thread(produce, broker.bootstrap, 5000) == "ok"

    run(work)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections.per.ip.overrides", "127.0.0.1"),
        ("max.connections.per.ip", "0"),
        ("log.roll.ms", "0"),
        ("log.flush.interval.ms", "-1"),
    ],
)
def test_settings_that_the_data_plane_refuses_are_not_stored(tmp_path: Path, name: str, value: str) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            for broker, check in (("", True), ("", False), ("0", False)):
                said = await alter(wire, BROKER, broker, (name, SET, value), check=check)
                assert said.startswith(f"INVALID_REQUEST: Invalid dynamic configuration: {name}={value} "), (
                    said
                )
            assert await stored(zk, "brokers/<default>") == await stored(zk, "brokers/0") == {}
            assert await notices(zk) == []
            # The next change is not affected.
            assert await alter(wire, BROKER, "", ("message.max.bytes", SET, "1000")) == "ok"
            assert await described(wire, TOPIC, "t", "max.message.bytes") == ("1000", 3)

    run(work)


def test_a_number_of_network_threads_has_effect_from_the_next_start_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its documentation says so, and that the number of I/O threads has no effect."""

    async def first() -> None:
        async with embedded(tmp_path, num_network_threads="2") as broker, Wire(broker.bootstrap) as wire:
            assert network_threads(broker) == 2
            changes = ("num.network.threads", SET, "4"), ("num.io.threads", SET, "9")
            assert await alter(wire, BROKER, "0", *changes) == "ok"
            assert await described(wire, BROKER, "0", "num.network.threads") == ("4", 2)
            assert network_threads(broker) == 2
            assert "num.network.threads takes effect at the next start" in caplog.text
            assert "have no effect here: background.threads" not in caplog.text
            assert "settings of Kafka that have no effect here: num.io.threads" in caplog.text

    async def second() -> None:
        async with embedded(tmp_path, num_network_threads="2") as broker:
            assert network_threads(broker) == 4

    run(first)
    run(second)


def network_threads(broker: Broker) -> float:
    assert broker._server is not None
    return broker._server.measurements().gauges["network_threads"]


def test_changes_of_another_program_are_applied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def write(zk: ZooKeeper, entity: str, config: dict[str, str]) -> None:
        path = znodes.config_path(entity)
        await zk.ensure([path])
        await zk.set(path, znodes.encode_config(config))
        await notify(zk, znodes.encode_config_change(entity))

    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            # Two unreadable notices must not block those after them.
            await notify(zk, b"not json")
            await write(zk, "nobodys/x", {"a": "b"})
            await write(zk, "topics/t", {"retention.ms": "9"})
            dynamic = {"log.segment.bytes": "3000", "log.dirs": "/x", "num.io.threads": "many"}
            await write(zk, "brokers/<default>", dynamic)
            await write(zk, "brokers/0", {"listeners": "PLAINTEXT://127.0.0.1:1"})
            await zk.create("/config/clients/c", b"not json")
            await notify(zk, znodes.encode_config_change("clients/c"))
            await write(zk, "users/u", {"producer_byte_rate": "11"})
            while not (await quotas(wire)):
                pass
            assert await described(wire, TOPIC, "t", "retention.ms") == ("9", 1)
            assert await described(wire, BROKER, "0", "log.segment.bytes") == ("3000", 3)
            assert set(await describe(wire, BROKER, "")) == {"log.segment.bytes"}
            assert "log.dirs of brokers/<default> in the coordinator is ignored" in caplog.text
            assert "num.io.threads=many" in caplog.text
            assert "are opened at the next start only" in caplog.text
            assert "znode /config/clients/c cannot be read" in caplog.text

    run(work)


def test_changes_are_applied_after_a_lost_session(tmp_path: Path) -> None:
    async def end_session(host: str, port: int, session: tuple[int, bytes]) -> None:
        """Takes over the session and closes it, before the broker can reconnect: to the broker it has
        expired.
        """
        reader, writer = await asyncio.open_connection(host, port)
        handshake = Connect(0, 0, 10_000, *session, False).serialize()
        close = struct.pack(">ii", 1, Close.type)
        for frame in (handshake, close):
            writer.write(struct.pack(">i", len(frame)) + frame)
        await reader.read()
        writer.close()

    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            host, port = zk._client.hosts[0]
            other = await ZooKeeper.connect(f"{host}:{port}", Milliseconds(10_000), Milliseconds(10_000))
            lost = zk.session_id
            await end_session(host, port, zk._client.client_id)
            await other.create("/config/users/u", znodes.encode_config({"producer_byte_rate": "5"}))
            await notify(other, znodes.encode_config_change("users/u"))
            while await quotas(wire) != ["user=u producer_byte_rate:5"] or zk.session_id == lost:
                pass
            await other.set("/config/users/u", znodes.encode_config({"producer_byte_rate": "6"}))
            await notify(other, znodes.encode_config_change("users/u"))
            while await quotas(wire) != ["user=u producer_byte_rate:6"]:
                pass
            await other.close()

    run(work)


def test_other_endpoints_are_advertised_after_the_coordinator_was_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advertise, failing = registration.advertise, [ConnectionLostError(), ConnectionLostError()]

    async def interrupted(zk: ZooKeeper, broker: BrokerInfo) -> None:
        if failing:
            raise failing.pop()
        await advertise(zk, broker)

    async def endpoint(wire: Wire) -> tuple[str, int]:
        [broker] = (await wire.ask("DescribeCluster", 0))["brokers"]
        return broker["host"], broker["port"]

    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            monkeypatch.setattr(registration, "advertise", interrupted)
            change = ("advertised.listeners", SET, "PLAINTEXT://elsewhere:7")
            assert (await alter(wire, BROKER, "0", change)).startswith("REQUEST_TIMED_OUT")
            while await endpoint(wire) != ("elsewhere", 7):
                pass
            assert json.loads((await zk.get(znodes.broker_path(BrokerId(0))))[0])["host"] == "elsewhere"
            assert not failing

    run(work)


def test_endpoints_that_change_between_two_sessions_come_with_the_second(tmp_path: Path) -> None:
    async def work() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert broker._zk is not None
            path = znodes.broker_path(BrokerId(0))
            await broker._zk.delete(path)
            change = ("advertised.listeners", SET, "PLAINTEXT://elsewhere:7")
            assert await alter(wire, BROKER, "0", change) == "ok"
            broker._session_renewed()
            while (found := await broker._zk.find(path)) is None:
                pass
            assert json.loads(found[0])["host"] == "elsewhere"

    run(work)


def test_a_change_undone_while_disconnected_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            dynamic, calls = broker._dynamic, []
            assert dynamic is not None
            assert broker._server is not None
            before, update = dynamic.live.current, broker._server.update_config

            class Watched:
                def update_config(self, properties: dict[str, str]) -> None:
                    calls.append(properties.get("message.max.bytes"))
                    update(properties)

            async def interrupted(_before: object, _after: object) -> None:
                raise ConnectionLostError

            changed = dynamic._broker_changed
            monkeypatch.setattr(dynamic, "_data_plane", Watched())
            monkeypatch.setattr(dynamic, "_broker_changed", interrupted)
            other = dynamic.live.effective({"message.max.bytes": "1000"}, {})
            with pytest.raises(ConnectionLostError):
                await dynamic._apply_broker_config(other)
            assert dynamic.live.current is before
            monkeypatch.setattr(dynamic, "_broker_changed", changed)
            await dynamic._reload_broker()
            assert calls == ["1000", None]
            assert await described(wire, BROKER, "0", "message.max.bytes") == ("1048588", 5)

    run(work)


def test_settings_too_large_for_the_coordinator_are_refused_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator closes the connection on a larger request, and all other requests on it fail."""
    many = [(f"somebodys.plugin.{number}", SET, "x" * 30_000) for number in range(40)]

    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            for broker, check in (("", True), ("", False), ("0", False)):
                said = await alter(wire, BROKER, broker, *many, check=check)
                assert said.startswith("INVALID_CONFIG: The settings of brokers/"), said
                assert "jute.maxbuffer" in said
            leader, follower = (f"{role}.replication.throttled.replicas" for role in ("leader", "follower"))
            large = {follower: ",".join(["0:0"] * 245_000)}
            await zk.set(znodes.config_path("topics/t"), znodes.encode_config(large))
            said = await alter(wire, TOPIC, "t", (leader, SET, ",".join(["1:0"] * 8000)))
            assert said.startswith("INVALID_CONFIG: The settings of topics/t take 10"), said
            assert await stored(zk, "topics/t") == large
            configs = [
                {"name": setting.name, "value": f"{setting.default:32000}"}
                for setting in topic_settings().values()
            ]
            topic = {"name": "large", "num_partitions": 1, "replication_factor": 1, "configs": configs}
            answer = await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
            said = outcome(answer["topics"][0])
            assert said.startswith("INVALID_CONFIG: Topic 'large' takes "), said

    with caplog.at_level(logging.WARNING, "cluster.controller.zookeeper"):
        run(work)
    assert caplog.messages == []


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (_wire, zk):
            # Two brokers, each with its own store.
            stores = [ConfigStore(zk), ConfigStore(zk)]

            async def add(number: int) -> None:
                async def alter(config: Mapping[str, str]) -> Mapping[str, str]:
                    return {**config, str(number): "1"}

                await stores[number % 2].change("users/u", alter)

            await asyncio.gather(*map(add, range(8)))
            assert set(await stored(zk, "users/u")) == {str(number) for number in range(8)}
            assert await notices(zk) == ["users/u"] * 8

    run(work)


def test_old_notices_are_deleted_and_recent_ones_stay(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "1")) == "ok"
            assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "2")) == "ok"
            store = ConfigStore(zk)
            names = await store.notices(lambda: None)
            [_, second] = [(await zk.get(f"{znodes.CONFIG_CHANGES}/{name}"))[1].created_ms for name in names]
            await store.purge(names, second + NOTICES_KEPT_MS)
            assert (await store.notices(lambda: None))[-1] == names[1]
            await store.purge(names, second + NOTICES_KEPT_MS + 1)
            assert await store.notices(lambda: None) == []

    run(work)


def test_a_broker_advertises_its_new_address(tmp_path: Path) -> None:
    async def host(wire: Wire) -> str:
        return str((await wire.ask("Metadata", 8, topics=[]))["brokers"][0]["host"])

    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            port = (await wire.ask("Metadata", 8, topics=[]))["brokers"][0]["port"]
            advertised = f"PLAINTEXT://localhost:{port}"
            assert await alter(wire, BROKER, "0", ("advertised.listeners", SET, advertised)) == "ok"
            while await host(wire) != "localhost":
                pass
            registered = json.loads((await zk.get("/brokers/ids/0"))[0])
            assert registered["endpoints"] == [advertised]
            assert await alter(wire, BROKER, "0", ("advertised.listeners", DELETE, None)) == "ok"
            while await host(wire) != "127.0.0.1":
                pass

    run(work)
