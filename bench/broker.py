"""The broker beside Apache Kafka 3.9.1 and 4.1.0 and the bare loops, in turn on the same machine, as ratios.

usage: broker.py [--rounds 5] [--sweeps 3] [--seconds 2] [--quick] [--only SCENARIO,...] [--media tmpfs,disk]
                 [--kafka 3.9.1,4.1.0] [--results NAME]

Writes bench/results/NAME.md (broker.md by default) and NAME-*.svg beside it, after each medium. "Wire" is what bench/wire
sends: pre-encoded Produce requests or raw Fetch requests; it measures the server, not a client library.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plots
from figures import Board, Figure, Goal, curve_table, figures_table, shown
from loads import Ground, produce
from scenarios import SCENARIOS, Run, reason_of, say
from servers import KAFKAS, OURS, ROOT, bare, ours

RESULTS = Path(__file__).resolve().parent / "results"
WARM_UPS = 3
# The rounds of a scenario that are not counted: what it does beside the produce of the warm-up gets warm too.
UNCOUNTED = 1


def start(run: Run, kafkas: list[str], stack: ExitStack) -> None:
    """Measures how long each server takes to start and what it holds then, round by round; and starts those that stay.

    A server that is measured has no data, no other runs beside it, and it is stopped at once.
    """
    answer = run.board.figure(
        Figure(
            "start to first answer (ZooKeeper's own start left out)", "s", (Goal(0.6),), more_is_better=False
        )
    )
    idle = run.board.figure(Figure("resident memory, idle", "MB", (Goal(70),), more_is_better=False))
    starts = {OURS: ours} | {f"Apache Kafka {name}": KAFKAS[name] for name in kafkas}
    order = list(starts)

    def failed(name: str, error: Exception) -> None:
        if name == OURS:
            raise error
        say(f"{name} failed: {reason_of(error)}")
        answer.failed[name] = reason_of(error)

    for number in run.rounds("start", run.board.rounds, run.uncounted):
        for name in order:
            if name in answer.failed:  # each try may take a minute
                continue
            run.ground.prepare(0)
            place = tempfile.TemporaryDirectory(
                prefix="start-", dir=run.ground.directory, ignore_cleanup_errors=True
            )
            try:
                with place as directory, starts[name](Path(directory)) as server:
                    seconds, held = server.seconds_to_answer, server.resident_mb()
            except Exception as error:  # the others are measured without it
                failed(name, error)
                continue
            if number >= 0:
                answer.add(name, number, seconds)
                idle.add(name, number, held)
        order.reverse()
    say(f"{run.ground.name}: starting those that stay")
    for name, begin in starts.items():
        if name not in answer.failed:
            try:
                run.servers.append(stack.enter_context(begin(run.ground.directory)))
            except Exception as error:
                failed(name, error)
    loop = bare("bare-broker", run.ground.directory, "--dir", str(run.ground.directory / "bare"))
    stack.callback(loop.stop)
    run.servers.append(loop)


def run_on(ground: Ground, board: Board, options: argparse.Namespace) -> None:
    run = Run(ground, board, options.seconds, options.quick, options.uncounted)
    with ExitStack() as stack:
        start(run, options.kafka, stack)
        board.figure(run.memory)
        unwanted = {"mb_per_s": Figure("warm-up", "MB/s")}
        for number in run.rounds("all servers (the JVM compiles while it serves)", 0, options.warm_ups):
            for server in run.servers:
                run.measure(server, number, unwanted, produce, "warm-up", record=1024, batch=131072)
        for name in options.only:
            SCENARIOS[name](run)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(
        (line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown processor"
    )
    return f"{cpu}, {os.cpu_count()} cores, Linux {platform.release()}"


def revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "an unversioned tree"


def head(options: argparse.Namespace) -> list[str]:
    kafka = (
        "the better of the Kafkas in that round"
        if len(options.kafka) > 1
        else f"Apache Kafka {options.kafka[0]}"
    )
    return [
        "# The broker beside Apache Kafka",
        "",
        f"`bench/broker.py` on {datetime.now(UTC):%Y-%m-%d} at {revision()}: {machine()}; load generator and servers share "
        f"them, all servers run, one at a time has work; a start is that of a server without data while no other runs. Median (minimum–maximum) of the rounds, {options.seconds:g} s each (half of it along connections, partitions and batch sizes), after "
        f"{options.warm_ups} rounds to warm up and {options.uncounted} more of each scenario; a ratio is taken round by round, to {kafka}. "
        "All writes are with acks=1. The bare loop of a produce reads, checks CRC-32C, writes once and "
        "sends a canned answer; that of a fetch is `sendfile` from a file of ours. The order of the servers turns round with each "
        "round, and before each produce the memory it will fill is touched (`touch_memory` in bench/loads.py); on disk, what "
        "is left to write is written first. Memory and CPU are those of a server's processes, of ZooKeeper too, and of our "
        "coordinator, which is in our process.",
    ]


def section(board: Board, name: str) -> list[str]:
    lines = [
        "",
        f"## On {board.ground}",
        "",
        f"Rounds: {board.rounds}; of the curves and of Apache's tests: {board.sweep_rounds}.",
        "",
    ]
    missed = [figure.what for figure in board.figures if figure.is_missed]
    missed += [
        f"{curve.what} with {x:g} {curve.along}"
        for curve in board.curves
        for x, point in sorted(curve.points.items())
        if point.is_missed
    ]
    lines += figures_table([figure for figure in board.figures if figure.values or figure.failed])
    lines += ["", f"![ratios]({name}-{board.ground}-ratios.svg)"]
    lines += ["", "Goals missed: " + ("; ".join(missed) or "none") + "."]
    for curve_name in dict.fromkeys(curve.name for curve in board.curves):
        about = (SCENARIOS[curve_name].__doc__ or "").splitlines()[0]
        lines += [
            "",
            f"### {curve_name.capitalize()}",
            "",
            about,
            "",
            f"![{curve_name}]({name}-{board.ground}-{curve_name}.svg)",
        ]
        for curve in board.curves:
            if curve.name == curve_name:
                lines += ["", f"{curve.what}, {curve.unit}:", "", *curve_table(curve)]
    if failures := board.failures():
        lines += ["", "Failed:", "", *(f"- {failure}" for failure in failures)]
    return lines


def write(boards: list[Board], options: argparse.Namespace) -> str:
    """Writes the tables and the plots; the text of the tables."""
    name = options.results
    lines = head(options)
    for board in boards:
        lines += section(board, name)
        drawings = {"ratios": plots.ratios(f"Ours to theirs, on {board.ground}", board.figures)}
        for curve_name in dict.fromkeys(curve.name for curve in board.curves):
            curves = [curve for curve in board.curves if curve.name == curve_name]
            drawings[curve_name] = plots.curves(f"{curve_name.capitalize()}, on {board.ground}", curves)
        for drawing, svg in drawings.items():
            if svg:
                (RESULTS / f"{name}-{board.ground}-{drawing}.svg").write_text(svg)
    if profiles := sorted(RESULTS.glob("*-profile.md")):
        links = ", ".join(f"[{path.stem}]({path.name})" for path in profiles)
        lines += ["", f"Where the time goes: {links}."]
    text = "\n".join(lines) + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    return text


def names(known: Any) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        given = text.split(",")
        if wrong := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
        return given

    return read


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    media = {"tmpfs": Path("/dev/shm"), "disk": ROOT / "build"}
    parser.add_argument(
        "--rounds", type=int, default=5, help="of each scenario on tmpfs; half as many on disk"
    )
    parser.add_argument(
        "--sweeps",
        type=int,
        default=3,
        help="rounds of the curves and of Apache's tests, at most as many as of the others",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument(
        "--quick", action="store_true", help="a short pass through everything, whose figures mean nothing"
    )
    parser.add_argument(
        "--only", type=names(SCENARIOS), default=list(SCENARIOS), help=f"of {','.join(SCENARIOS)}"
    )
    parser.add_argument(
        "--media", type=names(media), default=list(media), help="where the logs go: tmpfs,disk"
    )
    parser.add_argument("--tmpfs", type=Path, default=media["tmpfs"], help="a directory on tmpfs")
    parser.add_argument("--disk", type=Path, default=media["disk"], help="a directory on a disk")
    parser.add_argument("--kafka", type=names(KAFKAS), default=list(KAFKAS), help="3.9.1,4.1.0")
    parser.add_argument("--results", default="broker", help="the name of the table in bench/results")
    options = parser.parse_args()
    options.warm_ups, options.uncounted = (1, 0) if options.quick else (WARM_UPS, UNCOUNTED)
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 0.3)
    return options


def main() -> int:
    options = arguments()
    # Whoever ends the run early finds no server left behind, and what was measured so far in the table.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Five thousand connections: what is started here inherits the limit.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begun, boards, text = time.monotonic(), [], ""
    for medium in options.media:
        parent: Path = getattr(options, medium)
        parent.mkdir(exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="logcore-bench-", dir=parent))
        # A round on disk waits for the disk, and its spread is that of the disk.
        rounds = options.rounds if medium == "tmpfs" else (options.rounds + 1) // 2
        boards.append(Board(medium, rounds, min(rounds, options.sweeps)))
        try:
            run_on(Ground(medium, directory), boards[-1], options)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            text = write(boards, options)
    print(text)
    say(f"took {shown((time.monotonic() - begun) / 60)} minutes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
