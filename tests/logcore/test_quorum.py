"""Members of one ensemble in this process, through the extension.

If one of these failed, ensembles of coordinators would not work.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logcore import CorruptLogError, LockedError
from logcore.quorum import (
    FIRST_STATE,
    MemberFiles,
    Quorum,
    QuorumError,
    QuorumFullError,
    QuorumServer,
    QuorumStoppedError,
)
from tests.ports import free_ports

TIMEOUT = 60.0
"""Seconds to wait for an event before the test fails."""

RETRY = 1.0
"""Seconds after which a request is sent again. Without a leader no member answers it."""

pytestmark = pytest.mark.timeout(240)


def servers_of(voters: int, observers: int = 0) -> list[QuorumServer]:
    ports = iter(free_ports(2 * (voters + observers)))
    return [
        QuorumServer(
            number, "127.0.0.1", next(ports), next(ports), f"127.0.0.1:{2180 + number}", number > voters
        )
        for number in range(1, voters + observers + 1)
    ]


class Member:
    """A member and its application, whose state is the list of all commands."""

    def __init__(self, directory: Path, servers: list[QuorumServer], server_id: int, **settings: Any) -> None:
        self.server_id = server_id
        self.commands: list[bytes] = []
        self.mine: list[int] = []
        self.last = -1
        self.events: list[tuple[Any, ...]] = []
        self.quorum = Quorum(
            data_dir=str(directory / str(server_id)),
            server_id=server_id,
            servers=servers,
            **{"tick_ms": 200, "init_limit": 50, "sync_limit": 50, "entries_kept": 5, **settings},
        )

    def start(self) -> Member:
        self.quorum.start()
        return self

    def take(self) -> None:
        for event in self.quorum.take(100_000):
            match event:
                case ("entries", entries):
                    for index, _, _, commands, _ in entries:
                        assert index == self.last + 1
                        self.last = index
                        for mine, ticket, command in commands:
                            self.commands.append(command)
                            if mine:
                                self.mine.append(ticket)
                    self.quorum.applied(self.last)
                case ("install", source, _):
                    content = b"".join(iter(lambda source=source: source.read(1000), b""))
                    self.commands = content.split(b"\n") if content else []
                    self.last = source.index
                    assert source.term > 0 or source.index == FIRST_STATE
                    self.quorum.applied(self.last)
            self.events.append(event)

    def named(self, kind: str) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] == kind]


class Ensemble:
    """Members whose applications share one thread."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while True:
            for member in self.members:
                member.take()
            if condition():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                states = {
                    each.server_id: (each.quorum.status(), each.named("warning")) for each in self.members
                }
                pytest.fail(f"timed out waiting for {what}: {states}")
            select.select([member.quorum.wake_fd for member in self.members], [], [], min(left, RETRY))

    def all_have(self, commands: set[bytes]) -> None:
        self.until(
            f"{len(commands)} commands at all members",
            lambda: all(len(member.commands) >= len(commands) for member in self.members),
        )
        for member in self.members:
            assert len(member.commands) == len(commands)
            assert set(member.commands) == commands

    def leader(self) -> Member:
        def leads() -> list[Member]:
            return [each for each in self.members if each.quorum.status()["role"] == "leader"]

        self.until("a leader", lambda: bool(leads()))
        return leads()[0]

    def elected(self) -> tuple[Member, dict[str, Any]]:
        """The leader once it knows that it leads, and its status."""
        found: list[tuple[Member, dict[str, Any]]] = []

        def knows() -> bool:
            states = [(each, each.quorum.status()) for each in self.members]
            found[:] = [
                (each, status)
                for each, status in states
                if status["role"] == "leader" and each.named("leading")[-1:] == [("leading", status["term"])]
            ]
            return bool(found)

        self.until("a leader that knows it", knows)
        return found[0]

    def renew(self, member: Member, sessions: bytes) -> None:
        rounds = [member.quorum.renew_sessions(sessions)]
        since = time.monotonic()

        def is_acknowledged() -> bool:
            if time.monotonic() - since > RETRY * len(rounds):
                rounds.append(member.quorum.renew_sessions(sessions))
            return any(("renewal_ack", each) in member.events for each in rounds)

        self.until("a renewal's ack", is_acknowledged)

    def barrier(self, member: Member) -> bool:
        number = member.quorum.read_barrier()
        answer: list[bool] = []

        def answered() -> bool:
            answer[:] = [ok for _, each, ok in member.named("barrier") if each == number]
            return bool(answer)

        self.until("a barrier", answered)
        assert len(answer) == 1
        return answer[0]

    def stop(self) -> None:
        for member in self.members:
            member.quorum.stop()


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    made = Ensemble()
    yield made
    made.stop()


