"""`format("logcore")` beside `format("kafka")`, Spark's own source and sink, in one Spark session, as ratios.

usage: spark.py [--rounds 5] [--records 10000000] [--large 2000000] [--quick] [--only SCENARIO,...]
                [--directory DIR] [--results NAME] [--json FILE]

Writes bench/results/NAME.md (spark.md by default) and NAME-ratios.svg, and with --json all figures of all
rounds. Both read one broker of ours. The limit of a read is a Python data source that yields ready-made Arrow
batches of the same rows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import plots
from cluster import AdminClient, NewTopic, Producer
from figures import Figure, Goal, shown_spread, table
from logcore import open_dir
from pairs import WARM_UPS, Run, report
from program import RESULTS, machine, names, prepare_process, revision
from pyspark_logcore._schema import kafka_schema
from scenarios import say
from servers import OURS, ROOT, Server, ours

FILES, BROKERS, KAFKA, LIMIT = OURS, "logcore, brokers", "Spark's Kafka source", "ready-made Arrow batches"
PARTITIONS = 4
BATCH_ROWS = 65_536
"""Produced at a time."""
BATCH_BYTES = 4 << 20
"""Values in a ready-made batch: larger ones are slower to pass on."""
SECOND_MS = 1_700_000_000_000
"""The time of the first record; each record is a millisecond later."""
SPLIT = "one partition by two tasks"


class ReadyMade(DataSource):
    """Yields the same Arrow batch again and again: what any Python data source could reach at most."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> StructType:
        return kafka_schema(False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyMadeReader(schema, int(self.options["rows"]), int(self.options["bytes"]))


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, size: int) -> None:
        self._schema, self._rows, self._size = schema, rows, size

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = BATCH_BYTES // self._size
        batch = record_batch(rows, self._size, partition.value).select(self._schema.fieldNames())
        left = self._rows // PARTITIONS
        while left > 0:
            yield batch if left >= rows else batch.slice(0, left)
            left -= rows


def record_batch(rows: int, size: int, partition: int, first: int = 0) -> pa.RecordBatch:
    """Rows as both sources read them: keys of 8 bytes, values of `size`."""
    block = os.urandom(1 << 20)
    index = pa.array(range(rows), pa.int64())
    times = pc.add(index, SECOND_MS + first)
    chosen = pc.bit_wise_and(index, 511)
    columns = {
        "key": pa.array([b"%08d" % number for number in range(512)], pa.binary()).take(chosen),
        "value": pa.array([block[at : at + size] for at in range(512)], pa.binary()).take(chosen),
        "topic": pa.array(["bench"] * rows, pa.string()),
        "partition": pa.array([partition] * rows, pa.int32()),
        "offset": index,
        "timestamp": pc.multiply(times, 1000).cast(pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * rows, pa.int32()),
    }
    return pa.record_batch(columns)


JSON = (
    "id bigint, at timestamp, carrier string, flight int, origin string, delay int, distance double, "
    "cancelled boolean"
)
JSON_SUMS = (
    "count(*) as rows",
    "sum(id) as ids",
    "max(at) as last",
    "sum(length(carrier)) as carriers",
    "sum(flight) as flights",
    "sum(length(origin)) as origins",
    "sum(delay) as delays",
    "sum(distance) as distances",
    "count_if(cancelled) as cancelled",
)


def json_batch(rows: int, _: int, partition: int, first: int) -> pa.RecordBatch:
    """Records of JSON with the fields of `JSON`, some 150 bytes each."""
    values = [
        b'{"id":%d,"at":"2023-11-14T%02d:%02d:%02d.000Z","carrier":"%s","flight":%d,"origin":"%s","delay":%d,'
        b'"distance":%.1f,"cancelled":%s}'
        % (
            number,
            number // 3600 % 24,
            number // 60 % 60,
            number % 60,
            (b"UA", b"B6", b"DL")[number % 3],
            number % 2000,
            (b"EWR", b"JFK")[number % 2],
            number % 240 - 20,
            number % 5000 + 0.5,
            b"true" if number % 50 == 0 else b"false",
        )
        for number in range(first, first + rows)
    ]
    columns = {
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([partition] * rows, pa.int32()),
        "timestamp": pa.array([SECOND_MS * 1000] * rows, pa.timestamp("us", tz="UTC")),
    }
    return pa.record_batch(columns)


