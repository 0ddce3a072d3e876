"""The storage crate's log directory under commands (`rust/crates/storage/examples/log_dir.rs`), and batches
that only coordinators write.

Our broker does not serve transactions yet, and clients may not write old formats; its log engine accepts
both.
"""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import logcore
from tests.compat.conftest import ROOT
from tests.server.wire import crc32c

BUILD_TIMEOUT = 600.0
STOP_TIMEOUT = 60.0
TRANSACTIONAL, CONTROL = 0x10, 0x20


def built_example(name: str) -> Path:
    """The program, built if it is missing. It is the workspace's, so it shares the build of Rust's tests."""
    workspace = ["--workspace", "--exclude", "logcore-python"]
    done = subprocess.run(
        ["cargo", "build", "--locked", *workspace, "--example", name, "--message-format=json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == name:
            return Path(message["executable"])
    raise AssertionError(f"cargo reported no program {name}")


class Engine:
    """A log directory of broker 0 that no other process has open. Leaving the block closes it cleanly, unless
    it was killed.
    """

    def __init__(self, log_dir: Path, scratch: Path, **config: str) -> None:
        settings = [f"{name.replace('_', '.')}={value}" for name, value in config.items()]
        self._scratch = scratch
        self._process = subprocess.Popen(
            [str(built_example("log_dir")), str(log_dir), *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._process.poll() is None:
            self._ask("close")
            assert self._process.wait(STOP_TIMEOUT) == 0
        self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def append(self, topic: str, batches: bytes) -> int:
        """Appends a client's batch. Returns the first offset."""
        return self._append("append", topic, batches)

    def coordinate(self, topic: str, batches: bytes) -> int:
        return self._append("coordinate", topic, batches)

    def follow(self, topic: str, batches: bytes) -> int:
        return self._append("follow", topic, batches)

    def roll(self, topic: str) -> None:
        self._ask("roll", topic)

    def compact(self, topic: str) -> tuple[int, int]:
        """The numbers of records read and kept."""
        read, written = self._ask("compact", topic)
        return int(read), int(written)

    def _append(self, how: str, topic: str, batches: bytes) -> int:
        file = self._scratch / "batches"
        file.write_bytes(batches)
        return int(self._ask(how, topic, str(file))[0])

    def _ask(self, *words: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer[:1] == ["ok"], f"{words} failed"
        return answer[1:]


def with_attributes(batch: bytes, attributes: int, base_sequence: int | None = None) -> bytes:
    """A batch v2 with more of its attributes set."""
    changed = bytearray(batch)
    (before,) = struct.unpack_from(">h", changed, 21)
    struct.pack_into(">h", changed, 21, before | attributes)
    if base_sequence is not None:
        struct.pack_into(">i", changed, 53, base_sequence)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def transactional(
    records: list[logcore.Record], producer: tuple[int, int, int], compression: str = "none"
) -> bytes:
    """A batch of a transaction. `producer` is its id, its epoch and the first sequence."""
    return with_attributes(
        logcore.build_batch(records, compression=compression, producer=producer), TRANSACTIONAL
    )


def end_marker(producer_id: int, epoch: int, committed: bool, timestamp: int) -> bytes:
    """The marker that a transaction coordinator of epoch 0 writes at the end of a transaction (KIP-98)."""
    record = logcore.Record(
        key=struct.pack(">hh", 0, int(committed)), value=struct.pack(">hi", 0, 0), timestamp=timestamp
    )
    batch = logcore.build_batch([record], producer=(producer_id, epoch, 0))
    return with_attributes(batch, TRANSACTIONAL | CONTROL, base_sequence=-1)
