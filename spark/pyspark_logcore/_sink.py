"""The writers: rows as records of topics, with `format("logcore")`.

The columns are those of Spark's Kafka sink: `value` (needed), `key`, `headers`, `topic` unless the option
`topic` is set, `partition`; and `timestamp`. Other columns are ignored, as there. Each task has a producer,
idempotent and with acks=all, which takes Arrow batches whole.

Exactly once (`exactly.once=true`). A task writes its rows in a transaction, and with them a marker: the
committed offset of a consumer group, which is the number of the next micro-batch. The transactional id and
the group have the name `<prefix>-<query>-<task>`, so that

- an attempt that is begun later, by a retry, by speculation or after the driver was lost, first ends the
  transaction of the earlier one and fences it;
- an attempt that then finds the marker knows that its rows are written, and writes none.

So nothing hangs on the driver's commit, which may come twice or never. A repeated micro-batch must give each
task the rows it gave it before. Spark does so for every plan that is deterministic, as long as the options
that split a read into tasks stay. The marker has a `_Content` of the rows, and another one is an error. So is
a marker of a later micro-batch: Spark only repeats the last one, so the checkpoint is an old copy. When a
batch job is over, one marker of the job takes the place of its tasks' markers: a slow speculative attempt may
still come. Source of the scheme: KIP-98 and KIP-447, as Kafka Streams uses them.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cluster.client import (
    AdminClient,
    ConsumerGroupMetadata,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from pyspark_logcore._client_options import PRODUCER, client_settings
from pyspark_logcore._options import boolean

logger = logging.getLogger("pyspark_logcore")

_BOOTSTRAP = "kafka.bootstrap.servers"
_KNOWN = ("topic", "exactly.once", "transactional.id.prefix")
# Options of Spark itself, which it passes on.
OF_SPARK = frozenset({"checkpointlocation", "queryname", "includeheaders"})
# The sink sets these itself.
_REFUSED = frozenset({"key.serializer", "value.serializer", "transactional.id", "enable.idempotence"})

# Local properties that Spark's streams set for their tasks (StreamExecution, MicroBatchExecution).
QUERY_ID = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"

_TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""A broker's default maximum: a task may take long between its first record and its commit."""
_TIMEOUT = 60.0
"""Seconds for each question about the marker."""

_HEADERS = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True)
class SinkOptions:
    """The user's options."""

    client: Mapping[str, str]
    topic: str | None
    exactly_once: bool
    prefix: str


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote."""

    rows: int
    marker: str | None
    """With exactly once, the marker's group."""
    topic: str = ""
    """The marker's topic."""
    repeated: bool = False
    """An earlier attempt had written the rows."""


@dataclass(frozen=True)
class Place:
    """Whose rows a task has: those of a query's micro-batch. A batch job is a query of one micro-batch."""

    query: str
    batch: int
    task: int


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of `df.write`. Raises ValueError for a bad option or column."""
    if overwrite:
        raise ValueError("records cannot be overwritten: use mode('append')")
    if any(name.lower() == "path" for name in given):
        # Imported here: other writers do not open log directories.
        from pyspark_logcore._load import bulk_writer

        return bulk_writer(given, schema)
    return LogWriter(_parse(given, schema), f"job-{uuid.uuid4()}")


def stream_writer(given: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream`. Raises ValueError for a bad option or column."""
    if any(name.lower() == "path" for name in given):
        raise ValueError("a stream is written to brokers: a log directory is loaded by a batch job")
    return LogStreamWriter(_parse(given, schema))


