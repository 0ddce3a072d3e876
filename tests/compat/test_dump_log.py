"""Apache Kafka's DumpLogSegments on segments that our broker wrote, in every compression and over several
rolls.

If this failed, a Kafka broker or tool could not read our files.
"""

from __future__ import annotations

import re

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from tests.compat.conftest import KafkaTools
from tests.conftest import StartBroker

pytestmark = pytest.mark.compat

RECORDS = 3000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_dump_log_segments_reads_every_segment(
    start_broker: StartBroker, kafka_tools: KafkaTools, codec: str
) -> None:
    broker = start_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic("dumped", 1, 1, config={"segment.bytes": "65536", "index.interval.bytes": "1024"})
    admin.create_topics([topic])["dumped"].result(30)
    producer = confluent.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.type": codec,
            "batch.num.messages": 50,
            "enable.idempotence": True,
        }
    )
    for n in range(RECORDS):
        # Text that does not repeat, so that compressed segments roll too.
        value = f"{n} " + " ".join(f"{n * 7919 * k % 1000003:x}" for k in range(1, 30))
        producer.produce("dumped", value, key=f"k{n}", headers={"n": str(n)})
        producer.poll(0)
    assert producer.flush(30) == 0
    logs = broker.data_dir / "kafka-logs"
    directory = logs / "dumped-0"
    # While the broker has it open, and after it was closed.
    assert logcore.verify(logs) == []
    assert broker.stop() == 0
    assert logcore.verify(logs) == []

    segments = sorted(directory.glob("*.log"))
    assert len(segments) > 1
    dumped = kafka_tools.dump_log(*segments)
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+)", dumped, re.MULTILINE)] == list(
        range(RECORDS)
    )
    assert "isvalid: false" not in dumped
    assert not re.search(
        r"corrupt|invalid|error|mismatch|trailing", dumped.replace("isvalid: true", ""), re.IGNORECASE
    )
    others = [
        file
        for file in sorted(directory.iterdir())
        if file.suffix in (".index", ".timeindex", ".snapshot") and file.stat().st_size
    ]
    checked = kafka_tools.dump_log(*others)
    assert not re.search(r"mismatch|found|unsorted|error|exception", checked, re.IGNORECASE), checked[-2000:]
