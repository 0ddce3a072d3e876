"""Plays scripts against the group machine: commands, a line of dashes, and what the machine did.

A block is some commands, `----`, and the expected output up to an empty line. `GOLDEN=rewrite` in the
environment writes the real output into the file, to be read as a diff. Commands:

    at MS                              the time; everything due until then happens
    stall MS                           the coordinator stood still for so long
    join WHO [group=g] [member=] [instance=] [protocols=range:a,roundrobin:b] [session=10000]
         [rebalance=60000] [version=4] [type=consumer]
    sync WHO generation=N member=M [instance=] [to=M:assignment,...]
    heartbeat generation=N member=M [instance=]
    leave member=M[,M...] [instance=]
    commit WHO [generation=-1] [member=] [instance=] topic=offset,... [retention=MS]
    hold / release [error=N]           writes wait, and are reported, until released
    describe / groups / offsets / expire / delete / topics-deleted T
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster.errors import NONE, for_code
from cluster.groups.committed import CommittedOffset
from cluster.groups.messages import (
    Action,
    Commit,
    CommitResult,
    GroupLimits,
    Join,
    JoinResult,
    Leaving,
    Sync,
    SyncResult,
    Write,
)
from cluster.groups.partition import PartitionGroups
from cluster.model import TopicPartition
from cluster.state_topics import Respond
from tests.groups.logs import expire_all


def error_name(code: int) -> str:
    return "ok" if code == NONE else for_code(code).name


class Player:
    """One machine and its helpers for a script."""

    def __init__(self, limits: GroupLimits) -> None:
        numbers = itertools.count(1)
        self.machine = PartitionGroups(limits, lambda: str(next(numbers)))
        self.machine.offsets.read_subscription = lambda data: frozenset(data.decode().split("+"))
        self.now = 0
        self.output: list[str] = []
        self._names: dict[int, str] = {}
        self._tokens = itertools.count(1)
        self._held: list[Write] | None = None

    def play(self, line: str) -> None:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        getattr(self, f"do_{verb.replace('-', '_')}")(names, options)

    def token(self, name: str) -> int:
        token = next(self._tokens)
        self._names[token] = name
        return token

    def show(self, actions: Sequence[Action]) -> None:
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            if isinstance(action, Respond):
                self.output.append(f"{self._names.pop(action.token)}: {self._result(action)}")
                continue
            self.output.append(self._write(action))
            if self._held is not None:
                self._held.append(action)
            else:
                queue = self.machine.stored(action.id, NONE, self.now) + queue

    @staticmethod
    def _result(action: Respond) -> str:
        result = action.result
        if isinstance(result, JoinResult):
            if result.error:
                return f"join {error_name(result.error)} member={result.member}"
            members = ",".join(f"{member.id}:{member.metadata.decode()}" for member in result.members)
            skip = " skip" if result.skip_assignment else ""
            return (
                f"join ok member={result.member} generation={result.generation} protocol={result.protocol} "
                f"leader={result.leader} members=[{members}]{skip}"
            )
        if isinstance(result, SyncResult):
            return f"sync {error_name(result.error)} assignment={result.assignment.decode()}"
        assert isinstance(result, CommitResult)
        each = "".join(f" {item}:{error_name(code)}" for item, code in result.errors.items())
        return f"commit {error_name(result.error)}{each}"

    @staticmethod
    def _write(write: Write) -> str:
        parts = [f"{item}={'-' if kept is None else kept.offset}" for item, kept in write.offsets.items()]
        if write.stored is not None:
            members = ",".join(f"{member.id}:{member.assignment.decode()}" for member in write.stored.members)
            parts.append(f"generation={write.stored.generation} members=[{members}]")
        if write.remove_group:
            parts.append("tombstone")
        return f"write {write.group} {' '.join(parts)}"

    def do_at(self, names: list[str], options: dict[str, str]) -> None:
        target = int(names[0])
        while (deadline := self.machine.next_deadline()) is not None and deadline <= target:
            self.now = max(self.now, deadline)
            self.show(self.machine.advance(self.now))
        self.now = target

    def do_stall(self, names: list[str], options: dict[str, str]) -> None:
        stalled = int(names[0])
        self.now += stalled
        self.machine.postpone(stalled)
        self.show(self.machine.advance(self.now))

    def do_join(self, names: list[str], options: dict[str, str]) -> None:
        version = int(options.get("version", "4"))
        pairs = [word.split(":") for word in options.get("protocols", "range:t").split(",") if word]
        self.show(
            self.machine.join(
                self.token(names[0]),
                Join(
                    group=options.get("group", "g"),
                    member=options.get("member", ""),
                    instance=options.get("instance"),
                    client_id=names[0],
                    client_host="/10.0.0.1",
                    rebalance_timeout_ms=int(options.get("rebalance", "60000")),
                    session_timeout_ms=int(options.get("session", "10000")),
                    protocol_type=options.get("type", "consumer"),
                    protocols=tuple((name, data.encode()) for name, data in pairs),
                    known_id_required=version >= 4,
                    skips_assignment=version >= 9,
                ),
                self.now,
            )
        )

    def do_sync(self, names: list[str], options: dict[str, str]) -> None:
        pairs = [word.split(":") for word in options.get("to", "").split(",") if word]
        request = Sync(
            group="g",
            generation=int(options["generation"]),
            member=options["member"],
            instance=options.get("instance"),
            assignments={member: given.encode() for member, given in pairs},
        )
        self.show(self.machine.sync(self.token(names[0]), request, self.now))

    def do_heartbeat(self, names: list[str], options: dict[str, str]) -> None:
        code = self.machine.heartbeat(
            "g", int(options["generation"]), options["member"], options.get("instance"), self.now
        )
        self.output.append(f"heartbeat {error_name(code)}")

    def do_leave(self, names: list[str], options: dict[str, str]) -> None:
        leaving = [Leaving(member, options.get("instance")) for member in options["member"].split(",")]
        result, actions = self.machine.leave("g", leaving, self.now)
        self.output.append(f"leave {' '.join(error_name(code) for code in (result.error, *result.members))}")
        self.show(actions)

    def do_commit(self, names: list[str], options: dict[str, str]) -> None:
        known = ("generation", "member", "instance", "retention", "group")
        retention = options.get("retention")
        expire = None if retention is None else self.now + int(retention)
        offsets = {
            TopicPartition(topic, 0): CommittedOffset(int(offset), commit_ms=self.now, expire_ms=expire)
            for topic, offset in options.items()
            if topic not in known
        }
        request = Commit(
            options.get("group", "g"),
            int(options.get("generation", "-1")),
            options.get("member", ""),
            options.get("instance"),
            offsets,
        )
        self.show(self.machine.commit(self.token(names[0]), request, self.now))

    def do_hold(self, names: list[str], options: dict[str, str]) -> None:
        self._held = []

    def do_release(self, names: list[str], options: dict[str, str]) -> None:
        held, self._held = self._held or [], None
        for write in held:
            self.show(self.machine.stored(write.id, int(options.get("error", "0")), self.now))

    def do_describe(self, names: list[str], options: dict[str, str]) -> None:
        view = self.machine.describe(options.get("group", "g"))
        members = ",".join(f"{member.id}:{member.assignment.decode()}" for member in view.members)
        self.output.append(f"{view.state} type={view.protocol_type} protocol={view.protocol} [{members}]")

    def do_groups(self, names: list[str], options: dict[str, str]) -> None:
        for group in self.machine.list_groups(names):
            self.output.append(f"{group.group} {group.protocol_type or '-'} {group.state}")

    def do_offsets(self, names: list[str], options: dict[str, str]) -> None:
        for item, kept in self.machine.committed(options.get("group", "g")).items():
            self.output.append(f"{item}={kept.offset}")

    def do_expire(self, names: list[str], options: dict[str, str]) -> None:
        self.show(expire_all(self.machine, self.now))

    def do_delete(self, names: list[str], options: dict[str, str]) -> None:
        code, actions = self.machine.delete("g")
        self.output.append(f"delete {error_name(code)}")
        self.show(actions)

    def do_topics_deleted(self, names: list[str], options: dict[str, str]) -> None:
        self.show(self.machine.topics_deleted(names))


def play(path: Path) -> str:
    """Plays a script and returns it with the real output in place of the expected one."""
    limits = GroupLimits(initial_delay_ms=0)
    text = path.read_text()
    for line in text.splitlines():
        if line.startswith("# limit "):
            name, value = line.removeprefix("# limit ").split("=")
            limits = replace(limits, **{name: int(value)})
    player = Player(limits)
    blocks = []
    for block in text.rstrip("\n").split("\n\n"):
        commands, dashes, _ = block.partition("\n----")
        if not dashes:
            blocks.append(block)
            continue
        player.output.clear()
        for line in commands.splitlines():
            if not line.startswith("#"):
                player.play(line)
        blocks.append("\n".join([commands, "----", *player.output]))
    return "\n\n".join(blocks) + "\n"
