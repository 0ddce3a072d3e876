"""`make demo`: streams real flights through three brokers into a report, and checks every figure.

1. Start a cluster of three brokers, and stream the flights of 2013 into it with the Python producer.
2. Stream the segment files of one broker into Parquet with Spark, while the brokers run.
3. Compare every figure with one that is computed from the source rows alone.
4. Write the report, and stop the brokers.

Writes only below build/demo. The exit status is 0 if everything agreed, and otherwise 1 with a line that says
why.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import check
import flights
import pipeline
import report
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from stages import Stage, timed

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "demo"
DATA = OUTPUT / "data"
REPORT = OUTPUT / "report.html"

BROKERS = 3
PARTITIONS = 6
# The records' timestamps are in 2013. With Kafka's defaults, retention would delete them at once, and each
# week of flights would begin a new segment.
TOPIC_SETTINGS = {"retention.ms": "-1", "segment.ms": str(2 * 366 * 86_400_000)}
START_SECONDS = 30.0
STOP_SECONDS = 30.0
DELIVERY_SECONDS = 60.0

console = Console(highlight=False)


class Failed(Exception):
    """The demo failed; the text is one line."""


class Cluster:
    """`logcore start --brokers 3` in a process of its own. Its output goes to build/demo/brokers.log."""

    def __init__(self, data: Path, log: Path) -> None:
        start = ["start", "--brokers", str(BROKERS), "--data-dir", str(data), "--port", "0"]
        command = [sys.executable, "-m", "cluster.cli", *start]
        self._log = log
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._ready = threading.Event()
        self._addresses: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with self._log.open("w", encoding="utf-8") as log:
            for words in stream:
                log.write(words)
                log.flush()
                found = re.match(r"\s+broker\s+(\S+:\d+)\s*$", words)
                if found:
                    self._addresses.append(found[1])
                if len(self._addresses) == BROKERS:
                    self._ready.set()
        self._ready.set()

    def addresses(self) -> str:
        """The brokers' addresses, for `bootstrap.servers`; waits until they are ready."""
        self._ready.wait(START_SECONDS)
        if len(self._addresses) < BROKERS:
            raise Failed(f"the brokers did not start; the last line: {self._last_line()}")
        return ",".join(self._addresses)

    def stop(self) -> None:
        """Stops the brokers as Ctrl-C would. Raises Failed if they do not end cleanly."""
        if self._process.poll() is not None:
            raise Failed(
                f"the brokers ended by themselves with status {self._process.returncode}: {self._last_line()}"
            )
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"the brokers did not stop within {STOP_SECONDS:.0f} s") from None
        if status != 0:
            raise Failed(f"the brokers stopped with status {status}: {self._last_line()}")

    def kill(self) -> None:
        """Kills the process if it still runs; the brokers end with it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _last_line(self) -> str:
        written = self._log.read_text(encoding="utf-8").strip().splitlines() if self._log.exists() else []
        return written[-1] if written else "nothing"


class Deliveries:
    """Counts the acknowledged records. The producer calls it for each record."""

    def __init__(self) -> None:
        self.done = 0
        self.error: object | None = None

    def __call__(self, error: object | None, _message: object) -> None:
        if error is None:
            self.done += 1
        elif self.error is None:
            self.error = error


def step(words: str) -> None:
    console.print(f"[bold]▸ {words}[/bold]")


def create_topic(bootstrap: str) -> None:
    from cluster import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(
        pipeline.TOPIC, num_partitions=PARTITIONS, replication_factor=BROKERS, config=TOPIC_SETTINGS
    )
    created = admin.create_topics([topic])
    for future in created.values():
        future.result(timeout=START_SECONDS)


def stream(bootstrap: str, source: list[dict[str, str]], stages: list[Stage]) -> None:
    """Produces every flight, in the order of scheduled departure, and waits for the last acknowledgement."""
    from cluster import Producer

    deliveries = Deliveries()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    events = list(flights.events(source))
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        timed(stages, "Producer: stream the flights") as stage,
        Progress(*columns, console=console) as progress,
    ):
        bar = progress.add_task("flights", total=len(events), rate="")
        started = time.perf_counter()

        def show() -> None:
            rate = deliveries.done / max(time.perf_counter() - started, 1e-9)
            progress.update(bar, completed=deliveries.done, rate=f"{rate:,.0f} records/s")

        for index, event in enumerate(events):
            send(producer, event, deliveries)
            if index % 2_000 == 0:
                producer.poll(0)
                show()
        left = producer.flush(DELIVERY_SECONDS)
        show()
        stage.records = deliveries.done
        stage.payload = sum(len(event.key) + len(event.value) for event in events)
    if deliveries.error is not None:
        raise Failed(f"a flight was not delivered: {deliveries.error}")
    if left or deliveries.done != len(events):
        raise Failed(f"only {deliveries.done:,} of {len(events):,} flights were acknowledged")


def send(producer: object, event: flights.Event, deliveries: Callable[[object | None, object], None]) -> None:
    """Passes one flight to the producer; waits while the producer's buffer is full."""
    from cluster import Producer

    assert isinstance(producer, Producer)
    full_since: float | None = None
    while True:
        try:
            producer.produce(
                pipeline.TOPIC,
                value=event.value,
                key=event.key,
                timestamp=event.timestamp,
                on_delivery=deliveries,
            )
            return
        except BufferError:
            full_since = full_since or time.monotonic()
            if time.monotonic() - full_since > DELIVERY_SECONDS:
                raise Failed(f"the producer's buffer stayed full for {DELIVERY_SECONDS:.0f} s") from None
            producer.poll(0.1)


