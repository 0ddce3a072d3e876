"""Three brokers beside three of Apache Kafka 3.9.1 on Apache ZooKeeper 3.9.4, on one machine, as ratios.

usage: three_brokers.py [--rounds 5] [--seconds 2] [--quick] [--only SCENARIO,...] [--directory DIR]
                        [--results NAME] [--json FILE]

Writes bench/results/NAME.md (cluster.md by default), and with --json all figures of all rounds. Every topic
has three replicas and min.insync.replicas=2, unless its row says otherwise. All writes are with acks=all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster import Producer
from clusters import BROKERS, CLUSTERS, Cluster, Member
from figures import Figure, Goal
from loads import CONNECTIONS, touch_memory, wire
from pairs import WARM_UPS, Run, report
from program import machine, names, prepare_process, revision
from scenarios import say
from servers import KAFKA_3_9, OURS, WIRE

Clusters = Run[Cluster]
ALL_IN_SYNC = -1
BYTES_PER_SECOND = 1e9
"""What one broker writes at most, for the memory that is touched before a load."""
NOT_LEADER = "6"
SETTLED_SECONDS = 1.0
"""How long a producer runs before and after a fault."""
FAILOVER_REPLICAS = 2
FAILOVER_PARTITIONS = 10


@contextmanager
def fresh_topic(cluster: Cluster, name: str, partitions: int) -> Iterator[str]:
    cluster.revive()
    topic = f"{name}-{time.monotonic_ns()}"
    cluster.create_topics([topic], partitions)
    cluster.wait([topic], partitions, in_sync=BROKERS)
    yield topic
    # After a failure the topic stays, so that the failure is what is reported.
    cluster.delete_topic(topic)


# ---- loads ----


def produce(run_: Clusters, options: argparse.Namespace) -> None:
    """Requests as fast as they are answered: two connections with five in flight, one partition each."""
    kinds = (
        ("1 KiB records, 128 KiB batches", "mb_per_s", "MB/s", 1.0, 1024, 131072),
        ("100 B records, 16 KiB batches", "records_per_s", "M rec/s", 1e-6, 100, 16384),
    )
    for kind, name, unit, scale, record, batch in kinds:

        def measure(
            cluster: Cluster,
            number: int,
            kind: str = kind,
            name: str = name,
            unit: str = unit,
            scale: float = scale,
            record: int = record,
            batch: int = batch,
        ) -> None:
            with fresh_topic(cluster, "produce", CONNECTIONS) as topic:
                touch_memory(Path("/dev/shm"), int(options.seconds * BROKERS * BYTES_PER_SECOND))
                got = wire(
                    "produce",
                    cluster,
                    options.seconds,
                    topic=topic,
                    partitions=CONNECTIONS,
                    connections=CONNECTIONS,
                    acks=ALL_IN_SYNC,
                    record_size=record,
                    batch_size=batch,
                )
            speed = run_.figure(f"wire produce, {kind}", unit, (Goal(4, KAFKA_3_9),))
            run_.keep(speed, cluster, number, got[name] * scale)
            cpu = run_.figure(f"CPU per GB: produce, {kind}", "s/GB", (), False)
            run_.keep(cpu, cluster, number, got["cpu_s_per_gb"])

        run_.each(f"produce, {kind}", measure)


def latency(run_: Clusters, options: argparse.Namespace) -> None:
    """One record of 100 B a request, one request at a time."""

    def measure(cluster: Cluster, number: int) -> None:
        with fresh_topic(cluster, "latency", 1) as topic:
            got = wire("latency", cluster, options.seconds, topic=topic, acks=ALL_IN_SYNC)
        for percent in (50, 99):
            what = f"single-record produce round trip, p{percent}"
            figure = run_.figure(what, "ms", (Goal(0.5, KAFKA_3_9),), False)
            run_.keep(figure, cluster, number, got[f"p{percent}_us"] / 1000)
        cpu = run_.figure("CPU per single-record produce", "ms", (), False)
        run_.keep(cpu, cluster, number, got["cpu_s"] / got["requests"] * 1000)

    run_.each("one record at a time", measure)


# ---- faults ----


def with_producer(
    cluster: Cluster, topic: str, partition: int, end: Callable[[Member], None]
) -> dict[str, Any]:
    """Ends a partition's leader while a producer writes to it. Returns the producer's figures, after another
    leader has taken over.

    Raises:
        RuntimeError: an acknowledged record is lost, or the producer failed.
    """
    victim = cluster.members[cluster.leader(topic, partition)]
    bootstrap = next(member.port for member in cluster.alive if member is not victim)
    command = [str(WIRE), "gap", "--bootstrap", str(bootstrap), "--topic", topic]
    command += ["--partition", str(partition)]
    pause = threading.Event()
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as producer:
        assert producer.stdout is not None
        if producer.stdout.readline() == "producing\n":
            pause.wait(SETTLED_SECONDS)
            end(victim)
            cluster.wait([topic], BROKERS, not_broker=victim.number)
            pause.wait(SETTLED_SECONDS)
        output, errors = producer.communicate(timeout=180)
    if producer.returncode != 0:
        raise RuntimeError(f"the producer failed: {errors.strip()}")
    figures: dict[str, Any] = json.loads(output)
    if figures["lost"]:
        raise RuntimeError(f"{figures['lost']} of {figures['acknowledged']} acknowledged records are lost")
    return figures


def partition_of_another(cluster: Cluster, topic: str) -> int:
    """A partition that the controller does not lead."""
    controller = cluster.controller().number
    return next(number for number in range(BROKERS) if cluster.leader(topic, number) != controller)


def kill(run_: Clusters, _options: argparse.Namespace) -> None:
    """SIGKILL of a leader that is not the controller: the longest gap, and nothing lost."""

    def measure(cluster: Cluster, number: int) -> None:
        with fresh_topic(cluster, "kill", BROKERS) as topic:
            partition = partition_of_another(cluster, topic)
            got = with_producer(cluster, topic, partition, lambda victim: victim.end(signal.SIGKILL))
            figure = run_.figure("longest gap: SIGKILL of the leader", "s", (Goal(2),), False)
            run_.keep(figure, cluster, number, got["longest_gap_ms"] / 1000)
            cluster.heal([topic], BROKERS)

    run_.each("SIGKILL of a leader", measure, 0)


def shutdown(run_: Clusters, _options: argparse.Namespace) -> None:
    """SIGTERM of a leader that is not the controller: the longest gap, and the errors that a client sees."""

    def measure(cluster: Cluster, number: int) -> None:
        with fresh_topic(cluster, "shutdown", BROKERS) as topic:
            partition = partition_of_another(cluster, topic)
            got = with_producer(cluster, topic, partition, lambda victim: victim.end(signal.SIGTERM))
            gap = run_.figure("longest gap: controlled shutdown of the leader", "ms", (Goal(50),), False)
            run_.keep(gap, cluster, number, got["longest_gap_ms"])
            # The answer that names no error but sends a client to the new leader does not count.
            seen = sum(count for code, count in got["refused"].items() if code != NOT_LEADER)
            errors = run_.figure("errors that its producer sees", "errors", (Goal(0),), False)
            run_.keep(errors, cluster, number, seen + got["broken_connections"])
            cluster.heal([topic], BROKERS)

    run_.each("controlled shutdown of a leader", measure, 0)


def restart(run_: Clusters, _options: argparse.Namespace) -> None:
    """SIGKILL of a broker that is not the controller, and its start at once."""

    def measure(cluster: Cluster, number: int) -> None:
        with fresh_topic(cluster, "restart", BROKERS) as topic:
            controller = cluster.controller()
            victim = next(member for member in cluster.members if member is not controller)
            begun = time.monotonic()
            victim.end(signal.SIGKILL)
            seconds = cluster.start_again(victim, [topic], BROKERS)
            figure = run_.figure("SIGKILL and start at once: until it serves again", "s", (Goal(1),), False)
            run_.keep(figure, cluster, number, seconds)
            cluster.heal([topic], BROKERS)
            again = run_.figure("the same: until all replicas are in sync", "s", (), False)
            run_.keep(again, cluster, number, time.monotonic() - begun)

    run_.each("restart after SIGKILL", measure, 0)


# ---- many partitions ----


def partitions(run_: Clusters, options: argparse.Namespace) -> None:
    """A topic of 2,000 partitions with three replicas, so 2,000 logs a broker, with a record in each."""
    many = 200 if options.quick else 2000

    def measure(cluster: Cluster, number: int) -> None:
        cluster.revive()
        topic = f"partitions-{time.monotonic_ns()}"
        begun = time.monotonic()
        cluster.create_topics([topic], many)
        created = run_.figure(f"{many:,} partitions: until every broker knows them", "s", (Goal(2),), False)
        run_.keep(created, cluster, number, time.monotonic() - begun)
        cluster.wait([topic], many, in_sync=BROKERS)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for partition in range(many):
            producer.produce(topic, b"x" * 100, partition=partition)
        if left := producer.flush(120):
            raise RuntimeError(f"{left} of {many} records were not acknowledged")
        memory = run_.figure(
            f"{many:,} partitions: resident memory of the largest broker", "MB", (Goal(150),), False
        )
        run_.keep(memory, cluster, number, max(member.resident_mb() for member in cluster.members))
        controller = cluster.controller()
        member = next(member for member in cluster.members if member is not controller)
        member.end(signal.SIGTERM)
        seconds = cluster.start_again(member, [topic], many)
        again = run_.figure(f"{many:,} partitions: restart of a broker", "s", (Goal(1),), False)
        run_.keep(again, cluster, number, seconds)
        cluster.heal([topic], many)
        cluster.delete_topic(topic)

    run_.each(f"{many:,} partitions", measure, 1)


def failover(run_: Clusters, options: argparse.Namespace) -> None:
    """SIGKILL of the controller of 2,000 topics with ten partitions each."""
    many = 200 if options.quick else 2000
    topics = [f"failover-{number}" for number in range(many)]
    for cluster in run_.sides:
        say(f"{cluster.name}: creating {many:,} topics")
        cluster.create_topics(topics, FAILOVER_PARTITIONS, FAILOVER_REPLICAS)

    def measure(cluster: Cluster, number: int) -> None:
        cluster.heal(topics, FAILOVER_PARTITIONS, FAILOVER_REPLICAS)
        victim = cluster.controller()
        begun = time.monotonic()
        victim.end(signal.SIGKILL)
        cluster.wait(topics, FAILOVER_PARTITIONS, not_broker=victim.number, timeout=300)
        what = f"SIGKILL of the controller, {many:,} topics of {FAILOVER_PARTITIONS} partitions: "
        what += "until all have leaders everywhere"
        figure = run_.figure(what, "s", (Goal(1, KAFKA_3_9),), False)
        run_.keep(figure, cluster, number, time.monotonic() - begun)

    run_.each("failover of the controller", measure, 0)


Scenario = Callable[[Clusters, argparse.Namespace], None]

GROUPS: tuple[tuple[str, dict[str, Scenario]], ...] = (
    ("Three replicas", {"produce": produce, "latency": latency}),
    ("Faults", {"kill": kill, "shutdown": shutdown, "restart": restart}),
    ("Many partitions", {"partitions": partitions}),
    ("Many topics", {"failover": failover}),
)
"""The scenarios that share two clusters, which are new for each group."""

SCENARIOS = [name for _, scenarios in GROUPS for name in scenarios]


def measured(directory: Path, scenarios: list[Scenario], options: argparse.Namespace) -> list[Figure]:
    with ExitStack() as stack:
        sides = []
        for name, begin in CLUSTERS.items():
            say(f"starting {name}")
            home = Path(tempfile.mkdtemp(dir=directory))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            sides.append(stack.enter_context(begin(home)))
        run_ = Run(sides, options.rounds, options.quick)
        for scenario in scenarios:
            scenario(run_, options)
        return list(run_.figures.values())


def head(options: argparse.Namespace) -> list[str]:
    return [
        "# The cluster beside Apache Kafka",
        "",
        f"`bench/three_brokers.py` on {datetime.now(UTC):%Y-%m-%d} at {revision()}: {machine()}."
        + (" **A quick run: its figures mean nothing.**" if options.quick else ""),
        "",
        "- Three brokers each: ours as `logcore start --brokers 3` runs them, Apache Kafka 3.9.1 with one "
        "Apache ZooKeeper 3.9.4. Both have default settings.",
        "- The load generator and the servers share the cores. Both clusters run; one at a time has work.",
        "- Topics have three replicas and min.insync.replicas=2. All writes are with acks=all.",
        f"- Figures are the median (minimum–maximum) of {options.rounds} rounds. A load takes "
        f"{options.seconds:g} s. {WARM_UPS} rounds of warm-up come before those of the loads, one before "
        "those of many partitions.",
        "- A ratio is taken round by round. The order of the two alternates.",
        "- CPU is that of all brokers and of the coordinator.",
        "- A gap is the longest time between two acknowledgements. Its producer sends one record after the "
        "other, and looks for the leader again at once. Every acknowledged record is read afterwards; a lost "
        "one fails the scenario.",
        "- A broker serves again when its own Metadata has a leader for each partition.",
        f"- The topics of the controller's failover have {FAILOVER_REPLICAS} replicas, and so 13,333 logs a "
        "broker: with three, a broker would need more than 20,000 open files.",
        f"- The data is {'on tmpfs' if options.directory == Path('/dev/shm') else 'on a disk'}.",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each load")
    parser.add_argument("--quick", action="store_true", help="a short run, whose figures mean nothing")
    parser.add_argument(
        "--only", type=names(SCENARIOS), default=SCENARIOS, help=f"scenarios, of {','.join(SCENARIOS)}"
    )
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="the directory for the data")
    parser.add_argument("--results", default="cluster", help="the name of the table in bench/results")
    parser.add_argument("--json", type=Path, help="a file for all figures of all rounds")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 0.5)
    return options


def main() -> int:
    options = arguments()
    prepare_process()
    with report(options, head(options), OURS) as tables:
        for title, scenarios in GROUPS:
            if wanted := [scenario for name, scenario in scenarios.items() if name in options.only]:
                tables.add(title, KAFKA_3_9, measured(tables.directory, wanted, options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
