"""Compares the broker with Apache Kafka 3.9.1 and 4.1.0 and with bare loops on the same machine, as ratios.

usage: broker.py [--rounds 5] [--sweeps 3] [--seconds 2] [--quick] [--only SCENARIO,...] [--media tmpfs,disk]
                 [--kafka 3.9.1,4.1.0] [--results NAME]

Writes bench/results/NAME.md (broker.md by default) and NAME-*.svg beside it, after each medium. "Wire" stands
for the requests of bench/wire, which are encoded before: so the server is measured, not a client library.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import plots
from figures import Board, Figure, Goal, curve_table, figures_table, shown
from loads import Medium, produce
from program import RESULTS, machine, names, prepare_process, revision
from scenarios import SCENARIOS, Run, reason_of, say
from servers import KAFKAS, OURS, ROOT, bare, ours

WARM_UPS = 3
# The first rounds of each scenario, which do not count: they warm up code that the warm-up's produce does not
# use.
UNCOUNTED = 1


def start(run: Run, kafkas: list[str], stack: ExitStack) -> None:
    """Measures each server's time to start and its idle memory, round by round. Then starts the servers for
    the scenarios.

    While a start is measured, no other server runs and the server has no data. It is stopped at once.
    """
    answer = run.board.figure(
        Figure(
            "start to first answer (without the start of ZooKeeper)", "s", (Goal(0.6),), more_is_better=False
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
            run.medium.prepare(0)
            temporary = tempfile.TemporaryDirectory(
                prefix="start-", dir=run.medium.directory, ignore_cleanup_errors=True
            )
            try:
                with temporary as directory, starts[name](Path(directory)) as server:
                    seconds, memory = server.seconds_to_answer, server.resident_mb()
            except Exception as error:  # the others are measured nevertheless
                failed(name, error)
                continue
            if number >= 0:
                answer.add(name, number, seconds)
                idle.add(name, number, memory)
        order.reverse()
    say(f"{run.medium.name}: starting the servers")
    for name, begin in starts.items():
        if name not in answer.failed:
            try:
                run.servers.append(stack.enter_context(begin(run.medium.directory)))
            except Exception as error:
                failed(name, error)
    loop = bare("bare-broker", run.medium.directory, "--dir", str(run.medium.directory / "bare"))
    stack.callback(loop.stop)
    run.servers.append(loop)


def run_on(medium: Medium, board: Board, options: argparse.Namespace) -> None:
    run = Run(medium, board, options.seconds, options.quick, options.uncounted)
    with ExitStack() as stack:
        start(run, options.kafka, stack)
        board.figure(run.memory)
        unwanted = {"mb_per_s": Figure("warm-up", "MB/s")}
        for number in run.rounds("all servers (the JVM compiles while it serves)", 0, options.warm_ups):
            for server in run.servers:
                run.measure(server, number, unwanted, produce, "warm-up", record=1024, batch=131072)
        for name in options.only:
            SCENARIOS[name](run)


def head(options: argparse.Namespace) -> list[str]:
    kafka = "the better Kafka of that round" if len(options.kafka) > 1 else f"Apache Kafka {options.kafka[0]}"
    return [
        "# The broker beside Apache Kafka",
        "",
        f"`bench/broker.py` on {datetime.now(UTC):%Y-%m-%d} at {revision()}: {machine()}.",
        "",
        "- The load generator and the servers share the cores. All servers run; one at a time has work. A "
        "start is measured while no other server runs, without data.",
        f"- Figures are the median (minimum–maximum) of the rounds. A round takes {options.seconds:g} s; "
        f"half of it along connections, partitions and batch sizes. {options.warm_ups} rounds of warm-up "
        f"come before, and {options.uncounted} more of each scenario.",
        f"- A ratio is taken round by round, to {kafka}. The order of the servers is reversed after each "
        "round.",
        "- All writes are with acks=1. Before each produce, the memory that it will fill is touched "
        "(`touch_memory` in bench/loads.py). On disk, unwritten data is written first.",
        "- The bare loop of a produce reads, checks CRC-32C, writes once and sends a fixed answer. The bare "
        "loop of a fetch is `sendfile` from a file of ours.",
        "- Memory and CPU are those of all processes of a server, ZooKeeper included. Our coordinator is in "
        "our process.",
    ]


def section(board: Board, name: str) -> list[str]:
    lines = [
        "",
        f"## On {board.medium}",
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
    lines += ["", f"![ratios]({name}-{board.medium}-ratios.svg)"]
    lines += ["", "Goals missed: " + ("; ".join(missed) or "none") + "."]
    for curve_name in dict.fromkeys(curve.name for curve in board.curves):
        first_paragraph = (SCENARIOS[curve_name].__doc__ or "").partition("\n\n")[0]
        lines += [
            "",
            f"### {curve_name.capitalize()}",
            "",
            " ".join(first_paragraph.split()),
            "",
            f"![{curve_name}]({name}-{board.medium}-{curve_name}.svg)",
        ]
        for curve in board.curves:
            if curve.name == curve_name:
                lines += ["", f"{curve.what}, {curve.unit}:", "", *curve_table(curve)]
    if failures := board.failures():
        lines += ["", "Failed:", "", *(f"- {failure}" for failure in failures)]
    return lines


def write(boards: list[Board], options: argparse.Namespace) -> str:
    """Writes the tables and the plots; returns the text of the tables."""
    name = options.results
    lines = head(options)
    for board in boards:
        lines += section(board, name)
        drawings = {"ratios": plots.ratios(f"Ours to theirs, on {board.medium}", board.figures)}
        for curve_name in dict.fromkeys(curve.name for curve in board.curves):
            curves = [curve for curve in board.curves if curve.name == curve_name]
            drawings[curve_name] = plots.curves(f"{curve_name.capitalize()}, on {board.medium}", curves)
        for drawing, svg in drawings.items():
            if svg:
                (RESULTS / f"{name}-{board.medium}-{drawing}.svg").write_text(svg)
    if profiles := sorted(RESULTS.glob("*-profile.md")):
        links = ", ".join(f"[{path.stem}]({path.name})" for path in profiles)
        lines += ["", f"Where the time goes: {links}."]
    text = "\n".join(lines) + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    media = {"tmpfs": Path("/dev/shm"), "disk": ROOT / "build"}
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each scenario on tmpfs; half as many on disk"
    )
    parser.add_argument(
        "--sweeps",
        type=int,
        default=3,
        help="rounds of the curves and of Apache's tests, at most --rounds",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each load")
    parser.add_argument(
        "--quick", action="store_true", help="run everything once and briefly; the figures mean nothing"
    )
    parser.add_argument(
        "--only",
        type=names(SCENARIOS),
        default=list(SCENARIOS),
        help=f"scenarios to run, of {','.join(SCENARIOS)}",
    )
    parser.add_argument(
        "--media", type=names(media), default=list(media), help="where the logs are: tmpfs,disk"
    )
    parser.add_argument("--tmpfs", type=Path, default=media["tmpfs"], help="a directory on tmpfs")
    parser.add_argument("--disk", type=Path, default=media["disk"], help="a directory on a disk")
    parser.add_argument("--kafka", type=names(KAFKAS), default=list(KAFKAS), help="versions: 3.9.1,4.1.0")
    parser.add_argument("--results", default="broker", help="the name of the table in bench/results")
    options = parser.parse_args()
    options.warm_ups, options.uncounted = (1, 0) if options.quick else (WARM_UPS, UNCOUNTED)
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 0.3)
    return options


def main() -> int:
    options = arguments()
    prepare_process()
    begun, boards, text = time.monotonic(), [], ""
    for medium in options.media:
        parent: Path = getattr(options, medium)
        parent.mkdir(exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="logcore-bench-", dir=parent))
        # Rounds on disk are slow, and their spread is mostly the disk's.
        rounds = options.rounds if medium == "tmpfs" else (options.rounds + 1) // 2
        boards.append(Board(medium, rounds, min(rounds, options.sweeps)))
        try:
            run_on(Medium(medium, directory), boards[-1], options)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            text = write(boards, options)
    print(text)
    say(f"took {shown((time.monotonic() - begun) / 60)} minutes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
