"""The end of a broker whose disk has failed, by itself or by a signal: one line and an exit status.

If one failed, an operator would find a traceback, or "every log was closed cleanly" for logs that were not.
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import cluster
from cluster.broker import BrokerStopError, start_embedded

from ..conftest import BrokerProcess, StartBroker


def limit_files(broker: BrokerProcess, size: int) -> None:
    """From now on no file of the broker may grow past `size` bytes, as on a full disk."""
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (size, size))


def create(broker: BrokerProcess, *topics: str, partitions: int = 1) -> None:
    admin = cluster.AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([cluster.NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(20)


def produce(broker: BrokerProcess, topic: str, value: bytes, until: str | None = None) -> bool:
    """Whether the record was acknowledged; with a deadline if the broker logs something first."""
    said: list[object] = []
    producer = cluster.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value, on_delivery=lambda error, _: said.append(error))
    if until is not None:
        broker.wait_output(until)
        producer.purge()
    producer.flush(30)
    return said == [None]


# If this failed, a log that a disk failure took offline would end the broker in a traceback, later parts
# would not be
# stopped, or the log's name would be unknown.
def test_a_log_that_cannot_be_closed_is_named_and_the_rest_is_stopped(start_broker: StartBroker) -> None:
    broker = start_broker()
    create(broker, "broken", "whole")
    assert produce(broker, "whole", b"kept")
    limit_files(broker, 200_000)
    assert not produce(broker, "broken", bytes(500_000), until="Produce to broken-0 refused")
    assert broker.stop() == 1
    # The producer tried again many times. The first failure and its consequence are logged once each.
    assert broker.output().count("Produce to broken-0 refused") <= 2
    last = broker.output().splitlines()[-1]
    assert last.startswith("logcore start: stopped, but not cleanly (exit status 1): ")
    assert "broken-0" in last
    assert "whole-0" not in last
    assert "Traceback" not in broker.output()
    again = start_broker()
    assert produce(again, "broken", b"after")
    assert again.stop() == 0


# If this failed, a broker whose coordinator's disk has failed would continue, and answer every change of the
# cluster
# with a timeout.
def test_a_broker_ends_when_its_coordinator_fails(start_broker: StartBroker) -> None:
    broker = start_broker()
    logs = (broker.data_dir / "coordinator").rglob("*.log")
    limit_files(broker, max(file.stat().st_size for file in logs))
    admin = cluster.AdminClient({"bootstrap.servers": broker.bootstrap, "socket.timeout.ms": 5_000})
    admin.create_topics([cluster.NewTopic("t", 1, 1)])
    assert broker.process.wait(30) == 1
    broker.stop()
    last = broker.output().splitlines()[-1]
    assert last.startswith(
        "logcore start: stopped, but not cleanly (exit status 1): the coordinator's log in "
    )
    assert "Traceback" not in broker.output()


# If this failed, a broker without a disk would live on: it serves nothing, and its supervisor would not
# notice.
def test_a_broker_ends_when_its_last_log_directory_fails(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    create(broker, "t")
    assert produce(broker, "t", b"kept")
    logs = broker.data_dir / "kafka-logs"
    # Renamed first: removing takes a while, during which the broker uses the files.
    logs.rename(tmp_path / "dead")
    assert broker.process.wait(60) == 1
    broker.stop()
    last = broker.output().splitlines()[-1]
    assert last.startswith(
        f"logcore start: stopped, but not cleanly (exit status 1): every log directory has failed ({logs}: "
    )
    assert "repair the disk, or set log.dirs to another, and start again" in last
    assert "Traceback" not in broker.output()


# If this failed, one part that raises would leave the coordinator running and its session open.
def test_every_part_is_stopped_whatever_one_step_raises(tmp_path: Path) -> None:
    class Failing:
        async def stop(self) -> None:
            raise OSError("no groups")

    async def run() -> None:
        async with AsyncExitStack() as stack:
            broker = await start_embedded(stack, tmp_path, port=0)
            groups, broker._groups = broker._groups, Failing()  # type: ignore[assignment]
            assert groups is not None
            stack.push_async_callback(groups.stop)

    async def again() -> None:
        async with AsyncExitStack() as stack:
            await start_embedded(stack, tmp_path, port=0)

    with pytest.raises(BrokerStopError, match="the groups did not stop cleanly: OSError"):
        asyncio.run(run())
    asyncio.run(again())
