"""A Wing-Gong-Lowe checker of linearizability.

It searches an order of each znode's writes, and reads after a sync, that their answers and the real time
allow.

- It does not use zxids, so it finds what the zxid check takes for granted.
- Each znode is checked alone, because linearizability composes. An operation of a multi counts at its own
  node.
- An unknown write may be done at any time after it was sent, or never.
- An ephemeral may be deleted at any time after its session's last known sign of life.

The search goes depth first and remembers which sets of operations it had in which state (Lowe 2017).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from .history import (
    BAD_VERSION,
    NO_NODE,
    NODE_EXISTS,
    OK,
    ROLLED_BACK,
    Check,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    History,
    Multi,
    Operation,
    SetData,
    Stat,
    Sync,
    parts,
)

State = tuple[bytes, int, int] | None
"""The data, version and owner of a node; None if it does not exist."""

FOREVER = 1 << 62
STEPS_MAX = 2_000_000
"""The limit of one node's search."""


class Step(NamedTuple):
    """One operation at one node.

    ``answer`` is an error code, the node's version, its data and version, or None for an unknown operation.
    """

    kind: str
    invoked: int
    completed: int
    data: bytes = b""
    version: int = -1
    owner: int = 0
    answer: Any = None
    about: str = ""


class TooLongError(Exception):
    """A search has reached its limit of steps."""


def check_linearizability(history: History, reads_behind_a_sync: bool = True) -> list[str]:
    """Every problem of the history."""
    problems = []
    for path, steps in steps_by_node(history, reads_behind_a_sync).items():
        if not is_linearizable(steps):
            listed = "\n  ".join(str(each) for each in sorted(steps, key=lambda step: step.invoked))
            problems.append(f"no order of the operations at {path} gives their answers:\n  {listed}")
    return problems


def steps_by_node(history: History, reads_behind_a_sync: bool) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = defaultdict(list)
    for operation in history.operations:
        if isinstance(operation.request, Multi):
            results = operation.result if operation.is_known and operation.error == OK else None
            if operation.is_known and results is None:
                continue
            for number, request in enumerate(operation.request.operations):
                result = results[number] if results is not None else None
                failed = results is not None and any(isinstance(each, int) and each != OK for each in results)
                # A failed part was tried after the earlier parts, and none of them was done.
                earlier = {each.path for each in operation.request.operations[:number]}
                if failed and (
                    not isinstance(result, int) or result in (OK, ROLLED_BACK) or request.path in earlier
                ):
                    continue
                _add_write(found, operation, request, result)
        elif isinstance(operation.request, Create | SetData | Delete):
            result = operation.error if operation.error else operation.result
            _add_write(found, operation, operation.request, result)
    if reads_behind_a_sync:
        _add_reads(found, history)
    _add_ends(found, history)
    # An unknown sequential create may have made nodes whose names are not known.
    unknown = {
        each.path
        for operation in history.operations
        if not operation.is_known
        for each in parts(operation.request)
        if isinstance(each, Create) and each.sequential
    }
    return {path: steps for path, steps in found.items() if path[:-10] not in unknown}


def _add_write(
    found: dict[str, list[Step]],
    operation: Operation,
    request: Create | SetData | Delete | Check,
    result: Any,
) -> None:
    if isinstance(request, Create) and request.sequential:
        if not isinstance(result, tuple):
            return
        request = request._replace(path=result[0])
    completed = FOREVER if operation.completed is None else operation.completed
    about = str(operation)
    answer: Any = None
    if operation.is_known:
        answer = result if isinstance(result, int) else _version(result)
    match request:
        case Create():
            if (
                operation.is_known
                and isinstance(answer, int)
                and isinstance(result, int)
                and result not in (OK, NODE_EXISTS)
            ):
                return
            owner = operation.session if request.ephemeral else 0
            step = Step("create", operation.invoked, completed, request.data, -1, owner, answer, about)
        case SetData():
            step = Step("set", operation.invoked, completed, request.data, request.version, 0, answer, about)
        case Delete():
            if operation.is_known and isinstance(result, int) and result not in (OK, NO_NODE, BAD_VERSION):
                return
            step = Step("delete", operation.invoked, completed, b"", request.version, 0, answer, about)
        case Check():
            step = Step("check", operation.invoked, completed, b"", request.version, 0, answer, about)
    if operation.is_known or step.kind != "check":
        found[request.path].append(step)


class Version(NamedTuple):
    """A version in an answer; -1 for an answer without one."""

    version: int


