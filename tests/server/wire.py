"""A client for tests that encodes requests, responses and record batches itself."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from logcore import _native

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, OFFSET_FOR_LEADER_EPOCH = 0, 1, 2, 3, 18, 23
TIMEOUT = 20.0


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli), one byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def batch(values: Iterable[bytes], timestamp: int = 1_700_000_000_000, key: bytes | None = None) -> bytes:
    """An uncompressed record batch v2 (KIP-98). All records have the same key, or none."""
    records = []
    encoded_key = varint(-1) if key is None else varint(len(key)) + key
    for offset, value in enumerate(values):
        body = b"\0" + varint(0) + varint(offset) + encoded_key + varint(len(value)) + value + varint(0)
        records.append(varint(len(body)) + body)
    last = len(records) - 1
    header = struct.pack(">hiqqqhii", 0, last, timestamp, timestamp, -1, -1, -1, len(records))
    checked = header + b"".join(records)
    tail = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(tail)) + tail


def produce(topic: str, partition: int, records: bytes, acks: int = 1) -> dict[str, Any]:
    data = [{"index": partition, "records": records}]
    return {"acks": acks, "timeout_ms": 1000, "topic_data": [{"name": topic, "partition_data": data}]}


def fetch(topic: str, partition: int, offset: int, *, wait_ms: int = 0, min_bytes: int = 1) -> dict[str, Any]:
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 50 << 20,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }


class Client:
    """A connection to a broker."""

    def __init__(self, port: int, client_id: str = "test") -> None:
        self._client_id = client_id
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._next_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, key: int, version: int, body: dict[str, Any]) -> int:
        """Sends a request and returns its correlation id."""
        self._next_id += 1
        frame = _native.encode_request_header(key, version, self._next_id, self._client_id)
        frame += _native.encode_request(key, version, body)
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._next_id

    def receive(self, key: int, version: int) -> tuple[int, dict[str, Any]]:
        """The correlation id and the body of the next response."""
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        correlation_id, position = _native.decode_response_header(key, version, frame)
        return correlation_id, _native.decode_response(key, version, frame[position:])

    def call(self, key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        sent = self.send(key, version, body)
        received, response = self.receive(key, version)
        assert received == sent
        return response

    def produce(self, topic: str, partition: int, records: bytes) -> dict[str, Any]:
        """The partition's part of the response."""
        response = self.call(PRODUCE, 9, produce(topic, partition, records))
        part: dict[str, Any] = response["responses"][0]["partition_responses"][0]
        return part

    def fetch(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """The partition's part of the response."""
        response = self.call(FETCH, 12, fetch(topic, partition, offset))
        part: dict[str, Any] = response["responses"][0]["partitions"][0]
        return part

    def is_closed(self) -> bool:
        """Whether the server closed the connection without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            part = self.socket.recv(size - len(out))
            if not part:
                raise EOFError(f"the connection ended {size - len(out)} bytes early")
            out += part
        return bytes(out)
