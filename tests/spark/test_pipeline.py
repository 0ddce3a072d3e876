"""`logcore pipeline` with small configurations: what a user sees when something is wrong, and how it stops.

Broken if they failed: a mistake in SQL would be a stack of Java, or a pipeline would not stop.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_logcore.pipeline._config import ConfigError, load
from pyspark_logcore.pipeline._graph import streams
from tests.conftest import BrokerProcess
from tests.spark.pipelines import TIMEOUT, command, run
from tests.spark.streams import consume, create_topic, produce, values_in

pytestmark = pytest.mark.timeout(900)

COPY = """
[pipeline]
name = "copy"
checkpoints = "{directory}/checkpoints"
trigger = "${TRIGGER:-available-now}"
spark = { spark.master = "local[2]", spark.sql.shuffle.partitions = 2 }

[source.event]
stream = true
options = { kafka.bootstrap.servers = "${BOOTSTRAP}", subscribe = "${FROM}", startingOffsets = "earliest" }
schema = "value binary, timestamp timestamp"

[table.checked]
sql = "select value, timestamp from event where ${CONDITION:-true}"

[sink.files]
from = "checked"
format = "parquet"
options = { path = "{directory}/files" }

[sink.copy]
from = "event"
options = { kafka.bootstrap.servers = "${BOOTSTRAP}", topic = "${TO}" }
"""


def write(tmp_path: Path, text: str = COPY) -> Path:
    file = tmp_path / "copy.toml"
    file.write_text(text)
    return file


LATE = "{ column = 'at', delay = '1 hour' }"
ENVIRONMENT = {"BOOTSTRAP": "localhost:1", "FROM": "a", "TO": "b"}


@pytest.mark.parametrize(
    ("change", "to", "problem"),
    [
        ("${CONDITION:-true}", "n = 1", r"\[table.checked\] sql: .*UNRESOLVED_COLUMN.*`n`"),
        ("select value,", "selct value,", r"\[table.checked\] sql: .*PARSE_SYNTAX_ERROR.*'selct'"),
        ("from event", "from events", r"\[table.checked\] sql: .*TABLE_OR_VIEW_NOT_FOUND.*`events`"),
        ("value binary,", "value binry,", r"\[source.event\] schema: .*UNSUPPORTED_DATATYPE.*BINRY"),
        (
            "[table.checked]",
            f"[table.late]\nsql = 'select * from event'\nwatermark = {LATE}\n[table.checked]",
            r"\[table.late\] watermark: .*`at`",
        ),
        ("select value,", "select 1 as value,", r"\[sink.files\] from: column value must be string"),
        ("${CONDITION:-true}", "true) as x(value, n", r"\[table.checked\] sql: "),
    ],
)  # fmt: skip
def test_what_spark_refuses_is_named_with_its_place(
    spark: SparkSession, tmp_path: Path, change: str, to: str, problem: str
) -> None:
    text = COPY.replace('format = "parquet"\noptions = { path = "{directory}/files" }',
                        'options = { kafka.bootstrap.servers = "b", topic = "t" }')  # fmt: skip
    assert change in text
    pipeline = load(write(tmp_path, text.replace(change, to)), ENVIRONMENT)
    with pytest.raises(ConfigError) as raised:
        streams(spark, pipeline)
    assert re.match(rf"{tmp_path}/copy.toml: {problem}", str(raised.value)), str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_copy_goes_on_where_it_was(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    for topic in ("from", "to"):
        create_topic(broker.bootstrap, topic)
    config = write(tmp_path)
    names = {"BOOTSTRAP": broker.bootstrap, "FROM": "from", "TO": "to"}
    for first in (0, 300):
        produce(broker.bootstrap, "from", range(first, first + 300))
        output, errors = run(config, **names)
        # Two queries read each record, of one to three digits, and no key.
        size = sum(len(str(value)) for value in range(first, first + 300)) * 2 / 1e6
        assert re.search(rf"^copy: 2 queries, 600 rows, {size:.1f} MB in [\d.]+ s", output, re.M), output
        assert re.search(r"^  copy: 300 rows, [\d,]+ rows/s, 0.0 MB, lag 0$", errors, re.M), errors
    assert values_in(spark, tmp_path / "files") == list(range(600))
    written = sorted(int(value or -1) for part in consume(broker.bootstrap, "to").values() for value in part)
    assert written == list(range(600))


# Broken if it failed: a user would search through stacks for what happened, or not learn that it did.
def test_a_failed_query_ends_it_with_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    for topic in ("fails", "fails-to"):
        create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, "fails", range(20))
    condition = "if(cast(value as string) = '13', cast(raise_error('thirteen came') as boolean), true)"
    names = {"BOOTSTRAP": broker.bootstrap, "FROM": "fails", "TO": "fails-to", "CONDITION": condition}
    _, errors = run(write(tmp_path), 1, TRIGGER="1 s", **names)
    last = errors.splitlines()[-1]
    log = tmp_path / "checkpoints" / "pipeline.log"
    begin = f"logcore pipeline: query files (parquet {tmp_path}/files) failed: "
    assert last.startswith(begin), errors
    assert last.endswith(f"; the stack is in {log}"), errors
    assert "thirteen came" in last
    assert "\tat " not in errors
    assert "\tat " in log.read_text()


# Broken if it failed: a pipeline that waits for more could only be killed.
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_it_stops_when_it_is_told_to(broker: BrokerProcess, tmp_path: Path, sign: signal.Signals) -> None:
    source, target = f"stops-{sign.name}", f"stops-to-{sign.name}"
    for topic in (source, target):
        create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, source, range(50))
    names = {"BOOTSTRAP": broker.bootstrap, "FROM": source, "TO": target, "TRIGGER": "1 s"}
    process = command(write(tmp_path), **names)
    try:
        assert process.stderr is not None
        # The progress shows that both queries run.
        shown = ""
        while not ("copy: 50 rows" in shown and "files: 50 rows" in shown):
            line = process.stderr.readline()
            assert line, shown
            shown += line
        process.send_signal(sign)
        output, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert output.startswith("copy: 2 queries, 100 rows")
    assert "Traceback" not in errors


WITHOUT = """
import sys

class Missing:
    @staticmethod
    def find_spec(name, *_):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing)
from cluster.cli import main
sys.exit(main(["pipeline", "run", "copy.toml"]))
"""


@pytest.mark.parametrize("package", ["pyspark_logcore", "pyspark"])
def test_without_spark_one_line_says_what_to_install(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    wanted = f"logcore pipeline: the package {package} is missing; run: pip install pyspark-logcore\n"
    assert done.stderr == wanted