def compare(results: pipeline.Results, source: list[dict[str, str]]) -> int:
    """Checks the number of records and every figure; returns the number of figures."""
    records = sum(count for count, _ in results.partitions.values())
    if len(source) != flights.ROWS:
        raise Failed(f"the source has {len(source):,} flights, not {flights.ROWS:,}")
    if records != len(source):
        raise Failed(f"Spark read {records:,} records, the source has {len(source):,} flights")
    for partition, (count, end) in results.partitions.items():
        if count != end:
            raise Failed(f"partition {partition} has {count:,} records but ends at offset {end:,}")
    if results.misfiled:
        raise Failed(f"{results.misfiled:,} records have a key or timestamp that contradicts their value")
    expected = check.expected(source, flights.rows("weather"))
    wrong = list(check.differences(expected, results.tables))
    if wrong:
        raise Failed(f"{len(wrong):,} figures differ from the source rows, the first: {wrong[0]}")
    return check.count_figures(expected)


def show_stages(stages: list[Stage]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("stage")
    for name in ("records", "seconds", "records/s", "MB/s"):
        table.add_column(name, justify="right")
    for stage in stages:
        table.add_row(
            stage.name,
            f"{stage.records:,}",
            f"{stage.seconds:.1f}",
            f"{stage.records_per_second:,.0f}",
            f"{stage.megabytes_per_second:,.1f}",
        )
    console.print(table)


def demo() -> None:
    stages: list[Stage] = []
    pipeline.check_java()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(DATA, ignore_errors=True)
    for made in ("parquet", "checkpoint"):
        shutil.rmtree(OUTPUT / made, ignore_errors=True)

    step(f"Start {BROKERS} brokers on an empty data directory")
    started = time.perf_counter()
    brokers = Cluster(DATA, OUTPUT / "brokers.log")
    try:
        bootstrap = brokers.addresses()
        console.print(f"  ready at {bootstrap} after {time.perf_counter() - started:.2f} s")

        step(
            f"Stream {flights.ROWS:,} flights of 2013 into the topic {pipeline.TOPIC}: {PARTITIONS} "
            f"partitions with {BROKERS} replicas each"
        )
        source = flights.rows("flights")
        create_topic(bootstrap)
        stream(bootstrap, source, stages)

        step("Start Spark: its Java process and its Python workers")
        started = time.perf_counter()
        spark = pipeline.start_spark(OUTPUT)
        try:
            where = pipeline.Source(bootstrap, DATA)
            pipeline.warm_up(spark, where)
            console.print(f"  ready after {time.perf_counter() - started:.1f} s")
            step("Read the segment files with Spark, stream them into Parquet, join the weather")
            results = pipeline.run(spark, where, OUTPUT, stages)
        finally:
            spark.stop()

        step("Compare every figure with the source rows")
        compared = compare(results, source)
        console.print(f"  {compared:,} figures in {len(results.tables)} tables agree")

        step("Write the report")
        facts = {
            "Machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            "Topic": f"{PARTITIONS} partitions with {BROKERS} replicas each, "
            f"{results.payload / 1e6:,.0f} MB of keys and values, lz4",
        }
        report.write(REPORT, results.tables, stages, compared, facts)
        console.print(f"  {REPORT.relative_to(ROOT)}, Parquet in {(OUTPUT / 'parquet').relative_to(ROOT)}")

        step("Stop the brokers")
        brokers.stop()
    finally:
        brokers.kill()
    show_stages(stages)
    console.print(f"[bold green]✓ done[/bold green]: open {REPORT.relative_to(ROOT)}")


def main() -> int:
    try:
        demo()
    except Failed as failure:
        console.print(f"[bold red]✗ demo failed[/bold red]: {failure}")
        return 1
    except KeyboardInterrupt:
        console.print("[bold red]✗ interrupted[/bold red]")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
