"""Turns pytest-benchmark's JSON into bench/results/extension.md: each benchmark beside its group's limit.

usage: table.py FILE.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "extension.md"


def shown(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def table(report: dict[str, Any]) -> str:
    machine, commit = report["machine_info"], report["commit_info"]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for benchmark in report["benchmarks"]:
        groups[benchmark["group"]].append(benchmark)
    lines = [
        "# The extension beside the machine's limits",
        "",
        f"`pytest bench --benchmark-only` on {report['datetime'][:10]} at {commit['id'][:7]}: {machine['cpu'].get('brand_raw', '')}, "
        f"{machine['cpu'].get('count', '?')} cores, Python {machine['python_version']}, files on tmpfs. "
        "Times are medians (minimum–maximum) of a round; speed is the limit's median time over the benchmark's.",
        "",
        "| group | what | time | GB/s | of the limit |",
        "|---|---|---|---|---|",
    ]
    for group, members in groups.items():
        limit = next(member for member in members if member["name"].startswith("test_limit"))
        for member in members:
            stats, size = member["stats"], member["extra_info"].get("bytes")
            rate = f"{size / stats['median'] / 1e9:.2f}" if size else ""
            part = "" if member is limit else f"{limit['stats']['median'] / stats['median']:.0%}"
            name = member["name"].removeprefix("test_").replace("_", " ")
            lines.append(
                f"| {group} | {name} | {shown(stats['median'])} ({shown(stats['min'])}–{shown(stats['max'])}) | {rate} | {part} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    text = table(json.loads(Path(sys.argv[1]).read_text()))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
