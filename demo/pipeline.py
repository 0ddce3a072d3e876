"""The Spark part of the demo: reads segment files, streams the flights into Parquet, and computes figures.

The source is `format("logcore")` with the brokers and a data directory, as a batch and as a stream. Its tasks
read the segment files while the broker has them open; the brokers only say how far. The stream decodes each
value, JSON, straight into columns. It can be run by itself:

    python demo/pipeline.py BOOTSTRAP DIRECTORY OUTPUT_DIRECTORY
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bands import BANDS, DELAYS, PERCENTILES, TABLES, UNKNOWN, Bands, percentile_column
from flights import MISSING, NUMBERS, data_file
from stages import Stage, timed

from pyspark_logcore.pipeline import _session

if TYPE_CHECKING:
    from check import Table
    from pyspark.sql import Column, DataFrame, SparkSession

TOPIC = "flights"
MICRO_BATCH = 120_000
"""Records of a micro-batch, so that the year takes three."""


@dataclass
class Results:
    """The results of the pipeline."""

    tables: dict[str, Table]
    partitions: dict[int, tuple[int, int]]  # partition -> records, end offset
    payload: int
    misfiled: int  # records whose key or timestamp contradicts their value


def check_java() -> None:
    """Ends the program with one line if there is no Java runtime for Spark."""
    try:
        _session.check_java()
    except _session.NoJava as error:
        raise SystemExit(f"demo: {error}") from None


def start_spark(output: Path) -> SparkSession:
    """A local session on all cores and on loopback. Its workers run in this interpreter. Its log is
    `output`/spark.log.
    """
    # Set before the Java process starts, which inherits it.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    check_java()
    return _session.start("logcore demo", (output / "spark.log").resolve(), {"spark.master": "local[*]"})


@dataclass(frozen=True)
class Source:
    """Where the topic is: at brokers, and in the directory of one of them."""

    bootstrap: str
    directory: Path

    def read(self, spark: SparkSession, schema: str) -> DataFrame:
        """The topic's records; only the columns of the schema are built."""
        reader = spark.read.format("logcore").schema(schema).options(**self._options)
        return reader.load(str(self.directory))

    def stream(self, spark: SparkSession, schema: str) -> DataFrame:
        """The topic's records with typed values, from the first, in micro-batches of MICRO_BATCH."""
        reader = spark.readStream.format("logcore").schema(schema).options(**self._options)
        reader = reader.option("value.format", "json").option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", str(MICRO_BATCH)).load(str(self.directory))

    @property
    def _options(self) -> dict[str, str]:
        return {"subscribe": TOPIC, "kafka.bootstrap.servers": self.bootstrap}


def warm_up(spark: SparkSession, source: Source) -> None:
    """Reads a record, so that Spark's workers have started and its code is warm before the measurements."""
    source.read(spark, "offset bigint").limit(1).collect()


def run(spark: SparkSession, source: Source, output: Path, stages: list[Stage]) -> Results:
    """Reads the topic's segments, writes Parquet to `output`/parquet and returns the report's figures."""
    parquet = output / "parquet"
    with timed(stages, "Spark: read the segments") as stage:
        partitions, payload = _scan(spark, source)
        stage.records, stage.payload = sum(count for count, _ in partitions.values()), payload
    with timed(stages, "Spark: stream JSON to Parquet") as stage:
        writer = _parse(spark, source).writeStream.trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(output / "checkpoint")).start(
            str(parquet / "flights"), "parquet", "append"
        )
        query.awaitTermination()
        stage.records, stage.payload = sum(count for count, _ in partitions.values()), payload
    flights = spark.read.parquet(str(parquet / "flights"))
    with timed(stages, "Spark: weather and figures") as stage:
        joined = _with_weather(spark, flights).cache()
        tables = {name: _table(joined, name, parquet) for name in TABLES}
        stage.records, stage.payload = joined.count(), payload
    misfiled = joined.filter(~_well_filed(joined)).count()
    return Results(tables, partitions, payload, misfiled)


