"""Members of groups in processes of their own, so that they can be killed: librdkafka's, Java's and ours.

The arguments are the topics with commas between them, or an expression that begins with ^, and the consumer's
settings as NAME=VALUE. A member prints a line for each event: `assigned` with its partitions after each
assignment, `revoked` (after `lost`, if they were lost), `record` with the partition and the value, and
`closed` after its standard input ended. Python's members print `error`, too.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.compat.conftest import peer_jars

PATIENCE_SECONDS = 60.0
_LIBRARY = "import confluent_kafka\n"
SOURCE = Path(__file__).parent / "programs" / "Member.java"

LIBRDKAFKA = """
import sys, threading
import confluent_kafka
topics, *settings = sys.argv[1:]
def say(word, partitions):
    print(word, ",".join(sorted(f"{p.topic}-{p.partition}" for p in partitions)), flush=True)
had = set()
def assigned(consumer, partitions):
    consumer.incremental_assign(partitions) if incremental else consumer.assign(partitions)
    had.update((p.topic, p.partition) for p in partitions)
    say("assigned", [confluent_kafka.TopicPartition(*each) for each in had])
def revoked(consumer, partitions):
    consumer.incremental_unassign(partitions) if incremental else consumer.unassign()
    had.difference_update((p.topic, p.partition) for p in partitions)
    say("revoked", partitions)
def lost(consumer, partitions):
    say("lost", partitions)
    revoked(consumer, partitions)
config = dict(setting.split("=", 1) for setting in settings)
incremental = config.get("group.protocol") == "consumer" or "cooperative" in config.get(
    "partition.assignment.strategy", "")
consumer = confluent_kafka.Consumer(config)
consumer.subscribe(topics.split(","), on_assign=assigned, on_revoke=revoked, on_lost=lost)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        print("record", f"{message.topic()}-{message.partition()}", message.value().decode(), flush=True)
    elif message is not None:
        print("error", message.error(), flush=True)
consumer.close()
print("closed", flush=True)
"""

LOGCORE = LIBRDKAFKA.replace(_LIBRARY, "import cluster as confluent_kafka\n")
"""Our consumer has the API of confluent-kafka."""
assert LOGCORE != LIBRDKAFKA


class Member:
    """A running member."""

    def __init__(self, command: Sequence[str], topics: str, settings: dict[str, str]) -> None:
        words = [f"{name}={value}" for name, value in settings.items()]
        self.process = subprocess.Popen(
            [*command, topics, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.events: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(line.rstrip())
                self._changed.notify_all()

    def wait(self, holds: Callable[[Member], object]) -> None:
        """Returns once something holds of this member."""
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self), PATIENCE_SECONDS), "\n".join(self.events)

    def _of(self, word: str) -> list[str]:
        return [event.partition(" ")[2] for event in self.events if event.split(" ")[0] == word]

    @property
    def assigned(self) -> list[str]:
        """Its partitions."""
        found = set[str]()
        for event in self.events:
            word, _, text = event.partition(" ")
            partitions = set(text.split(",")) - {""}
            if word == "assigned":
                found = partitions
            elif word == "revoked":
                found -= partitions
        return sorted(found)

    @property
    def changes(self) -> int:
        """How many assignments and revocations it had."""
        return len(self._of("assigned")) + len(self._of("revoked"))

    @property
    def lost(self) -> list[str]:
        """The partitions that on_lost was called with, each time; librdkafka's and ours tell it apart."""
        return self._of("lost")

    @property
    def records(self) -> list[str]:
        """The records that it read, as PARTITION VALUE."""
        return self._of("record")

    def close(self) -> None:
        """Closes the consumer."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.wait(lambda member: member._of("closed"))
        assert self.process.wait(PATIENCE_SECONDS) == 0
        self._end()

    def kill(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self._end()

    def _end(self) -> None:
        self._reader.join(PATIENCE_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Members:
    """Starts members of one group."""

    def __init__(self, classes: Path) -> None:
        self._classes = classes
        self._running: list[Member] = []

    def start(self, library: str, server: str, group: str, topics: str, **settings: str) -> Member:
        """A member of `librdkafka`, `java` or `logcore`.

        Dots in the names of settings are underscores here.
        """
        every = {
            "bootstrap.servers": server,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "group.protocol": "consumer",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        if library == "java":
            libs = peer_jars("kafka-4.1.0", "javac")
            command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            command += ["-cp", f"{self._classes}:{libs}/*", "Member"]
        else:
            command = [sys.executable, "-c", LOGCORE if library == "logcore" else LIBRDKAFKA]
        member = Member(command, topics, every)
        self._running.append(member)
        return member

    def end(self) -> None:
        """Kills the members that still run."""
        with ExitStack() as ends:
            for member in self._running:
                if member.process.poll() is None:
                    ends.callback(member.kill)


@contextmanager
def java_member(directory: Path) -> Iterator[Path]:
    """The folder with the compiled Java program."""
    libs = peer_jars("kafka-4.1.0", "javac")
    command = ["javac", "-d", str(directory), "-cp", f"{libs}/*", str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    yield directory
