"""Brokers that cannot join a cluster.

If one failed, a mistake of an operator would cost records, or say nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.broker import BrokerStartError

from .test_cluster import Cluster, cluster, consume, create, produce, run, values

pytestmark = pytest.mark.timeout(180)


async def refused(made: Cluster, match: str, number: int = 3, **settings: str) -> None:
    """A broker does not start, and the others go on."""
    with pytest.raises(BrokerStartError, match=match):
        await made.start(number, **settings)
    await produce(made, "t", values("b"))
    assert await consume(made, "t", 200) == values("a") + values("b")


def test_a_broker_whose_id_is_taken_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await create(made, "t")
            await produce(made, "t", values("a"))
            await refused(made, "broker id 1 is in use", broker_id="1")

    run(main)


def test_a_broker_with_the_log_directory_of_another_cluster_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        other, own = tmp_path / "other", tmp_path / "own"
        async with cluster(other, (3,)) as made:
            await create(made, "foreign", replicas=1)
            await produce(made, "foreign", values("c"))
        segment = other / "broker-3" / "foreign-0" / "00000000000000000000.log"
        before = segment.read_bytes()
        async with cluster(own) as made:
            await create(made, "t")
            await produce(made, "t", values("a"))
            await refused(made, "belongs to cluster", log_dirs=str(other / "broker-3"))
        assert segment.read_bytes() == before

    run(main)


def test_a_broker_whose_inter_broker_listener_the_others_lack_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await create(made, "t")
            await produce(made, "t", values("a"))
            await refused(
                made,
                "broker 0 of the cluster has no listener REPLICATION",
                listeners="PLAINTEXT://127.0.0.1:0,REPLICATION://127.0.0.1:0",
                listener_security_protocol_map="PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT",
                inter_broker_listener_name="REPLICATION",
            )

    run(main)
