"""The Spark part of the demo: reads segment files, parses flights, computes figures, and writes all of it as
Parquet.

The source is `spark.read.format("logcore")` with the broker's data directory. Its tasks read the segment
files while the broker has them open. It can be run by itself:

    python demo/pipeline.py DIRECTORY OUTPUT_DIRECTORY
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bands import BANDS, DELAYS, PERCENTILES, TABLES, UNKNOWN, Bands, percentile_column
from flights import MISSING, NUMBERS, data_file
from stages import Stage, timed

if TYPE_CHECKING:
    from check import Table
    from pyspark.sql import Column, DataFrame, SparkSession

TOPIC = "flights"
JAVA_WANTED = 17  # Spark 4 runs on Java 17 and 21

# Spark's log goes to a file beside the results, not to the terminal.
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.append = false
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


@dataclass
class Results:
    """The results of the pipeline."""

    tables: dict[str, Table]
    partitions: dict[int, tuple[int, int]]  # partition -> records, end offset
    payload: int
    misfiled: int  # records whose key or timestamp contradicts their value


def check_java() -> None:
    """Ends the program with one line if there is no Java runtime for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = f"run: sudo apt-get install openjdk-{JAVA_WANTED}-jre-headless"
    if java is None or not os.access(java, os.X_OK):
        raise SystemExit(
            f"demo: Spark needs a Java runtime, {JAVA_WANTED} or newer, and none was found; {install}"
        )
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < JAVA_WANTED:
        raise SystemExit(
            f"demo: Spark needs Java {JAVA_WANTED} or newer, but {java} is older or unknown; {install}"
        )


def start_spark(output: Path) -> SparkSession:
    """A local session on all cores and on loopback. Its workers run in this interpreter."""
    check_java()
    # Set before the Java process starts, which inherits them.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    output.mkdir(parents=True, exist_ok=True)
    log4j = output / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=output / "spark.log"), encoding="utf-8")
    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.resolve().as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.warehouse.dir": (output / "warehouse").resolve().as_uri(),
    }
    builder = SparkSession.builder.master("local[*]").appName("logcore demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _errors_to(output / "spark.err"):
        return builder.getOrCreate()


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Redirects the standard error of processes that are started meanwhile: Java's and its workers'."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def warm_up(spark: SparkSession, log_directory: Path) -> None:
    """Reads a record, so that Spark's workers have started and its code is warm before the measurements."""
    _source(spark, log_directory, "offset bigint").limit(1).collect()


def run(spark: SparkSession, log_directory: Path, output: Path, stages: list[Stage]) -> Results:
    """Reads the topic's segments, writes Parquet to `output`/parquet and returns the report's figures."""
    parquet = output / "parquet"
    with timed(stages, "Spark: read the segments") as stage:
        partitions, payload = _scan(spark, log_directory)
        stage.records, stage.payload = sum(count for count, _ in partitions.values()), payload
    with timed(stages, "Spark: JSON to Parquet") as stage:
        _parse(spark, log_directory).write.mode("overwrite").parquet(str(parquet / "flights"))
        stage.records, stage.payload = sum(count for count, _ in partitions.values()), payload
    flights = spark.read.parquet(str(parquet / "flights"))
    with timed(stages, "Spark: weather and figures") as stage:
        joined = _with_weather(spark, flights).cache()
        tables = {name: _table(joined, name, parquet) for name in TABLES}
        stage.records, stage.payload = joined.count(), payload
    misfiled = joined.filter(~_well_filed(joined)).count()
    return Results(tables, partitions, payload, misfiled)


def _source(spark: SparkSession, log_directory: Path, schema: str) -> DataFrame:
    # Only the columns of the schema are built.
    return spark.read.format("logcore").schema(schema).option("subscribe", TOPIC).load(str(log_directory))


def _scan(spark: SparkSession, log_directory: Path) -> tuple[dict[int, tuple[int, int]], int]:
    from pyspark.sql import functions as F

    records = _source(spark, log_directory, "key binary, value binary, partition int, offset bigint")
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


def _parse(spark: SparkSession, log_directory: Path) -> DataFrame:
    from pyspark.sql import functions as F

    text = ("carrier", "tailnum", "origin", "dest", "time_hour")
    fields = ", ".join([*(f"{name} int" for name in sorted(NUMBERS)), *(f"{name} string" for name in text)])
    records = _source(
        spark, log_directory, "key binary, value binary, partition int, offset bigint, timestamp timestamp"
    )
    flight = F.from_json(F.col("value").cast("string"), fields).alias("flight")
    day = F.make_date("flight.year", "flight.month", "flight.day")
    return records.select(
        "partition",
        "offset",
        F.col("key").cast("string").alias("key"),
        F.col("timestamp").alias("scheduled"),
        flight,
    ).select(
        "partition",
        "offset",
        "key",
        "scheduled",
        "flight.*",
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
    if len(sys.argv) != 3:
        raise SystemExit("usage: pipeline.py DIRECTORY OUTPUT_DIRECTORY")
    measured: list[Stage] = []
    out = Path(sys.argv[2])
    session = start_spark(out)
    try:
        found = run(session, Path(sys.argv[1]), out, measured)
    finally:
        session.stop()
    for one in measured:
        print(f"{one.name}: {one.records:,} records in {one.seconds:.1f} s")
    print(f"figures of all flights: {found.tables['total'][()]}")
