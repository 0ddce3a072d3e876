"""Pipelines that write and read Delta Lake. `make spark-versions` runs them with Spark 4.1.

Broken if they failed: a pipeline's rows would be lost or repeated in a Delta table.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.conftest import BrokerProcess
from tests.spark.conftest import ROOT
from tests.spark.pipelines import run
from tests.spark.streams import consume, create_topic, produce

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("delta") is None, reason="Delta Lake is not there for this version of Spark"
    ),
]

SETTINGS = """
[pipeline]
name = "{name}"
checkpoints = "{{directory}}/{name}-checkpoints"
spark = {{ spark.master = "local[2]", spark.sql.shuffle.partitions = 2, spark.jars = "{jars}" }}
"""
WRITES = """
[source.event]
stream = true
options = { kafka.bootstrap.servers = "${BOOTSTRAP}", subscribe = "delta-in", startingOffsets = "earliest" }

[table.number]
sql = "select cast(cast(value as string) as int) as n, partition as part from event"

[sink.numbers]
from = "number"
format = "delta"
options = { path = "{directory}/numbers" }
partition_by = ["part"]
"""
READS = """
[source.number]
stream = true
format = "delta"
options = { path = "{directory}/numbers" }
select = ["cast(n as string) as value"]

[sink.copy]
from = "number"
options = { kafka.bootstrap.servers = "${BOOTSTRAP}", topic = "delta-out" }
"""


def write(directory: Path, name: str, tables: str) -> Path:
    jars = ",".join(map(str, sorted((ROOT / "build" / "peers").glob("delta-*/*.jar"))))
    assert jars, "make spark-versions brings the jars of Delta Lake"
    file = directory / f"{name}.toml"
    file.write_text(SETTINGS.format(name=name, jars=jars) + tables)
    return file


def test_each_row_is_in_the_table_once(broker: BrokerProcess, tmp_path: Path) -> None:
    for topic in ("delta-in", "delta-out"):
        create_topic(broker.bootstrap, topic)
    writes, reads = write(tmp_path, "to-delta", WRITES), write(tmp_path, "from-delta", READS)
    for first, end in ((0, 100), (100, 130)):
        produce(broker.bootstrap, "delta-in", range(first, end))
        # The second time it goes on from the checkpoint.
        run(writes, BOOTSTRAP=broker.bootstrap)
        run(reads, BOOTSTRAP=broker.bootstrap)
        rows = consume(broker.bootstrap, "delta-out")
        assert sorted(int(value or -1) for part in rows.values() for value in part) == list(range(end))
    assert {path.name for path in (tmp_path / "numbers").iterdir()} == {"_delta_log", "part=0", "part=1"}
