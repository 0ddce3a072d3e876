"""`logcore repair`: cuts damaged logs and rebuilds their other files, after copying what it changes."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from cluster.cli._check import directory_parser, finding_text, run_on_directory, tally
from cluster.cli._common import Parser
from cluster.cli._progress import Progress

if TYPE_CHECKING:
    from logcore import RepairAction, Repaired


def parser() -> Parser:
    options = directory_parser(
        "repair",
        "Cuts a torn tail at the last whole batch, and rebuilds indexes, leader epochs and producer "
        "snapshots. Bytes that are cut off or replaced are copied first. Refuses while a broker or a "
        "program uses the directory. Exit status: 0 nothing is damaged (any more), 1 there is damage, 2 "
        "wrong arguments.",
        "actions",
    )
    mode = options.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print the actions and change nothing (default)")
    mode.add_argument("--apply", action="store_true", help="carry the actions out")
    options.add_argument(
        "--cut-at-corruption",
        action="store_true",
        help="also cut a log at damage in its middle; the log loses the intact records behind it",
    )
    options.add_argument(
        "--backup-dir",
        metavar="DIR",
        help="where the copies go (default: NAME.repair-TIME, beside the directory)",
    )
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    import logcore

    def work(progress: Progress | None) -> Repaired:
        return logcore.repair(
            options.directory,
            apply=options.apply,
            cut_at_corruption=options.cut_at_corruption,
            backup_dir=options.backup_dir,
            threads=options.threads,
            progress=progress,
        )

    return run_on_directory(options, "reading", work, as_json, print_text)


def action_text(action: RepairAction, applied: bool) -> str:
    path = os.fspath(action.path)
    if action.action != "cut":
        verb = {"remove": "remove", "rebuild": "rebuild"}[action.action]
        past = {"remove": "removed", "rebuild": "rebuilt"}[action.action]
        return f"{past if applied else verb}: {path}: {action.why}"
    return (
        f"{'was cut' if applied else 'cut'}: {path} at byte {action.position}, "
        f"the log ends at offset {action.offset}: {action.why}\n"
        f"  {action.bytes} bytes and {action.records} intact records are behind the cut"
    )


def print_text(repaired: Repaired) -> None:
    for action in repaired.actions:
        print(action_text(action, repaired.applied))
    for action in repaired.refused:
        print("not done without --cut-at-corruption: " + action_text(action, applied=False))
    if repaired.backup_dir is not None:
        print(f"copies are in {os.fspath(repaired.backup_dir)}")
    elif repaired.actions:
        print("nothing was changed; --apply carries the actions out")
    if repaired.applied or not repaired.actions:
        for finding in repaired.findings:
            print(finding_text(finding))
        print(tally(repaired.findings))


def as_json(repaired: Repaired) -> dict[str, object]:
    return {"damaged": repaired.damaged, **asdict(repaired)}
