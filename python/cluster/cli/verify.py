"""`logcore verify`: reads all of a partition's directory, or of a log directory, and tells what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.cli._check import directory_parser, finding_json, finding_text, run_on_directory, tally
from cluster.cli._common import Parser

if TYPE_CHECKING:
    from logcore._native import Verified


def parser() -> Parser:
    return directory_parser(
        "verify",
        "Reads every batch, index, epoch and snapshot of a partition's directory or of a log directory; changes "
        "nothing, and may run beside a broker. Exit status: 0 nothing lost or wrong (there may be hints: what is made "
        "again from the rest, or gaps that compaction may have made), 1 damage, 2 wrong arguments.",
        "findings",
    )


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    from logcore._native import verify_directory

    return run_on_directory(
        options,
        "verifying",
        lambda tell: verify_directory(options.directory, options.threads, tell),
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
    return {
        "damaged": verified.damaged,
        "partitions": verified.partitions,
        "segments": verified.segments,
        "batches": verified.batches,
        "records": verified.records,
        "bytes": verified.bytes,
        "findings": [finding_json(finding) for finding in verified.findings],
    }