class Side:
    """A way to read or write a topic."""

    def __init__(self, name: str, spark: SparkSession, server: Server) -> None:
        self.name = name
        self.spark = spark
        self.server = server

    @property
    def bootstrap(self) -> str:
        return f"localhost:{self.server.port}"

    def options(self) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.bootstrap}
        if self.name == FILES:
            options |= {"path": str(self.server.log_dir), "access": "files"}
        return options

    def format(self) -> str:
        return "kafka" if self.name == KAFKA else "logcore"

    def read(self, topic: str, schema: str | None = None, **options: str) -> DataFrame:
        """The topic, or with `schema` some columns of it."""
        reader = self.spark.read.format(self.format()).options(**self.options(), subscribe=topic, **options)
        if schema is None:
            return reader.load()
        if self.name == KAFKA:
            return reader.load().select(*(column.split()[0] for column in schema.split(", ")))
        return reader.schema(schema).load()


def fill(
    server: Server,
    topic: str,
    rows: int,
    size: int,
    partitions: int = PARTITIONS,
    make: Callable[[int, int, int, int], pa.RecordBatch] = record_batch,
) -> None:
    """A topic with these rows, spread evenly."""
    bootstrap = f"localhost:{server.port}"
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        # The times are of 2023, so retention would delete them.
        config = {"retention.ms": "-1", "segment.bytes": str(256 << 20)}
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 128 << 10}
    with Producer(settings) as producer:
        for partition in range(partitions):
            done, share = 0, rows // partitions
            while done < share:
                count = min(BATCH_ROWS, share - done)
                batch = make(count, size, partition, done)
                producer.produce_table(batch.select(["key", "value", "partition", "timestamp"]), topic)
                done += count
        producer.flush()


def consume(frame: DataFrame, rows: int | None) -> float:
    """Seconds for a count and the sum of the values' lengths; checks the count."""
    begun = time.perf_counter()
    [found] = frame.selectExpr("count(*) as rows", "sum(length(value)) as bytes").collect()
    seconds = time.perf_counter() - begun
    if rows is not None and found.rows != rows:
        raise RuntimeError(f"{found.rows:,} rows were read, not {rows:,}")
    return seconds