class LogWriter(DataSourceArrowWriter):
    """Writes a batch job's rows. See the module."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._options = options
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, iterator, Place(self._job, 0, task_context().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        markers = {
            one.marker: one.topic for one in messages if isinstance(one, Written) and one.marker is not None
        }
        if markers:
            _mark_job(self._options, self._job, markers)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a stream's micro-batches. See the module."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = task_context()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            if self._options.exactly_once:
                raise RuntimeError(f"Spark did not name the query and the micro-batch ({QUERY_ID}, {_BATCH})")
            query, batch = "", "0"
        return _write(self._options, iterator, Place(query, int(batch), task.partitionId()))


def task_context() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written in Spark's tasks, and this is none")
    return task


def _write(options: SinkOptions, batches: Iterator[pa.RecordBatch], place: Place) -> Written:
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return Written(0, None)
    batches = itertools.chain([first], batches)
    if options.exactly_once:
        return _write_once(options, batches, place, options.topic or first.column("topic")[0].as_py())
    with Producer(dict(options.client)) as producer:
        rows = _produce(producer, options, batches)
        producer.flush()
    return Written(rows, None)


def _produce(producer: Producer, options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> int:
    return sum(producer.produce_table(batch, options.topic) for batch in batches)


def _write_once(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], place: Place, topic: str | None
) -> Written:
    name = f"{options.prefix}-{place.query}-{place.task}"
    if topic is None:
        raise ValueError("row 0 names no topic: set the option topic, or fill the column topic")
    settings = {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, **options.client}
    with Producer({**settings, "transactional.id": name}) as producer:
        # Fences the earlier attempts, so that what they have not committed now is never written.
        producer.init_transactions()
        marker = _marker(options, name)
        content = _Content()
        batches = map(content.add, batches)
        if marker is not None and marker.offset > place.batch:
            _check_same(marker, place, content, batches)
            logger.info("micro-batch %d: the rows of task %d are written already", place.batch, place.task)
            return Written(0, name, marker.topic, repeated=True)
        if marker is None and _marker(options, _job_marker(options, place.query)) is not None:
            raise RuntimeError(f"job {place.query} is over: this attempt of task {place.task} came too late")
        producer.begin_transaction()
        try:
            rows = _produce(producer, options, batches)
            mark = TopicPartition(topic, 0, place.batch + 1, metadata=str(content))
            producer.send_offsets_to_transaction([mark], ConsumerGroupMetadata(name))
            producer.commit_transaction()
        except BaseException:
            _abort(producer)
            raise
    return Written(rows, name, topic)


def _abort(producer: Producer) -> None:
    """Aborts, if that is possible: the next attempt does so, too."""
    try:
        producer.abort_transaction(_TIMEOUT)
    except KafkaException as error:
        logger.info("the transaction is left to the next attempt: %s", error)


def _marker(options: SinkOptions, name: str) -> TopicPartition | None:
    """What the last attempt that committed has left, for the topic of the options if they name one."""
    admin = _admin(options)
    try:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], require_stable=True)
        found = asked[name].result(_TIMEOUT).topic_partitions
    finally:
        admin.close()
    mine = [one for one in found or [] if options.topic in (None, one.topic)]
    return max(mine, key=lambda one: one.offset, default=None)


def _check_same(
    marker: TopicPartition, place: Place, content: _Content, batches: Iterator[pa.RecordBatch]
) -> None:
    """Raises RuntimeError unless the rows are those that were written."""
    if marker.offset > place.batch + 1:
        raise RuntimeError(
            f"query {place.query} is to write micro-batch {place.batch}, and its task {place.task} has "
            f"written micro-batch {marker.offset - 1} already: the checkpoint is older than what the topic "
            "has. Go on with the newest checkpoint, or write to another topic with another "
            "transactional.id.prefix"
        )
    for _ in batches:
        pass
    if marker.metadata != str(content):
        raise RuntimeError(
            f"micro-batch {place.batch} of query {place.query} is repeated, and its task {place.task} has "
            f"other rows ({content}) than when it was written ({marker.metadata}): some would be written "
            "twice or never. The query is not deterministic, or the options that split its source into tasks "
            "have changed"
        )


class _Content:
    """What rows are, in any order: their number, the number of bytes of keys and values, and their sum."""

    def __init__(self) -> None:
        self._rows = self._bytes = self._sum = 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._rows += batch.num_rows
        for name in ("key", "value"):
            if name in batch.schema.names:
                data = _bytes_of(batch.column(name))
                self._bytes += len(data)
                self._sum += pc.sum(data).as_py() or 0
        return batch

    def __str__(self) -> str:
        return f"{self._rows} rows, {self._bytes} bytes, sum {self._sum}"


def _bytes_of(column: pa.Array) -> pa.Array:
    """The bytes of all strings or binaries of a column, one behind the other (Arrow's columnar format)."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(column) + 1, [None, offsets], offset=column.offset)
    first, last = ends[0].as_py(), ends[len(column)].as_py()
    return pa.Array.from_buffers(pa.uint8(), last - first, [None, data], offset=first)


def _job_marker(options: SinkOptions, job: str) -> str:
    """The group that says that a batch job is over."""
    return f"{options.prefix}-{job}"


def _mark_job(options: SinkOptions, job: str, markers: Mapping[str, str]) -> None:
    """Marks a batch job as over, then deletes the markers of its tasks, which are given with their topics.
    Those that stay expire with offsets.retention.minutes.
    """
    name, topic = _job_marker(options, job), next(iter(markers.values()))
    admin = _admin(options)
    try:
        over = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, 1)])
        try:
            admin.alter_consumer_group_offsets([over])[name].result(_TIMEOUT)
        except KafkaException as error:
            logger.info("the markers of job %s stay: %s", job, error)
            return
        for name, deleted in admin.delete_consumer_groups(list(markers)).items():
            try:
                deleted.result(_TIMEOUT)
            except KafkaException as error:
                logger.info("the marker %s stays: %s", name, error)
    finally:
        admin.close()


