"""Files of Apache ZooKeeper's transaction log, read.

Owns their framing and where one ends (``FileTxnLog``). ``log.<zxid of its first record in hex>``, big-endian::

    0   int    magic "ZKLG"
    4   int    version, 2 (nobody looks at it)
    8   long   database's id (nor at it)
    16  records: long Adler-32 of the payload, int length, payload (:mod:`.transactions`), byte 0x42
    ..  zeros up to a size that was made in advance

A crash leaves a record without its end, behind which there is nothing: it was answered to nobody. A whole record
with a wrong checksum is damage, with which ZooKeeper does not start either.
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
    """A transaction, and the byte its record begins at."""

    position: int
    transaction: Transaction


def read_log(path: Path, is_last: bool, notes: list[str], tell: Tell) -> Iterator[Logged]:
    """Every whole record of a file; a note tells where one is not whole. Raises Damaged, OSError."""
    with path.open("rb") as file:
        stream = Stream(path, file, tell)
        header = stream.up_to(HEADER_BYTES)
        if len(header) < HEADER_BYTES and is_last:
            notes.append(f"{path} was begun and holds nothing")
            return
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            raise stream.damaged("it does not begin as a transaction log of Apache ZooKeeper does", 0)
        while True:
            position = stream.position
            payload = _payload(stream, position)
            if payload is None:
                return
            if not payload:
                notes.append(
                    f"{path}, byte {position}: a transaction that is not whole was left out, and ends the file"
                )
                return
            try:
                transaction = decode_transaction(payload)
            except JuteError as error:
                raise stream.damaged(f"a transaction cannot be read: {error}", position) from error
            yield Logged(position, transaction)


def _payload(stream: Stream, position: int) -> bytes | None:
    """The next record's; None at the end, empty when it is not whole."""
    head = stream.up_to(_RECORD.size)
    if len(head) < _RECORD.size:
        return b"" if any(head) else None
    checksum, length = _RECORD.unpack(head)
    if length == 0:
        return None if checksum == 0 else b""
    if not 0 < length <= BYTES_MAX:
        raise stream.damaged(f"{length} is no length of a transaction", position)
    payload = stream.up_to(length + 1)
    if len(payload) <= length or payload[-1] != _END:
        return b""
    payload = payload[:-1]
    if zlib.adler32(payload) != checksum:
        raise stream.damaged(
            "a transaction's checksum is wrong; zkTxnLogToolkit.sh -r of Apache ZooKeeper mends what can be, or take the "
            "directory of another member",
            position,
        )
    return payload
