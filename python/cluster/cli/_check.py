"""Shared by `logcore verify` and `logcore repair`: options, exit status, and how findings are printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from cluster.cli._common import CommandError, Parser
from cluster.cli._progress import Progress, progress_bar

if TYPE_CHECKING:
    from logcore import Finding


class Outcome(Protocol):
    """A result whose ``damaged`` decides the exit status."""

    @property
    def damaged(self) -> bool: ...


Found = TypeVar("Found", bound=Outcome)


def directory_parser(command: str, description: str, printed: str) -> Parser:
    """The options of a command that reads a whole directory; `printed` names its output in the help of
    `--format`.
    """
    options = Parser(command, description)
    options.add_argument(
        "directory",
        metavar="DIR",
        help="a partition's directory, a broker's log directory, or the data directory of `logcore start`",
    )
    options.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help=f"how the {printed} are printed (default: text)",
    )
    options.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="how many partitions are read at a time (default: 0, one for each core)",
    )
    return options


def run_on_directory(
    options: argparse.Namespace,
    doing: str,
    work: Callable[[Progress | None], Found],
    as_json: Callable[[Found], dict[str, object]],
    print_text: Callable[[Found], None],
) -> int:
    """Does the work with a progress bar and prints its result; returns the exit status, 1 for damage."""
    if options.threads < 0:
        raise CommandError("--threads must be 0 or more", status=2)
    from logcore import LogConfigError, LogError, LogNotFoundError

    try:
        with progress_bar(doing) as progress:
            found = work(progress)
    except (LogNotFoundError, LogConfigError) as error:
        raise CommandError(str(error), status=2) from None
    except LogError as error:
        raise CommandError(str(error)) from None
    if options.format == "json":
        json.dump(as_json(found), sys.stdout, indent=2, default=os.fspath)
        print()
    else:
        print_text(found)
    return 1 if found.damaged else 0


def finding_text(finding: Finding) -> str:
    """Two lines: what is wrong and where, and what to do."""
    where = os.fspath(finding.path)
    if finding.position is not None:
        where += f", byte {finding.position}"
    if finding.offset is not None:
        where += f", offset {finding.offset}"
    text = f"{finding.severity} ({finding.kind}): {where}: {finding.what}"
    return f"{text}\n  {finding.remedy}" if finding.remedy else text


def tally(findings: Sequence[Finding]) -> str:
    """`nothing wrong`, or how many findings there are of each severity."""
    counts = Counter(finding.severity for finding in findings)
    if not counts:
        return "nothing wrong"
    names = {"damage": "damage", "hint": "hint" if counts["hint"] == 1 else "hints", "stray": "stray"}
    return ", ".join(f"{counts[severity]} {name}" for severity, name in names.items() if counts[severity])
