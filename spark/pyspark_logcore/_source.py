"""The classes that Spark calls: the data source, and the reader that it pickles into every task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyspark_logcore._filters import Push, Wanted
from pyspark_logcore._log import Rows, rows_of
from pyspark_logcore._options import SourceOptions, parse_options
from pyspark_logcore._plan import OffsetRange, plan
from pyspark_logcore._schema import kafka_schema


class DefaultSource(DataSource):
    """`format("logcore")`: Kafka-format partitions as rows, from files or from brokers, and rows as records.

    The options are those of Spark's Kafka source and more; this package's README lists them. A bad option
    raises ValueError that names it: when the data frame is made, or with a schema of the user's when the
    query is planned, as a missing directory or topic does.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "logcore"

    def schema(self) -> StructType | str:
        options = parse_options(self._given)
        found = kafka_schema(options.include_headers)
        return found if options.typed is None else options.typed.schema(found)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self._given)
        return _LogReader(options, rows_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        # Imported here, as the writers below: a batch read needs none of them, and Spark 4.1 has no limits.
        from pyspark_logcore._stream import LogStreamReader

        return LogStreamReader(self._given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_logcore._sink import batch_writer

        return batch_writer(self._given, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_logcore._sink import stream_writer

        return stream_writer(self._given, schema)


class _LogReader(DataSourceReader):
    """Plans on the driver and reads in the tasks. It is small, because every task gets a pickled copy."""

    def __init__(self, options: SourceOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows
        self._wanted = Wanted()
        # Not a method of the class: see Push.
        self.pushFilters = Push(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Sequence[Filter]) -> None:
        self._wanted = Wanted(filters)

    def partitions(self) -> Sequence[InputPartition]:
        with self._rows.log.catalog() as catalog:
            return plan(self._options, catalog, self._wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For an empty plan, Spark calls this once with a partition of another class.
        if isinstance(partition, OffsetRange):
            yield from self._rows.read(partition)
