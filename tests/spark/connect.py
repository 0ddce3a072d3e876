"""Reads, streams and makes mistakes through Spark Connect. A program, because its session is of another kind
than that of the tests.

    python connect.py SERVER DIRECTORY OUTPUT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    server, directory, output = sys.argv[1:]
    spark = SparkSession.builder.remote(server).getOrCreate()
    try:
        rows = spark.read.format("logcore").option("subscribe", "orders").load(directory)
        counted = rows.groupBy("partition").count().orderBy("partition").collect()
        print("read", *(row["count"] for row in counted))
        spark.sql(
            f"CREATE TEMPORARY VIEW refunds USING logcore OPTIONS (path '{directory}', topic 'refunds')"
        )
        print("view", spark.sql("SELECT count(*) FROM refunds").first()[0])
        reader = spark.readStream.format("logcore").option("subscribe", "orders")
        stream = reader.option("startingOffsets", "earliest").load(directory)
        writer = stream.writeStream.option("checkpointLocation", f"{output}/checkpoint")
        query = writer.trigger(availableNow=True).start(f"{output}/rows", "parquet", "append")
        query.awaitTermination(120)
        print("stream", spark.read.parquet(f"{output}/rows").count())
        try:
            spark.read.format("logcore").option("subscrbe", "orders").load(directory).count()
        except Exception as error:
            print("refused", "subscrbe" in str(error))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