def _admin(options: SinkOptions) -> AdminClient:
    return AdminClient({"bootstrap.servers": options.client["bootstrap.servers"]})


def _parse(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    options = {name.lower(): value for name, value in given.items()}
    kafka = {name[len("kafka.") :]: value for name, value in options.items() if name.startswith("kafka.")}
    known = {*_KNOWN, *OF_SPARK}
    unknown = sorted(name for name in options if name not in known and not name.startswith("kafka."))
    if unknown:
        raise ValueError(
            f"unknown option {', '.join(map(repr, unknown))} for writing; the options are "
            f"{', '.join(_KNOWN)}, kafka.*"
        )
    if not kafka.get("bootstrap.servers", "").strip():
        raise ValueError(f"set the brokers to write to, with option {_BOOTSTRAP!r}")
    for name in sorted(_REFUSED & kafka.keys()):
        raise ValueError(f"option 'kafka.{name}' is not supported: the sink sets it itself")
    if kafka.get("acks", "all").strip() not in ("all", "-1"):
        raise ValueError("option 'kafka.acks' must be all: the sink loses no record")
    topic = options.get("topic")
    check_columns(schema, topic)
    return SinkOptions(
        # Keys go to the partitions that the Java producer chooses.
        client={"partitioner": "murmur2_random", **client_settings(kafka, PRODUCER)},
        topic=topic,
        exactly_once=boolean(options, "exactly.once", False),
        prefix=options.get("transactional.id.prefix", "spark"),
    )


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises ValueError for columns that cannot be records."""
    allowed: dict[str, tuple[type[DataType], ...]] = {
        "key": (StringType, BinaryType),
        "value": (StringType, BinaryType),
        "topic": (StringType,),
        "partition": (IntegerType,),
        "timestamp": (TimestampType, TimestampNTZType),
    }
    found = {field.name: field.dataType for field in schema.fields}
    if "value" not in found:
        raise ValueError("a column value is needed, of type string or binary")
    if topic is None and "topic" not in found:
        raise ValueError("set the option topic, or add a column topic of type string")
    for name, types in allowed.items():
        if name in found and not isinstance(found[name], types):
            wanted = " or ".join(one.typeName() for one in types)
            raise ValueError(f"column {name} must be {wanted}, not {found[name].simpleString()}")
    headers = found.get("headers")
    if headers is not None and not (isinstance(headers, ArrayType) and headers.simpleString() == _HEADERS):
        raise ValueError(f"column headers must be {_HEADERS}, not {headers.simpleString()}")
