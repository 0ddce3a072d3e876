"""Applies a simulated ensemble's log once more, to check what its clients received."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.coordinator.ensemble.agreed import Agreed, decode_proposed
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Reader
from cluster.coordinator.protocol.replies import Begun, encode_result
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.members import Member

from .simulated_clients import Answer, SimulatedClient

if TYPE_CHECKING:
    from .simulation import World


class Replay:
    """Applies the log once more and checks the clients' answers."""

    def __init__(self, world: World) -> None:
        self.agreed = Agreed()
        self.done: dict[int, tuple[int, Op, bytes, int, bytes]] = {}
        self.states: dict[str, list[tuple[int, tuple[bytes | None, int, int] | None]]] = {}
        self.expired: list[tuple[int, float]] = []
        self.over: set[int] = set()
        self.effective: list[bytes] = []
        self.reconfigured = 0
        for entry in world.ensemble.log:
            self.agreed.begin(entry.index, entry.term, entry.time_ms)
            for _member, _ticket, data in entry.commands:
                applied = self.agreed.apply(data)
                command, outcome = applied.command, applied.outcome
                if isinstance(outcome.result, Begun):
                    continue
                code, body = encode_result(outcome.result)
                self.done[command.zxid] = (command.session_id, command.op, command.body, code, body)
                if code not in (Code.SESSION_MOVED, Code.SESSION_EXPIRED):
                    self.effective.append(command.body)
                if outcome.closed_session:
                    self.over.add(outcome.closed_session)
                    if decode_proposed(data).term:
                        self.expired.append((outcome.closed_session, entry.at))
                for change in outcome.changes:
                    node = self.agreed.machine.tree.find(change.path)
                    state = None if node is None else (node.state.data, node.state.mzxid, node.state.version)
                    self.states.setdefault(change.path, []).append((command.zxid, state))
            if entry.members is not None:
                changed = self.agreed.apply_members([Member(*each) for each in entry.members])
                if changed is not None:
                    code, body = encode_result(changed.outcome.result)
                    self.done[changed.command.zxid] = (0, Op.RECONFIG, b"", code, body)
                    self.reconfigured += changed.ends_reconfig

    def check(self, client: SimulatedClient, answer: Answer) -> None:
        request = answer.request
        if request.op in (Op.CREATE, Op.SET_DATA, Op.DELETE, Op.CLOSE_SESSION):
            session, op, body, code, result = self.done[answer.zxid]
            assert (session, op, body) == (answer.session, request.op, request.body), (
                f"{client.name} received the answer of another transaction, {answer.zxid:#x}"
            )
            assert (answer.error, answer.body) == (code, result)
        elif request.op is Op.RECONFIG:
            _session, op, _body, code, result = self.done[answer.zxid]
            assert op in (Op.RECONFIG, Op.END_RECONFIG)
            assert (answer.error, answer.body) == (code, result), (
                "a change of the members has the answer of another change"
            )
        elif request.op is Op.GET_DATA:
            expected = None
            for zxid, state in self.states.get(request.path, ()):
                if zxid <= answer.zxid:
                    expected = state
            if expected is None:
                assert answer.error == -101, f"{request.path} did not exist at {answer.zxid:#x}"
            else:
                reader = Reader(answer.body)
                data = reader.buffer()
                _czxid, mzxid, _ctime, _mtime, version = (
                    reader.i64(),
                    reader.i64(),
                    reader.i64(),
                    reader.i64(),
                    reader.i32(),
                )
                assert (data, mzxid, version) == expected
