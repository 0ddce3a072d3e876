"""`logcore verify`: reads all of a partition's directory, or of a log directory, and tells what is wrong with it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from cluster.cli._common import CommandError, Parser
from cluster.cli._findings import finding_json, finding_text, tally
from cluster.cli._progress import progress_bar

if TYPE_CHECKING:
    from logcore._native import Verified


def parser() -> Parser:
    options = Parser(
        "verify",
        "Reads every batch, index, epoch and snapshot of a partition's directory or of a log directory; changes "
        "nothing, and may run beside a broker. Exit status: 0 nothing lost or wrong, 1 damage, 2 wrong arguments.",
    )
    options.add_argument(
        "directory", metavar="DIR", help="a partition's directory, or one with partitions in it"
    )
    options.add_argument(
        "--format", choices=("text", "json"), default="text", help="how findings are printed (default: text)"
    )
    options.add_argument("--threads", type=int, default=0, metavar="N", help="partitions read at a time")
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.threads < 0:
        raise CommandError("--threads must be 0 (as many as there are cores) or more", status=2)
    from logcore import LogError, LogNotFoundError
    from logcore._native import verify_directory

    try:
        with progress_bar("verifying") as tell:
            verified = verify_directory(options.directory, options.threads, tell)
    except LogNotFoundError as error:
        raise CommandError(str(error), status=2) from None
    except LogError as error:
        raise CommandError(str(error)) from None
    if options.format == "json":
        print_json(verified)
    else:
        print_text(verified)
    return 1 if verified.damaged else 0


def print_text(verified: Verified) -> None:
    for finding in verified.findings:
        print(finding_text(finding))
    print(
        f"{verified.partitions} partitions, {verified.segments} segments, {verified.batches} batches, "
        f"{verified.records} records, {verified.bytes} bytes: {tally(verified.findings)}"
    )


def print_json(verified: Verified) -> None:
    found = {
        "damaged": verified.damaged,
        "partitions": verified.partitions,
        "segments": verified.segments,
        "batches": verified.batches,
        "records": verified.records,
        "bytes": verified.bytes,
        "findings": [finding_json(finding) for finding in verified.findings],
    }
    json.dump(found, sys.stdout, indent=2)
    print()
