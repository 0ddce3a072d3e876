"""The configuration of `logcore pipeline`, without Spark.

Broken if they failed: a user would learn of a mistake minutes later, or not where it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pyspark_logcore.pipeline._config import ConfigError, load
from pyspark_logcore.pipeline._model import Pipeline, Watermark
from tests.spark.conftest import ROOT

GOOD = """
[pipeline]
name = "copy"
checkpoints = "${STATE}/checkpoints"
trigger = "5 s"
spark = { spark.sql.shuffle.partitions = 2 }

[source.event]
stream = true
options = { path = "/logs", subscribe = "${TOPIC:-events}" }
select = ["cast(value as string) as value", "timestamp"]
watermark = { column = "timestamp", delay = "1 hour" }

[table.counted]
sql = "select count(*) as n from event group by window(timestamp, '1 minute')"

[sink.counts]
from = "counted"
format = "table-by-key"
mode = "update"
keys = ["n"]
options = { path = "{directory}/table" }
"""


def read(tmp_path: Path, text: str, **environment: str) -> Pipeline:
    file = tmp_path / "copy.toml"
    file.write_text(text)
    return load(file, environment)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text, STATE="/state")
    return raised.value.problems


def test_a_file_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD, STATE="/state")
    assert (found.name, found.trigger_ms, found.checkpoints) == ("copy", 5000, Path("/state/checkpoints"))
    assert found.spark == {"spark.sql.shuffle.partitions": "2"}
    (source,), (sink,) = found.sources, found.sinks
    # Names with dots may be written without quotes; a default stands in for a missing variable.
    assert source.options == {"path": "/logs", "subscribe": "events"}
    assert source.watermark == Watermark("timestamp", "1 hour")
    assert sink.options == {"path": f"{tmp_path}/table"}
    assert read(tmp_path, GOOD, STATE="/s", TOPIC="t").sources[0].options["subscribe"] == "t"


@pytest.mark.parametrize(
    ("change", "to", "problem"),
    [
        ('name = "copy"', "", "[pipeline] name: is missing"),
        ('"5 s"', '"5"', "[pipeline] trigger: must be available-now, or a time such as 5 s, not '5'"),
        ("${STATE}", "${PLACE}", "[pipeline] checkpoints: the environment variable PLACE is not set"),
        ("[source.event]", "[source.event-1]", "[source.event-1]: a name has letters, digits and _"),
        ("stream = true", "", "[source]: no source has stream = true"),
        ("stream = true", "stream = 1", "[source.event] stream: must be true or false, not 1"),
        ("stream = true", "streams = true", "[source.event] streams: is unknown; the keys are"),
        ("stream = true", 'stream = true\nformat = "kafka"', "[source.event] format: must be one of logcore"),
        ('path = "/logs"', 'pth = "/logs"', "[source.event] options: unknown option 'pth'"),
        (
            'path = "/logs"',
            'path = "/logs", endingOffsets = "latest"',
            "[source.event] options: option 'endingOffsets' cannot be set for a stream",
        ),
        ('delay = "1 hour"', 'wait = "1 hour"', "[source.event] watermark.delay: is missing"),
        ("select = [", 'select = "a" # [', "[source.event] select: must be a list of texts, not 'a'"),
        ("[table.counted]", "[table.Event]", "[table.Event]: the name is used by [source.event]"),
        ("sql =", "query =", "[table.counted] sql: is missing"),
        ('from = "counted"', 'from = "count"', "[sink.counts] from: there is no source or table 'count'"),
        ('keys = ["n"]', "", "[sink.counts] keys: is missing"),
        ('mode = "update"', 'mode = "complete"', "[sink.counts] mode: must be append or update"),
        ('format = "table-by-key"', 'format = "parquet"', "[sink.counts] mode: must be append for parquet"),
        (
            'format = "table-by-key"',
            'format = "logcore"',
            "[sink.counts] options: a stream is written to brokers",
        ),
        ("[sink.counts]", "[sinks.counts]", "[sink]: is missing: a pipeline needs at least one [sink.NAME]"),
        ("[pipeline]", "[report]\ntitle = 'a'\n[pipeline]", "[report] path: is missing"),
        (
            "[pipeline]",
            "[report]\ntitle = 'a'\npath = 'b'\n[[report.chart]]\nkind = 'pie'\n[pipeline]",
            "[report.chart 1] kind: must be one of columns, lines, heat, bars, ranges, table, not 'pie'",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, change: str, to: str, problem: str) -> None:
    assert change in GOOD
    found = problems(tmp_path, GOOD.replace(change, to, 1))
    assert any(line.startswith(f"{tmp_path}/copy.toml: {problem}") for line in found), found


# Broken if it failed: a pipeline would run to its end, and then fail at its report.
def test_a_report_needs_the_topic_of_a_sink(tmp_path: Path) -> None:
    sink = 'format = "logcore"\noptions = { kafka.bootstrap.servers = "h:1" }'
    text = GOOD[: GOOD.index('format = "table-by-key"')] + sink + "\n[report]\ntitle = 'a'\npath = 'b'\n"
    found = problems(tmp_path, text)
    assert any("[sink.counts] options.topic: is missing: the report reads" in line for line in found), found


# Broken if it failed: a user would mend one mistake at a time.
def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    text = GOOD.replace('"5 s"', '"soon"').replace("sql =", "query =").replace('keys = ["n"]', "keys = 1")
    assert len(problems(tmp_path, text)) >= 4


def test_delta_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "delta", None)
    text = GOOD.replace('"table-by-key"', '"delta"').replace('keys = ["n"]', "")
    (problem,) = problems(tmp_path, text)
    assert problem.endswith(
        "[sink.counts] format: delta needs the package delta-spark; run: pip install delta-spark"
    )


def test_two_sinks_do_not_share_a_place(tmp_path: Path) -> None:
    again = GOOD[GOOD.index("[sink.counts]") :].replace("sink.counts", "sink.more")
    (problem,) = problems(tmp_path, GOOD + again)
    assert problem.endswith("[sink.more] options.path: [sink.counts] writes there, too")


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "[pipeline]\nname = copy\n")
    assert re.search(r"copy.toml: not TOML: .*line 2", problem)
    with pytest.raises(ConfigError, match=r"absent.toml: cannot be read: No such file"):
        load(tmp_path / "absent.toml")


# Broken if it failed: a pipeline that we hand out would not start.
@pytest.mark.parametrize("file", sorted(ROOT.glob("pipelines/*/*.toml")), ids=lambda file: file.stem)
def test_the_finished_pipelines_are_right(file: Path) -> None:
    assert load(file, {}).report is not None