def _scan(spark: SparkSession, source: Source) -> tuple[dict[int, tuple[int, int]], int]:
    from pyspark.sql import functions as F

    records = source.read(spark, "key binary, value binary, partition int, offset bigint")
    rows = (
        records.groupBy("partition")
        .agg(
            F.count("*").alias("records"),
            F.max("offset").alias("last"),
            F.sum(F.length("key") + F.length("value")).alias("payload"),
        )
        .collect()
    )
    return {row["partition"]: (row["records"], row["last"] + 1) for row in rows}, sum(
        row["payload"] for row in rows
    )


def _parse(spark: SparkSession, source: Source) -> DataFrame:
    from pyspark.sql import functions as F

    text = ("carrier", "tailnum", "origin", "dest", "time_hour")
    fields = ", ".join([*(f"{name}: int" for name in sorted(NUMBERS)), *(f"{name}: string" for name in text)])
    records = source.stream(
        spark,
        f"key binary, value struct<{fields}>, partition int, offset bigint, timestamp timestamp",
    )
    day = F.make_date("value.year", "value.month", "value.day")
    return records.select(
        "partition",
        "offset",
        F.col("key").cast("string").alias("key"),
        F.col("timestamp").alias("scheduled"),
        "value.*",
        day.alias("date"),
        (F.weekday(day) + 1).alias("weekday"),
    )


def _well_filed(flights: DataFrame) -> Column:
    from pyspark.sql import functions as F

    departure = F.to_timestamp("time_hour") + F.make_dt_interval(mins=F.col("minute"))
    return F.coalesce((F.col("key") == F.col("carrier")) & (F.col("scheduled") == departure), F.lit(False))


def _with_weather(spark: SparkSession, flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    path = data_file("weather.csv")
    columns = [bands.column for bands in BANDS]
    observed = (
        spark.read.option("header", True)
        .option("nullValue", MISSING)
        .csv(path.resolve().as_uri())
        .select("origin", "time_hour", *(F.col(column).cast("double").alias(column) for column in columns))
    )
    joined = flights.join(F.broadcast(observed), ["origin", "time_hour"], "left")
    return joined.select(*flights.columns, *(_band(bands).alias(f"{bands.column}_band") for bands in BANDS))


def _band(bands: Bands) -> Column:
    from pyspark.sql import functions as F

    value = F.col(bands.column)
    chosen = F.when(value.isNull(), UNKNOWN)
    for end, label in bands.ends:
        chosen = chosen.when(value < end, label)
    return chosen.otherwise(bands.last)


def _table(flights: DataFrame, name: str, parquet: Path) -> Table:
    from pyspark.sql import functions as F

    figures = [F.count("*").alias("flights"), F.count_if(F.col("dep_time").isNull()).alias("cancelled")]
    for delay in DELAYS:
        figures.append(F.avg(delay).alias(f"{delay}_mean"))
        figures.append(F.percentile(delay, F.array(*map(F.lit, PERCENTILES))).alias(f"{delay}_percentiles"))
    columns = TABLES[name]
    table = flights.groupBy(*columns).agg(*figures)
    for delay in DELAYS:
        for index, fraction in enumerate(PERCENTILES):
            table = table.withColumn(percentile_column(delay, fraction), F.col(f"{delay}_percentiles")[index])
        table = table.drop(f"{delay}_percentiles")
    table.coalesce(1).sort(*columns or ["flights"]).write.mode("overwrite").parquet(str(parquet / name))
    written = flights.sparkSession.read.parquet(str(parquet / name)).collect()
    return {
        tuple(row[column] for column in columns): {
            figure: value for figure, value in row.asDict().items() if figure not in columns
        }
        for row in written
    }


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit("usage: pipeline.py BOOTSTRAP DIRECTORY OUTPUT_DIRECTORY")
    measured: list[Stage] = []
    out = Path(sys.argv[3])
    session = start_spark(out)
    try:
        found = run(session, Source(sys.argv[1], Path(sys.argv[2])), out, measured)
    finally:
        session.stop()
    for one in measured:
        print(f"{one.name}: {one.records:,} records in {one.seconds:.1f} s")
    print(f"figures of all flights: {found.tables['total'][()]}")
