"""Compares compaction with Apache Kafka's cleaner on copies of the same logs.

usage: run.py [--mib 1024] [--rounds 3] [--only NAME] [--json FILE]

Prints MB (10^6 bytes) of log compacted per second for each, and the median of the rounds' ratios. FILE gets
the rows for bench/table.py.

Both use one thread, Kafka's default buffers (128 MiB of keys) and no throttle. Kafka's cleaner runs in a JVM
that has compacted a copy before, so that it is warm. Ours runs in a new process. They alternate in each
round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "target" / "dist" / "logcore-bench-compaction"
KAFKA_LIBS = ROOT / "build" / "peers" / "kafka-3.9.1"

# Each log's number of different keys, and its codec.
LOGS = {
    "a million keys, not compressed": (1_000_000, "none"),
    "ten thousand keys, not compressed": (10_000, "none"),
    "a million keys, lz4": (1_000_000, "lz4"),
    "a million keys, zstd": (1_000_000, "zstd"),
}


def copy(source: Path, directory: Path) -> Path:
    target = directory / source.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    os.sync()
    return target


def run(command: list[str]) -> dict[str, Any]:
    """The command's last line of JSON, with the processor time it took in seconds."""
    before = os.times()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = os.times()
    line = [text for text in done.stdout.splitlines() if text.startswith("{")][-1]
    used = after.children_user + after.children_system - before.children_user - before.children_system
    figures: dict[str, Any] = json.loads(line)
    return figures | {"cpu": used}


def ours(log: Path, directory: Path) -> dict[str, Any]:
    return run([str(OURS), "run", str(copy(log, directory))])


def kafka(log: Path, directory: Path) -> dict[str, Any]:
    for name in "warm", "measured":
        (directory / name).mkdir(exist_ok=True)
    logs = [str(copy(log, directory / name)) for name in ("warm", "measured")]
    source = str(Path(__file__).with_name("KafkaCleaner.java"))
    return run(["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-cp", f"{KAFKA_LIBS}/*", source, *logs])


def shown(results: list[dict[str, Any]]) -> str:
    rates = [result["mb_per_second"] for result in results]
    return f"{statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})"


def measure(name: str, mib: int, rounds: int, directory: Path) -> dict[str, str]:
    keys, codec = LOGS[name]
    log = directory / "bench-0"
    shutil.rmtree(log, ignore_errors=True)
    subprocess.run([str(OURS), "write", str(log), str(mib), str(keys), codec], check=True)
    (directory / "copies").mkdir(exist_ok=True)
    one: list[dict[str, Any]] = []
    other: list[dict[str, Any]] = []
    for _ in range(rounds):
        one.append(ours(log, directory / "copies"))
        other.append(kafka(log, directory / "copies"))
    ratio = statistics.median(
        theirs["seconds"] / our["seconds"] for our, theirs in zip(one, other, strict=True)
    )
    left = one[0]["left"] / one[0]["bytes"]
    return {
        "what": f"compaction: {name}, {left:.0%} left",
        "unit": "MB/s",
        "ours": shown(one),
        "limit": shown(other),
        "ratio": f"{ratio:.1f}",
        "goal": "≥ 3x Kafka",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=LOGS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if not KAFKA_LIBS.is_dir():
        print("Apache Kafka's jars are missing: run `make peers` (it needs java and mvn)", file=sys.stderr)
        return 1
    rows = []
    with tempfile.TemporaryDirectory(prefix="logcore-compaction-") as directory:
        for name in [options.only] if options.only else LOGS:
            rows.append(measure(name, options.mib, options.rounds, Path(directory)))
            print("{what}: {ours} {unit}, Kafka {limit}, {ratio} times".format_map(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
