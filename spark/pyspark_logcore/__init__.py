"""A PySpark data source over Kafka-format logs: `spark.read.format("logcore")`.

Spark imports every package whose name begins with `pyspark_` and registers its `DefaultSource`, in Python workers that
it starts as `python3` from the PATH, unless PYSPARK_PYTHON says otherwise. A driver that imports this package before it makes
its session needs to set nothing: the workers run in the driver's interpreter then, where the package is installed.
Tasks read segment files, or fetch from a broker, through `logcore`'s extension and yield Arrow batches that were built
in Rust. The columns and the options are those of Spark's own Kafka source.
"""

import os as _os
import sys as _sys

from pyspark_logcore._source import DefaultSource

__all__ = ["DefaultSource"]


def _share_the_interpreter() -> None:
    """Has Spark's workers run in this interpreter, unless the user has chosen one. Spark reads the variable when the first
    session is made.
    """
    if _sys.executable:
        _os.environ.setdefault("PYSPARK_PYTHON", _sys.executable)


_share_the_interpreter()
