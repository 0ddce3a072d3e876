"""`logcore console-producer`: the flags of kafka-console-producer.sh.

Takes the flags of Kafka 3.9, and the new names of 4.2 (KIP-1147).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cluster.cli._common import (
    CONNECT_TIMEOUT,
    CommandError,
    Parser,
    client_config,
    connect,
    either,
    pairs,
    properties_file,
)
from cluster.cli._java_properties import Translated, translate

if TYPE_CHECKING:
    from cluster.client import KafkaError, Message, Producer

OF_ONE_RECORD = frozenset({10, 18, 87})
"""MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE and INVALID_RECORD: the line is wrong, not the topic."""

# Flag -> the producer's property in Java's words. Of two for one property the later wins.
PRODUCER_FLAGS: dict[str, tuple[str, type, str]] = {
    "request-required-acks": ("acks", str, "0|1|all|-1"),
    "request-timeout-ms": ("request.timeout.ms", int, "MS"),
    "message-send-max-retries": ("retries", int, "N"),
    "retry-backoff-ms": ("retry.backoff.ms", int, "MS"),
    "timeout": ("linger.ms", int, "MS"),
    "batch-size": ("batch.size", int, "BYTES"),
    "max-partition-memory-bytes": ("batch.size", int, "BYTES"),
    "max-memory-bytes": ("buffer.memory", int, "BYTES"),
    "max-block-ms": ("max.block.ms", int, "MS"),
    "metadata-expiry-ms": ("metadata.max.age.ms", int, "MS"),
    "socket-buffer-size": ("send.buffer.bytes", int, "BYTES"),
}

READERS = (
    "kafka.tools.ConsoleProducer$LineMessageReader",
    "org.apache.kafka.tools.LineMessageReader",
)
"""The one reader there is, by its name in Kafka 3 and in Kafka 4."""

MAX_BLOCK_SECONDS = 60.0
"""How long a line waits while the producer's queue is full: max.block.ms, by Java's default."""

# Java's defaults that differ from ours: the partition of a key, and the largest record.
JAVA_DEFAULTS = {
    "client.id": "console-producer",
    "partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
    "max.request.size": "1048576",
}


def parser() -> Parser:
    options = Parser("console-producer", "Sends each line of standard input as a record.")
    options.add_argument(
        "--bootstrap-server", metavar="HOST:PORT[,...]", help="the broker to connect to (required)"
    )
    options.add_argument(
        "--broker-list", metavar="HOST:PORT[,...]", help="the old name of --bootstrap-server"
    )
    options.add_argument("--topic", required=True)
    options.add_argument(
        "--reader-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="how lines are read: parse.key, key.separator, parse.headers, headers.delimiter, "
        "headers.separator, headers.key.separator, null.marker, ignore.error",
    )
    options.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="the old name of --reader-property",
    )
    options.add_argument("--reader-config", metavar="FILE", help="a file of the same properties")
    options.add_argument(
        "--command-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a property of the producer",
    )
    options.add_argument(
        "--producer-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="the old name of --command-property",
    )
    options.add_argument("--command-config", metavar="FILE", help="a file of the producer's properties")
    options.add_argument(
        "--producer.config",
        dest="producer_config",
        metavar="FILE",
        help="the old name of --command-config",
    )
    options.add_argument(
        "--compression-codec",
        nargs="?",
        const="gzip",
        metavar="CODEC",
        help="none, gzip, snappy, lz4 or zstd; gzip when no codec follows",
    )
    for flag, (name, kind, metavar) in PRODUCER_FLAGS.items():
        options.add_argument(f"--{flag}", type=kind, metavar=metavar, help=f"the producer's {name}")
    options.add_argument(
        "--line-reader", metavar="CLASS", default=READERS[0], help=f"only {READERS[0]} (the default)"
    )
    options.add_argument("--sync", action="store_true", help="wait for each record's acknowledgement")
    return options


@dataclass(frozen=True)
class LineFormat:
    """How a line becomes headers, key and value (LineMessageReader's properties and defaults)."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    @classmethod
    def of(cls, properties: dict[str, str]) -> LineFormat:
        known = {
            "parse.key",
            "key.separator",
            "parse.headers",
            "headers.delimiter",
            "headers.separator",
            "headers.key.separator",
            "null.marker",
            "ignore.error",
        }
        unknown = sorted(properties.keys() - known)
        if unknown:
            raise CommandError(
                f"--reader-property {unknown[0]} is not known; there are {', '.join(sorted(known))}", status=2
            )

        def flag(name: str) -> bool:
            return properties.get(name, "false").strip().lower() == "true"

        def text(name: str, default: bytes) -> bytes:
            return properties[name].encode() if name in properties else default

        found = cls(
            parse_key=flag("parse.key"),
            key_separator=text("key.separator", b"\t"),
            parse_headers=flag("parse.headers"),
            headers_delimiter=text("headers.delimiter", b"\t"),
            headers_separator=text("headers.separator", b","),
            headers_key_separator=text("headers.key.separator", b":"),
            null_marker=properties["null.marker"].encode() if "null.marker" in properties else None,
            ignore_error=flag("ignore.error"),
        )
        found._check()
        return found

    def _check(self) -> None:
        """Refuses equal marks, as LineMessageReader does, and empty ones."""
        marks = {
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.headers_separator,
            "headers.key.separator": self.headers_key_separator,
            "key.separator": self.key_separator,
            "null.marker": self.null_marker,
        }
        empty = [name for name, mark in marks.items() if mark == b"" and name != "null.marker"]
        if empty:
            raise CommandError(f"--reader-property {empty[0]} must not be empty", status=2)
        for (one, left), (other, right) in itertools.combinations(marks.items(), 2):
            # The key comes after the headers, so its separator may equal one of theirs.
            if left == right and other != "key.separator":
                raise CommandError(f"--reader-property {one} and {other} must not be equal", status=2)

    def parse(
        self, line: bytes, number: int
    ) -> tuple[list[tuple[str, bytes | None]], bytes | None, bytes | None]:
        """Returns headers, key and value of one line; CommandError names the line that lacks a separator."""
        headers: list[tuple[str, bytes | None]] = []
        rest = line
        if self.parse_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers delimiter", number)
            if text and text != self.null_marker:
                headers = [self._header(pair, number) for pair in text.split(self.headers_separator)]
        key: bytes | None = None
        if self.parse_key:
            key, rest = self._split(rest, self.key_separator, "key separator", number)
            key = self._null(key)
        return headers, key, self._null(rest)

    def _header(self, pair: bytes, number: int) -> tuple[str, bytes | None]:
        name, found, value = pair.partition(self.headers_key_separator)
        if not found and not self.ignore_error:
            raise CommandError(
                f"no header key separator {shown(self.headers_key_separator)} found in pair {shown(pair)} "
                f"on line number {number}"
            )
        if found and name == self.null_marker:
            raise CommandError(
                f"a header's key is the null marker {shown(name)} on line number {number}; "
                "only values can be null"
            )
        return name.decode(errors="replace"), self._null(value) if found else None

    def _split(self, text: bytes, separator: bytes, what: str, number: int) -> tuple[bytes | None, bytes]:
        left, found, right = text.partition(separator)
        if found:
            return left, right
        if self.ignore_error:
            return None, text
        raise CommandError(f"no {what} {shown(separator)} found on line number {number}: {shown(text)}")

    def _null(self, text: bytes | None) -> bytes | None:
        return None if self.null_marker is not None and text == self.null_marker else text


def shown(text: bytes) -> str:
    return repr(text.decode(errors="replace"))


def lines(stream: BinaryIO) -> Iterator[bytes]:
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print(">", end="", flush=True)
        line = stream.readline()
        if not line:
            return
        yield line.rstrip(b"\r\n") if line.endswith((b"\n", b"\r")) else line


def settings(options: argparse.Namespace) -> Translated:
    """The producer's settings: the file's, over them --command-property, over them the flags."""
    file = either(options, "--producer.config", "--command-config")
    given = either(options, "--producer-property", "--command-property")
    named = {**properties_file(file, "--command-config"), **pairs(given, "--command-property")}
    for flag, (name, _, _) in PRODUCER_FLAGS.items():
        value = getattr(options, flag.replace("-", "_"))
        if value is not None:
            named[name] = str(value)
    if options.compression_codec is not None:
        named["compression.type"] = options.compression_codec
    return translate({**defaults_for(named), **named}, "producer", "console-producer")


def defaults_for(named: dict[str, str]) -> dict[str, str]:
    """Java's defaults, without those that a setting under the client's own name replaces."""
    own = {"partitioner.class": "partitioner", "max.request.size": "message.max.bytes"}
    ignores_keys = named.get("partitioner.ignore.keys", "").strip().lower() == "true"
    return {
        name: value
        for name, value in JAVA_DEFAULTS.items()
        if own.get(name) not in named and not (name == "partitioner.class" and ignores_keys)
    }


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    bootstrap = options.bootstrap_server or options.broker_list
    if bootstrap is None:
        raise CommandError("--bootstrap-server must be given", status=2)
    if options.line_reader not in READERS:
        raise CommandError(
            f"--line-reader: {options.line_reader!r} is not supported: no Java class can be loaded here; "
            f"there is {READERS[0]}",
            status=2,
        )
    line_format = LineFormat.of(
        {
            **properties_file(options.reader_config, "--reader-config"),
            **pairs(either(options, "--property", "--reader-property"), "--reader-property", exact=True),
        }
    )
    translated = settings(options)
    limits = Limits(
        connect=translated.seconds("max.block.ms", CONNECT_TIMEOUT),
        block=translated.seconds("max.block.ms", MAX_BLOCK_SECONDS),
    )
    return send(client_config(bootstrap, translated.client), options.topic, line_format, options.sync, limits)


class Limits(NamedTuple):
    """Seconds for the broker's first answer, and for a line while the producer's queue is full."""

    connect: float
    block: float


@dataclass
class Deliveries:
    """What became of the records.

    A refused one is reported at once, the first other failure ends the command.
    """

    sync: bool
    refused: int = 0
    lost: str | None = None

    def delivered(self, number: int, error: KafkaError | None, _message: Message | None = None) -> None:
        """The report of one line's record.

        After a refused one the others are sent, as in Kafka's tool without --sync.
        """
        if error is None:
            return
        text = f"line {number} was not delivered: {error.str()}"
        if error.code() in OF_ONE_RECORD and not self.sync:
            self.refused += 1
            print(f"logcore console-producer: {text}", file=sys.stderr)
        elif self.lost is None:
            self.lost = text


def send(
    config: dict[str, str | int | float | bool],
    topic: str,
    line_format: LineFormat,
    sync: bool,
    limits: Limits,
) -> int:
    from cluster.client import KafkaException, Producer

    deliveries = Deliveries(sync)
    problems: list[str] = []
    try:
        producer = Producer(config)
        connect(producer, topic, limits.connect)
        try:
            pump(producer, topic, line_format, deliveries, limits.block)
        except CommandError as error:
            problems.append(str(error))
        except KafkaException as error:
            problems.append(error.error.str())
        # The lines before one that ends the command are delivered first.
        producer.flush()
    except KafkaException as error:
        raise CommandError(f"{config['bootstrap.servers']}: {error.error.str()}") from None
    if deliveries.lost is not None:
        problems.append(deliveries.lost)
    if problems:
        raise CommandError("; ".join(problems))
    # Kafka's tool ends with 0 in this case, so a script would not notice the missing lines.
    return 1 if deliveries.refused else 0


def pump(
    producer: Producer, topic: str, line_format: LineFormat, deliveries: Deliveries, block: float
) -> None:
    """Hands every line to the producer; a line without its separator is a CommandError."""
    for number, line in enumerate(lines(sys.stdin.buffer), 1):
        headers, key, value = line_format.parse(line, number)
        report = functools.partial(deliveries.delivered, number)
        produce(producer, Record(topic, headers, key, value), report, block)
        if deliveries.sync:
            producer.flush()
        producer.poll(0)
        if deliveries.lost is not None:
            return


class Record(NamedTuple):
    """One line, read."""

    topic: str
    headers: list[tuple[str, bytes | None]]
    key: bytes | None
    value: bytes | None


def produce(producer: Producer, record: Record, report: Callable[..., None], block: float) -> None:
    """Puts one record into the producer's queue, waiting up to `block` seconds while it is full.

    A record that is too large is reported like any refused one.
    """
    from cluster.client import KafkaError, KafkaException

    deadline = time.monotonic() + block
    while True:
        try:
            producer.produce(
                record.topic, record.value, record.key, headers=record.headers or None, on_delivery=report
            )
            return
        except BufferError as error:
            if time.monotonic() >= deadline:
                raise CommandError(f"the queue was full for {block:g} s (max.block.ms): {error}") from None
            producer.poll(min(0.1, block))
        except KafkaException as error:
            if error.error != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            report(error.error)
            return
