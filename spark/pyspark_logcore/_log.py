"""Where records are: log directories, brokers, or both."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_logcore._directory import DirectoryLog
from pyspark_logcore._options import SourceOptions
from pyspark_logcore._plan import Catalog, OffsetRange
from pyspark_logcore._schema import check_schema, with_nullability
from pyspark_logcore._typed import TypedRead


class Log(Protocol):
    """Where records are. Pickled into tasks."""

    def catalog(self) -> AbstractContextManager[Catalog]:
        """The catalog for a plan."""
        ...

    def read(self, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows as Arrow batches of these columns."""
        ...


def log_of(options: SourceOptions) -> Log:
    """The log that the options name. Opens nothing yet."""
    may_lose = not options.fail_on_data_loss
    files = DirectoryLog(options.paths, options.isolation, may_lose)
    if options.access == "files" and not options.client:
        return files
    # Imported here: tasks that read files do not need the clients.
    from pyspark_logcore._mixed import MixedLog
    from pyspark_logcore._wire import BrokerLog

    brokers = BrokerLog(dict(options.client), may_lose)
    if options.access == "brokers":
        return brokers
    return MixedLog(files, brokers, only_files=options.access == "files")


@dataclass(frozen=True)
class Rows:
    """The rows of a query as Spark takes them: the columns of `schema`, in its order. Pickled into tasks."""

    log: Log
    schema: StructType
    typed: TypedRead | None

    def read(self, task: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task."""
        _freeze()
        if self.typed is None:
            batches = self.log.read(task, self.schema.fieldNames())
        else:
            found = self.log.read(task, self.typed.columns)
            batches = self.typed.decode(found, f"{task.topic}-{task.partition}")
        for batch in batches:
            yield with_nullability(batch, self.schema)


def rows_of(options: SourceOptions, schema: StructType) -> Rows:
    """Rows of a schema, which may be the user's. Raises ValueError when it does not fit the options."""
    typed = options.typed
    check_schema(schema, () if typed is None else typed.names)
    return Rows(log_of(options), schema, None if typed is None else typed.read_as(schema))


@functools.cache
def _freeze() -> None:
    """Takes the imported modules out of garbage collections.

    A Python worker of Spark collects after each task, which took 30 ms for modules alone (pyspark/daemon.py).
    """
    gc.collect()
    gc.freeze()
