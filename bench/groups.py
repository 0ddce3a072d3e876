"""The coordinators of groups and of transactions beside Apache Kafka's, on one machine, as ratios.

usage: groups.py [--rounds 5] [--seconds 2] [--members 500] [--heartbeat-ms 500] [--quick]
                 [--only SCENARIO,...] [--directory DIR] [--results NAME] [--json FILE]

Writes bench/results/NAME.md (groups.md by default), and with --json all figures of all rounds. The members of
groups are those of bench/wire. Transactions are librdkafka's, for both sides.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka

from figures import Figure, Goal
from loads import Figures, run_program
from pairs import WARM_UPS, Run, report
from program import machine, names, prepare_process, revision
from scenarios import say
from servers import KAFKA_3_9, KAFKA_4_1, OURS, WIRE, Server, kafka_3_9, kafka_4_1, ours

Servers = Run[Server]
SESSION_MS = 10_000
PARTITIONS_A_MEMBER = 2
TRANSACTIONAL_PRODUCERS = 4
COPY_PARTITIONS = 4
COPIED_A_TRANSACTION = 500
COPY_RECORD = b"x" * 100
LIMIT_SECONDS = 900.0
"""A scenario's round may take so long."""


@contextmanager
def fresh_topic(server: Server, name: str, partitions: int) -> Iterator[str]:
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    server.create_topic(topic, partitions)
    yield topic
    # After a failure the topic stays, so that the failure is what is reported.
    server.delete_topic(topic)


def wire(command: str, server: Server, **flags: object) -> Figures:
    arguments = [str(WIRE), command, *server.wire_flags]
    for name, value in flags.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    figures: Figures = json.loads(run_program(arguments, LIMIT_SECONDS).splitlines()[-1])
    return figures


# ---- commits and heartbeats ----


def commits(run: Servers, options: argparse.Namespace) -> None:
    """Offset commits of 50 groups with one member each."""
    for partitions, in_flight in ((1, 1), (1, 5), (100, 1)):
        what = f"offset commits, {partitions} partition{'s' * (partitions > 1)} each, {in_flight} in flight"
        figure = run.figure(what, "commits/s", (Goal(1, run.sides[1].name),))

        def measure(
            server: Server,
            number: int,
            partitions: int = partitions,
            in_flight: int = in_flight,
            figure: Figure = figure,
        ) -> None:
            with fresh_topic(server, "commits", partitions) as topic:
                got = wire(
                    "commits",
                    server,
                    topic=topic,
                    seconds=options.seconds,
                    partitions=partitions,
                    in_flight=in_flight,
                )
            run.keep(figure, server, number, got["requests_per_s"])

        run.each(what, measure)


def heartbeats_of(protocol: str) -> Scenario:
    def heartbeats(run: Servers, options: argparse.Namespace) -> None:
        """Heartbeats of ten groups with 50 members each."""
        what = f"heartbeats, {protocol}"
        figure = run.figure(what, "heartbeats/s", (Goal(1, run.sides[1].name),))

        def measure(server: Server, number: int) -> None:
            with fresh_topic(server, "heartbeats", 50) as topic:
                got = wire("heartbeats", server, topic=topic, seconds=options.seconds, protocol=protocol)
            run.keep(figure, server, number, got["requests_per_s"])

        run.each(what, measure)

    return heartbeats


# ---- one large group ----


STEPS = {
    "form_ms": "form",
    "form_after_join_ms": "form, after the last JoinGroup",
    "lose_ms": "lose one and settle",
    "lose_after_join_ms": "lose one and settle, after the last JoinGroup",
    "roll_ms": "replace one",
}
ALSO = ("form_after_join_ms", "lose_after_join_ms")
"""Parts of other figures, which have no goals."""


def members_of(protocol: str) -> Scenario:
    def members(run: Servers, options: argparse.Namespace) -> None:
        """One group forms, loses a member, and is rolled."""
        half = (Goal(0.5, run.sides[1].name),)
        what = f"{options.members} members, {protocol}"
        figures = {
            name: run.figure(f"{what}: {step}", "ms", () if name in ALSO else half, False)
            for name, step in STEPS.items()
            if protocol != "consumer" or name not in ALSO
        }
        expelled = run.figure(f"{what}: members that were expelled", "members", (), False)

        def measure(server: Server, number: int) -> None:
            partitions = PARTITIONS_A_MEMBER * options.members
            with fresh_topic(server, "members", partitions) as topic:
                got = wire(
                    "members",
                    server,
                    topic=topic,
                    partitions=partitions,
                    members=options.members,
                    roll=options.roll,
                    protocol=protocol,
                    heartbeat_ms=options.heartbeat_ms,
                    session_ms=SESSION_MS,
                )
            for name, figure in figures.items():
                run.keep(figure, server, number, got[name])
            run.keep(expelled, server, number, got["expelled"])

        run.each(what, measure, 1)

    return members


# ---- transactions ----


def transactional(server: Server) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "transactional.id": f"bench-{uuid.uuid4().hex}",
            "linger.ms": 0,
        }
    )


