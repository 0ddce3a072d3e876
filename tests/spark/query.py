"""Counts the values of a topic that are not negative, on a Spark cluster. The topic is in several log
directories. A program, because its session has
another master than that of the tests.

    python query.py MASTER TOPIC DIRECTORY...
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def main() -> None:
    master, topic, *directories = sys.argv[1:]
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.catalogImplementation", "in-memory")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    read = spark.read.format("logcore").option("subscribe", topic).option("minPartitions", "6")
    rows = (
        read.load(directories)
        .selectExpr("partition", "cast(cast(value as string) as int) as v")
        .where("v >= 0")
    )
    [found] = rows.selectExpr("count(*)", "count(distinct v)", "min(v)", "max(v)").collect()
    workers = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    print("found", *found, "executors", len(workers) - 1)
    spark.stop()


if __name__ == "__main__":
    main()
