"""The settings of groups of the consumer protocol.

If one failed, a bad value would be found at a client's first heartbeat instead of the start, or a value would
have no effect.
"""

from __future__ import annotations

import asyncio

import pytest

from cluster.broker.config import BrokerConfig
from cluster.broker.group_settings import consumer_limits, consumer_protocol
from cluster.broker.settings import ConfigError
from cluster.errors import UnsupportedVersion
from tests.broker.wire import Wire
from tests.conftest import StartBroker

PACKAGE = "org.apache.kafka.coordinator.group.assignor"


def config(**values: str) -> BrokerConfig:
    given = {name.replace("_", "."): value for name, value in values.items()}
    every = {
        "zookeeper.connect": "localhost:2181",
        "log.dirs": "/d",
        "listeners": "PLAINTEXT://localhost:9092",
    }
    return BrokerConfig.parse(every | given)


def test_the_protocol_is_on_unless_it_is_configured_off() -> None:
    name = "group_coordinator_rebalance_protocols"
    assert consumer_protocol(config())
    assert consumer_protocol(config(**{name: "classic,consumer"}))
    assert not consumer_protocol(config(**{name: "classic"}))


def test_the_values_are_used() -> None:
    limits = consumer_limits(config())
    assert (limits.session_timeout_ms, limits.heartbeat_interval_ms) == (45_000, 5_000)
    assert (limits.assignors, limits.upgrade, limits.downgrade) == (("uniform", "range"), True, True)
    limits = consumer_limits(
        config(
            group_consumer_session_timeout_ms="50000",
            group_consumer_heartbeat_interval_ms="6000",
            group_consumer_max_size="7",
            group_consumer_assignors=f"range,{PACKAGE}.UniformAssignor",
            group_consumer_migration_policy="UPGRADE",
        )
    )
    assert (limits.session_timeout_ms, limits.heartbeat_interval_ms, limits.members_max) == (50_000, 6_000, 7)
    assert (limits.assignors, limits.upgrade, limits.downgrade) == (("range", "uniform"), True, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_consumer_session_timeout_ms", "44999"),
        ("group_consumer_heartbeat_interval_ms", "15001"),
        ("group_consumer_assignors", "sticky"),
        ("group_consumer_migration_policy", "both"),
        ("group_consumer_max_size", "0"),
    ],
)
def test_a_bad_value_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(ConfigError):
        consumer_limits(config(**{name: value}))


def test_a_broker_without_the_protocol_says_so(start_broker: StartBroker) -> None:
    """Clients get an error that names the cause, not silence."""
    broker = start_broker(None, None, "--override", "group.coordinator.rebalance.protocols=classic")

    async def errors() -> tuple[int, int]:
        async with Wire(broker.bootstrap) as wire:
            beat = await wire.ask("ConsumerGroupHeartbeat", 1, group_id="g", member_id="m", member_epoch=0)
            described = await wire.ask("ConsumerGroupDescribe", 1, group_ids=["g"])
            return beat["error_code"], described["groups"][0]["error_code"]

    assert asyncio.run(errors()) == (UnsupportedVersion.code, UnsupportedVersion.code)
