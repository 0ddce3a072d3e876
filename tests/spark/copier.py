"""A streaming query that copies a topic to another, exactly once. A program, which runs until it is killed.

python copier.py BOOTSTRAP FROM TO CHECKPOINT
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def main() -> None:
    bootstrap, source, target, checkpoint = sys.argv[1:]
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        # A task may fail three times, as on a cluster.
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.catalogImplementation", "in-memory")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    copied = (
        spark.readStream.format("logcore")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="300")
        .load()
        .select("key", "value", "partition")
    )
    query = (
        copied.writeStream.format("logcore")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(topic=target, checkpointLocation=checkpoint)
        .option("exactly.once", "true")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
