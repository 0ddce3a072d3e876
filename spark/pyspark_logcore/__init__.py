"""A PySpark data source over Kafka-format logs: `format("logcore")` to read, as a batch or a stream, and to
write.

The columns and the options are those of Spark's own Kafka source and sink; the README lists them. What
happens in a batch read:

1. *Options.* Spark makes a `DefaultSource` from the options. They are checked in `_options`, `_limits` and
   `_client_options`, and say where the records are (`_log`): in directories, at brokers, or both.
2. *Plan.* Once a query, in one Python process on the driver, `_plan.plan` asks a catalog for the partitions
   and their first and last offsets. `_directory` is the catalog of log directories, `_wire` that of brokers.
   The options turn these into one range of offsets for each partition.
3. *Split.* Each range is one task, unless `minPartitions` or `maxRecordsPerPartition` ask for more. A range
   is then cut by bytes if it is in files, and else into parts with equally many offsets. A cut may fall
   inside a batch: both tasks decode that batch, and each keeps the records of its own range.
4. *Task.* Spark pickles the reader and one range into each task. The task yields Arrow batches, which the
   extension builds.

A stream (`_stream`) plans a micro-batch at a time, in a process that stays; `_progress` has its arithmetic,
and its tasks are those of a batch. `_sink` has the writers, and says how exactly once is kept.

Which files a task opens (`_directory`): its partition's directory only. It opens every `.log` file in it, and
reads `leader-epoch-checkpoint` and the log directory's `log-start-offset-checkpoint` and
`replication-offset-checkpoint`. It reads the `.index` of the segment where its range begins and of the newest
segment. Of the `.log` files it reads only the bytes of its range. It takes no lock and writes nothing, so a
broker may write the same directory.

Which brokers a task asks (`_wire`): the bootstrap servers for metadata, and then its partition's leader. With
a path and brokers (`_mixed`), the brokers say in the plan what may be read, and a task reads a file if that
certainly has the leader's records; else it asks the leader.

Spark imports every package whose name begins with `pyspark_` and registers its `DefaultSource`. It does so in
Python workers, which it starts as `python3` from the PATH unless PYSPARK_PYTHON names another interpreter. A
driver that imports this package before it makes its session need not set the variable: the workers then run
in the driver's interpreter.
"""

import os as _os
import sys as _sys

from pyspark_logcore._source import DefaultSource

__all__ = ["DefaultSource"]


def _share_the_interpreter() -> None:
    """Makes Spark's workers run in this interpreter, unless the user chose one. Spark reads the variable when
    it makes the first session.
    """
    if _sys.executable:
        _os.environ.setdefault("PYSPARK_PYTHON", _sys.executable)


_share_the_interpreter()
