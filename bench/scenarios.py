"""The scenarios of bench/broker.py: which loads, in which order, into which figures, with which goals.

The goals are those the project was given; a scenario has its servers from whoever starts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from figures import BETTER_KAFKA, Board, Curve, Figure, Goal
from loads import FETCHED, Figures, Ground, drop, fetch, fill, latency, paced, perf_tests, produce
from servers import BARE, Server, bare

TWICE, THRICE = Goal(2, BETTER_KAFKA), Goal(3, BETTER_KAFKA)
OF_BARE = Goal(0.6, BARE)
# The number of a round whose figures nobody keeps: what comes before and after the rounds that count.
NOT_COUNTED = -1
QUANTILES = {"p50": "p50", "p99": "p99", "p999": "p99.9"}
HALF = Goal(0.5, BETTER_KAFKA)
MEMORY = (Goal(150),)
"""Under load, in MB."""


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def reason_of(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


@dataclass
class Run:
    """All servers on one ground, and what is measured of them."""

    ground: Ground
    board: Board
    seconds: float
    quick: bool
    uncounted: int
    servers: list[Server] = field(default_factory=list)
    memory: Figure = field(
        default_factory=lambda: Figure(
            "resident memory, the highest of each round's loads", "MB", MEMORY, more_is_better=False
        )
    )
    _number: int = 0

    def rounds(self, name: str, count: int, uncounted: int = 0) -> Iterator[int]:
        """The numbers of the rounds, those that are not counted below zero.

        Whoever goes first in one round goes last in the next.
        """
        for number in range(-uncounted, count):
            say(
                f"{self.ground.name}: {name}, "
                + (f"round {number + 1} of {count}" if number >= 0 else "warming up")
            )
            yield number
            self.servers.reverse()

    def measure(
        self,
        server: Server,
        number: int,
        wanted: dict[str, Figure],
        load: Callable[..., Figures],
        topic: str,
        **options: Any,
    ) -> Figures | None:
        """Puts one load on a server and keeps its figures; a load that fails is kept by its reason."""
        if server.name in self.failed(wanted):
            return None
        seconds = options.pop("seconds", self.seconds)
        self._number += 1
        try:
            got = load(server, self.ground, f"{topic}-{self._number}", seconds, **options)
        except Exception as error:  # whatever it is, it is this server's result, and the others go on
            reason = reason_of(error)
            say(f"{server.name} failed: {reason}")
            if number >= 0:
                for figure in wanted.values():
                    figure.failed[server.name] = reason
            return None
        if number >= 0:
            for name, figure in wanted.items():
                figure.add(server.name, number, got[name])
            # Where memory is a figure of its own, it is of more than the goal is about.
            if server.name != BARE and "peak_mb" not in wanted:
                self.memory.add_highest(server.name, number, got["peak_mb"])
        return got

    @staticmethod
    def failed(wanted: dict[str, Figure]) -> set[str]:
        return {server for figure in wanted.values() for server in figure.failed}

    def brokers(self) -> list[Server]:
        return [server for server in self.servers if server.name != BARE]

    def steps(self, *all_steps: float) -> tuple[float, ...]:
        """Those of a curve, or its ends for a quick look."""
        return (all_steps[0], all_steps[-1]) if self.quick else all_steps


def cpu_figure(what: str) -> Figure:
    return Figure(f"CPU per GB: {what}", "s/GB", (HALF,), more_is_better=False)


def produce_scenario(run: Run) -> None:
    """Wire produce as fast as it is answered: five requests in flight on each of two connections, one partition each."""
    kinds = (
        ("1 KiB records, 128 KiB batches", "mb_per_s", "MB/s", 1.0, 1024, 131072, (TWICE, OF_BARE)),
        ("1 KiB records, 16 KiB batches", "mb_per_s", "MB/s", 1.0, 1024, 16384, (THRICE, OF_BARE)),
        ("100 B records, 16 KiB batches", "records_per_s", "M rec/s", 1e-6, 100, 16384, (THRICE, OF_BARE)),
    )
    for kind, name, unit, scale, record, batch, goals in kinds:
        speed = run.board.figure(Figure(f"wire produce, {kind}", unit, goals, scale=scale))
        cpu = run.board.figure(cpu_figure(f"produce, {kind}"))
        wanted = {name: speed, "cpu_s_per_gb": cpu}
        for number in run.rounds(speed.what, run.board.rounds, run.uncounted):
            for server in run.servers:
                run.measure(server, number, wanted, produce, "produce", record=record, batch=batch)


def latency_scenario(run: Run) -> None:
    """One record of 100 B a request, one request at a time."""
    what = "single-record produce round trip"
    goals: dict[str, tuple[Goal, ...]] = {
        "p50": (Goal(0.6, BETTER_KAFKA),),
        "p99": (Goal(0.4, BETTER_KAFKA),),
        "p999": (),
    }
    wanted = {
        f"{quantile}_us": run.board.figure(
            Figure(f"{what}, {QUANTILES[quantile]}", "µs", bounds, more_is_better=False)
        )
        for quantile, bounds in goals.items()
    }
    for number in run.rounds(what, run.board.rounds, run.uncounted):
        for server in run.servers:
            run.measure(server, number, wanted, latency, "latency")


def fetch_scenario(run: Run) -> None:
    """Wire fetch of a partition from its first offset to its last, over and over, 4 MiB a request."""
    goals = (Goal(1.1, BETTER_KAFKA), Goal(0.9, BARE))
    speed = run.board.figure(Figure("wire fetch, 1 KiB records, 4 MiB a request", "GB/s", goals))
    cpu = run.board.figure(cpu_figure("fetch"))
    wanted = {"gb_per_s": speed, "cpu_s_per_gb": cpu}
    for server in run.brokers():
        run.measure(server, NOT_COUNTED, wanted=wanted, load=fill, topic=FETCHED, seconds=min(run.seconds, 1))
    with ExitStack() as stack:
        servers = run.brokers()
        segments = sorted((run.ground.directory / "ours").rglob(f"{FETCHED}-0/*.log"))
        if segments:
            limit = bare("bare-sendfile", run.ground.directory, "--file", str(segments[0]))
            stack.callback(limit.stop)
            servers.append(limit)
        for number in run.rounds(speed.what, run.board.rounds, run.uncounted):
            servers.reverse()
            for server in servers:
                run.measure(server, number, wanted, fetch, FETCHED)
    for server in run.brokers():
        run.measure(server, NOT_COUNTED, wanted=wanted, load=drop, topic=FETCHED)


def perf_scenario(run: Run) -> None:
    """Apache Kafka's own ProducerPerformance and ConsumerPerformance, whose client is the limit for much of the time."""
    count = 50_000 if run.quick else 1_000_000
    kinds = (
        ("1 KiB records, 128 KiB batches", 1024, 131072, count),
        ("100 B records, 16 KiB batches", 100, 16384, 2 * count),
    )
    for kind, record, batch, records in kinds:
        wanted = {
            "produced_per_s": run.board.figure(
                Figure(f"Apache's producer test, {kind}", "k rec/s", scale=1e-3)
            ),
            "consumed_per_s": run.board.figure(
                Figure(f"Apache's consumer test, {kind}", "k rec/s", scale=1e-3)
            ),
            "cpu_s_per_gb": run.board.figure(cpu_figure(f"Apache's tests, {kind}")),
        }
        for number in run.rounds(f"Apache's perf tests, {kind}", run.board.sweep_rounds):
            for server in run.brokers():
                run.measure(
                    server, number, wanted, perf_tests, "perf", records=records, record=record, batch=batch
                )


