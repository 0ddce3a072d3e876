"""`logcore verify`: reads all of a partition's directory or of a log directory, and prints what is wrong with
it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from cluster.cli._check import directory_parser, finding_text, run_on_directory, tally
from cluster.cli._common import Parser

if TYPE_CHECKING:
    from logcore._tools import Verified


def parser() -> Parser:
    return directory_parser(
        "verify",
        "Reads every batch, index, leader epoch and snapshot of a partition's directory or of a log "
        "directory. Changes nothing, and may run beside a broker. Exit status: 0 nothing is damaged (there "
        "may be hints: files that are rebuilt from the others, or gaps that compaction may have made), 1 "
        "there is damage, 2 wrong arguments.",
        "findings",
    )


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    from logcore._tools import verify_all

    return run_on_directory(
        options,
        "verifying",
        lambda progress: verify_all(options.directory, threads=options.threads, progress=progress),
        as_json,
        print_text,
    )


def print_text(verified: Verified) -> None:
    for finding in verified.findings:
        print(finding_text(finding))
    print(
        f"{verified.partitions} partitions, {verified.segments} segments, {verified.batches} batches, "
        f"{verified.records} records, {verified.bytes} bytes: {tally(verified.findings)}"
    )


def as_json(verified: Verified) -> dict[str, object]:
    return {"damaged": verified.damaged, **asdict(verified)}
