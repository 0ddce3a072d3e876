"""The peers: Apache Kafka's own tools (Java, through Maven) and kcat (Debian). A missing peer is skipped by
name, and fails with CI=true.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KAFKA_LIBS = ROOT / "build" / "peers" / "kafka-3.9.1"
RUN_TIMEOUT = 90.0


def missing(peer: str, how: str) -> None:
    message = f"peer missing: {peer} ({how})"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def peer_jars(peer: str, tool: str = "java") -> Path:
    """The folder with the jars of build/peers/`peer`; `tool` is the Java program that needs them."""
    if shutil.which(tool) is None:
        package = "openjdk-17-jre-headless" if tool == "java" else "openjdk-17-jdk-headless"
        missing(tool, f"apt-get install {package}")
    jars = ROOT / "build" / "peers" / peer
    if not (jars / ".complete").exists():
        missing(f"Apache's jars, {peer}", "make peers, which needs mvn")
    return jars


class KafkaTools:
    """Runs a main class out of Apache Kafka 3.9.1's jars in a small JVM."""

    def command(self, main_class: str, *arguments: str) -> list[str]:
        return [
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{KAFKA_LIBS}/*",
            main_class,
            *arguments,
        ]

    def run(self, main_class: str, *arguments: str, stdin: str | None = None, status: int | None = 0) -> str:
        """The text that it wrote to its standard output."""
        return self._done(main_class, arguments, stdin, status).stdout

    def _done(
        self, main_class: str, arguments: tuple[str, ...], stdin: str | None = None, status: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(main_class, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT,
        )
        if status is not None:
            assert done.returncode == status, (
                f"{main_class} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            )
        return done

    def topics(self, *arguments: str, status: int | None = 0) -> str:
        return self.run("org.apache.kafka.tools.TopicCommand", *arguments, status=status)

    def configs(self, *arguments: str, status: int | None = 0) -> str:
        """The output of kafka-configs, and its complaints."""
        done = self._done("kafka.admin.ConfigCommand", arguments, status=status)
        return done.stdout + done.stderr

    def dump_log(self, *files: Path, flags: Sequence[str] = ("--deep-iteration", "--print-data-log")) -> str:
        """The output of DumpLogSegments, and the faults that it writes to its standard error."""
        names = ",".join(map(str, files))
        done = self._done("kafka.tools.DumpLogSegments", (*flags, "--files", names))
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    peer_jars(KAFKA_LIBS.name)
    return KafkaTools()


@pytest.fixture(scope="session")
def kcat() -> Callable[..., str]:
    if shutil.which("kcat") is None:
        missing("kcat", "apt-get install kcat")

    def run(*arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            ["kcat", *arguments], input=stdin, capture_output=True, text=True, timeout=RUN_TIMEOUT
        )
        assert done.returncode == 0, f"kcat {arguments} ended with {done.returncode}:\n{done.stderr}"
        return done.stdout

    return run
