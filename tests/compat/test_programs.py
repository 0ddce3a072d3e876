"""The usual programs of librdkafka, kafka-python, aiokafka, franz-go and the Java client, unmodified, against
one broker: every compression, every acks, each record compared by the same client and by another one.

If one failed, a program that runs against Apache Kafka would lose, repeat, change or reorder its records
here.

By default a cell has few records. `make clients` sets LOGCORE_CLIENTS_RECORDS, the number for every cell.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.programs.client import Client
from tests.compat.programs.piped import franz_go, java
from tests.compat.programs.python import Aiokafka, KafkaPython, Librdkafka
from tests.compat.programs.records import Found, Ledger, Record, record
from tests.conftest import BrokerProcess

pytestmark = [
    pytest.mark.compat,
    # On a new machine Go builds its standard library first.
    pytest.mark.timeout(300),
    # kafka-python leaves sockets to the garbage collector when it closes.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

CLIENTS: dict[str, Callable[[], AbstractContextManager[Client]]] = {
    "librdkafka": lambda: nullcontext(Librdkafka()),
    "kafka-python": lambda: nullcontext(KafkaPython()),
    "aiokafka": lambda: nullcontext(Aiokafka()),
    "franz-go": franz_go,
    "java-3.9.1": lambda: java("kafka-3.9.1"),
    "java-4.1.0": lambda: java("kafka-4.1.0"),
}
NAMES = list(CLIENTS)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
"""By their number in a batch's attributes."""
ACKS = ["0", "1", "all"]
PARTITIONS = 3
ALL, FEW = 100_000, 2_000
ADMIN_TIMEOUT = 30.0
BATCH_HEADER = struct.Struct(">qi4x1x4xh")
"""Of a batch v2: its base offset, its length after these two, and its attributes. Leader epoch, magic and CRC
are skipped.
"""


@pytest.fixture(scope="module")
def client_of() -> Iterator[Callable[[str], Client]]:
    """Each client by its name, built and started at its first use."""
    with contextlib.ExitStack() as running:
        yield functools.cache(lambda name: running.enter_context(CLIENTS[name]()))


def records_of(client: str, codec: str, acks: str) -> int:
    """How many records the cell has: all of them in one cell of each client, unless the environment sets a
    number.
    """
    if "LOGCORE_CLIENTS_RECORDS" in os.environ:
        return int(os.environ["LOGCORE_CLIENTS_RECORDS"])
    turn = NAMES.index(client)
    return ALL if (codec, acks) == (CODECS[turn % len(CODECS)], ACKS[turn % len(ACKS)]) else FEW


@contextlib.contextmanager
def passing(server: str, topic: str) -> Iterator[None]:
    """The topic, deleted if the block ends well: otherwise the broker would sync hundreds of logs at its
    stop.
    """
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(ADMIN_TIMEOUT)
    yield
    admin.delete_topics([topic])[topic].result(ADMIN_TIMEOUT)


def ends(server: str, topic: str) -> dict[int, int]:
    """The end offset of each partition that is not empty."""
    consumer = confluent.Consumer({"bootstrap.servers": server, "group.id": "ends"})
    found = {
        partition: consumer.get_watermark_offsets(confluent.TopicPartition(topic, partition), ADMIN_TIMEOUT)[
            1
        ]
        for partition in range(PARTITIONS)
    }
    consumer.close()
    return {partition: end for partition, end in found.items() if end}


def codecs_in(logs: Path, topic: str) -> set[str]:
    """The codecs of the batches in the topic's segments."""
    found = set()
    for segment in logs.glob(f"{topic}-*/*.log"):
        data = segment.read_bytes()
        position = 0
        while position < len(data):
            _, length, attributes = BATCH_HEADER.unpack_from(data, position)
            found.add(CODECS[attributes & 7])
            position += 12 + length
    return found


def reader_beside(client: str) -> str:
    return NAMES[(NAMES.index(client) + 1) % len(NAMES)]


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", NAMES)
def test_programs_read_the_records_of_a_program(
    broker: BrokerProcess, client_of: Callable[[str], Client], client: str, codec: str, acks: str
) -> None:
    """Each key, value and header, once, in order within its partition. The log has nothing else."""
    topic = f"{client}-{codec}-{acks}"
    count = records_of(client, codec, acks)
    with passing(broker.bootstrap, topic):
        client_of(client).produce(broker.bootstrap, topic, codec, acks, count)
        for reader in (client, reader_beside(client)):
            ledger = Ledger(count)
            for found in client_of(reader).consume(broker.bootstrap, topic, f"{topic}-{reader}", count):
                ledger.take(found)
            ledger.close()
            assert ledger.ends == ends(broker.bootstrap, topic), f"read by {reader}"
        codecs = codecs_in(broker.data_dir / "kafka-logs", topic)
        assert codec in codecs
        # A client leaves a batch uncompressed if compression would make it larger.
        assert codecs <= {codec, "none"}


def found_whole() -> list[Found]:
    """Twenty records in two partitions, as they were sent."""
    return [Found(index % 2, index // 2, record(index)) for index in range(20)]


def damaged(how: str) -> list[Found]:
    found = found_whole()
    last = found[-1]
    match how:
        case "lost":
            found.pop()
        case "repeated":
            found.append(last._replace(offset=last.offset + 1))
        case "changed":
            found[-1] = last._replace(record=last.record._replace(value=b"other"))
        case "without headers":
            found[-1] = last._replace(record=Record(last.record.key, last.record.value, ()))
        case "reordered":
            found[-3], found[-1] = (
                found[-3]._replace(record=last.record),
                last._replace(record=found[-3].record),
            )
        case "offset left out":
            found[-1] = last._replace(offset=last.offset + 1)
        case "never sent":
            found.append(Found(0, 10, record(20)))
    return found


def enter(found: list[Found]) -> None:
    ledger = Ledger(20)
    for each in found:
        ledger.take(each)
    ledger.close()


def test_the_check_accepts_the_sent_records() -> None:
    enter(found_whole())


REFUSALS = {
    "lost": "1 of 20 records are missing, the first is 19",
    "repeated": "record 19 is repeated",
    "changed": "record 19 is not as it was sent",
    "without headers": "no such record was sent",
    "reordered": "record 17 comes after a later one",
    "offset left out": "9 was expected",
    "never sent": "record 20 was never sent",
}


@pytest.mark.parametrize("how", REFUSALS)
def test_the_check_refuses_wrong_records(how: str) -> None:
    """If one of these were accepted, the matrix would show nothing."""
    with pytest.raises(AssertionError, match=REFUSALS[how]):
        enter(damaged(how))
