"""Apache Kafka's own message classes as a peer: KafkaCodec.java in a JVM, behind a pipe."""

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
"""Directories of jars under build/peers, oldest first: what 4.x dropped 3.9.1 has, and what is new has the last."""
SOURCE = Path(__file__).with_name("KafkaCodec.java")
STOP_TIMEOUT = 20.0


@dataclass(frozen=True)
class Subject:
    """What a question is about: "request", "response", "request header", "response header", or "data", which has a name."""

    kind: str
    key: int = -1
    name: str = ""


@dataclass(frozen=True)
class Known:
    """What a release has of a message; `can_make` is whether it can make random ones."""

    versions: range
    name: str
    can_make: bool


@dataclass(frozen=True)
class Sample:
    """A message of Apache's making: its bytes, those with unknown tagged fields strewn in, and its JSON."""

    body: bytes
    tagged: bytes
    json: str


class Answer:
    """Reads what the program wrote, from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._place : self._place + size]
        assert len(taken) == size, "the answer ended early"
        self._place += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def bytes(self) -> bytes:
        return self.take(self.number(4))

    def text(self) -> str:
        return self.bytes().decode()


def utf(text: str) -> bytes:
    """As DataInput.readUTF reads it, for the plain characters that names are made of."""
    return struct.pack(">H", len(text)) + text.encode("ascii")


class Apache:
    """One release's classes. Questions are answered one after the other."""

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
        """What this release has of the message: its stable versions."""
        if about not in self._known:
            answer = self._ask("versions", about, 0)
            versions = range(answer.number(2), answer.number(2) + 1)
            name = answer.take(answer.number(2)).decode()
            self._known[about] = Known(versions, name, answer.number(1) == 1)
        return self._known[about]

    def echo(self, about: Subject, version: int, bodies: list[bytes]) -> list[tuple[bytes, str]]:
        """Each of the bodies, read and written again, and as JSON."""
        packed = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        answer = self._ask("echo", about, version, struct.pack(">i", len(bodies)) + packed)
        return [(answer.bytes(), answer.text()) for _ in bodies]

    def rewrite(self, about: Subject, version: int, other: int, bodies: list[bytes]) -> list[bytes | None]:
        """Each of the bodies, written in the other version; None where the class refuses to."""
        packed = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        answer = self._ask("rewrite", about, version, struct.pack(">hi", other, len(bodies)) + packed)
        return [answer.bytes() if answer.number(1) else None for _ in bodies]

    def random(
        self, about: Subject, version: int, seed: int, count: int, longest: int = 1 << 15
    ) -> list[Sample]:
        """Messages of its own making; `seed` makes the first, `seed + 1` the second."""
        answer = self._ask("random", about, version, struct.pack(">qii", seed, count, longest))
        return [Sample(answer.bytes(), answer.bytes(), answer.text()) for _ in range(count)]


@contextlib.contextmanager
def apache(peer: str) -> Iterator[Apache]:
    """The program, on this peer's jars."""
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
            said = errors.read().decode()
            assert process.returncode == 0, f"{peer} ended with {process.returncode}:\n{said}"