# 1 KiB records in 16 KiB batches over eight connections.
PACED = {"record": 1024, "batch": 16384, "partitions": 8, "connections": 8}


def latency_curves(run: Run, name: str, along: str, linear: bool) -> dict[str, Curve]:
    return {
        f"{quantile}_us": run.board.curve(
            Curve(name, f"produce latency {shown}", along, "µs", more_is_better=False, linear=linear)
        )
        for quantile, shown in QUANTILES.items()
    }


def load_scenario(run: Run) -> None:
    """Latency against load: 1 KiB records in 16 KiB batches over eight connections, at shares of each one's own peak.

    The peak is what the same connections reach with five requests in flight on each, measured just before.
    """
    peak = run.board.figure(Figure("peak to which the load is relative", "requests/s"))
    wanted = latency_curves(run, "load", "% of its own peak", linear=True)
    for number in run.rounds("latency against load", run.board.sweep_rounds):
        for server in run.servers:
            got = run.measure(
                server, number, {"requests_per_s": peak}, produce, "peak", **PACED, in_flight=5, threads=1
            )
            if got is None:
                continue
            for share in run.steps(10, 20, 30, 40, 50, 60, 70, 80, 90):
                at = {name: curve.at(share) for name, curve in wanted.items()}
                rate = got["requests_per_s"] * share / 100
                run.measure(server, number, at, paced, "paced", **PACED, rate=rate)