def test_three_members_agree(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, members would apply different commands, or read stale data."""
    servers = servers_of(3)
    ensemble.members = [Member(tmp_path, servers, number) for number in (1, 2, 3)]
    for member in ensemble.members:
        member.start()
    expected = set()
    for member in ensemble.members:
        commands = [f"{member.server_id}/{number}".encode() for number in range(100)]
        first = member.quorum.propose(commands)
        expected.update(commands)
        ensemble.until("its own", lambda member=member: len(member.mine) == 100)
        assert member.mine == list(range(first, first + 100))
    ensemble.all_have(expected)
    assert all(member.commands == ensemble.members[0].commands for member in ensemble.members), (
        "one order for all"
    )

    members = [event for member in ensemble.members for event in member.named("entries")]
    lists = [entry[4] for _, entries in members for entry in entries if entry[4] is not None]
    assert lists
    assert all(each == servers for each in lists)
    times = [entry[2] for _, entries in members for entry in entries if entry[3]]
    assert all(abs(each / 1000 - time.time()) < TIMEOUT for each in times)

    leader, status = ensemble.elected()
    assert (status["server_id"], status["leader"], status["members"]) == (
        leader.server_id,
        leader.server_id,
        servers,
    )
    assert status["quorum_ack_ms"] < TIMEOUT * 1000
    for member in ensemble.members:
        assert ensemble.barrier(member)
        sessions = member.server_id.to_bytes(8, "big")
        ensemble.renew(member, sessions)
        renewed = ("renewed", member.server_id, sessions)
        receivers = [each for each in ensemble.members if renewed in each.events]
        assert member not in receivers
        if ensemble.elected()[1]["term"] == status["term"]:
            assert receivers == ([] if member is leader else [leader])
    leads = [event for member in ensemble.members for event in member.named("leading")]
    assert len(leads) == len(set(leads)), "each term has one leader, which is reported once"
    for member in ensemble.members:
        assert not member.named("warning")


def test_a_member_survives_a_failed_snapshot(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, a disk without space for a snapshot would end the member that writes one."""
    alone = Member(tmp_path, servers_of(1), 1).start()
    ensemble.members = [alone]
    alone.quorum.propose([b"before"])
    ensemble.all_have({b"before"})
    (tmp_path / "1" / "snapshots").rename(tmp_path / "away")
    index = alone.last
    sink = alone.quorum.snapshot_begin(index)
    ensemble.until("why there is none", lambda: bool(alone.named("snapshot")))
    [(_kind, reported, why)] = alone.named("snapshot")
    assert reported == index
    assert "No such file" in why
    for _ in range(100):
        assert sink.write(bytes(1 << 20)), "there is nothing to wait for"
    sink.finish()
    with pytest.raises(QuorumStoppedError, match="finished or aborted"):
        sink.write(b"late")
    (tmp_path / "away").rename(tmp_path / "1" / "snapshots")
    alone.quorum.propose([b"behind"])
    ensemble.all_have({b"before", b"behind"})
    again = alone.quorum.snapshot_begin(alone.last)
    again.write(b"before\nbehind")
    again.finish()
    ensemble.until("the next", lambda: ("snapshot", alone.last, None) in alone.events)
    assert len(alone.named("snapshot")) == 2


def test_the_others_go_on_without_their_leader(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, an ensemble would not survive its leader, or no member could catch up by snapshot."""
    servers = servers_of(3)
    ensemble.members = [Member(tmp_path, servers, number).start() for number in (1, 2, 3)]
    ensemble.members[0].quorum.propose([b"before"])
    ensemble.all_have({b"before"})
    leader = ensemble.leader()
    ensemble.members.remove(leader)
    leader.quorum.stop()
    for member in ensemble.members:
        member.quorum.propose([f"after {member.server_id}".encode()])
    expected = {b"before", *(f"after {member.server_id}".encode() for member in ensemble.members)}
    ensemble.all_have(expected)
    for member in ensemble.members:
        assert ensemble.barrier(member)
        index = member.last
        sink = member.quorum.snapshot_begin(index)
        for at, command in enumerate(member.commands):
            assert sink.write((b"\n" if at else b"") + command)
        sink.finish()
        ensemble.until(
            "its snapshot", lambda member=member, index=index: ("snapshot", index, None) in member.events
        )

    # The stopped member catches up. A member without its directory gets everything.
    ensemble.members.append(Member(tmp_path, servers, leader.server_id).start())
    ensemble.members[-1].quorum.propose([b"back"])
    expected.add(b"back")
    ensemble.all_have(expected)
    wiped = ensemble.members.pop(0)
    wiped.quorum.stop()
    shutil.rmtree(tmp_path / str(wiped.server_id))
    ensemble.members.append(Member(tmp_path, servers, wiped.server_id).start())
    ensemble.members[-1].quorum.propose([b"as another"])
    expected.add(b"as another")
    ensemble.all_have(expected)
    joined = ensemble.members[-1]
    assert joined.quorum.status()["member_id"] & (2**48 - 1) != 0

    # All start again.
    ensemble.stop()
    ensemble.members = [Member(tmp_path, servers, number).start() for number in (1, 2, 3)]
    ensemble.members[2].quorum.propose([b"again"])
    expected.add(b"again")
    ensemble.all_have(expected)


def test_an_observer_follows(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, an observer could not propose, or would not be reported as one."""
    servers = servers_of(1, 1)
    ensemble.members = [Member(tmp_path, servers, number).start() for number in (1, 2)]
    observer = ensemble.members[1]
    observer.quorum.propose([b"through it"])
    ensemble.all_have({b"through it"})
    ensemble.until(
        "its role",
        lambda: any(event[1:] == ("observer", event[2], 1, True) for event in observer.named("role")),
    )
    assert ensemble.barrier(observer)


def test_an_ensemble_begins_with_a_state_and_its_files_are_read(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, a server's data would be lost when it becomes an ensemble, or exports lacked some."""
    servers = servers_of(3)
    ensemble.members = [
        Member(tmp_path, servers, number, has_state=number == 2).start() for number in (1, 2, 3)
    ]
    first, bringing, _third = ensemble.members
    assert [member.quorum.awaits_state for member in ensemble.members] == [False, True, False]
    with pytest.raises(ValueError, match="no state is awaited"):
        first.quorum.first_state()
    sink = bringing.quorum.first_state()
    with pytest.raises(ValueError, match="is being written"):
        bringing.quorum.first_state()
    sink.write(b"one\ntwo")
    sink.abort()
    assert bringing.quorum.awaits_state
    while True:
        with contextlib.suppress(ValueError):  # until the aborted one has ended
            sink = bringing.quorum.first_state()
            break
    sink.write(b"three\n")
    sink.write(b"four")
    sink.finish()
    ensemble.until("its snapshot", lambda: ("snapshot", FIRST_STATE, None) in bringing.events)
    ensemble.all_have({b"three", b"four"})
    assert not bringing.quorum.awaits_state
    first.quorum.propose([b"five"])
    ensemble.all_have({b"three", b"four", b"five"})
    assert first.commands[:2] == [b"three", b"four"]
    assert all(member.quorum.status()["members"] == servers for member in ensemble.members)

    with pytest.raises(LockedError):
        MemberFiles(tmp_path / "2")
    ensemble.stop()
    for number in (1, 2, 3):
        files = MemberFiles(tmp_path / str(number))
        source = files.snapshot()
        assert source is not None
        assert (source.index, source.read(100)) == (FIRST_STATE, b"three\nfour")
        commands, last = [], FIRST_STATE
        while entries := files.entries(1):
            for index, _term, _time, each, _members in entries:
                assert index == last + 1
                last = index
                commands += [command for _mine, _ticket, command in each]
        assert commands == [b"five"]
        files.close()
        files.close()
        with pytest.raises(ValueError, match="are closed"):
            files.snapshot()
    with pytest.raises(QuorumError, match="not the directory of a member"):
        MemberFiles(tmp_path)


def test_wrong_settings_and_calls_are_refused(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, a wrong call would be carried out, or be another exception than the documented one."""
    servers = servers_of(1)
    with pytest.raises(QuorumError, match="no line names it"):
        Member(tmp_path, servers, 2)
    with pytest.raises(ValueError, match=r"is not \[host:\]port"):
        Member(tmp_path, [servers[0]._replace(client="nowhere")], 1)
    with pytest.raises(ValueError, match="tick_ms is 0"):
        Member(tmp_path, servers, 1, tick_ms=0)
    with pytest.raises(QuorumError, match="no address with a port"):
        Member(tmp_path, [servers[0]._replace(quorum_port=0)], 1)
    with pytest.raises(OverflowError):
        Member(tmp_path, [servers[0]._replace(quorum_port=65536)], 1)

    alone = Member(tmp_path, servers, 1)
    for call in (
        lambda: alone.quorum.propose([b"early"]),
        alone.quorum.read_barrier,
        lambda: alone.quorum.renew_sessions(b""),
        lambda: alone.quorum.snapshot_begin(0),
    ):
        with pytest.raises(QuorumStoppedError, match="was not started"):
            call()
    with pytest.raises(LockedError):
        Member(tmp_path, servers, 1)
    other = f"""
import logcore.quorum
from tests.ports import free_ports
try:
    logcore.quorum.Quorum(data_dir={str(tmp_path / "1")!r}, server_id=1, servers={[tuple(servers[0])]!r},
                          tick_ms=100, init_limit=10, sync_limit=5)
except logcore.LockedError as error:
    print("locked")
"""
    ran = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, timeout=TIMEOUT)
    assert (ran.stdout, ran.returncode) == ("locked\n", 0), ran.stderr

    ensemble.members = [alone.start()]
    with pytest.raises(QuorumStoppedError, match="started before"):
        alone.quorum.start()
    with pytest.raises(ValueError, match="the limit is"):
        alone.quorum.propose([b"small", bytes((16 << 20) + 1)])
    with pytest.raises(TypeError):
        alone.quorum.propose(["text"])  # type: ignore[list-item]
    alone.quorum.propose([b"one"])
    ensemble.all_have({b"one"})
    with pytest.raises(ValueError, match="cannot be applied"):
        alone.quorum.applied(alone.last + 1)
    with pytest.raises(ValueError, match="the last applied entry is"):
        alone.quorum.snapshot_begin(alone.last + 1)
    sink = alone.quorum.snapshot_begin(alone.last)
    with pytest.raises(ValueError, match="is being written"):
        alone.quorum.snapshot_begin(alone.last)
    sink.abort()
    with pytest.raises(QuorumStoppedError):
        sink.write(b"late")
    sink = alone.quorum.snapshot_begin(alone.last)
    sink.write(b"dropped")
    del sink

    # A forked process has none of the threads.
    child = os.fork()
    if child == 0:
        try:
            alone.quorum.propose([b"in a fork"])
        except QuorumStoppedError:
            alone.quorum.stop()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    alone.quorum.propose([b"two"])
    ensemble.all_have({b"one", b"two"})

    alone.quorum.stop()
    alone.quorum.stop()
    with pytest.raises(QuorumStoppedError, match="was stopped"):
        alone.quorum.propose([b"late"])
    alone.quorum.take(1 << 20)
    assert alone.quorum.take(1 << 20) == []

    ensemble.members = []
    (tmp_path / "1").rename(tmp_path / "2")
    both = servers_of(2)
    with pytest.raises(QuorumError, match="directory of server 1, and this is server 2"):
        Member(tmp_path, both, 2)
    (tmp_path / "2" / "vote").unlink()
    (tmp_path / "2").rename(tmp_path / "1")
    with pytest.raises(CorruptLogError):
        Member(tmp_path, servers, 1)


def test_a_barrier_without_a_majority_is_refused(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, a minority would answer reads, or fill the memory with proposals."""
    ensemble.members = [Member(tmp_path, servers_of(3), 1, sync_limit=2).start()]
    alone = ensemble.members[0].quorum
    assert not ensemble.barrier(ensemble.members[0])
    # The proposals that wait have a limit.
    alone.propose([b""] * 65_000)
    with pytest.raises(QuorumFullError, match="65000 commands"):
        alone.propose([b""] * 1000)
    assert alone.status()["outstanding"] == 65_000
    # A barrier that waits when the member stops is refused too.
    slow = Member(tmp_path, servers_of(3), 2).start()
    number = slow.quorum.read_barrier()
    slow.quorum.stop()
    slow.take()
    assert ("barrier", number, False) in slow.events


def test_dropped_members_end_by_themselves(tmp_path: Path, ensemble: Ensemble) -> None:
    """If this failed, a dropped member would keep its directory locked."""
    servers = servers_of(1)
    for start in range(2):
        ensemble.members = [Member(tmp_path, servers, 1).start()]
        ensemble.members[0].quorum.propose([str(start).encode()])
        ensemble.all_have({str(each).encode() for each in range(start + 1)})
        ensemble.members.clear()
