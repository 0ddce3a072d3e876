"""Writes the benchmarks of the log engine as one table, bench/results/log-engine.md.

usage: table.py LOG.json PYTEST.json COMPACTION.json

LOG.json is the output of `logcore-bench-log --json`, PYTEST.json pytest-benchmark's report, COMPACTION.json
the output of `bench/compaction/run.py --json`. Each row has a limit that was measured in the same run. The
ratio is ours over the limit for a speed, and the limit over ours for a time.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "log-engine.md"
COLUMNS = ("what", "unit", "ours", "limit", "ratio", "goal")

Row = dict[str, str]


def shown(stats: dict[str, float], size: float) -> str:
    median, least, most = (stats[name] / size for name in ("median", "min", "max"))
    digits = 0 if median >= 100 else 1 if median >= 10 else 2
    return f"{median:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def from_pytest(report: dict[str, Any]) -> list[Row]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for benchmark in report["benchmarks"]:
        groups[benchmark["group"]].append(benchmark)
    rows = []
    for group, members in groups.items():
        limit = next(member for member in members if member["name"].startswith("test_limit"))
        base = limit["stats"]["median"]
        unit, size = next(
            (unit, size) for unit, size in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)) if base >= size
        )
        for member in members:
            if member is limit:
                continue
            name = member["name"].removeprefix("test_").replace("_", " ")
            rows.append(
                {
                    "what": f"from Python: {group}: {name}",
                    "unit": unit,
                    "ours": shown(member["stats"], size),
                    "limit": shown(limit["stats"], size),
                    "ratio": f"{base / member['stats']['median']:.2f}",
                    "goal": member["extra_info"].get("goal", ""),
                }
            )
    return rows


def main() -> int:
    log, report, compaction = (json.loads(Path(path).read_text()) for path in sys.argv[1:4])
    machine, commit = report["machine_info"], report["commit_info"]
    head = [
        "# The log engine beside its limits",
        "",
        f"`make bench` on {report['datetime'][:10]} at {commit['id'][:7]}: "
        f"{machine['cpu'].get('brand_raw', '')}, {machine['cpu'].get('count', '?')} cores, Python "
        f"{machine['python_version']}, files on tmpfs. Medians (minimum–maximum) of the rounds. The limit "
        "is the least work that any program would have to do, measured in the same run. Compaction’s limit "
        "is Apache Kafka 3.9.1’s cleaner on copies of the same log.",
        "",
        "| what | unit | logcore | limit | of the limit | goal |",
        "|---|---|---|---|---|---|",
    ]
    rows = [*log, *from_pytest(report), *compaction]
    lines = ["| " + " | ".join(row[column] for column in COLUMNS) + " |" for row in rows]
    text = "\n".join([*head, *lines]) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
