"""The coordinator under Apache ZooKeeper's own shell, from Apache Kafka's jars.

If this failed, Java clients, and with them an Apache Kafka broker in ZooKeeper mode, could not use our
coordinator.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.coordinator import CoordinatorServer

from .conftest import KafkaTools

pytestmark = pytest.mark.compat

SCRIPT = """
create /a hello
create -s -e /a/s- x
addWatch -m PERSISTENT_RECURSIVE /a
create /a/c two
set -v 0 /a/c three
get -s /a/c
ls /a
sync /a
getAllChildrenNumber /a
getEphemerals /a
addauth digest ann:secret
create /private x auth::cdrwa
getAcl /private
setAcl /a/c world:anyone:cdrwa
delete -v 9 /a/c
create /nobody/here x
deleteall /a
ls /
quit
"""


@pytest.fixture
def coordinator_port(tmp_path: Path) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = CoordinatorServer(tmp_path / "coordinator")
    yield asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


def test_zookeepers_shell(kafka_tools: KafkaTools, coordinator_port: int) -> None:
    said = kafka_tools.run(
        "org.apache.zookeeper.ZooKeeperMain",
        "-server",
        f"127.0.0.1:{coordinator_port}",
        stdin=SCRIPT,
        status=None,
    )
    for expected in (
        "three",
        "dataVersion = 1",
        "[c, s-0000000000]",
        "Sync is OK",
        "[/a/s-0000000000]",
        "'digest,'ann:",
        "type:NodeCreated path:/a/c",
        "type:NodeDataChanged path:/a/c",
        "type:NodeDeleted path:/a",
        "[private, zookeeper]",
    ):
        assert expected in said, f"no {expected!r} in:\n{said}"