def transactions(run: Servers, options: argparse.Namespace) -> None:
    """Producers that commit one transaction after the other."""

    def commit_until(
        producer: confluent_kafka.Producer, topic: str, partition: int, records: int, end: float
    ) -> int:
        count = 0
        while time.monotonic() < end:
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(topic, COPY_RECORD, partition=partition)
            producer.commit_transaction(30)
            count += 1
        return count

    for producers in (1, TRANSACTIONAL_PRODUCERS):
        for records in (1, 10, 100):
            what = f"transactions of {records} record{'s' * (records > 1)}, "
            what += f"{producers} producer{'s' * (producers > 1)}"
            figure = run.figure(what, "transactions/s", (Goal(1, run.sides[1].name),))

            def measure(
                server: Server,
                number: int,
                producers: int = producers,
                records: int = records,
                figure: Figure = figure,
            ) -> None:
                with fresh_topic(server, "transactions", producers) as topic:
                    several = [transactional(server) for _ in range(producers)]
                    for producer in several:
                        producer.init_transactions(60)
                    begun = time.monotonic()
                    with ThreadPoolExecutor(producers) as pool:
                        counts = [
                            pool.submit(
                                commit_until, producer, topic, partition, records, begun + options.seconds
                            )
                            for partition, producer in enumerate(several)
                        ]
                    total = sum(count.result() for count in counts)
                    run.keep(figure, server, number, total / (time.monotonic() - begun))

            run.each(what, measure)


def consumer(server: Server, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )


def fill(server: Server, topic: str, count: int) -> None:
    """Writes the records to copy.

    Raises:
        RuntimeError: some were not acknowledged.
    """
    writer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap, "queue.buffering.max.messages": count + 1}
    )
    for number in range(count):
        writer.produce(topic, COPY_RECORD, partition=number % COPY_PARTITIONS)
    if left := writer.flush(120):
        raise RuntimeError(f"{left} of {count} records were not acknowledged")


def copied(server: Server, source: str, target: str, count: int) -> float:
    """Copies with exactly-once transactions. Returns the seconds, without those in which the group forms.

    Raises:
        RuntimeError: the records did not arrive in time.
    """
    reader, writer = consumer(server, f"copy-{source}"), transactional(server)
    writer.init_transactions(60)
    reader.subscribe([source])
    limit = time.monotonic() + LIMIT_SECONDS
    done, begun = 0, 0.0
    try:
        while done < count:
            if time.monotonic() > limit:
                raise RuntimeError(f"{done} of {count} records were copied in {LIMIT_SECONDS:g} s")
            messages = reader.consume(COPIED_A_TRANSACTION, timeout=0.1)
            if not messages:
                continue
            begun = begun or time.monotonic()
            writer.begin_transaction()
            for message in messages:
                if error := message.error():
                    raise RuntimeError(f"the consumer failed: {error}")
                value = message.value()
                assert isinstance(value, bytes)
                writer.produce(target, value.upper(), partition=message.partition())
            positions = reader.position(reader.assignment())
            writer.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), 30)
            writer.commit_transaction(30)
            done += len(messages)
        return time.monotonic() - begun
    finally:
        reader.close()


def visible(server: Server, topic: str, at_least: int, timeout: float = 120.0) -> int:
    """The number of committed records of a topic, read to its end."""
    reader = consumer(server, f"check-{topic}")
    partitions = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(COPY_PARTITIONS)]
    ends = {p.partition: reader.get_watermark_offsets(p, timeout=30)[1] for p in partitions}
    reader.assign(partitions)
    count, end = 0, time.monotonic() + timeout
    try:
        while time.monotonic() < end:
            messages = reader.consume(10_000, timeout=0.2)
            count += sum(message.error() is None for message in messages)
            # A position after the last marker is known when the fetcher has passed it.
            positions = {p.partition: p.offset for p in reader.position(partitions)}
            if count > at_least or all(positions[number] >= ends[number] for number in ends):
                break
            if count == at_least and not messages:
                break
        return count
    finally:
        reader.close()


def copy(run: Servers, _options: argparse.Namespace) -> None:
    """Reads, transforms, writes, sends the offsets, commits: 500 records at most a transaction."""
    what = f"exactly-once copy, {COPIED_A_TRANSACTION} records a transaction"
    figure = run.figure(what, "records/s", (Goal(1, run.sides[1].name),))
    count = run.count(100_000)

    def measure(server: Server, number: int) -> None:
        with (
            fresh_topic(server, "copy-from", COPY_PARTITIONS) as source,
            fresh_topic(server, "copy-to", COPY_PARTITIONS) as target,
        ):
            fill(server, source, count)
            seconds = copied(server, source, target, count)
            if (found := visible(server, target, count)) != count:
                raise RuntimeError(f"the copy has {found} records instead of {count}")
        run.keep(figure, server, number, count / seconds)

    run.each(what, measure)


Scenario = Callable[[Servers, argparse.Namespace], None]
Begin = Callable[[Path, tuple[str, ...]], AbstractContextManager[Server]]

