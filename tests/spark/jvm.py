"""A quick start for Spark's JVMs: only the quick compiler, and an archive of Spark's classes.

usage: python -m tests.spark.jvm     (makes the archive, build/spark.jsa: one to three minutes)

A session on two busy cores took 30 s to start and answer, and takes 11 with both. Source: JEP 350.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build" / "spark.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_quickly() -> None:
    """Makes the JVMs of drivers quick to start, also in child processes. Without the archive, or with one of
    other classes, they load them as usual.
    """
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK
    quick = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off"
    os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = quick


def main() -> None:
    """Runs what most tests run, and keeps the classes that this loads."""
    new = ARCHIVE.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={new} -Xlog:cds=off"
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.catalogImplementation", "in-memory").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as directory:
        rows = spark.range(100).selectExpr("id % 10 as key", "to_json(struct(id)) as value")
        rows.write.parquet(f"{directory}/rows")
        read = spark.read.parquet(f"{directory}/rows")
        read.join(rows, "key").groupBy("key").count().orderBy("key").toArrow()
        stream = spark.readStream.schema(read.schema).parquet(f"{directory}/rows")
        written = stream.writeStream.option("checkpointLocation", f"{directory}/checkpoint")
        written.trigger(availableNow=True).start(f"{directory}/copy").awaitTermination(60)
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    # The JVM writes the archive when it ends, and it ends when its input does.
    jvm = gateway.proc
    jvm.stdin.close()
    jvm.wait(300)
    new.rename(ARCHIVE)


if __name__ == "__main__":
    main()
