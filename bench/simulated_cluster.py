"""What a controller costs as a cluster grows: the real controller over a simulated coordinator and brokers.

Measures CPU time, bytes and memory of the controller alone, so other programs on the machine do not count.
The brokers answer every request at once. Each request is made and merged for every broker. Of the requests
of one event, API and number of partitions `ENCODED_MAX` are encoded; the others count with their average.

    python bench/simulated_cluster.py            every size; writes bench/results/simulated-cluster.md
    python bench/simulated_cluster.py --quick    small sizes, to standard output
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from broker import machine, revision  # noqa: E402
from cluster.controller import Controller, TopicDefaults, znodes  # noqa: E402
from cluster.controller.requests import LEADER_AND_ISR, UPDATE_METADATA  # noqa: E402
from cluster.controller.zookeeper import Create  # noqa: E402
from cluster.model import (  # noqa: E402
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    PartitionState,
    Replicas,
    new_topic_id,
)
from figures import table  # noqa: E402
from logcore import _native  # noqa: E402
from tests.coordinator.ensemble.simulated_loop import SimulatedLoop  # noqa: E402
from tests.simulation.coordinator import Coordinator, Session  # noqa: E402
from tests.simulation.network import Network, Process  # noqa: E402

SIZES = ((10, 1_000), (10, 10_000), (100, 10_000), (100, 100_000), (1_000, 10_000), (1_000, 100_000))
QUICK = ((10, 1_000), (100, 1_000))
PARTITIONS_OF_A_TOPIC, REPLICAS = 10, 3
ENCODED_MAX = 20
RESULTS = ROOT / "bench" / "results" / "simulated-cluster.md"


@dataclass
class Kind:
    """Requests of one API with the same number of partitions."""

    requests: int = 0
    encoded: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def factor(self) -> float:
        """What the encoded ones count for."""
        return self.requests / self.encoded


class Meter:
    """The controller's CPU time without the models', and what it sends."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.begun = time.process_time()
        self.model_seconds = 0.0
        self.kinds: dict[tuple[int, int], Kind] = {}

    def model(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Does not count `work`."""

        def timed(*of: Any) -> Any:
            begun = time.process_time()
            try:
                return work(*of)
            finally:
                self.model_seconds += time.process_time() - begun

        return timed

    def sent(self, key: int, version: int, body: Any) -> None:
        partitions = sum(len(topic["partition_states"]) for topic in body["topic_states"])
        kind = self.kinds.setdefault((key, partitions), Kind())
        kind.requests += 1
        if kind.encoded < ENCODED_MAX:
            begun = time.process_time()
            encoded = _native.encode_request(key, version, body)
            kind.seconds += time.process_time() - begun
            kind.encoded += 1
            kind.bytes += len(encoded)

    def deciding(self) -> float:
        """Seconds without encoding."""
        encoding = sum(kind.seconds for kind in self.kinds.values())
        return time.process_time() - self.begun - self.model_seconds - encoding

    def encoding(self) -> float:
        return sum(kind.seconds * kind.factor for kind in self.kinds.values())

    def requests(self, api_key: int) -> int:
        return sum(kind.requests for (key, _), kind in self.kinds.items() if key == api_key)

    def megabytes(self, api_key: int) -> float:
        return sum(kind.bytes * kind.factor for (key, _), kind in self.kinds.items() if key == api_key) / 1e6


class Broker:
    """A transport to a broker that answers at once that everything is well."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def request(self, api_key: int, version: int, body: Any) -> Any:
        self._meter.sent(api_key, version, body)
        return self._meter.model(self._answer)(api_key, body)

    @staticmethod
    def _answer(api_key: int, body: Any) -> Any:
        if api_key == LEADER_AND_ISR:
            return {
                "error_code": 0,
                "topics": [
                    {
                        "topic_id": topic["topic_id"],
                        "partition_errors": [
                            {"partition_index": item["partition_index"], "error_code": 0}
                            for item in topic["partition_states"]
                        ],
                    }
                    for topic in body["topic_states"]
                ],
            }
        return {"error_code": 0, "partition_errors": []}

    async def connect(self) -> None:
        return

    async def lost(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        return


class Wire:
    """The way to the coordinator, without delay."""

    def __init__(self, loop: asyncio.AbstractEventLoop, meter: Meter) -> None:
        self._loop = loop
        self._meter = meter

    def to_coordinator(self, _session: Session, arrive: Callable[[], None]) -> None:
        self._loop.call_soon(self._meter.model(arrive))

    def to_client(self, _session: Session, arrive: Callable[[], None]) -> None:
        self._loop.call_soon(arrive)


class Cluster:
    """The coordinator's data for a cluster at rest, and its controller on broker 0."""

    def __init__(self, brokers: int, partitions: int) -> None:
        self.meter = Meter()
        self.loop = SimulatedLoop()
        self.coordinator = Coordinator(lambda *_: None)
        wire: Any = Wire(self.loop, self.meter)
        process = Process(Network(self.loop, None), 0)
        self.session = Session(self.coordinator, wire, process)
        self.coordinator.notify = lambda number, watch: (
            wire.to_client(self.session, watch) if number == self.session.session_id else None
        )
        self.sessions = {}
        self._znodes(brokers, partitions)
        zk: Any = self.session
        self.controller = Controller(
            zk,
            lambda _: Broker(self.meter),
            BrokerId(0),
            "A",
            TopicDefaults(1, REPLICAS, lambda _: None),
            lambda: 1 << 30,
        )

    def _znodes(self, brokers: int, partitions: int) -> None:
        paths = (*znodes.PERSISTENT_PATHS, znodes.FEATURE)
        for path in paths:
            parts = path.strip("/").split("/")
            for depth in range(len(parts)):
                parent = "/" + "/".join(parts[: depth + 1])
                if parent not in self.coordinator.nodes:
                    self.coordinator.transaction(0, [Create(parent, b"")])
        for broker in range(brokers):
            self.register(BrokerId(broker))
        of = range(PARTITIONS_OF_A_TOPIC)
        for topic in range(partitions // PARTITIONS_OF_A_TOPIC):
            name, first = f"topic-{topic:06d}", topic * PARTITIONS_OF_A_TOPIC
            assignment = {
                number: Replicas(
                    # Leaders are spread over the brokers, and so are the followers of one leader.
                    tuple(
                        BrokerId((first + number + follower * (1 + (first + number) // brokers)) % brokers)
                        if follower
                        else BrokerId((first + number) % brokers)
                        for follower in range(REPLICAS)
                    )
                )
                for number in of
            }
            for number, item in assignment.items():
                if len(set(item.replicas)) < REPLICAS:
                    one = item.replicas[0]
                    assignment[number] = Replicas(
                        tuple(BrokerId((one + n) % brokers) for n in range(REPLICAS))
                    )
            creates = [
                Create(znodes.topic_path(name), znodes.encode_topic(new_topic_id(), assignment)),
                Create(znodes.topic_config_path(name), znodes.encode_config({})),
                Create(znodes.partitions_path(name), b""),
            ]
            for number, item in assignment.items():
                state = PartitionState(item.replicas[0], LeaderEpoch(0), item.replicas, ControllerEpoch(0))
                creates.append(Create(znodes.partition_path(name, number), b""))
                creates.append(Create(znodes.state_path(name, number), znodes.encode_state(state)))
            self.coordinator.transaction(0, creates)

    def register(self, broker: BrokerId) -> None:
        info = BrokerInfo(broker, (Endpoint("A", f"broker-{broker:04d}.example.org", 9092),))
        session = self.sessions[broker] = self.coordinator.open()
        create = Create(znodes.broker_path(broker), znodes.encode_broker(info, 0), ephemeral=True)
        self.coordinator.transaction(session, [create])

    async def idle(self) -> None:
        """Waits until the controller has nothing to do and every broker has answered."""
        while True:
            await self.controller.queue.command(self.controller.delivered)
            channels = self.controller._channels
            for broker in list(self.controller.state.registered):
                await channels.delivered(broker)
            if not len(self.controller.queue) and not self.controller._answers:
                return

    async def elect(self) -> None:
        self.session.made()
        await self.controller.start()
        await self.idle()

    async def die(self, broker: BrokerId) -> None:
        self.meter.model(self.coordinator.end)(self.sessions.pop(broker))
        await self._noticed(lambda: broker not in self.controller.state.registered)

    async def come_back(self, broker: BrokerId) -> None:
        self.meter.model(self.register)(broker)
        await self._noticed(lambda: broker in self.controller.state.registered)

    async def _noticed(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0.001)
        await self.idle()


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def measure(brokers: int, partitions: int) -> list[list[str]]:
    cluster = Cluster(brokers, partitions)
    meter, before = cluster.meter, resident_mb()
    rows = []

    def row(what: str) -> None:
        deciding = meter.deciding()
        cells = [
            f"{brokers:,}",
            f"{partitions:,}",
            what,
            f"{deciding:.2f}",
            f"{meter.encoding():.2f}",
            f"{meter.requests(LEADER_AND_ISR):,}",
            f"{meter.megabytes(LEADER_AND_ISR):.2f}",
            f"{meter.requests(UPDATE_METADATA):,}",
            f"{meter.megabytes(UPDATE_METADATA):.2f}",
            f"{resident_mb() - before:.0f}",
        ]
        rows.append(cells)
        print(" | ".join(cells), flush=True)

    async def history() -> None:
        meter.clear()
        await cluster.elect()
        row("failover of the controller")
        meter.clear()
        await cluster.die(BrokerId(brokers - 1))
        row("death of a broker")
        meter.clear()
        await cluster.come_back(BrokerId(brokers - 1))
        row("return of a broker")
        await cluster.controller.stop()

    cluster.loop.run_until_complete(history())
    cluster.loop.close()
    return rows


HEAD = (
    "brokers",
    "partitions",
    "event",
    "CPU: deciding (s)",
    "CPU: encoding (s)",
    "LeaderAndIsr",
    "MB",
    "UpdateMetadata",
    "MB",
    "memory (MB)",
)


def measured(brokers: int, partitions: int) -> list[list[str]]:
    """`measure` in a process of its own, for its memory."""
    command = [sys.executable, __file__, "--size", str(brokers), str(partitions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="", flush=True)
    return [line.split(" | ") for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to standard output only")
    parser.add_argument("--size", nargs=2, type=int, help="only so many brokers and partitions")
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    if arguments.size:
        measure(*arguments.size)
        return
    rows = [row for size in (QUICK if arguments.quick else SIZES) for row in measured(*size)]
    if arguments.quick:
        return
    lines = [
        "# The controller as the cluster grows",
        "",
        f"`bench/simulated_cluster.py` on {time.strftime('%Y-%m-%d')} at {revision()}: {machine()}.",
        "",
        "- The controller is the real one. The coordinator and the brokers are models.",
        "  Their time is not counted, nor that of kazoo and the sockets.",
        "- CPU is the process's own time, so other programs on the machine do not count.",
        "  Each event is measured once.",
        "- *Deciding* is everything except the encoding of requests. Of requests with equally many",
        f"  partitions {ENCODED_MAX} are encoded. The others count with the average of these.",
        f"- Topics have {PARTITIONS_OF_A_TOPIC} partitions with {REPLICAS} replicas.",
        "  Memory is the growth of the process since before the election.",
        "",
        *table(list(HEAD), rows),
    ]
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