GROUPS: tuple[tuple[str, str, Begin, dict[str, Scenario]], ...] = (
    (
        "Classic groups",
        KAFKA_3_9,
        kafka_3_9,
        {
            "commits": commits,
            "heartbeats": heartbeats_of("eager"),
            "eager": members_of("eager"),
            "cooperative": members_of("cooperative"),
        },
    ),
    ("Transactions", KAFKA_3_9, kafka_3_9, {"transactions": transactions, "copy": copy}),
    (
        "Groups of KIP-848",
        KAFKA_4_1,
        kafka_4_1,
        {"consumer-heartbeats": heartbeats_of("consumer"), "consumer": members_of("consumer")},
    ),
)
"""The scenarios that share two servers, which are new for each group."""

SCENARIOS = [name for *_, scenarios in GROUPS for name in scenarios]


def settings(options: argparse.Namespace) -> tuple[str, ...]:
    """Those of all servers, beside what a single broker needs."""
    interval, session = options.heartbeat_ms, SESSION_MS
    return (
        "group.initial.rebalance.delay.ms=0",
        f"group.consumer.min.heartbeat.interval.ms={interval}",
        f"group.consumer.heartbeat.interval.ms={interval}",
        f"group.consumer.min.session.timeout.ms={session}",
        f"group.consumer.session.timeout.ms={session}",
    )


def measured(
    directory: Path, other: Begin, scenarios: list[Scenario], options: argparse.Namespace
) -> list[Figure]:
    with ExitStack() as stack:
        sides = []
        for begin in (ours, other):
            home = Path(tempfile.mkdtemp(dir=directory))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            say("starting a server")
            sides.append(stack.enter_context(begin(home, settings(options))))
        run = Run(sides, options.rounds, options.quick)
        for scenario in scenarios:
            scenario(run, options)
        return list(run.figures.values())


def head(options: argparse.Namespace) -> list[str]:
    return [
        "# Groups and transactions beside Apache Kafka",
        "",
        f"`bench/groups.py` on {datetime.now(UTC):%Y-%m-%d} at {revision()}: {machine()}."
        + (" **A quick run: its figures mean nothing.**" if options.quick else ""),
        "",
        "- One broker each: ours as `logcore start` runs it, Apache Kafka 3.9.1 with its ZooKeeper, Apache "
        "Kafka 4.1.0 with its controller. Both sides have `group.initial.rebalance.delay.ms=0`.",
        "- The load generator and the servers share the cores. Two servers run; one at a time has work.",
        f"- Figures are the median (minimum–maximum) of {options.rounds} rounds. A load takes "
        f"{options.seconds:g} s. {WARM_UPS} rounds of warm-up come before the figures; a large group has "
        "one.",
        "- A ratio is taken round by round. The order of the two alternates.",
        "- Commits are those of 50 groups with one member each. Heartbeats are those of ten groups with 50 "
        "members each, one in flight for each member.",
        f"- A large group has {PARTITIONS_A_MEMBER} partitions a member, and a heartbeat every "
        f"{options.heartbeat_ms} ms (Kafka's default is 3,000 ms in the classic protocol, 5,000 ms in "
        "KIP-848). A member learns of a rebalance by its heartbeat, so most of a rebalance waits for "
        "heartbeats on both sides. The part after the last JoinGroup is the coordinator's own.",
        "- The members' assignor is the same for both sides. A group has settled when each partition has "
        "one owner and the shares are even. Members of the classic protocol are of one generation then.",
        f"- The lost member's session is {SESSION_MS // 1000} s; its time begins when the session expires. "
        f"To replace one, a member leaves and another joins: the mean of {options.roll}, one after another.",
        "- Transactions and the copy use librdkafka, without linger. A producer has one partition. The "
        "copy's time does not include that in which its group forms, and its output is counted.",
        f"- The data is {'on tmpfs' if options.directory == Path('/dev/shm') else 'on a disk'}.",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each load")
    parser.add_argument("--members", type=int, default=500, help="members of a large group")
    parser.add_argument("--roll", type=int, default=10, help="members that are replaced")
    parser.add_argument("--heartbeat-ms", type=int, default=500, help="interval of a member's heartbeats")
    parser.add_argument("--quick", action="store_true", help="a short run, whose figures mean nothing")
    parser.add_argument(
        "--only", type=names(SCENARIOS), default=SCENARIOS, help=f"scenarios, of {','.join(SCENARIOS)}"
    )
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="the directory for the data")
    parser.add_argument("--results", default="groups", help="the name of the table in bench/results")
    parser.add_argument("--json", type=Path, help="a file for all figures of all rounds")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 0.5)
        options.members, options.roll = min(options.members, 50), min(options.roll, 2)
    return options


def main() -> int:
    options = arguments()
    prepare_process()
    with report(options, head(options), OURS) as tables:
        for title, other, begin, scenarios in GROUPS:
            if wanted := [scenario for name, scenario in scenarios.items() if name in options.only]:
                tables.add(title, other, measured(tables.directory, begin, wanted, options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
