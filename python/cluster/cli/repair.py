"""`logcore repair`: cuts a log where it is not whole and makes again what can be made again; keeps what it takes away."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from cluster.cli._common import CommandError, Parser
from cluster.cli._findings import finding_json, finding_text, tally
from cluster.cli._progress import progress_bar

if TYPE_CHECKING:
    from logcore import RepairAction, Repaired


def parser() -> Parser:
    options = Parser(
        "repair",
        "Cuts a torn tail at the last whole batch and makes indexes, leader epochs and producer snapshots again. What is "
        "cut off or replaced is copied aside first. Refuses while a broker or a program uses the directory. Exit status: "
        "0 nothing is wrong (any more), 1 damage is there, 2 wrong arguments.",
    )
    options.add_argument(
        "directory", metavar="DIR", help="a partition's directory, or one with partitions in it"
    )
    what = options.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only say what would be done (the default)")
    what.add_argument("--apply", action="store_true", help="do it")
    options.add_argument(
        "--cut-at-corruption",
        action="store_true",
        help="cut a log also at damage in its middle; intact records behind it are lost to the log",
    )
    options.add_argument(
        "--aside", metavar="DIR", help="where copies go (default: beside the directory, NAME.repair-TIME)"
    )
    options.add_argument(
        "--format", choices=("text", "json"), default="text", help="how actions are printed (default: text)"
    )
    options.add_argument("--threads", type=int, default=0, metavar="N", help="partitions read at a time")
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.threads < 0:
        raise CommandError("--threads must be 0 (as many as there are cores) or more", status=2)
    import logcore

    try:
        with progress_bar("reading") as tell:
            repaired = logcore.repair(
                options.directory,
                apply=options.apply,
                cut_at_corruption=options.cut_at_corruption,
                aside=options.aside,
                threads=options.threads,
                progress=tell,
            )
    except logcore.LogNotFoundError as error:
        raise CommandError(str(error), status=2) from None
    except logcore.LogConfigError as error:
        raise CommandError(str(error), status=2) from None
    except logcore.LogError as error:
        raise CommandError(str(error)) from None
    if options.format == "json":
        print_json(repaired)
    else:
        print_text(repaired)
    return 1 if repaired.damaged else 0


def action_text(action: RepairAction, applied: bool) -> str:
    path = os.fspath(action.path)
    if action.action != "cut":
        verb = {"remove": ("remove", "removed"), "rebuild": ("make again", "made again")}[action.action][
            applied
        ]
        return f"{verb}: {path}: {action.why}"
    verb = "was cut" if applied else "cut"
    return (
        f"{verb}: {path} at byte {action.position}, the log ends at offset {action.offset}: {action.why}\n"
        f"  {action.bytes} bytes and {action.records} intact records are behind it"
    )


def print_text(repaired: Repaired) -> None:
    for action in repaired.actions:
        print(action_text(action, repaired.applied))
    for action in repaired.refused:
        print("not done without --cut-at-corruption: " + action_text(action, applied=False))
    if repaired.aside is not None:
        print(f"kept aside in {os.fspath(repaired.aside)}")
    elif repaired.actions:
        print("nothing was changed; --apply does it")
    if repaired.applied or not repaired.actions:
        for finding in repaired.findings:
            print(finding_text(finding))
        print(tally(repaired.findings))


def action_json(action: RepairAction) -> dict[str, str | int | None]:
    return {
        "action": action.action,
        "path": os.fspath(action.path),
        "why": action.why,
        "position": action.position,
        "offset": action.offset,
        "bytes": action.bytes,
        "records": action.records,
    }


def print_json(repaired: Repaired) -> None:
    done = {
        "applied": repaired.applied,
        "actions": [action_json(action) for action in repaired.actions],
        "refused": [action_json(action) for action in repaired.refused],
        "aside": None if repaired.aside is None else os.fspath(repaired.aside),
        "damaged": repaired.damaged,
        "findings": [finding_json(finding) for finding in repaired.findings],
    }
    json.dump(done, sys.stdout, indent=2)
    print()
