"""What `logcore verify` and `logcore repair` share: options, exit status, findings as text and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from cluster.cli._common import CommandError, Parser
from cluster.cli._progress import Tell, progress_bar

if TYPE_CHECKING:
    from logcore import Finding


class Outcome(Protocol):
    """What was found."""

    @property
    def damaged(self) -> bool: ...


Found = TypeVar("Found", bound=Outcome)


def directory_parser(command: str, description: str, printed: str) -> Parser:
    """The options of a command that reads a whole directory; `printed` is what `--format` is about."""
    options = Parser(command, description)
    options.add_argument(
        "directory", metavar="DIR", help="a partition's directory, or one with partitions in it"
    )
    options.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help=f"how {printed} are printed (default: text)",
    )
    options.add_argument("--threads", type=int, default=0, metavar="N", help="partitions read at a time")
    return options


def run_on_directory(
    options: argparse.Namespace,
    doing: str,
    work: Callable[[Tell | None], Found],
    as_json: Callable[[Found], dict[str, object]],
    print_text: Callable[[Found], None],
) -> int:
    """Does the work under a progress bar and prints what came of it; returns the exit status: 1 for damage."""
    if options.threads < 0:
        raise CommandError("--threads must be 0 (as many as there are cores) or more", status=2)
    from logcore import LogConfigError, LogError, LogNotFoundError

    try:
        with progress_bar(doing) as tell:
            found = work(tell)
    except (LogNotFoundError, LogConfigError) as error:
        raise CommandError(str(error), status=2) from None
    except LogError as error:
        raise CommandError(str(error)) from None
    if options.format == "json":
        json.dump(as_json(found), sys.stdout, indent=2)
        print()
    else:
        print_text(found)
    return 1 if found.damaged else 0


def finding_text(finding: Finding) -> str:
    """Two lines: what is wrong and where, and what to do."""
    place = os.fspath(finding.path)
    if finding.position is not None:
        place += f", byte {finding.position}"
    if finding.offset is not None:
        place += f", offset {finding.offset}"
    text = f"{finding.severity} ({finding.kind}): {place}: {finding.what}"
    return f"{text}\n  {finding.remedy}" if finding.remedy else text


def finding_json(finding: Finding) -> dict[str, str | int | None]:
    return {
        "severity": finding.severity,
        "kind": finding.kind,
        "path": os.fspath(finding.path),
        "position": finding.position,
        "offset": finding.offset,
        "what": finding.what,
        "remedy": finding.remedy,
    }


def tally(findings: Sequence[Finding]) -> str:
    """`nothing wrong`, or how many of each severity."""
    counts = Counter(finding.severity for finding in findings)
    if not counts:
        return "nothing wrong"
    names = {"damage": "damage", "hint": "hint" if counts["hint"] == 1 else "hints", "stray": "stray"}
    return ", ".join(f"{counts[severity]} {name}" for severity, name in names.items() if counts[severity])
