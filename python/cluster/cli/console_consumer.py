"""`logcore console-consumer`: the flags and output of kafka-console-consumer.sh.

Takes the flags of Kafka 3.9, and the new names of 4.2 (KIP-1147).
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

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
from cluster.cli._deserializers import PACKAGE, Deserializer, deserializer
from cluster.cli._java_properties import Translated, translate
from cluster.cli._state_formatters import OLD_NAMES, STATE_FORMATTERS

if TYPE_CHECKING:
    from cluster.client import Consumer, Message

FORMATTERS = (
    "org.apache.kafka.tools.consumer.DefaultMessageFormatter",
    "org.apache.kafka.tools.consumer.LoggingMessageFormatter",
    "org.apache.kafka.tools.consumer.NoOpMessageFormatter",
    *STATE_FORMATTERS,
)
_OLD_FORMATTERS = {f"kafka.tools.{name.rpartition('.')[2]}": name for name in FORMATTERS[:3]} | OLD_NAMES

logger = logging.getLogger("logcore.console_consumer")

MAX_POLL_RECORDS = 500


def parser() -> Parser:
    options = Parser("console-consumer", "Prints the records of a topic.")
    options.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT[,...]")
    options.add_argument("--topic")
    options.add_argument("--include", metavar="REGEX", help="read every topic whose whole name matches")
    options.add_argument("--whitelist", metavar="REGEX", help="the old name of --include")
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
    options.add_argument("--timeout-ms", type=int, metavar="MS", help="end when no record comes for so long")
    options.add_argument("--group", metavar="ID")
    options.add_argument("--isolation-level", choices=["read_uncommitted", "read_committed"])
    options.add_argument(
        "--formatter-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="how records are printed: print.timestamp, print.key, print.offset, print.partition, "
        "print.headers, print.value, key.separator, line.separator, headers.separator, null.literal, "
        "key.deserializer, value.deserializer, headers.deserializer",
    )
    options.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="the old name of --formatter-property",
    )
    options.add_argument("--formatter", metavar="CLASS", default=FORMATTERS[0], help=" or ".join(FORMATTERS))
    options.add_argument("--key-deserializer", metavar="CLASS", help=f"one of Kafka's own, {PACKAGE}*")
    options.add_argument("--value-deserializer", metavar="CLASS", help="likewise")
    options.add_argument("--formatter-config", metavar="FILE", help="a file of the same properties")
    options.add_argument(
        "--command-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a property of the consumer",
    )
    options.add_argument(
        "--consumer-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="the old name of --command-property",
    )
    options.add_argument("--command-config", metavar="FILE", help="a file of the consumer's properties")
    options.add_argument(
        "--consumer.config",
        dest="consumer_config",
        metavar="FILE",
        help="the old name of --command-config",
    )
    options.add_argument("--skip-message-on-error", action="store_true")
    options.add_argument(
        "--enable-systest-events", action="store_true", help="print shutdown_complete at the end"
    )
    return options


DESERIALIZERS = {
    "key.deserializer": "key",
    "value.deserializer": "value",
    "headers.deserializer": "header",
    # The name in the help of Kafka's tool; its code reads the one above.
    "header.deserializer": "header",
}
# Settings of a deserializer: Kafka's own have none that matters for UTF-8.
_DESERIALIZER_PREFIXES = tuple(f"{name}." for name in DESERIALIZERS)


@dataclass(frozen=True)
class RecordFormat:
    """How a record is printed (DefaultMessageFormatter's properties, order and defaults)."""

    flags: frozenset[str]
    key_separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null_literal: bytes
    key: Deserializer = bytes
    value: Deserializer = bytes
    header: Deserializer = bytes

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
        known = [*cls.NAMES, *texts, *DESERIALIZERS]
        unknown = sorted(
            name for name in properties.keys() - set(known) if not name.startswith(_DESERIALIZER_PREFIXES)
        )
        if unknown:
            raise CommandError(
                f"--formatter-property {unknown[0]} is not known; there are {', '.join(sorted(known))}",
                status=2,
            )
        printed = {"print.value": "true", **properties}
        readers: dict[str, Deserializer] = {
            field: deserializer(properties[name], name)
            for name, field in DESERIALIZERS.items()
            if name in properties
        }

        def text(name: str) -> bytes:
            return properties.get(name, texts[name]).encode()

        return cls(
            frozenset(name for name in cls.NAMES if printed.get(name, "false").strip().lower() == "true"),
            text("key.separator"),
            text("line.separator"),
            text("headers.separator"),
            text("null.literal"),
            readers.get("key", bytes),
            readers.get("value", bytes),
            readers.get("header", bytes),
        )

    def line(self, message: Message) -> bytes:
        """The printed form of a record. ValueError when a deserializer cannot read it."""
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
            shown = [name.encode() + b":" + self._text(value, self.header) for name, value in headers]
            parts.append(self.headers_separator.join(shown) if shown else b"NO_HEADERS")
        if "print.key" in self.flags:
            parts.append(self._text(message.key(), self.key))
        if "print.value" in self.flags:
            parts.append(self._text(message.value(), self.value))
        return self.key_separator.join(parts) + self.line_separator if parts else b""

    def _text(self, value: bytes | str | None, reader: Deserializer) -> bytes:
        # Kafka's tool deserializes its null literal, which fails for most types.
        if value is None:
            return self.null_literal
        return reader(value.encode() if isinstance(value, str) else value)


def formatter(name: str) -> str:
    """The formatter's class by its present name. CommandError for one that is not built in."""
    if name in _OLD_FORMATTERS:
        print(
            f"logcore console-consumer: warning: {name} is an old name of {_OLD_FORMATTERS[name]}",
            file=sys.stderr,
        )
    found = _OLD_FORMATTERS.get(name, name)
    if found not in FORMATTERS:
        raise CommandError(
            f"--formatter: {name!r} is not supported, because no Java class can be loaded; "
            f"there are {', '.join(FORMATTERS)}",
            status=2,
        )
    return found


def show(record_format: RecordFormat, kind: str, message: Message) -> bytes:
    """A record as the formatter `kind` prints it."""
    if kind.endswith(".NoOpMessageFormatter"):
        return b""
    if kind in STATE_FORMATTERS:
        return STATE_FORMATTERS[kind](message.key(), message.value())
    line = record_format.line(message)
    if kind.endswith(".LoggingMessageFormatter"):
        logger.info("key:%r, value:%r", message.key(), message.value())
    return line


def check(options: argparse.Namespace) -> None:
    options.include = options.include or options.whitelist
    if (options.topic is None) == (options.include is None):
        raise CommandError("exactly one of --topic and --include is required", status=2)
    if options.partition is not None and options.topic is None:
        raise CommandError("--partition needs --topic", status=2)
    if options.offset is not None and options.partition is None:
        raise CommandError("--offset needs --partition: an offset is of one partition", status=2)
    if options.offset is not None and options.from_beginning:
        raise CommandError("--from-beginning and --offset cannot be used together", status=2)


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    check(options)
    options.formatter = formatter(options.formatter)
    flags = {"key.deserializer": options.key_deserializer, "value.deserializer": options.value_deserializer}
    record_format = RecordFormat.of(
        {
            **properties_file(options.formatter_config, "--formatter-config"),
            **{name: value for name, value in flags.items() if value},
            **pairs(
                either(options, "--property", "--formatter-property"), "--formatter-property", exact=True
            ),
        }
    )
    translated = settings(options)
    options.connect_timeout = translated.seconds("default.api.timeout.ms", CONNECT_TIMEOUT)
    options.poll_records = translated.command.get("max.poll.records", MAX_POLL_RECORDS)
    if options.poll_records < 1:
        raise CommandError("max.poll.records must be at least 1", status=2)
    return consume(client_config(options.bootstrap_server, translated.client), options, record_format)


def settings(options: argparse.Namespace) -> Translated:
    """The consumer's settings: the file's, over them --command-property, over them the flags."""
    layers = (
        properties_file(either(options, "--consumer.config", "--command-config"), "--command-config"),
        pairs(either(options, "--consumer-property", "--command-property"), "--command-property"),
    )
    named = {"client.id": "console-consumer", **layers[0], **layers[1]}
    named.update(group_settings(options, layers, named))
    reset = named.get("auto.offset.reset", "earliest" if options.from_beginning else "latest")
    if options.from_beginning and reset != "earliest":
        raise CommandError(
            f"--from-beginning and auto.offset.reset={reset} cannot be used together", status=2
        )
    named["auto.offset.reset"] = reset
    if options.isolation_level is not None:
        named["isolation.level"] = options.isolation_level
    named.setdefault("isolation.level", "read_uncommitted")
    return translate(named, "consumer", "console-consumer")


def group_settings(
    options: argparse.Namespace, layers: tuple[dict[str, str], ...], named: dict[str, str]
) -> dict[str, str]:
    """The group's settings.

    Flags and properties must name the same group; without any, this run has its own.
    """
    groups = {layer["group.id"] for layer in layers if "group.id" in layer}
    if options.group is not None:
        groups.add(options.group)
    if len(groups) > 1:
        raise CommandError(
            f"--group, --command-property and --command-config name different groups: "
            f"{', '.join(sorted(groups))}",
            status=2,
        )
    if groups and options.partition is not None:
        raise CommandError("--group and --partition cannot be used together", status=2)
    if groups:
        return {"group.id": groups.pop()}
    # As in Kafka's tool, a group without a name of the user's is new and commits no offsets.
    return {
        "group.id": f"console-consumer-{random.randrange(100_000)}",
        "enable.auto.commit": named.get("enable.auto.commit", "false"),
    }


def start(consumer: Consumer, options: argparse.Namespace) -> None:
    from cluster.client import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if options.partition is None:
        consumer.subscribe([options.topic] if options.topic else [f"^(?:{options.include})$"])
        return
    text = (options.offset or "").lower() or ("earliest" if options.from_beginning else "latest")
    if text in ("earliest", "latest"):
        offset = OFFSET_BEGINNING if text == "earliest" else OFFSET_END
    elif re.fullmatch("[0-9]{1,19}", text):
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
            connect(consumer, timeout=options.connect_timeout)
            start(consumer, options)
            printed = pump(consumer, options, record_format, sys.stdout.buffer)
        finally:
            consumer.close()
    except KafkaException as error:
        raise CommandError(f"{config['bootstrap.servers']}: {error.error.str()}") from None
    finally:
        if options.enable_systest_events:
            print("shutdown_complete", flush=True)
    print(f"Processed a total of {printed} messages", file=sys.stderr)
    return 0


def pump(
    consumer: Consumer, options: argparse.Namespace, record_format: RecordFormat, output: BinaryIO
) -> int:
    """Prints records until --max-messages, --timeout-ms or Ctrl-C ends it; returns how many."""
    printed = 0
    wanted = sys.maxsize if options.max_messages is None or options.max_messages < 0 else options.max_messages
    # A negative time is no limit.
    idle_ms = None if options.timeout_ms is None or options.timeout_ms < 0 else options.timeout_ms
    last = time.monotonic()
    try:
        while printed < wanted:
            messages = consumer.consume(min(options.poll_records, wanted - printed), 0.1)
            for message in messages:
                error = message.error()
                if error is None:
                    printed += 1
                    write(message, options, record_format, output)
                elif not options.skip_message_on_error:
                    raise CommandError(f"reading failed: {error.str()}")
            output.flush()
            if messages:
                last = time.monotonic()
            elif idle_ms is not None and (time.monotonic() - last) * 1000 >= idle_ms:
                print(f"no record came for {options.timeout_ms} ms, leaving", file=sys.stderr)
                break
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return printed


def write(
    message: Message, options: argparse.Namespace, record_format: RecordFormat, output: BinaryIO
) -> None:
    """Prints one record. One that cannot be deserialized ends the command, or is skipped on request."""
    try:
        output.write(show(record_format, options.formatter, message))
    except ValueError as error:
        where = f"{message.topic()}-{message.partition()} offset {message.offset()}"
        if not options.skip_message_on_error:
            # The records before it are printed first.
            output.flush()
            raise CommandError(f"{where} cannot be printed: {error}") from None
        print(f"logcore console-consumer: {where} is skipped: {error}", file=sys.stderr)
