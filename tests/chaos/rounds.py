"""A round: one topic under load, some faults one after the other, then the check of the whole history."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence

import confluent_kafka.admin

from tests.compat.conftest import ROOT

from .checker import longest_gap, problems
from .cluster import BROKERS, LAG_SECONDS, SESSION_SECONDS, WAIT_SECONDS, Cluster
from .faults import ALL, FAULTS, Scene, Strike, Struck
from .load import PARTITIONS, Load

WRONG = ROOT / "build" / "chaos"
EQUAL_SECONDS = 30.0
SHORT_SECONDS, LONG_SECONDS = (0.1, 1.0), (SESSION_SECONDS + 0.5, SESSION_SECONDS + LAG_SECONDS)
"""How long a fault lasts after writes went on. A long one outlasts a session, and followers leave the ISR."""
GOES_ON_SECONDS = 30.0
"""The limit, after a fault has healed, until every partition takes writes again."""


def play(cluster: Cluster, seed: int, faults: Sequence[Sequence[Strike]]) -> None:
    """Plays one round. Each item of ``faults`` is what strikes together.

    Raises AssertionError with the seed and the path of the history if a promise is broken.
    """
    topic = f"chaos-{seed}-{time.time_ns()}"
    _create(cluster, topic)
    load = Load(cluster.bootstrap, topic, seed)
    begins = time.monotonic()
    load.start()
    found: list[str] = []
    try:
        _goes_on(load, begins, ALL, WAIT_SECONDS)
        for number, strikes in enumerate(faults):
            found += _strike(
                cluster, load, _scene(cluster, topic, random.Random(f"{seed} {number}")), strikes
            )
        load.stop()
        cluster.until("the replicas are equal", lambda: _take_replicas(cluster, load, topic), EQUAL_SECONDS)
    except BaseException as error:
        reason = "" if error.__cause__ is None else f": {error.__cause__!r}"
        found.append(f"{type(error).__name__}: {error}{reason}")
        load.abandon()
        if not isinstance(error, Exception):
            raise
        found += problems(load.history)[:20] if load.history.final else []
    else:
        found += problems(load.history)
    if found or "LOGCORE_SEED" in os.environ:
        path = WRONG / f"{seed}.jsonl"
        load.history.write(path)
        outputs = path.with_suffix(".output")
        outputs.write_text(cluster.outputs())
    if found:
        raise AssertionError(
            f"LOGCORE_SEED={seed}: the history is in {path}, the brokers' output in {outputs}\n"
            + "\n".join([*(text for _, text in load.history.notes if "struck" in text), *found[:20]])
        )


def _create(cluster: Cluster, topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = confluent_kafka.admin.NewTopic(topic, PARTITIONS, BROKERS)
    admin.create_topics([new], operation_timeout=WAIT_SECONDS)[topic].result(WAIT_SECONDS)
    cluster.until("the new topic is in sync", lambda: cluster.is_whole(topic))


def _scene(cluster: Cluster, topic: str, chance: random.Random) -> Scene:
    return Scene(cluster, topic, chance, tuple(cluster.states(topic)), cluster.controller())


def _goes_on(load: Load, since: float, partitions: frozenset[int], seconds: float) -> bool:
    """Waits until each partition has an acknowledged record that was sent after ``since``."""
    went_on = load.wait(lambda: all(load.newest(each) > since for each in partitions), seconds)
    load.check()
    return went_on


def _strike(cluster: Cluster, load: Load, scene: Scene, strikes: Sequence[Strike]) -> list[str]:
    name = " and ".join(strike.__name__ for strike in strikes)
    allowed = max(FAULTS[strike] for strike in strikes)
    begins = time.monotonic()
    struck: list[Struck] = []
    try:
        struck = [strike(scene) for strike in strikes]
        load.note(f"struck: {name}: {'; '.join(each.about for each in struck)}")
        # Two faults together may leave no majority.
        stops = struck[0].stops if len(struck) == 1 else ALL
        _goes_on(load, time.monotonic(), ALL - stops, allowed)
        time.sleep(scene.chance.uniform(*scene.chance.choice((SHORT_SECONDS, LONG_SECONDS))))
        ends = time.monotonic()
    finally:
        for each in reversed(struck):
            each.heal()
        cluster.heal()
    load.note(f"healed: {name}")
    cluster.check_processes()
    gaps = {each: longest_gap(load.history, each, begins, ends) for each in sorted(ALL - stops)}
    found = [
        f"{name}: partition {each} took no write for {gap:.1f} s, allowed are {allowed:.1f} s"
        for each, gap in gaps.items()
        if gap > allowed
    ]
    healed = time.monotonic()
    cluster.until(f"every replica is in sync after {name}", lambda: cluster.is_whole(scene.topic))
    if not _goes_on(load, time.monotonic(), ALL, GOES_ON_SECONDS):
        found.append(f"{name}: writes do not go on after it has healed")
    print(
        f"{name}: {'; '.join(each.about for each in struck)}: lasted {ends - begins:.1f} s, longest gap "
        f"{max(gaps.values(), default=0):.2f} s, whole again after {time.monotonic() - healed:.1f} s",
        flush=True,
    )
    return found


def _take_replicas(cluster: Cluster, load: Load, topic: str) -> bool:
    """Reads the replicas' logs into the history. Returns whether they are equal."""
    load.history.replicas = {
        partition: {broker.id: broker.digest(topic, partition) for broker in cluster.brokers}
        for partition in range(PARTITIONS)
    }
    return all(len(set(logs.values())) == 1 for logs in load.history.replicas.values())
