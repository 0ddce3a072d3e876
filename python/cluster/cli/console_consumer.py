"""`logcore console-consumer`: the flags and output of kafka-console-consumer.sh (Apache Kafka 3.9, ConsoleConsumer)."""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from cluster.cli._common import CommandError, Parser, client_config, connect, pairs, properties_file, told

if TYPE_CHECKING:
    from cluster.client import Consumer, Message


def parser() -> Parser:
    options = Parser("console-consumer", "Prints the records of a topic.")
    options.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT[,...]")
    options.add_argument("--topic")
    options.add_argument("--include", metavar="REGEX", help="read every topic whose whole name matches")
    options.add_argument("--partition", type=int, metavar="N", help="read this partition, with no group")
    options.add_argument(
        "--offset", metavar="OFFSET", help="earliest, latest (default) or a number; with --partition"
    )
    options.add_argument(
        "--from-beginning",
        action="store_true",
        help="start at the earliest record when the group has no offset",
    )
    options.add_argument("--max-messages", type=int, metavar="N")
    options.add_argument("--timeout-ms", type=int, metavar="MS", help="leave when no record came for so long")
    options.add_argument("--group", metavar="ID")
    options.add_argument(
        "--isolation-level", choices=["read_uncommitted", "read_committed"], default="read_uncommitted"
    )
    options.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="print.timestamp, print.key, print.offset, print.partition, print.headers, print.value, "
        "key.separator, line.separator, headers.separator, null.literal",
    )
    options.add_argument("--formatter-config", metavar="FILE", help="a file of the same properties")
    options.add_argument("--consumer-property", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--consumer.config", dest="consumer_config", metavar="FILE")
    options.add_argument("--skip-message-on-error", action="store_true")
    return options


@dataclass(frozen=True)
class RecordFormat:
    """How a record is printed (DefaultMessageFormatter's properties, order and defaults)."""

    flags: frozenset[str]
    key_separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null_literal: bytes

    NAMES = (
        "print.timestamp",
        "print.partition",
        "print.offset",
        "print.headers",
        "print.key",
        "print.value",
    )

    @classmethod
    def of(cls, properties: dict[str, str]) -> RecordFormat:
        texts = {
            "key.separator": "\t",
            "line.separator": "\n",
            "headers.separator": ",",
            "null.literal": "null",
        }
        unknown = sorted(properties.keys() - set(cls.NAMES) - texts.keys())
        if unknown:
            raise CommandError(
                f"--property {unknown[0]} is not known; there are {', '.join(sorted({*cls.NAMES, *texts}))}",
                status=2,
            )
        printed = {"print.value": "true", **properties}
        return cls(
            frozenset(name for name in cls.NAMES if printed.get(name, "false").strip().lower() == "true"),
            *(properties.get(name, default).encode() for name, default in texts.items()),
        )

    def line(self, message: Message) -> bytes:
        parts: list[bytes] = []
        if "print.timestamp" in self.flags:
            kind, milliseconds = message.timestamp()
            names = {1: "CreateTime", 2: "LogAppendTime"}
            parts.append(f"{names[kind]}:{milliseconds}".encode() if kind in names else b"NO_TIMESTAMP")
        if "print.partition" in self.flags:
            parts.append(f"Partition:{message.partition()}".encode())
        if "print.offset" in self.flags:
            parts.append(f"Offset:{message.offset()}".encode())
        if "print.headers" in self.flags:
            headers = message.headers() or []
            shown = [name.encode() + b":" + self._text(value) for name, value in headers]
            parts.append(self.headers_separator.join(shown) if shown else b"NO_HEADERS")
        if "print.key" in self.flags:
            parts.append(self._text(message.key()))
        if "print.value" in self.flags:
            parts.append(self._text(message.value()))
        return self.key_separator.join(parts) + self.line_separator

    def _text(self, value: bytes | str | None) -> bytes:
        if value is None:
            return self.null_literal
        return value.encode() if isinstance(value, str) else value


def check(options: argparse.Namespace) -> None:
    if (options.topic is None) == (options.include is None):
        raise CommandError("exactly one of --topic and --include is required", status=2)
    if options.partition is not None and options.topic is None:
        raise CommandError("--partition needs --topic", status=2)
    if options.offset is not None and options.partition is None:
        raise CommandError("--offset needs --partition: the start is given per partition", status=2)
    if options.offset is not None and options.from_beginning:
        raise CommandError("--from-beginning and --offset cannot be used together", status=2)
    if options.partition is not None and options.group is not None:
        raise CommandError("--group and --partition cannot be used together", status=2)


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    check(options)
    record_format = RecordFormat.of(
        {
            **properties_file(options.formatter_config, "--formatter-config"),
            **pairs(options.property, "--property"),
        }
    )
    named = {
        **properties_file(options.consumer_config, "--consumer.config"),
        **pairs(options.consumer_property, "--consumer-property"),
    }
    # A group nobody named is this run's own: it starts afresh and leaves no offsets behind, as Kafka's tool does.
    own = (
        {}
        if options.group or "group.id" in named
        else {
            "group.id": f"console-consumer-{random.randrange(100_000)}",
            "enable.auto.commit": "false",
        }
    )
    if options.group:
        own["group.id"] = options.group
    config = client_config(
        options.bootstrap_server,
        named,
        own,
        {
            "auto.offset.reset": "earliest"
            if options.from_beginning
            else named.get("auto.offset.reset", "latest"),
            "isolation.level": options.isolation_level,
        },
    )
    return consume(config, options, record_format)


def start(consumer: Consumer, options: argparse.Namespace) -> None:
    from cluster.client import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if options.partition is None:
        consumer.subscribe([options.topic] if options.topic else [f"^(?:{options.include})$"])
        return
    text = options.offset or ("earliest" if options.from_beginning else "latest")
    if text in ("earliest", "latest"):
        offset = OFFSET_BEGINNING if text == "earliest" else OFFSET_END
    elif text.isdigit():
        offset = int(text)
    else:
        raise CommandError(f"--offset takes earliest, latest or a number from 0, not {text!r}", status=2)
    consumer.assign([TopicPartition(options.topic, options.partition, offset)])


def consume(
    config: dict[str, str | int | float | bool], options: argparse.Namespace, record_format: RecordFormat
) -> int:
    from cluster.client import Consumer, KafkaException

    printed = 0
    try:
        consumer = Consumer(config)
        try:
            connect(consumer)
            start(consumer, options)
            printed = pump(consumer, options, record_format, sys.stdout.buffer)
        finally:
            consumer.close()
    except KafkaException as error:
        raise CommandError(f"{config['bootstrap.servers']}: {told(error.error)}") from None
    print(f"Processed a total of {printed} messages", file=sys.stderr)
    return 0


def pump(
    consumer: Consumer, options: argparse.Namespace, record_format: RecordFormat, output: BinaryIO
) -> int:
    """Prints records until --max-messages, --timeout-ms or Ctrl-C ends it; returns how many."""
    printed = 0
    wanted = sys.maxsize if options.max_messages is None or options.max_messages < 0 else options.max_messages
    last = time.monotonic()
    try:
        while printed < wanted:
            messages = consumer.consume(min(500, wanted - printed), 0.1)
            for message in messages:
                error = message.error()
                if error is None:
                    output.write(record_format.line(message))
                    printed += 1
                elif not options.skip_message_on_error:
                    raise CommandError(f"reading failed: {told(error)}")
            output.flush()
            if messages:
                last = time.monotonic()
            elif options.timeout_ms is not None and (time.monotonic() - last) * 1000 >= options.timeout_ms:
                print(f"no record came for {options.timeout_ms} ms, leaving", file=sys.stderr)
                break
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return printed
