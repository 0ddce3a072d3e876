"""A transaction whose coordinator is killed after the decision and before the markers.

If it failed, a transaction that a client was told is committed would stay open: its readers would wait for
ever.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cluster.model import TRANSACTION_STATE_TOPIC
from cluster.state_topics import partition_of
from logcore._native import api_keys
from tests.compat.cluster.brokers import Cluster, cluster
from tests.compat.load import PATIENCE_SECONDS, until
from tests.compat.test_data_plane import Peer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

SETTINGS = {
    "min.insync.replicas": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
DESCRIBE_TRANSACTIONS = api_keys()["DescribeTransactions"]
NAME = "payments"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, "ours", dict.fromkeys(range(3), "ours"), SETTINGS) as running:
        running.start(0, 1, 2)
        yield running


def state(made: Cluster, broker: int) -> str:
    """The transactional id's state as a broker knows it; "" if it does not coordinate it."""
    peer = Peer(made.members[broker].bootstrap)
    with contextlib.closing(peer):
        answer = peer.ask(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [NAME]})
    assert isinstance(answer, dict)
    return str(answer["transaction_states"][0]["transaction_state"])


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_coordinator_ends_a_decided_transaction(made: Cluster, committed: bool) -> None:
    producer = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": NAME, "log_level": 0})
    producer.init_transactions(PATIENCE_SECONDS)
    made.until_in_sync(TRANSACTION_STATE_TOPIC)
    leaders = made.leaders(TRANSACTION_STATE_TOPIC)
    coordinator = leaders[partition_of(NAME, len(leaders))]
    holder, heir = (number for number in made.kinds if number != coordinator)
    # Only the holder can write the marker.
    made.create_topic("t", [[holder]])
    producer.begin_transaction()
    producer.produce("t", b"paid", partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    made.stop(holder, signal.SIGKILL)
    if committed:
        producer.commit_transaction(PATIENCE_SECONDS)
    else:
        producer.abort_transaction(PATIENCE_SECONDS)
    kind = "Commit" if committed else "Abort"
    assert state(made, coordinator) == f"Prepare{kind}"
    made.stop(coordinator, signal.SIGKILL)
    until(lambda: state(made, heir) == f"Prepare{kind}", f"broker {heir} coordinates the transaction")
    made.start(holder)
    until(lambda: state(made, heir) == f"Complete{kind}", "the transaction has ended")
    consumer = Consumer(
        {
            "bootstrap.servers": made.bootstrap,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    where = TopicPartition("t", 0, 0)
    # The end that such a reader sees is after the marker.
    until(lambda: consumer.get_watermark_offsets(where, PATIENCE_SECONDS)[1] == 2, "the reader sees the end")
    if committed:
        consumer.assign([where])
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.value() == b"paid"
    consumer.close()
