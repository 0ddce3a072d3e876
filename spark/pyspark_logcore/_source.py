"""What Spark calls: the data source, and the reader it pickles into every task."""

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

    The options are those of Spark's Kafka source, and `path`; the README beside this package lists them. A
    bad option raises ValueError when the data frame is made, a missing directory or topic when it is planned.
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
    # Only here, so that tasks which read files do not load the clients.
    from pyspark_logcore._wire import BrokerLog

    return BrokerLog(dict(options.client))


class _LogReader(DataSourceReader):
    """Plans on the driver, reads in the tasks. Small, because every task gets a pickled copy."""

    def __init__(self, options: SourceOptions, log: DirectoryLog | BrokerLog, schema: StructType) -> None:
        self._options = options
        self._log = log
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with self._log.catalog() as catalog:
            return plan(self._options, catalog)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # An empty plan comes back from Spark as a single partition without a value.
        if isinstance(partition, OffsetRange):
            for batch in self._log.read(partition, self._schema.fieldNames()):
                yield with_nullability(batch, self._schema)


class _NoStream(DataSourceStreamReader):
    """Says that there is no streaming yet. In each of its methods, because PySpark loses an exception that is raised
    where it makes the reader.
    """

    def initialOffset(self) -> NoReturn:
        raise NotImplementedError(
            "format 'logcore' cannot be read as a stream yet; use spark.read, with startingOffsets and endingOffsets"
        )

    def latestOffset(self, *_limits: object) -> NoReturn:
        self.initialOffset()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> NoReturn:
        self.initialOffset()

    def read(self, partition: InputPartition) -> NoReturn:
        self.initialOffset()
