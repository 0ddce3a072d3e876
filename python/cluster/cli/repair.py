"""`logcore repair`: cuts a log where it is not whole and makes again what can be made again; keeps what it takes away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cluster.cli._check import directory_parser, finding_json, finding_text, run_on_directory, tally
from cluster.cli._common import Parser
from cluster.cli._progress import Tell

if TYPE_CHECKING:
    from logcore import RepairAction, Repaired


def parser() -> Parser:
    options = directory_parser(
        "repair",
        "Cuts a torn tail at the last whole batch and makes indexes, leader epochs and producer snapshots again. What is "
        "cut off or replaced is copied aside first. Refuses while a broker or a program uses the directory. Exit status: "
        "0 nothing is wrong (any more), 1 damage is there, 2 wrong arguments.",
        "actions",
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
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    import logcore

    def work(tell: Tell | None) -> Repaired:
        return logcore.repair(
            options.directory,
            apply=options.apply,
            cut_at_corruption=options.cut_at_corruption,
            aside=options.aside,
            threads=options.threads,
            progress=tell,
        )

    return run_on_directory(options, "reading", work, as_json, print_text)


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


def as_json(repaired: Repaired) -> dict[str, object]:
    return {
        "applied": repaired.applied,
        "actions": [action_json(action) for action in repaired.actions],
        "refused": [action_json(action) for action in repaired.refused],
        "aside": None if repaired.aside is None else os.fspath(repaired.aside),
        "damaged": repaired.damaged,
        "findings": [finding_json(finding) for finding in repaired.findings],
    }
