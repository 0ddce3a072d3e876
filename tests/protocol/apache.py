"""Apache Kafka's own message classes as a peer: KafkaCodec.java in a JVM, over a pipe."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.compat.conftest import peer_jars

PEERS = ("kafka-3.9.1", "kafka-4.1.0", "kafka-clients-4.2.0")
"""Directories of jars under build/peers, oldest first. 3.9.1 has what 4.x dropped, the last what is new."""
SOURCE = Path(__file__).with_name("KafkaCodec.java")
STOP_TIMEOUT = 20.0


@dataclass(frozen=True)
class Subject:
    """The message of a question. `kind`: request, response, request header, response header, or data."""

    kind: str
    key: int = -1
    name: str = ""


@dataclass(frozen=True)
class Known:
    """A message in a release; `can_make` says whether the program can make random ones."""

    versions: range
    name: str
    can_make: bool


@dataclass(frozen=True)
class Sample:
    """A message that Apache made: its bytes, its bytes with unknown tagged fields added, and its JSON."""

    body: bytes
    tagged: bytes
    json: str


class Answer:
    """Reads an answer of the program from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        assert len(taken) == size, "the answer ended early"
        self._position += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def bytes(self) -> bytes:
        return self.take(self.number(4))

    def text(self) -> str:
        return self.bytes().decode()


def utf(text: str) -> bytes:
    """A string for DataInput.readUTF; ASCII only."""
    return struct.pack(">H", len(text)) + text.encode("ascii")


class Apache:
    """The classes of one release. It answers one question at a time."""

    def __init__(self, peer: str, process: subprocess.Popen[bytes]) -> None:
        self.peer = peer
        self._process = process
        self._known: dict[Subject, Known] = {}

    def _ask(self, word: str, about: Subject, version: int, rest: bytes = b"") -> Answer:
        question = utf(word) + utf(about.kind) + struct.pack(">h", about.key) + utf(about.name)
        question += struct.pack(">h", version) + rest
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(struct.pack(">i", len(question)) + question)
        self._process.stdin.flush()
        head = self._process.stdout.read(4)
        assert len(head) == 4, f"{self.peer}: the program ended"
        answer = self._process.stdout.read(int.from_bytes(head))
        assert answer[0] == 1, f"{self.peer}: {word} {about} version {version}:\n{answer[1:].decode()}"
        return Answer(answer[1:])

    def known(self, about: Subject) -> Known:
        """The message in this release, with its stable versions."""
        if about not in self._known:
            answer = self._ask("versions", about, 0)
            versions = range(answer.number(2), answer.number(2) + 1)
            name = answer.take(answer.number(2)).decode()
            self._known[about] = Known(versions, name, answer.number(1) == 1)
        return self._known[about]

    def echo(self, about: Subject, version: int, bodies: list[bytes]) -> list[tuple[bytes, str]]:
        """Each body after Apache read and wrote it, and its JSON."""
        packed = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        answer = self._ask("echo", about, version, struct.pack(">i", len(bodies)) + packed)
        return [(answer.bytes(), answer.text()) for _ in bodies]

    def rewrite(self, about: Subject, version: int, other: int, bodies: list[bytes]) -> list[bytes | None]:
        """Each body written in the other version; None where the class refuses."""
        packed = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        answer = self._ask("rewrite", about, version, struct.pack(">hi", other, len(bodies)) + packed)
        return [answer.bytes() if answer.number(1) else None for _ in bodies]

    def random(
        self, about: Subject, version: int, seed: int, count: int, longest: int = 1 << 15
    ) -> list[Sample]:
        """Random messages; `seed` makes the first, `seed + 1` the second."""
        answer = self._ask("random", about, version, struct.pack(">qii", seed, count, longest))
        return [Sample(answer.bytes(), answer.bytes(), answer.text()) for _ in range(count)]


@contextlib.contextmanager
def apache(peer: str) -> Iterator[Apache]:
    """The program with this peer's jars."""
    libs = peer_jars(peer, "javac")
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{libs}/*"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, str(SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            yield Apache(peer, process)
        finally:
            process.communicate(timeout=STOP_TIMEOUT)
            errors.seek(0)
            output = errors.read().decode()
            assert process.returncode == 0, f"{peer} ended with {process.returncode}:\n{output}"
