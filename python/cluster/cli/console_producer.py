"""`logcore console-producer`: the flags of kafka-console-producer.sh (Apache Kafka 3.9, ConsoleProducer)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from cluster.cli._common import CommandError, Parser, client_config, connect, pairs, properties_file, told


def parser() -> Parser:
    options = Parser("console-producer", "Sends each line of standard input as a record.")
    options.add_argument("--bootstrap-server", "--broker-list", required=True, metavar="HOST:PORT[,...]")
    options.add_argument("--topic", required=True)
    options.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
        "headers.key.separator, null.marker, ignore.error",
    )
    options.add_argument("--reader-config", metavar="FILE", help="a file of the same properties")
    options.add_argument("--producer-property", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--producer.config", dest="producer_config", metavar="FILE")
    options.add_argument(
        "--compression-codec",
        nargs="?",
        const="gzip",
        metavar="CODEC",
        help="none, gzip, snappy, lz4 or zstd; gzip when no codec follows",
    )
    options.add_argument("--request-required-acks", metavar="ACKS", help="0, 1 or all (-1)")
    options.add_argument("--request-timeout-ms", type=int, metavar="MS")
    options.add_argument("--batch-size", type=int, metavar="BYTES")
    options.add_argument(
        "--timeout", type=int, metavar="MS", help="how long a batch waits for more records (linger)"
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
                f"--property {unknown[0]} is not known; there are {', '.join(sorted(known))}", status=2
            )

        def flag(name: str) -> bool:
            return properties.get(name, "false").strip().lower() == "true"

        def text(name: str, default: bytes) -> bytes:
            return properties[name].encode() if name in properties else default

        return cls(
            parse_key=flag("parse.key"),
            key_separator=text("key.separator", b"\t"),
            parse_headers=flag("parse.headers"),
            headers_delimiter=text("headers.delimiter", b"\t"),
            headers_separator=text("headers.separator", b","),
            headers_key_separator=text("headers.key.separator", b":"),
            null_marker=properties["null.marker"].encode() if "null.marker" in properties else None,
            ignore_error=flag("ignore.error"),
        )

    def parse(
        self, line: bytes, number: int
    ) -> tuple[list[tuple[str, bytes | None]], bytes | None, bytes | None]:
        """Returns headers, key and value of one line; CommandError names the line that lacks a separator."""
        headers: list[tuple[str, bytes | None]] = []
        rest = line
        if self.parse_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers delimiter", number)
            if text and text != self.null_marker:
                for header in text.split(self.headers_separator):
                    name, value = self._split(
                        header, self.headers_key_separator, "header key separator", number
                    )
                    headers.append((name.decode(errors="replace"), self._null(value)))
        key: bytes | None = None
        if self.parse_key:
            key, rest = self._split(rest, self.key_separator, "key separator", number)
            key = self._null(key)
        return headers, key, self._null(rest)

    def _split(self, text: bytes, separator: bytes, what: str, number: int) -> tuple[bytes, bytes]:
        left, found, right = text.partition(separator)
        if found:
            return left, right
        if self.ignore_error:
            return b"", text
        raise CommandError(
            f"no {what} {separator.decode(errors='replace')!r} found on line number {number}: {text.decode(errors='replace')!r}"
        )

    def _null(self, text: bytes) -> bytes | None:
        return None if self.null_marker is not None and text == self.null_marker else text


def lines(stream: BinaryIO) -> Iterator[bytes]:
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print(">", end="", flush=True)
        line = stream.readline()
        if not line:
            return
        yield line.rstrip(b"\r\n") if line.endswith((b"\n", b"\r")) else line


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    line_format = LineFormat.of(
        {**properties_file(options.reader_config, "--reader-config"), **pairs(options.property, "--property")}
    )
    flags = {
        "compression.type": options.compression_codec,
        "acks": options.request_required_acks,
        "request.timeout.ms": options.request_timeout_ms,
        "batch.size": options.batch_size,
        "linger.ms": options.timeout,
    }
    config = client_config(
        options.bootstrap_server,
        properties_file(options.producer_config, "--producer.config"),
        pairs(options.producer_property, "--producer-property"),
        {name: str(value) for name, value in flags.items() if value is not None},
    )
    return send(config, options.topic, line_format, options.sync)


def send(config: dict[str, str | int | float | bool], topic: str, line_format: LineFormat, sync: bool) -> int:
    from cluster.client import KafkaError, KafkaException, Message, Producer

    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(f"a record for {topic} was not delivered: {told(error)}")

    try:
        producer = Producer(config)
        connect(producer, topic)
        for number, line in enumerate(lines(sys.stdin.buffer), 1):
            headers, key, value = line_format.parse(line, number)
            while True:
                try:
                    producer.produce(topic, value, key, headers=headers or None, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            if sync:
                producer.flush()
            producer.poll(0)
            if failed:
                break
        producer.flush()
    except KafkaException as error:
        raise CommandError(f"{config['bootstrap.servers']}: {told(error.error)}") from None
    if failed:
        raise CommandError(failed[0])
    return 0
