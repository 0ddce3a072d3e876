"""The ordinary programs of clients in other languages, behind a pipe: `Programs.java`, `OldPrograms.java` and
`franz-go/main.go`.

A command is a line, its words apart by spaces:

    produce BOOTSTRAP TOPIC CODEC ACKS COUNT
    consume BOOTSTRAP TOPIC GROUP COUNT

The answer to either ends with an int32 0, and is written once the producer or the consumer is closed. Before
it comes what was consumed, each record behind its size in bytes (int32): partition (int32), offset (int64),
key, value, the number of headers (int32), and of each header its name and its value. Keys, names and values
are an int32 length, -1 for none, and that many bytes. All numbers are big-endian. A program that fails says
why on its standard error and ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from tests.compat.conftest import ROOT, missing, peer_jars
from tests.compat.programs.records import Found, Record

JAVA_SOURCES = Path(__file__).parent
GO_MODULE = ROOT / "tests" / "compat" / "franz-go"
GO_MINOR_MIN = 21
"""From 1.21 on Go downloads the version that a go.mod names."""
BUILD_TIMEOUT = 280.0
STOP_TIMEOUT = 20.0


class Piped:
    """One running program. Commands run one after the other."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors

    def produce(self, server: str, topic: str, codec: str, acks: str, count: int) -> None:
        assert list(self._ask("produce", server, topic, codec, acks, str(count))) == []

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        return map(_found, self._ask("consume", server, topic, group, str(count)))

    def _ask(self, *words: str) -> Iterator[bytes]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words).encode() + b"\n")
        self._process.stdin.flush()
        while size := int.from_bytes(self._read(4)):
            yield self._read(size)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        assert len(data) == size, f"the program ended; it said:\n{self._said()}"
        return data

    def _said(self) -> str:
        self._process.wait(STOP_TIMEOUT)
        self._errors.seek(0)
        return self._errors.read().decode()


def _found(frame: bytes) -> Found:
    partition, offset = struct.unpack_from(">iq", frame)
    key, position = _bytes(frame, 12)
    value, position = _bytes(frame, position)
    (count,) = struct.unpack_from(">i", frame, position)
    position += 4
    headers = []
    for _ in range(count):
        name, position = _bytes(frame, position)
        content, position = _bytes(frame, position)
        headers.append(((name or b"").decode(), content))
    assert position == len(frame)
    return Found(partition, offset, Record(key, value, tuple(headers)))


def _bytes(frame: bytes, position: int) -> tuple[bytes | None, int]:
    (length,) = struct.unpack_from(">i", frame, position)
    start = position + 4
    if length < 0:
        return None, start
    assert start + length <= len(frame)
    return frame[start : start + length], start + length


@contextlib.contextmanager
def _piped(command: Sequence[str]) -> Iterator[Piped]:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        piped = Piped(process, errors)
        try:
            yield piped
            process.communicate(timeout=STOP_TIMEOUT)
            assert process.returncode == 0, f"{command[0]} ended with {process.returncode}:\n{piped._said()}"
        finally:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def java(peer: str, programs: str = "Programs") -> Iterator[Piped]:
    """The Java client from the jars in build/peers. `programs` is the class for its version."""
    libs = peer_jars(peer, "javac")
    with tempfile.TemporaryDirectory() as classes:
        sources = [str(JAVA_SOURCES / f"{name}.java") for name in ("Piped", programs)]
        _build(["javac", "-d", classes, "-cp", f"{libs}/*", *sources])
        with _piped(
            ["java", "-Xmx384m", "-XX:+UseSerialGC", "-cp", f"{classes}:{libs}/*", programs]
        ) as piped:
            yield piped


@contextlib.contextmanager
def franz_go() -> Iterator[Piped]:
    """franz-go, in the version that its go.mod pins."""
    if _go_minor() < GO_MINOR_MIN:
        missing(
            f"Go 1.{GO_MINOR_MIN} or newer",
            "apt-get install golang-go, or https://go.dev/dl where that is older",
        )
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "franz-go"
        _build(["go", "build", "-buildvcs=false", "-o", str(program), "."], GO_MODULE)
        with _piped([str(program)]) as piped:
            yield piped


def _go_minor() -> int:
    """21 for Go 1.21.3; -1 without Go."""
    if shutil.which("go") is None:
        return -1
    said = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=STOP_TIMEOUT
    ).stdout
    version = re.match(r"go1\.(\d+)", said)
    return int(version[1]) if version else -1


def _build(command: list[str], directory: Path = ROOT) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "GOTOOLCHAIN": "auto"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
