"""Rounds of seeded runs on one ensemble: several seeds at a time, each on its own nodes, with one fault in
the middle.

The clients share an event loop; another thread applies the fault. At the end of a round all members serve,
every session of the runs has ended, and the remaining nodes were read on each server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.compat.conftest import ROOT
from tests.coordinator.histories.checks import problems
from tests.coordinator.histories.history import History, Transaction
from tests.coordinator.histories.order import witnessed

from .faults import FAULTS, PARTITIONS, SUSPENSIONS
from .members import Ensemble
from .our_log import NO_XID
from .recorder import Client, Recorder
from .script import Script, Witness, audit, prepare

CLIENTS = 4
STEPS = 50
TIMEOUTS_MS = (1000, 2000, 4000)
"""Session timeouts, given to the clients in turn."""
ROUND_SECONDS = 100.0
WRONG = ROOT / "build" / "histories"
SETTINGS = {"tickTime": "200", "initLimit": "20", "syncLimit": "8", "snapCount": "100000000"}
"""For ensembles under faults: members drop each other after 1.6 s and keep their whole log for the check."""
SNAPSHOTS = {**SETTINGS, "snapCount": "60"}
"""For members of :data:`.members.SAVING`: frequent snapshots, so that a member which was away gets one.

Their logs are not complete, so only the answers to the clients are checked.
"""


@dataclass
class Round:
    """``number`` and ``fault`` are the seed of every random choice."""

    number: int
    fault: str
    seeds: Sequence[int]
    histories: dict[int, History] = field(default_factory=dict)

    @property
    def about(self) -> str:
        return f"LOGCORE_SEED={self.number} ({self.fault}, seeds {self.seeds[0]} to {self.seeds[-1]})"


def play(ensemble: Ensemble, number: int, fault: str, count: int) -> Round:
    """Plays one round of ``count`` seeds. :func:`check` checks its histories."""
    played = Round(number, fault, range(number * 1000, number * 1000 + count))
    asyncio.run(asyncio.wait_for(_play(ensemble, played), ROUND_SECONDS))
    return played


async def _play(ensemble: Ensemble, played: Round) -> None:
    servers = ensemble.servers
    chance = random.Random(f"{played.number} {played.fault}")
    # The time makes the node unique, because a seed may run again on this ensemble.
    recorders = {seed: Recorder(f"/{played.fault}-{seed}-{time.time_ns()}") for seed in played.seeds}
    await asyncio.gather(*[prepare(each, servers, max(TIMEOUTS_MS)) for each in recorders.values()])
    witnesses = [
        Witness(recorder, number, servers, max(TIMEOUTS_MS))
        for recorder in recorders.values()
        for number in range(len(servers))
    ]
    try:
        await asyncio.gather(*[each.begin() for each in witnesses])
        await _strike(ensemble, played, recorders, chance)
    finally:
        await asyncio.gather(*[each.end() for each in witnesses])
    await asyncio.gather(*[audit(each, servers, max(TIMEOUTS_MS)) for each in recorders.values()])
    played.histories.update({seed: recorder.history for seed, recorder in recorders.items()})


async def _strike(
    ensemble: Ensemble, played: Round, recorders: dict[int, Recorder], chance: random.Random
) -> None:
    """Runs the scripts, with the fault in their middle."""
    servers = ensemble.servers
    scripts = [
        Script(seed, Client(recorder, number, servers, TIMEOUTS_MS[number % len(TIMEOUTS_MS)]), STEPS).run()
        for seed, recorder in recorders.items()
        for number in range(CLIENTS)
    ]
    running = asyncio.gather(*scripts)
    begins = chance.uniform(0.1, 0.4) * STEPS * CLIENTS * len(recorders)
    lasts = chance.uniform(0.1, 2.5)
    enough = asyncio.Event()
    running.add_done_callback(lambda _: enough.set())

    def count_operations() -> None:
        if sum(len(each.history.operations) for each in recorders.values()) >= begins:
            enough.set()

    for recorder in recorders.values():
        recorder.on_operation = count_operations
    try:
        await enough.wait()
        heal = await asyncio.to_thread(FAULTS[played.fault], ensemble, chance)
        try:
            await asyncio.wait([running], timeout=lasts)
        finally:
            await asyncio.to_thread(heal)
        await running
    except BaseException:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise


def check(ensemble: Ensemble, rounds: Sequence[Round]) -> None:
    """Checks every history of the rounds. A wrong one is written to a file below :data:`WRONG`."""
    read = ensemble.maker.transactions
    transactions = (
        None if read is None else read([member.data for member in ensemble.members], ensemble.leader().number)
    )
    for played in rounds:
        if transactions is None:
            watched = sum(witnessed(history) is not None for history in played.histories.values())
            print(f"{played.about}: a witness watched {watched} of {len(played.histories)} to the end")
        cut = played.fault in PARTITIONS or played.fault in SUSPENSIONS
        for seed, history in played.histories.items():
            if transactions is not None:
                first = min(each.zxid for each in history.operations if each.is_known and each.is_write)
                history.transactions = _numbered(
                    [each for each in transactions if each.zxid >= first], history
                )
            found = problems(
                history,
                sync_is_linearizable=ensemble.maker.sync_is_linearizable,
                strict_locks=ensemble.maker.locks_are_strict or not cut,
                counts_outstanding=ensemble.maker.counts_outstanding,
            )
            if found:
                WRONG.mkdir(parents=True, exist_ok=True)
                path = WRONG / f"{ensemble.maker.name}-{played.fault}-{seed}.txt"
                path.write_text(_text(history))
                raise AssertionError(
                    f"{played.about}: seed {seed} of {history.root}, the whole history is in {path}:\n"
                    + "\n".join(found[:8])
                )


def _numbered(transactions: list[Transaction], history: History) -> list[Transaction]:
    """Adds the missing xids: that of the session's write which was answered with the transaction's zxid."""
    answered = {(each.session, each.zxid): each.xid for each in history.operations if each.is_write}
    return [
        each._replace(xid=answered.get((each.session, each.zxid), NO_XID)) if each.xid == NO_XID else each
        for each in transactions
    ]


def _text(history: History) -> str:
    lines = [(each.invoked, f"{each.invoked} to {each.completed}: {each}") for each in history.operations]
    lines += [(each.at, f"{each.at}: {each}") for each in history.notifications]
    lines += [(each.at, f"{each.at}: {each}") for each in history.contacts]
    lines += [(each.acquired, f"{each.acquired} to {each.until}: {each}") for each in history.holds]
    return "\n".join(line for _at, line in sorted(lines)) + "\n"
