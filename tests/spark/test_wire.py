"""Reading from brokers without a Spark session: if these fail, a job reads what its isolation level excludes, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from logcore import _native
from pyspark_logcore._options import parse_options
from pyspark_logcore._plan import plan
from pyspark_logcore._wire import FETCH_VERSION, BrokerLog, _Fetcher
from tests.client.conftest import produce
from tests.conftest import BrokerProcess


# Were this broken, a job that sets read_committed would not move over.
def test_read_committed_reads_what_is_committed(broker: BrokerProcess) -> None:
    produce(broker.bootstrap, "committed", [b"%d" % number for number in range(30)], partition=0)
    options = parse_options(
        {
            "kafka.bootstrap.servers": broker.bootstrap,
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": "1",
            "assign": '{"committed":[0]}',
        }
    )
    log = BrokerLog(dict(options.client))
    with log.catalog() as catalog:
        [task] = plan(options, catalog)
    values = [value for batch in log.read(task, ["value"]) for value in batch.column("value").to_pylist()]
    assert values == [b"%d" % number for number in range(30)]


class _Leader:
    """Stands for a network whose one broker answers a Fetch with an aborted transaction."""

    def metadata(self, topics: list[str], timeout: float) -> dict[str, Any]:
        return {"topics": {"t": (0, False, [(0, 0, 1)])}}

    def request(self, key: int, version: int, body: bytes, **_where: object) -> bytes:
        asked = _native.decode_request(key, version, body)
        assert asked["isolation_level"] == 1
        partition = {
            "partition_index": 0,
            "high_watermark": 9,
            "last_stable_offset": 9,
            "aborted_transactions": [{"producer_id": 5, "first_offset": 2}],
            "records": b"",
        }
        responses = [{"topic": "t", "partitions": [partition]}]
        return _native.encode_response(key, version, {"responses": responses})


# Were this broken, records of an aborted transaction would be counted by a job that asked not to see them.
def test_aborted_records_are_not_read_as_committed() -> None:
    fetcher = _Fetcher(_Leader(), "t", 0, 1000, True)  # type: ignore[arg-type]
    assert FETCH_VERSION >= 4, "older versions carry no isolation level"
    with pytest.raises(ValueError, match="t-0 holds records of an aborted transaction from offset 2 on"):
        fetcher.fetch(2)