class Bench:
    """The session, the server, and the figures."""

    def __init__(self, spark: SparkSession, server: Server, options: argparse.Namespace) -> None:
        self.spark, self.server, self.options = spark, server, options
        self.sides = {name: Side(name, spark, server) for name in (FILES, BROKERS, KAFKA)}
        self.run = Run(list(self.sides.values()), options.rounds, options.quick)
        self._filled: set[str] = set()

    def topic(self, rows: int, size: int, partitions: int = PARTITIONS) -> str:
        name = f"rows-{rows}-{size}-{partitions}"
        if name not in self._filled:
            say(f"producing {rows:,} records of {size} bytes")
            fill(self.server, name, rows, size, partitions)
            self._filled.add(name)
        return name

    def reads(self) -> None:
        """Whole topics: all columns, and value and offset."""
        for rows, size in ((self.options.records, 100), (self.options.large, 1024)):
            topic = self.topic(rows, size)
            for what, schema, goal in (
                ("all columns", None, 3.5),
                ("value and offset", "value binary, offset bigint", 5.0),
            ):
                figure = self.run.figure(
                    f"read {size} B, {what}", "rows/s", (Goal(goal, KAFKA), Goal(0.9, LIMIT))
                )

                def measure(
                    side: Side,
                    number: int,
                    topic: str = topic,
                    schema: str | None = schema,
                    rows: int = rows,
                    figure: Figure = figure,
                    size: int = size,
                ) -> None:
                    self.run.keep(figure, side, number, rows / consume(side.read(topic, schema), rows))
                    if side.name == KAFKA:
                        limit = self.spark.read.format("ready-made").options(rows=rows, bytes=size)
                        frame = (limit if schema is None else limit.schema(schema)).load()
                        seconds = consume(frame, rows)
                        if number >= 0:
                            figure.add(LIMIT, number, rows / seconds)

                self.run.each(figure.what, measure)

    def ranges(self) -> None:
        """A hundredth of a topic, by offset and by time."""
        rows = self.options.records
        topic = self.topic(rows, 100)
        share, part = rows // PARTITIONS, rows // PARTITIONS // 100
        first = share // 2
        offsets = [{str(number): at for number in range(PARTITIONS)} for at in (first, first + part)]
        by_offset = {
            name: f'{{"{topic}":{str(one).replace(chr(39), chr(34))}}}'
            for name, one in zip(("startingOffsets", "endingOffsets"), offsets, strict=True)
        }
        by_time = {
            "startingTimestamp": str(SECOND_MS + first),
            "endingTimestamp": str(SECOND_MS + first + part),
        }
        for what, given in (("by offset", by_offset), ("by time", by_time)):
            figure = self.run.figure(
                f"read a hundredth {what}", "ms", (Goal(0.1, KAFKA),), more_is_better=False
            )

            def measure(
                side: Side, number: int, given: dict[str, str] = given, figure: Figure = figure
            ) -> None:
                seconds = consume(side.read(topic, None, **given), part * PARTITIONS)
                self.run.keep(figure, side, number, seconds * 1e3)

            self.run.each(figure.what, measure)

    def split(self) -> None:
        """One partition by two tasks, ours beside itself."""
        rows = self.options.records // 4
        topic = self.topic(rows, 100, 1)
        figure = self.run.figure(SPLIT, "rows/s", (Goal(1.8, "one task"),))
        side = self.sides[FILES]
        for number in range(-1, self.options.rounds):
            for tasks, name in ((2, FILES), (1, "one task")):
                seconds = consume(side.read(topic, None, minPartitions=str(tasks)), rows)
                if number >= 0:
                    figure.add(name, number, rows / seconds)

    def micro_batches(self) -> None:
        """The time of a micro-batch that reads next to nothing."""
        figure = self.run.figure(
            "micro-batch with 40 records", "ms", (Goal(0.6, KAFKA),), more_is_better=False
        )
        batches = 3 if self.options.quick else 20
        topic = self.topic(40 * (batches + 5), 100)

        def measure(side: Side, number: int) -> None:
            reader = self.spark.readStream.format(side.format()).options(**side.options())
            stream = reader.options(
                subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40"
            ).load()
            query = stream.writeStream.format("noop").trigger(availableNow=True).start()
            query.awaitTermination(300)
            took = sorted(
                one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows
            )
            self.run.keep(figure, side, number, took[len(took) // 2])

        self.run.each(figure.what, measure)

    def writes(self) -> None:
        """Rows that Spark has in memory, to a topic, and as a bulk load to a log directory."""
        rows = self.options.records // 5
        written = self.run.figure("write 100 B", "rows/s", (Goal(2, KAFKA),))
        loaded = self.run.figure("bulk load 100 B", "rows/s", (Goal(5, KAFKA),))
        key, value = "cast(cast(id % 10000 as string) as binary)", "cast(repeat('x', 100) as binary)"
        frame = self.spark.range(0, rows, 1, PARTITIONS).selectExpr(f"{key} as key", f"{value} as value")
        frame = frame.cache()
        frame.count()

        def load() -> float:
            directory = self.server.log_dir.parent / f"loaded-{uuid.uuid4().hex[:8]}"
            directory.mkdir()
            options = {"path": str(directory), "topic": "bench", "partitions": str(PARTITIONS)}
            seconds = saved(frame, "logcore", options)
            with open_dir(directory, readonly=True) as logs:
                found = sum(log.end_offset for log in logs.values())
            shutil.rmtree(directory)
            if found != rows:
                raise RuntimeError(f"{found:,} rows were loaded, not {rows:,}")
            return rows / seconds

        def measure(side: Side, number: int) -> None:
            if side.name == FILES:
                self.run.keep(loaded, side, number, load())
                return
            topic = f"written-{uuid.uuid4().hex[:8]}"
            fill(self.server, topic, 0, 100)
            options = {"kafka.bootstrap.servers": side.bootstrap, "topic": topic}
            rate = rows / saved(frame, side.format(), options)
            if number >= 0:
                # The goals are for the files' column. A write is to a broker.
                written.add(FILES if side.name == BROKERS else side.name, number, rate)
                if side.name == KAFKA:
                    loaded.add(KAFKA, number, rate)
            with AdminClient({"bootstrap.servers": side.bootstrap}) as admin:
                admin.delete_topics([topic])[topic].result(60)

        self.run.each("writes", measure)
        frame.unpersist()

    def typed(self) -> None:
        """JSON to eight typed columns, beside `from_json` over Spark's source."""
        rows = self.options.large
        topic = "json"
        say(f"producing {rows:,} JSON records")
        fill(self.server, topic, rows, 0, make=json_batch)
        figure = self.run.figure("JSON to 8 columns", "rows/s", (Goal(5, KAFKA),))

        def measure(side: Side, number: int) -> None:
            if side.name == KAFKA:
                frame = side.read(topic).selectExpr(f"from_json(cast(value as string), '{JSON}') as value")
            else:
                typed = {"value.format": "json", "value.schema": JSON}
                frame = side.read(topic, f"value struct<{JSON}>", **typed)
            begun = time.perf_counter()
            [found] = frame.select("value.*").selectExpr(*JSON_SUMS).collect()
            seconds = time.perf_counter() - begun
            # Each partition's records are numbered from 0.
            share = rows // PARTITIONS
            if found.rows != rows or found.ids != PARTITIONS * share * (share - 1) // 2:
                raise RuntimeError(f"other rows were read than written: {found}")
            self.run.keep(figure, side, number, rows / seconds)

        self.run.each(figure.what, measure)


def saved(frame: DataFrame, kind: str, options: Mapping[str, str]) -> float:
    """Seconds for writing the rows."""
    begun = time.perf_counter()
    frame.write.format(kind).mode("append").options(**options).save()
    return time.perf_counter() - begun


SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "read": Bench.reads,
    "ranges": Bench.ranges,
    "split": Bench.split,
    "micro-batches": Bench.micro_batches,
    "write": Bench.writes,
    "typed": Bench.typed,
}


def session(directory: Path) -> SparkSession:
    peer = ROOT / "build" / "peers" / "spark-kafka-4.2.0"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.local.dir", str(directory))
        .config("spark.jars", ",".join(map(str, sorted(peer.glob("*.jar")))))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(ReadyMade)
    return spark


def rows_of(figures: Sequence[Figure]) -> list[str]:
    """The table: our two ways, Spark's source, the limit, and the ratios of files to both."""
    heads = [
        "what",
        "unit",
        "files",
        "brokers",
        "Spark's Kafka source",
        "limit",
        "÷ Spark's",
        "÷ limit",
        "goal",
    ]
    lines = []
    for figure in figures:
        other = "one task" if figure.what == SPLIT else KAFKA
        sign = "≥" if figure.more_is_better else "≤"
        goals = "; ".join(
            f"{sign} {goal.bound:g}x {'limit' if goal.to == LIMIT else other}"
            + {True: "", False: " **missed**", None: " (not measured)"}[figure.reached(goal)]
            for goal in figure.goals
        )
        cells = [figure.cell(FILES), figure.cell(BROKERS), figure.cell(other), figure.cell(LIMIT)]
        ratios = [shown_spread(figure.ratio(other)), shown_spread(figure.ratio(LIMIT))]
        lines.append([figure.what, figure.unit, *cells, *ratios, goals])
    failures = [f"- {name}: {one.what}: {reason}" for one in figures for name, reason in one.failed.items()]
    return [*table(heads, lines), *(["", "Failed:", "", *failures] if failures else [])]


def head(options: argparse.Namespace) -> list[str]:
    return [
        "# The Spark source and sink beside Spark's own",
        "",
        f"`bench/spark.py` on {datetime.now(UTC):%Y-%m-%d} at {revision()}: {machine()}."
        + (" **A quick run: its figures mean nothing.**" if options.quick else ""),
        "",
        f"- PySpark 4.3.0, local[2], {PARTITIONS} partitions; Spark's Kafka source 4.2.0, the newest that "
        "Maven Central has. Both run in one session, in alternating order, against one broker of ours.",
        "- A read counts the rows and sums the values' lengths. The limit is a Python data source that "
        "yields one Arrow batch of 4 MiB again and again.",
        "- Spark reaches its Python workers over Unix sockets (spark.python.unix.domain.socket.enabled).",
        "- Our side is files, with the brokers' word on what may be read; `brokers` fetches instead. A write "
        "is to the broker; a bulk load makes a log directory and is compared with a write by Spark's sink.",
        f"- Figures are the median (minimum–maximum) of {options.rounds} rounds, after {WARM_UPS} rounds of "
        "warm-up. A ratio is taken round by round.",
        f"- The data is {'on tmpfs' if options.directory == Path('/dev/shm') else 'on a disk'}.",
        "",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=10_000_000, help="records of 100 bytes")
    parser.add_argument("--large", type=int, default=2_000_000, help="records of 1 KiB")
    parser.add_argument("--quick", action="store_true", help="a short run, whose figures mean nothing")
    known = ",".join(SCENARIOS)
    parser.add_argument(
        "--only", type=names(SCENARIOS), default=list(SCENARIOS), help=f"scenarios, of {known}"
    )
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="the directory for the data")
    parser.add_argument("--results", default="spark", help="the name of the table in bench/results")
    parser.add_argument("--json", type=Path, help="a file for all figures of all rounds")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.records, options.large = 1, 100_000, 20_000
    return options


def main() -> int:
    options = arguments()
    prepare_process()
    with report(options, head(options), OURS) as tables, ours(tables.directory) as server:
        spark = session(tables.directory)
        bench = Bench(spark, server, options)
        try:
            for name in options.only:
                SCENARIOS[name](bench)
        finally:
            tables.figures += bench.run.figures.values()
            tables.lines += rows_of(tables.figures)
            if svg := plots.ratios("Ours to theirs", tables.figures, (KAFKA, LIMIT)):
                (RESULTS / f"{options.results}-ratios.svg").write_text(svg)
                tables.lines += ["", f"![ratios]({options.results}-ratios.svg)"]
            spark.stop()
            shutil.rmtree(tables.directory / "spark", ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
