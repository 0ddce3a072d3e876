"""The classes that Spark calls: the data source, and the reader that it pickles into every task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_logcore._directory import DirectoryLog
from pyspark_logcore._options import SourceOptions, parse_options
from pyspark_logcore._plan import OffsetRange, plan
from pyspark_logcore._schema import check_schema, kafka_schema, with_nullability

if TYPE_CHECKING:
    from pyspark_logcore._wire import BrokerLog


class DefaultSource(DataSource):
    """`spark.read.format("logcore")`: Kafka-format partitions as rows, from files or from brokers.

    The options are those of Spark's Kafka source, and `path`; this package's README lists them. A bad option
    raises ValueError when the data frame is made. A missing directory or topic raises it when the query is
    planned.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._parsed = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "logcore"

    def schema(self) -> StructType:
        return kafka_schema(self._parsed.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        options = self._parsed
        return _LogReader(options, _log(options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _NoStream()


def _log(options: SourceOptions) -> DirectoryLog | BrokerLog:
    if options.path is not None:
        return DirectoryLog(options.path)
    # Imported here: tasks that read files do not need the clients.
    from pyspark_logcore._wire import BrokerLog

    return BrokerLog(dict(options.client))


class _LogReader(DataSourceReader):
    """Plans on the driver and reads in the tasks. It is small, because every task gets a pickled copy."""

    def __init__(self, options: SourceOptions, log: DirectoryLog | BrokerLog, schema: StructType) -> None:
        self._options = options
        self._log = log
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with self._log.catalog() as catalog:
            return plan(self._options, catalog)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For an empty plan, Spark calls this once with a partition of another class.
        if isinstance(partition, OffsetRange):
            for batch in self._log.read(partition, self._schema.fieldNames()):
                yield with_nullability(batch, self._schema)


class _NoStream(DataSourceStreamReader):
    """Raises an error that says that streams are not supported yet. Each method raises it, because PySpark
    would lose an exception from the place where the reader is made.
    """

    def initialOffset(self) -> NoReturn:
        raise NotImplementedError(
            "format 'logcore' cannot be read as a stream yet; "
            "use spark.read, with startingOffsets and endingOffsets"
        )

    def latestOffset(self, *_limits: object) -> NoReturn:
        self.initialOffset()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> NoReturn:
        self.initialOffset()

    def read(self, partition: InputPartition) -> NoReturn:
        self.initialOffset()
