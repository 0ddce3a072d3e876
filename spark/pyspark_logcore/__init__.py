"""A PySpark data source over Kafka-format logs: `spark.read.format("logcore")`.

The columns and the options are those of Spark's own Kafka source; the README lists them. What happens in a
read:

1. *Options.* Spark makes a `DefaultSource` from the options. They are checked once, in `_options`, `_limits`
   and `_client_options`.
2. *Plan.* Once a query, in one Python process on the driver, `_plan.plan` asks a catalog for the partitions
   and their first and last offsets. `_directory` is the catalog of a log directory, `_wire` that of brokers.
   The options turn these into one range of offsets for each partition.
3. *Split.* Each range is one task, unless `minPartitions` or `maxRecordsPerPartition` ask for more. A range
   is then cut into parts with equally many offsets. A cut may fall inside a batch: both tasks decode that
   batch, and each keeps the records of its own range.
4. *Task.* Spark pickles the reader and one range into each task. The task yields Arrow batches, which the
   extension builds.

Which files a task opens (`_directory`): its partition's directory only. It opens every `.log` file in it, and
reads `leader-epoch-checkpoint` and the log directory's `log-start-offset-checkpoint`. It reads the `.index`
of the segment where its range begins and of the newest segment. Of the `.log` files it reads only the bytes
of its range. It takes no lock and writes nothing, so a broker may write the same directory.

Which brokers a task asks (`_wire`): the bootstrap servers for metadata, and then its partition's leader.

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
