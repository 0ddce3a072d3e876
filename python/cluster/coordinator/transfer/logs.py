"""Files of Apache ZooKeeper's transaction log, read.

Owns their framing, and the place where one ends (``FileTxnLog``). ``log.<zxid of its first record in hex>``,
big-endian::

    0   int    magic "ZKLG"
    4   int    version, 2 (never checked)
    8   long   database's id (never checked)
    16  records: long Adler-32 of the payload, int length, payload (:mod:`.transactions`), byte 0x42
    ..  zeros, because the file grows in large steps

A crash leaves a record without its end, and nothing after it; no client got an answer for it. A whole record
with a wrong checksum is damage. ZooKeeper does not start with it, either.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import JuteError
from .stream import BYTES_MAX, Stream, Tell
from .transactions import Transaction, decode_transaction

MAGIC = b"ZKLG"
HEADER_BYTES = 16
_RECORD = struct.Struct(">qi")
_END = 0x42


class Logged(NamedTuple):
    """A transaction, and the first byte of its record."""

    position: int
    transaction: Transaction


def read_log(path: Path, is_last: bool, notes: list[str], tell: Tell) -> Iterator[Logged]:
    """Yields every whole record of a file.

    Adds a note about one that is not whole. Raises Damaged, OSError.
    """
    with path.open("rb") as file:
        stream = Stream(path, file, tell)
        header = stream.up_to(HEADER_BYTES)
        if len(header) < HEADER_BYTES and is_last:
            notes.append(f"{path} is empty")
            return
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            raise stream.damaged("it does not begin like a transaction log of Apache ZooKeeper", 0)
        while True:
            position = stream.position
            payload = _payload(stream, position)
            if payload is None:
                return
            if not payload:
                notes.append(
                    f"{path}, byte {position}: an incomplete transaction at the end of the file was left out"
                )
                return
            try:
                transaction = decode_transaction(payload)
            except JuteError as error:
                raise stream.damaged(f"a transaction cannot be read: {error}", position) from error
            yield Logged(position, transaction)


def _payload(stream: Stream, position: int) -> bytes | None:
    """Returns the next record's payload; None at the end, an empty one if the record is not whole."""
    head = stream.up_to(_RECORD.size)
    if len(head) < _RECORD.size:
        return b"" if any(head) else None
    checksum, length = _RECORD.unpack(head)
    if length == 0:
        return None if checksum == 0 else b""
    if not 0 < length <= BYTES_MAX:
        raise stream.damaged(f"{length} is not a length of a transaction", position)
    payload = stream.up_to(length + 1)
    if len(payload) <= length or payload[-1] != _END:
        return b""
    payload = payload[:-1]
    if zlib.adler32(payload) != checksum:
        raise stream.damaged(
            "a transaction's checksum is wrong; zkTxnLogToolkit.sh -r of Apache ZooKeeper may repair it; or "
            "use the directory of another member",
            position,
        )
    return payload
