"""The coordinator beside Apache ZooKeeper 3.9.4, alternately on the same machine, as ratios.

usage: coordinator.py [--rounds 5] [--quick] [--sizes 1,3] [--only SCENARIO,...] [--directory DIR] [--results
NAME]

Writes bench/results/NAME.md (coordinator.md by default). "Raw" is bench/sessions.py: one thread, with
requests that were encoded before. "kazoo" is the client of Python programs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

from kazoo.client import KazooClient

from figures import Figure, Goal, shown
from pairs import WARM_UPS, Run, section
from program import RESULTS, machine, names, prepare_process, revision
from scenarios import reason_of, say
from servers import ROOT
from sessions import (
    Session,
    SessionFailed,
    close_sessions,
    create,
    delete,
    get_data,
    latencies,
    open_sessions,
    run,
    set_data,
    until_all_have_the_event,
)
from zookeepers import OURS, ZOOKEEPER, Ensemble, running

DATA = b"x" * 100
NODES = 200
PIPELINED = 500
SESSION_COUNTS = (1, 10, 50, 200)
EQUAL = (Goal(1, ZOOKEEPER),)

Ensembles = Run[Ensemble]
"""The ensembles of one size, and their figures."""


def prepared(ensemble: Ensemble, name: str, nodes: int) -> str:
    """Makes a directory with nodes, and returns its path."""
    session = Session(ensemble.by_role[0])
    path = f"/{name}-{time.monotonic_ns()}"
    requests = [create(path, b""), *(create(f"{path}/{number}", DATA) for number in range(nodes))]
    run([session], [requests], 100)
    session.close()
    return path


def shares_of(requests: Sequence[bytes], parts: int) -> list[Sequence[bytes]]:
    """Splits requests into consecutive parts, so that mixed ones stay mixed."""
    ends = [len(requests) * number // parts for number in range(parts + 1)]
    return [requests[start:end] for start, end in itertools.pairwise(ends)]


def requests_of(path: str, many: int) -> dict[str, list[bytes]]:
    """Returns requests of each kind, in an order in which each succeeds, below a :func:`prepared`
    directory."""
    return {
        "create": [create(f"{path}/new-{n}", DATA) for n in range(many)],
        "set": [set_data(f"{path}/{n % NODES}", DATA) for n in range(many)],
        "get": [get_data(f"{path}/{n % NODES}") for n in range(many)],
        "90% get, 10% set": [
            set_data(f"{path}/{n % NODES}", DATA) if n % 10 == 0 else get_data(f"{path}/{n % NODES}")
            for n in range(many)
        ],
        "delete": [delete(f"{path}/new-{n}") for n in range(many)],
    }


def pipelined(run_: Ensembles) -> None:
    """One session with 500 requests in flight."""
    many = run_.count(20_000)

    def measure(ensemble: Ensemble, number: int) -> None:
        path = prepared(ensemble, "pipelined", NODES)
        session = Session(ensemble.by_role[0])
        for kind, requests in requests_of(path, many).items():
            seconds = run([session], [requests], PIPELINED)
            figure = run_.figure(f"raw, one session, {PIPELINED} in flight: {kind}", "requests/s")
            run_.keep(figure, ensemble, number, len(requests) / seconds)
        session.close()

    run_.each("pipelined", measure)


def many_sessions(run_: Ensembles) -> None:
    """1 to 200 sessions, each with one request in flight, distributed over the members."""
    for clients in SESSION_COUNTS:
        many = run_.count(2_000 if clients == 1 else 10_000)

        def measure(ensemble: Ensemble, number: int, clients: int = clients, many: int = many) -> None:
            path = prepared(ensemble, "sessions", NODES)
            sessions = open_sessions(ensemble.by_role, clients)
            for kind, requests in requests_of(path, many).items():
                seconds = run(sessions, shares_of(requests, clients), 1)
                figure = run_.figure(f"raw, sessions: {clients}, one in flight each: {kind}", "requests/s")
                run_.keep(figure, ensemble, number, len(requests) / seconds)
            close_sessions(sessions)

        run_.each(f"{clients} sessions", measure)


def latency(run_: Ensembles) -> None:
    """One request at a time; in an ensemble at a follower, and at the leader."""
    many = run_.count(2_000)

    def measure(ensemble: Ensemble, number: int) -> None:
        path = prepared(ensemble, "latency", 1)
        *followers, leader = ensemble.by_role
        places = (
            [(" at a follower", followers[0]), (" at the leader", leader)] if followers else [("", leader)]
        )
        for place, port in places:
            session = Session(port)
            for kind, message in (("set", set_data(f"{path}/0", DATA)), ("get", get_data(f"{path}/0"))):
                taken = latencies(session, [message] * many)
                for percent in (50, 99):
                    figure = run_.figure(f"raw, one at a time{place}: {kind}, p{percent}", "ms", EQUAL, False)
                    run_.keep(figure, ensemble, number, taken[len(taken) * percent // 100] * 1000)
            session.close()

    run_.each("latency", measure)


def kazoo_calls(path: str) -> dict[str, Callable[[KazooClient, int], Any]]:
    """Returns one call of each kind, in an order in which each succeeds, below a :func:`prepared`
    directory."""

    def get(client: KazooClient, n: int) -> Any:
        return client.get_async(f"{path}/{n % NODES}")

    def set_(client: KazooClient, n: int) -> Any:
        return client.set_async(f"{path}/{n % NODES}", DATA)

    return {
        "create": lambda client, n: client.create_async(f"{path}/new-{n}", DATA),
        "set": set_,
        "get": get,
        "90% get, 10% set": lambda client, n: set_(client, n) if n % 10 == 0 else get(client, n),
        "delete": lambda client, n: client.delete_async(f"{path}/new-{n}"),
    }


def kazoo(run_: Ensembles) -> None:
    """kazoo: one client with 500 asynchronous requests in flight, and one thread for each of several
    clients."""
    kazoo_of(run_, "kazoo", os.sched_getaffinity(0))


def kazoo_on_one_core(run_: Ensembles) -> None:
    """The same with kazoo's process on one core.

    Python runs one of its threads at a time, and passing the interpreter between cores takes time. The
    servers may use all cores, that one too.
    """
    kazoo_of(run_, "kazoo on one core", {min(os.sched_getaffinity(0))})


def kazoo_of(run_: Ensembles, client: str, cores: set[int]) -> None:
    many = run_.count(3_000)

    def measure(ensemble: Ensemble, number: int) -> None:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # new threads get the same cores
        try:
            measure_here(ensemble, number)
        finally:
            os.sched_setaffinity(0, before)

    def measure_here(ensemble: Ensemble, number: int) -> None:
        calls = kazoo_calls(prepared(ensemble, "kazoo", NODES))
        clients = [client_of(ensemble, number) for number in range(max(SESSION_COUNTS))]
        try:
            for kind, call in calls.items():
                began = time.perf_counter()
                for start in range(0, many, PIPELINED):
                    asked = [call(clients[0], n) for n in range(start, min(start + PIPELINED, many))]
                    for answer in asked:
                        answer.get(timeout=60)
                figure = run_.figure(
                    f"{client}, one client, {PIPELINED} in flight: {kind}", "requests/s", EQUAL
                )
                run_.keep(figure, ensemble, number, many / (time.perf_counter() - began))
            for size in SESSION_COUNTS:
                for kind, call in calls.items():
                    rate = threads_of(clients[:size], call, many if size > 1 else many // 3)
                    what = f"{client}, clients: {size}, one in flight each: {kind}"
                    run_.keep(run_.figure(what, "requests/s", EQUAL), ensemble, number, rate)
        finally:
            for each in clients:
                each.stop()
                each.close()

    run_.each(client, measure, 1)


def client_of(ensemble: Ensemble, number: int) -> KazooClient:
    port = ensemble.by_role[number % len(ensemble.by_role)]
    client = KazooClient(f"127.0.0.1:{port}", timeout=60)
    client.start(timeout=60)
    return client


def threads_of(clients: Sequence[KazooClient], call: Callable[[KazooClient, int], Any], many: int) -> float:
    """Returns the requests a second of one thread for each client, each with numbers of its own."""
    ready = Barrier(len(clients) + 1)
    each = many // len(clients)
    failed: list[BaseException] = []

    def work(client: KazooClient, first: int) -> None:
        ready.wait()
        try:
            for n in range(first, first + each):
                call(client, n).get(timeout=60)
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work, args=(client, n * each)) for n, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if failed:
        raise failed[0]
    return each * len(clients) / seconds


def watches(run_: Ensembles) -> None:
    """1,000 sessions watch one node: the time from a set until the last one has its event."""
    watchers = run_.count(1_000)

    def measure(ensemble: Ensemble, number: int) -> None:
        path = prepared(ensemble, "watches", 1)
        sessions = open_sessions(ensemble.by_role, watchers)
        setter = Session(ensemble.by_role[0])
        taken = []
        for _ in range(5):
            for session in sessions:
                session.ask(get_data(f"{path}/0", watch=True))
            taken.append(until_all_have_the_event(sessions, setter, set_data(f"{path}/0", DATA)))
        goals = (Goal(50),)
        figure = run_.figure(f"a change reported to {watchers:,} sessions", "ms", goals, False)
        run_.keep(figure, ensemble, number, statistics.median(taken) * 1000)
        close_sessions([*sessions, setter])

    run_.each("watches", measure)


SCENARIOS = {
    "pipelined": pipelined,
    "sessions": many_sessions,
    "latency": latency,
    "kazoo": kazoo,
    "kazoo-on-one-core": kazoo_on_one_core,
    "watches": watches,
}


def anew(
    found: Ensembles,
    what: str,
    directory: Path,
    size: int,
    measure: Callable[[Ensembles, Ensemble, int], None],
) -> None:
    """Measures with a new ensemble in every round, which is not started yet."""
    for number in range(found.rounds):
        for name in (OURS, ZOOKEEPER) if number % 2 == 0 else (ZOOKEEPER, OURS):
            say(f"{what}, {name}: round {number + 1} of {found.rounds}")
            home = Path(tempfile.mkdtemp(dir=directory))
            ensemble = Ensemble(name, home, size)
            try:
                measure(found, ensemble, number)
            except Exception as error:
                found.figure(what, "").failed[name] = reason_of(error)
            finally:
                ensemble.stop()
                shutil.rmtree(home, ignore_errors=True)


def measure_loss(found: Ensembles, ensemble: Ensemble, number: int) -> None:
    """The leader is killed: the time until a former follower answers a write that is sent after that."""
    ensemble.start()
    path = prepared(ensemble, "loss", 1)
    port = ensemble.by_role[0]
    pause = Event()
    ensemble.kill(ensemble.by_role[-1])
    began = time.monotonic()
    while True:
        with suppress(OSError, SessionFailed):
            session = Session(port, patience=30)
            try:
                session.ask(set_data(f"{path}/0", DATA))
                break
            finally:
                session.close()
        if time.monotonic() > began + 120:
            raise RuntimeError("no write was answered within two minutes")
        pause.wait(0.005)
    figure = found.figure("the leader is killed: until the next write", "s", (Goal(1),), False)
    figure.add(ensemble.name, number, time.monotonic() - began)


def measure_size(found: Ensembles, ensemble: Ensemble, number: int) -> None:
    """Memory and start: idle, with 200,000 nodes and 5,000 sessions, and starts with these nodes.

    The servers were killed right after the writes of the nodes, or were stopped.
    """
    nodes, clients = (2_000, 50) if found.quick else (200_000, 5_000)
    ensemble.start()
    first = found.figure("start of an empty one", "s", (), False)
    first.add(ensemble.name, number, ensemble.seconds_to_answer)
    idle = found.figure("resident memory, idle", "MB", (Goal(60),), False)
    idle.add(ensemble.name, number, ensemble.resident_mb())
    path = prepared(ensemble, "size", 0)
    sessions = open_sessions(ensemble.by_role, clients)
    run(sessions[:4], shares_of([create(f"{path}/{n:06}", DATA) for n in range(nodes)], 4), 100)
    full = found.figure(
        f"resident memory, {nodes:,} nodes of {len(DATA)} B and {clients:,} sessions",
        "MB",
        (Goal(300),),
        False,
    )
    full.add(ensemble.name, number, ensemble.resident_mb())
    endings: tuple[tuple[str, Callable[[], None]], ...] = (
        ("killed", lambda: kill_all(ensemble)),
        ("stopped", ensemble.stop),
    )
    for how, end in endings:
        end()
        ensemble.start()
        again = found.figure(f"start with {nodes:,} nodes, {how} before", "s", (Goal(2),), False)
        again.add(ensemble.name, number, ensemble.seconds_to_answer)
        session = Session(ensemble.by_role[0])
        session.ask(get_data(f"{path}/{nodes - 1:06}"))
        session.close()
    for session in sessions:
        with suppress(OSError, SessionFailed):  # the server of this session is gone
            session.close()


def kill_all(ensemble: Ensemble) -> None:
    for port in ensemble.ports:
        ensemble.kill(port)


def head(options: argparse.Namespace) -> list[str]:
    return [
        "# The coordinator beside Apache ZooKeeper",
        "",
        f"`bench/coordinator.py` on {datetime.now(UTC):%Y-%m-%d} at {revision()}: {machine()}.",
        "",
        "- The client and the servers share the cores. One ensemble at a time has work.",
        f"- Figures are the median (minimum–maximum) of {options.rounds} rounds. {WARM_UPS} rounds of "
        "warm-up come before.",
        "- A ratio is taken round by round. The order of the two alternates.",
        "- Both have the same settings, except directories and ports. Both answer a write once it is on "
        f"disk. The disk is {'tmpfs' if options.directory == Path('/dev/shm') else 'a real one'}.",
        f"- Nodes have {len(DATA)} bytes. Memory is the largest member's, of at most three rounds.",
        "- One session of an ensemble is at a follower, unless its row says otherwise.",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a short run, whose figures mean nothing")
    parser.add_argument("--sizes", default="1,3", help="the numbers of members: 1,3")
    known = [*SCENARIOS, "loss", "size"]
    parser.add_argument("--only", type=names(known), default=known, help=f"of {','.join(known)}")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="the directory for the data")
    parser.add_argument("--results", default="coordinator", help="the name of the table in bench/results")
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    if options.quick:
        options.rounds = 1
    return options


def measured(directory: Path, size: int, options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    if scenarios := [name for name in options.only if name in SCENARIOS]:
        with ExitStack() as stack:
            ensembles = [
                stack.enter_context(running(name, directory / f"{size}-{name.split()[-1]}", size))
                for name in (OURS, ZOOKEEPER)
            ]
            run_ = Run(ensembles, options.rounds, options.quick)
            for name in scenarios:
                SCENARIOS[name](run_)
            figures += run_.figures.values()
    if "loss" in options.only and size > 1:
        lost: Ensembles = Run([], options.rounds, options.quick)
        anew(lost, "the leader is killed", directory, size, measure_loss)
        figures += lost.figures.values()
    if "size" in options.only:
        sized: Ensembles = Run([], min(options.rounds, 3), options.quick)
        anew(sized, "memory and start", directory, size, measure_size)
        figures += sized.figures.values()
    return figures


def main() -> int:
    options = arguments()
    prepare_process()
    begun = time.monotonic()
    lines = head(options)
    (ROOT / "build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="logcore-bench-", dir=options.directory))
    try:
        for size in options.sizes:
            lines += section(
                "One server" if size == 1 else f"{size} servers",
                measured(directory, size, options),
                OURS,
                ZOOKEEPER,
                "ZooKeeper",
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lines += ["", "Missed goals, and why: [coordinator-missed](coordinator-missed.md)."]
        text = "\n".join(lines) + "\n"
        (RESULTS / f"{options.results}.md").write_text(text)
    print(text)
    say(f"took {shown((time.monotonic() - begun) / 60)} minutes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
