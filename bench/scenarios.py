"""The scenarios of bench/broker.py: their loads, figures and goals. bench/broker.py starts the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from figures import BETTER_KAFKA, Board, Curve, Figure, Goal
from loads import FETCHED, Figures, Medium, drop, fetch, fill, latency, paced, perf_tests, produce
from servers import BARE, Server, bare

TWICE, THRICE = Goal(2, BETTER_KAFKA), Goal(3, BETTER_KAFKA)
FASTER = Goal(1, BETTER_KAFKA)
OF_BARE = Goal(0.6, BARE)
# The number of a round whose figures are not kept.
NOT_COUNTED = -1
QUANTILES = {"p50": "p50", "p99": "p99", "p999": "p99.9"}
HALF = Goal(0.5, BETTER_KAFKA)
MEMORY = (Goal(150),)
"""The goal for resident memory under load, in MB."""


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def reason_of(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


@dataclass
class Run:
    """The servers on one medium, and the figures of the run."""

    medium: Medium
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
        """The numbers of the rounds; those below zero do not count. The order of the servers is reversed
        after each.
        """
        for number in range(-uncounted, count):
            say(
                f"{self.medium.name}: {name}, "
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
        """Runs one load on a server and keeps its figures, or the reason why it failed."""
        if server.name in self.failed(wanted):
            return None
        seconds = options.pop("seconds", self.seconds)
        self._number += 1
        try:
            got = load(server, self.medium, f"{topic}-{self._number}", seconds, **options)
        except (
            Exception
        ) as error:  # any failure is this server's result; the others are measured nevertheless
            reason = reason_of(error)
            say(f"{server.name} failed: {reason}")
            if number >= 0:
                for figure in wanted.values():
                    figure.failed[server.name] = reason
            return None
        if number >= 0:
            for name, figure in wanted.items():
                figure.add(server.name, number, got[name])
            # The scenarios with a figure of their own for memory exceed the goal on purpose.
            if server.name != BARE and "peak_mb" not in wanted:
                self.memory.add_highest(server.name, number, got["peak_mb"])
        return got

    @staticmethod
    def failed(wanted: dict[str, Figure]) -> set[str]:
        return {server for figure in wanted.values() for server in figure.failed}

    def brokers(self) -> list[Server]:
        return [server for server in self.servers if server.name != BARE]

    def steps(self, *all_steps: float) -> tuple[float, ...]:
        """The steps of a curve; with --quick, only its ends."""
        return (all_steps[0], all_steps[-1]) if self.quick else all_steps


def cpu_figure(what: str) -> Figure:
    return Figure(f"CPU per GB: {what}", "s/GB", (HALF,), more_is_better=False)


def produce_scenario(run: Run) -> None:
    """Wire produce as fast as it is answered: two connections with five requests in flight, one partition
    each.
    """
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


def codec_scenario(run: Run) -> None:
    """Wire produce of compressed batches: two connections with five requests in flight, one partition each.

    The batches are compressed before. Each broker decompresses them to check their records. MB are those of
    the records.
    """
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        kind = f"{codec}, 1 KiB records, 128 KiB batches"
        speed = run.board.figure(Figure(f"wire produce, {kind}", "MB/s", (FASTER,)))
        cpu = run.board.figure(
            Figure(f"CPU per GB of records: produce, {kind}", "s/GB", more_is_better=False)
        )
        wanted = {"payload_mb_per_s": speed, "cpu_s_per_payload_gb": cpu}
        for number in run.rounds(speed.what, run.board.rounds, run.uncounted):
            for server in run.brokers():
                run.measure(server, number, wanted, produce, "codec", record=1024, batch=131072, codec=codec)


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
    """Wire fetch of a whole partition, again and again, with 4 MiB a request."""
    goals = (Goal(1.1, BETTER_KAFKA), Goal(0.9, BARE))
    speed = run.board.figure(Figure("wire fetch, 1 KiB records, 4 MiB a request", "GB/s", goals))
    cpu = run.board.figure(cpu_figure("fetch"))
    wanted = {"gb_per_s": speed, "cpu_s_per_gb": cpu}
    for server in run.brokers():
        run.measure(server, NOT_COUNTED, wanted=wanted, load=fill, topic=FETCHED, seconds=min(run.seconds, 1))
    with ExitStack() as stack:
        servers = run.brokers()
        segments = sorted((run.medium.directory / "ours").rglob(f"{FETCHED}-0/*.log"))
        if segments:
            limit = bare("bare-sendfile", run.medium.directory, "--file", str(segments[0]))
            stack.callback(limit.stop)
            servers.append(limit)
        for number in run.rounds(speed.what, run.board.rounds, run.uncounted):
            servers.reverse()
            for server in servers:
                run.measure(server, number, wanted, fetch, FETCHED)
    for server in run.brokers():
        run.measure(server, NOT_COUNTED, wanted=wanted, load=drop, topic=FETCHED)


def perf_scenario(run: Run) -> None:
    """Apache Kafka's ProducerPerformance and ConsumerPerformance, whose clients are often the bottleneck."""
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
    """Latency by load: 1 KiB records in 16 KiB batches over eight connections, at shares of each server's own
    peak.

    The peak is measured just before, with the same connections and five requests in flight on each.
    """
    peak = run.board.figure(Figure("peak, of which the loads are shares", "requests/s"))
    wanted = latency_curves(run, "load", "% of its own peak", linear=True)
    for number in run.rounds("latency by load", run.board.sweep_rounds):
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
    """Curves of wire produce and of memory along `steps`. Each load takes half the time of other loads.

    The time begins after one request to each partition is answered. Otherwise, with 2,000 partitions on a
    disk, it would end before most of them had a second request.
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
    """1 KiB records in 16 KiB batches, ten partitions, one request in flight a connection; after the first
    appends.
    """
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
    """1 KiB records in 16 KiB batches, two connections with five requests in flight each; after the first
    appends.
    """
    grow(
        run,
        "partitions",
        "wire produce by partitions",
        "partitions",
        run.steps(1, 10, 100, 500, 2000),
        lambda step: {"record": 1024, "batch": 16384, "partitions": step},
    )


def batch_scenario(run: Run) -> None:
    """100 B records, two connections with five requests in flight and one partition each; after the first
    appends.
    """
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
    "codec": codec_scenario,
    "latency": latency_scenario,
    "fetch": fetch_scenario,
    "perf": perf_scenario,
    "load": load_scenario,
    "rate": rate_scenario,
    "batch": batch_scenario,
    "partitions": partitions_scenario,
    # The last one, because a server may keep the memory for five thousand connections.
    "connections": connections_scenario,
}
