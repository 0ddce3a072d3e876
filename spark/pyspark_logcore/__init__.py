"""A PySpark data source over Kafka-format logs: `spark.read.format("logcore")`.

Spark imports every package whose name begins with `pyspark_` and registers its `DefaultSource`, so importing
this package is never the user's business. Tasks read segment files, or fetch from a broker, through
`logcore`'s extension and yield Arrow batches that were built in Rust. The columns and the options are those
of Spark's own Kafka source.
"""

from pyspark_logcore._source import DefaultSource

__all__ = ["DefaultSource"]