def rate_scenario(run: Run) -> None:
    """Latency at the same load for all: 1 KiB records in 16 KiB batches over eight connections."""
    wanted = latency_curves(run, "rate", "requests/s", linear=False)
    for number in run.rounds("latency at the same load", run.board.sweep_rounds):
        for rate in run.steps(1000, 2000, 4000, 8000, 16000):
            for server in run.servers:
                at = {name: curve.at(rate) for name, curve in wanted.items()}
                run.measure(server, number, at, paced, "paced", **PACED, rate=rate)


def grow(
    run: Run,
    name: str,
    what: str,
    along: str,
    steps: tuple[float, ...],
    shape: Callable[[int], dict[str, int]],
) -> None:
    """A curve of wire produce along `steps`, and with it the memory; each load takes half the time of others.

    The time begins when one request to each partition is answered, for every server. Otherwise, with 2,000 partitions on a
    disk, it is over before most of them have had a second one.
    """
    speed = run.board.curve(Curve(name, what, along, "MB/s"))
    memory = run.board.curve(Curve(name, "resident memory", along, "MB", more_is_better=False, goals=MEMORY))
    for number in run.rounds(what, run.board.sweep_rounds):
        for step in steps:
            for server in run.servers:
                at = {"mb_per_s": speed.at(step), "peak_mb": memory.at(step)}
                run.measure(
                    server,
                    number,
                    at,
                    produce,
                    name,
                    seconds=run.seconds / 2,
                    after_first_appends=True,
                    **shape(int(step)),
                )


def connections_scenario(run: Run) -> None:
    """1 KiB records in 16 KiB batches, one request in flight a connection, ten partitions; timed after the first append to each partition."""
    grow(
        run,
        "connections",
        "wire produce by connections",
        "connections",
        run.steps(1, 10, 100, 1000, 5000),
        lambda step: {
            "record": 1024,
            "batch": 16384,
            "connections": step,
            "partitions": 10,
            "in_flight": 1,
            "threads": 1,
        },
    )


def partitions_scenario(run: Run) -> None:
    """1 KiB records in 16 KiB batches, five requests in flight on each of two connections, to each partition in turn; timed after the first append to each."""
    grow(
        run,
        "partitions",
        "wire produce by partitions",
        "partitions",
        run.steps(1, 10, 100, 500, 2000),
        lambda step: {"record": 1024, "batch": 16384, "partitions": step},
    )


def batch_scenario(run: Run) -> None:
    """100 B records, five requests in flight on each of two connections, one partition each; timed after the first append to each."""
    grow(
        run,
        "batch",
        "wire produce by batch size",
        "batch size, KiB",
        run.steps(1, 4, 16, 64, 256, 1024),
        lambda step: {"record": 100, "batch": step * 1024},
    )


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "produce": produce_scenario,
    "latency": latency_scenario,
    "fetch": fetch_scenario,
    "perf": perf_scenario,
    "load": load_scenario,
    "rate": rate_scenario,
    "batch": batch_scenario,
    "partitions": partitions_scenario,
    # The last, as a server may keep the memory of five thousand connections.
    "connections": connections_scenario,
}
