"""Descriptions of settings, loggers and the cluster.

If one failed, an operator would see wrong settings, a small request would get a response without a bound, or
a version of a client would get no answer.
"""

from __future__ import annotations

import logging
from pathlib import Path

from cluster.errors import for_code

from .configs import (
    BROKER,
    DELETE,
    LOGGER,
    METRICS,
    SET,
    TOPIC,
    alter,
    described,
    outcome,
    replace,
    run,
    served,
)


def test_loggers_of_the_broker(tmp_path: Path) -> None:
    logger = logging.getLogger("cluster.broker.dynamic.driver")

    async def work() -> None:
        async with served(tmp_path) as (wire, _zk):
            before = await described(wire, LOGGER, "0", logger.name)
            assert await alter(wire, LOGGER, "0", (logger.name, SET, "DEBUG")) == "ok"
            assert logger.level == logging.DEBUG
            assert await described(wire, LOGGER, "0", logger.name) == ("DEBUG", 6)
            assert await alter(wire, LOGGER, "0", (logger.name, DELETE, None)) == "ok"
            assert await described(wire, LOGGER, "0", logger.name) == before
            refused = await replace(wire, LOGGER, "0", root="INFO")
            assert refused == "INVALID_REQUEST: Unknown resource type 8"

    try:
        run(work)
    finally:
        logger.setLevel(logging.NOTSET)


def test_an_unknown_kind_of_resource_fails_the_whole_description(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, _zk):
            one = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": []}
            answer = await wire.ask("DescribeConfigs", 3, resources=[one, one | {"resource_type": 32}])
            assert [for_code(item["error_code"]).name for item in answer["results"]] == [
                "INVALID_REQUEST"
            ] * 2
            long = {"resource_type": BROKER, "resource_name": "7" * 5000, "configuration_keys": []}
            answer = await wire.ask("DescribeConfigs", 3, resources=[long])
            assert outcome(answer["results"][0]).startswith(
                "INVALID_REQUEST: Broker id must be an integer, but it is: 777"
            )
            gone = {"resource_type": TOPIC, "resource_name": "gone", "configuration_keys": []}
            metrics = {"resource_type": METRICS, "resource_name": "m", "configuration_keys": []}
            answer = await wire.ask("DescribeConfigs", 3, resources=[gone, metrics])
            assert [outcome(item) for item in answer["results"]] == [
                "UNKNOWN_TOPIC_OR_PARTITION: ",
                "INVALID_REQUEST: Config type client-metrics is only supported on KRaft clusters",
            ]

    run(work)


def test_repeated_descriptions_are_bounded(tmp_path: Path) -> None:
    """A request of 25 KB that named a broker 5,000 times was answered with 220 MB."""

    async def work() -> None:
        async with served(tmp_path) as (wire, _zk):
            names = ["0", "00", "+0", "0000"] * 1_250
            resources = [
                {"resource_type": BROKER, "resource_name": name, "configuration_keys": None} for name in names
            ]
            answer = await wire.ask("DescribeConfigs", 4, resources=resources, include_documentation=True)
            first, *others = answer["results"]
            said = [item["configs"] for item in others if item["error_code"] == 0]
            assert said == [first["configs"]] * len(said)
            assert 10 < len(said) <= 10_000 / len(first["configs"])
            refused = {outcome(item) for item in others[len(said) :]}
            assert refused == {
                "INVALID_REQUEST: The request names the same resources repeatedly: "
                "at most 10000 settings are repeated"
            }

            one = [resource | {"configuration_keys": ["broker.id"]} for resource in resources]
            answer = await wire.ask("DescribeConfigs", 4, resources=one)
            values = [[entry["value"] for entry in item["configs"]] for item in answer["results"]]
            assert values == [["0"]] * 5_000

    run(work)


def test_a_description_of_the_cluster(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, _zk):
            answer = await wire.ask("DescribeCluster", 1, endpoint_type=1)
            assert (answer["controller_id"], answer["brokers"][0]["broker_id"]) == (0, 0)
            assert answer["cluster_authorized_operations"] == -(2**31)
            for kind, says in (
                (2, "MISMATCHED_ENDPOINT_TYPE: The request was sent to an endpoint of type BROKER, but"),
                (7, "UNSUPPORTED_ENDPOINT_TYPE: Unsupported endpoint type 7"),
            ):
                assert outcome(await wire.ask("DescribeCluster", 1, endpoint_type=kind)).startswith(says)

    run(work)


def test_every_version_is_answered(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, _zk):
            one = {"resource_type": TOPIC, "resource_name": "t"}
            for version in range(5):
                answer = await wire.ask("DescribeConfigs", version, resources=[one])
                assert len(answer["results"][0]["configs"]) > 30
            for name, versions in (("AlterConfigs", 3), ("IncrementalAlterConfigs", 2)):
                for version in range(versions):
                    answer = await wire.ask(name, version, resources=[one], validate_only=True)
                    assert outcome(answer["responses"][0]) == "ok"
            for version in range(2):
                assert (
                    outcome(await wire.ask("DescribeClientQuotas", version, components=[], strict=False))
                    == "ok"
                )
                assert (await wire.ask("AlterClientQuotas", version, entries=[]))["entries"] == []

    run(work)


def test_documentation_is_given_on_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, _zk):
            one = {"resource_type": BROKER, "resource_name": "0", "configuration_keys": ["num.io.threads"]}
            for asked in (False, True):
                answer = await wire.ask("DescribeConfigs", 3, resources=[one], include_documentation=asked)
                [entry] = answer["results"][0]["configs"]
                assert bool(entry["documentation"]) is asked

    run(work)