def _version(result: Any) -> Any:
    """The version in a successful answer."""
    if isinstance(result, Stat):
        return Version(result.version)
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Stat):
        return Version(result[1].version)
    return Version(-1)


def _add_reads(found: dict[str, list[Step]], history: History) -> None:
    """A sync and the session's next read are one operation, from the sync's sending to the read's answer."""
    last: dict[int, Operation] = {}
    for operation in sorted(history.operations, key=lambda each: each.invoked):
        before = last.get(operation.session)
        last[operation.session] = operation
        if (
            before is None
            or not isinstance(before.request, Sync)
            or not before.is_known
            or not operation.is_known
        ):
            continue
        if before.error != OK or operation.completed is None:
            continue
        request = operation.request
        if isinstance(request, GetData):
            answer = (operation.result[0], operation.result[1].version) if operation.error == OK else NO_NODE
        elif isinstance(request, Exists):
            answer = (None, operation.result.version) if operation.error == OK else NO_NODE
        elif isinstance(request, GetChildren):
            answer = (None, operation.result[1].version) if operation.error == OK else NO_NODE
        else:
            continue
        found[request.path].append(
            Step("read", before.invoked, operation.completed, answer=answer, about=f"{before}; {operation}")
        )


def _add_ends(found: dict[str, list[Step]], history: History) -> None:
    """The ephemerals of a session that may have ended may be deleted from its last answer on."""
    alive: dict[int, int] = defaultdict(int)
    ending: dict[int, int] = {}
    for operation in history.operations:
        if isinstance(operation.request, CloseSession):
            ending[operation.session] = operation.invoked
        elif operation.is_known and operation.error == OK:
            alive[operation.session] = max(alive[operation.session], operation.invoked)
    ended = {each.session for each in history.contacts if each.kind in ("lost", "expired")} | set(ending)
    for steps in found.values():
        owners = {step.owner for step in steps if step.owner in ended}
        for owner in sorted(owners):
            begins = ending.get(owner, alive[owner])
            steps.append(Step("end", begins, FOREVER, owner=owner, about=f"the end of session 0x{owner:x}"))


def _after(step: Step, state: State) -> tuple[bool, State]:
    """Whether the step's answer is possible in ``state``, and the state after it."""
    answer = step.answer
    match step.kind:
        case "create":
            if state is not None:
                return answer in (None, NODE_EXISTS), state
            return answer is None or isinstance(answer, Version), (step.data, 0, step.owner)
        case "set" | "delete" | "check":
            error = NO_NODE if state is None else BAD_VERSION if step.version not in (-1, state[1]) else OK
            if error:
                return answer in (None, error), state
            assert state is not None
            if not (answer is None or isinstance(answer, Version) or (step.kind == "check" and answer == OK)):
                return False, state
            if step.kind == "check":
                return True, state
            if step.kind == "delete":
                return True, None
            if isinstance(answer, Version) and answer.version not in (-1, state[1] + 1):
                return False, state
            return True, (step.data, state[1] + 1, state[2])
        case "read":
            if state is None or answer == NO_NODE:
                return state is None and answer == NO_NODE, state
            return answer[0] in (None, state[0]) and answer[1] == state[1], state
        case _:
            return True, None if state is not None and state[2] == step.owner else state


def is_linearizable(steps: list[Step], steps_max: int = STEPS_MAX) -> bool:
    """Whether an order exists. Raises TooLongError."""
    ordered = sorted(steps, key=lambda step: step.invoked)
    must = 0
    for number, step in enumerate(ordered):
        if step.completed < FOREVER:
            must |= 1 << number
    seen: set[tuple[int, State]] = {(0, None)}
    stack: list[tuple[int, State]] = [(0, None)]
    taken = 0
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return True
        taken += 1
        if taken > steps_max:
            raise TooLongError(f"{len(steps)} operations at one node, and no order after {steps_max} steps")
        # An operation may not come before one that was answered before it was sent.
        horizon = FOREVER
        for number, step in enumerate(ordered):
            if step.invoked > horizon:
                break
            if done >> number & 1:
                continue
            horizon = min(horizon, step.completed)
        for number, step in enumerate(ordered):
            if step.invoked > horizon:
                break
            if done >> number & 1:
                continue
            fits, after = _after(step, state)
            if not fits or (step.completed == FOREVER and after == state):
                continue
            next_one = (done | 1 << number, after)
            if next_one not in seen:
                seen.add(next_one)
                stack.append(next_one)
    return False
