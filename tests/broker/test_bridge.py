"""The bridge between the queue of requests and the handlers.

If one failed, a client would get its responses out of order, a slow request would delay other clients, too
many requests would run at once, or a failing handler would affect others.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.broker import bridge as bridge_module
from cluster.broker import collector
from cluster.broker.bridge import Bridge
from cluster.broker.context import Body, Context, Request
from cluster.broker.verification import Question
from cluster.errors import NotController, UnknownServerError

KEY, JOIN, METADATA, HEARTBEAT = 32, 11, 3, 12
HANDLERS_MAX = 2
PATIENCE = 30


@dataclass
class FakeRequest:
    number: int
    connection_id: str
    answers: asyncio.Queue[tuple[int, Body | None]]
    api_key: int = KEY
    api_version: int = 0
    client_id: str | None = None
    client_host: str = "127.0.0.1"
    listener: str = "PLAINTEXT"
    body: dict[str, Any] = field(default_factory=dict)
    large: bool = False

    def respond(self, body: Body, release_gil: bool = False) -> None:
        if "unfit" in body:
            raise ValueError("no such field")
        self.answers.put_nowait((self.number, body))

    def close(self) -> None:
        self.answers.put_nowait((self.number, None))


class FakeSource:
    def __init__(self) -> None:
        self.wake_fd, self._write_end = os.pipe()
        self.requests: list[Request] = []
        self.gone: list[str] = []
        self.replicated: list[tuple[int, int]] = []
        self.reported: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def put(self, *requests: FakeRequest) -> None:
        self.requests += requests
        os.write(self._write_end, b"x")

    def take_requests(self, max: int) -> list[Request]:
        if select.select([self.wake_fd], [], [], 0)[0]:
            os.read(self.wake_fd, 100)
        if max == 0:
            return []
        taken, self.requests = self.requests[:max], self.requests[max:]
        if self.requests:
            os.write(self._write_end, b"x")
        return taken

    def take_gone(self) -> list[str]:
        gone, self.gone = self.gone, []
        return gone

    def take_failed(self) -> tuple[list[tuple[str, int]], str | None]:
        return [], None

    def take_replica_facts(self) -> list[tuple[str, int, int, int, str]]:
        return []

    def take_replicated(self) -> list[tuple[int, int]]:
        replicated, self.replicated = self.replicated, []
        return replicated

    def take_verifications(self) -> list[Question]:
        return []

    def take_reports(self, reports: Sequence[tuple[int, int]]) -> None:
        for report in reports:
            self.reported.put_nowait(report)

    def leave(self, connection: str) -> None:
        self.gone.append(connection)
        os.write(self._write_end, b"x")

    def take_log_lines(self) -> list[tuple[int, str, dict[str, str]]]:
        return []

    def close(self) -> None:
        os.close(self.wake_fd)
        os.close(self._write_end)


@dataclass
class FakeHandler:
    handle_with: Callable[[FakeRequest], Awaitable[Body]]
    API: str = "DescribeConfigs"

    async def handle(self, context: Context, request: Request) -> Body:
        return await self.handle_with(cast(FakeRequest, request))

    def failure(self, request: Request, code: int) -> Body:
        return {"unfit": 1} if request.body.get("unfit") else {"error": code}


def answer(context: Context, request: Request) -> Body:
    if "raises" in request.body:
        raise request.body["raises"]
    return {"at once": cast(FakeRequest, request).number, **request.body}


Answers = asyncio.Queue[tuple[int, Body | None]]


def informed() -> Context:
    """The parts of a broker that a controller has sent its metadata."""
    event = asyncio.Event()
    event.set()
    return cast(Context, SimpleNamespace(replicas=SimpleNamespace(informed=event)))


def play(
    monkeypatch: pytest.MonkeyPatch,
    handle: Callable[[FakeRequest], Awaitable[Body]],
    script: Callable[[FakeSource, Answers, Bridge], Awaitable[None]],
) -> None:
    async def run() -> None:
        monkeypatch.setattr(
            bridge_module,
            "HANDLERS",
            dict.fromkeys((KEY, JOIN, METADATA, HEARTBEAT), FakeHandler(handle)),
        )
        monkeypatch.setattr(bridge_module, "ANSWERS", {HEARTBEAT: answer})
        source = FakeSource()
        bridge = Bridge(
            source,
            informed(),
            HANDLERS_MAX,
            lambda *_: None,
            lambda _: None,
            source.take_reports,
            lambda _: None,
        )
        bridge.start()
        try:
            await script(source, asyncio.Queue(), bridge)
        finally:
            await bridge.stop()
            source.close()

    asyncio.run(run())


def test_a_connections_requests_are_answered_in_order_and_connections_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()
    begun: list[int] = []

    async def handle(request: FakeRequest) -> Body:
        begun.append(request.number)
        if request.number == 1:
            await gate.wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        source.put(FakeRequest(1, "a", answers), FakeRequest(2, "a", answers), FakeRequest(3, "b", answers))
        assert await answers.get() == (3, {"ok": 3})
        assert begun == [1, 3]
        gate.set()
        assert await answers.get() == (1, {"ok": 1})
        assert await answers.get() == (2, {"ok": 2})

    play(monkeypatch, handle, script)


def test_a_failing_handler_affects_only_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(request: FakeRequest) -> Body:
        if request.number == 1:
            raise RuntimeError("a mistake")
        if request.number == 2:
            raise NotController
        if request.number == 3:
            return {"unfit": True}
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        unfit = FakeRequest(4, "b", answers, api_key=99)
        hopeless = FakeRequest(3, "c", answers, body={"unfit": True})
        source.put(FakeRequest(1, "a", answers), FakeRequest(2, "a", answers), FakeRequest(5, "a", answers))
        assert await answers.get() == (1, {"error": UnknownServerError.code})
        assert await answers.get() == (2, {"error": NotController.code})
        assert await answers.get() == (5, {"ok": 5})
        source.put(hopeless)
        assert await answers.get() == (3, None)
        source.put(unfit)
        assert await answers.get() == (4, None)

    play(monkeypatch, handle, script)


def test_a_handler_that_never_waits_answers_before_tasks_begin_and_in_its_connections_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()

    async def handle(request: FakeRequest) -> Body:
        await gate.wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        def beat(number: int, connection: str, **body: object) -> FakeRequest:
            return FakeRequest(number, connection, answers, api_key=HEARTBEAT, body=body)

        source.put(FakeRequest(1, "a", answers), beat(2, "a"))
        source.put(beat(3, "b"), beat(5, "b", raises=NotController()))
        source.put(beat(6, "b", raises=RuntimeError("a mistake")), beat(7, "c", unfit=True))
        assert await answers.get() == (3, {"at once": 3})
        assert await answers.get() == (5, {"error": NotController.code})
        assert await answers.get() == (6, {"error": UnknownServerError.code})
        assert await answers.get() == (7, None)
        gate.set()
        assert await answers.get() == (1, {"ok": 1})
        assert await answers.get() == (2, {"ok": 2})

    play(monkeypatch, handle, script)


def test_no_request_is_taken_while_all_handlers_are_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gates = {number: asyncio.Event() for number in (1, 2)}
    begun: asyncio.Queue[int] = asyncio.Queue()

    async def handle(request: FakeRequest) -> Body:
        begun.put_nowait(request.number)
        if request.number in gates:
            await gates[request.number].wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        source.put(FakeRequest(1, "a", answers), FakeRequest(2, "b", answers))
        assert [await begun.get(), await begun.get()] == [1, 2]
        third = FakeRequest(3, "c", answers)
        source.replicated.append((7, 0))
        source.put(third)
        # Handlers may wait for reports.
        async with asyncio.timeout(PATIENCE):
            assert await source.reported.get() == (7, 0)
        assert source.requests == [third]
        gates[2].set()
        assert await answers.get() == (2, {"ok": 2})
        assert await answers.get() == (3, {"ok": 3})
        gates[1].set()
        assert await answers.get() == (1, {"ok": 1})

    play(monkeypatch, handle, script)


def test_large_requests_of_an_api_run_one_at_a_time_and_delay_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this failed, many large requests would have their objects in memory at once, or use all handlers."""
    gate = asyncio.Event()
    begun: asyncio.Queue[int] = asyncio.Queue()

    async def handle(request: FakeRequest) -> Body:
        begun.put_nowait(request.number)
        if request.number == 1:
            await gate.wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        requests = [FakeRequest(number, f"c{number}", answers, large=True) for number in (1, 2, 3, 4)]
        source.put(*requests[:HANDLERS_MAX])
        assert await begun.get() == 1
        source.put(*requests[HANDLERS_MAX:])
        source.put(FakeRequest(5, "d", answers))
        assert await answers.get() == (5, {"ok": 5})
        source.put(FakeRequest(6, "e", answers, api_key=METADATA, large=True))
        assert await answers.get() == (6, {"ok": 6})
        # A connection that ends while it waits leaves the queue.
        source.leave("c3")
        assert await answers.get() == (3, None)
        assert [begun.get_nowait(), begun.get_nowait()] == [5, 6]
        assert begun.empty()
        gate.set()
        assert [await answers.get() for _ in range(3)] == [(number, {"ok": number}) for number in (1, 2, 4)]

    play(monkeypatch, handle, script)


def test_of_many_requests_at_once_only_as_many_are_taken_as_there_are_handlers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()
    begun: list[int] = []
    full = asyncio.Event()

    async def handle(request: FakeRequest) -> Body:
        begun.append(request.number)
        if len(begun) == HANDLERS_MAX:
            full.set()
        await gate.wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        requests = [FakeRequest(number, str(number), answers) for number in range(5)]
        source.put(*requests)
        await full.wait()
        assert source.requests == requests[HANDLERS_MAX:]
        assert begun == [0, 1]
        gate.set()
        assert [(await answers.get())[0] for _ in requests] == [0, 1, 2, 3, 4]

    play(monkeypatch, handle, script)


@pytest.mark.parametrize("key", [JOIN, METADATA])
def test_waiting_handlers_do_not_count_against_the_limit(monkeypatch: pytest.MonkeyPatch, key: int) -> None:
    """Otherwise a group with as many members as there are handlers would wait for its last member for ever.
    While clients wait for topics that the coordinator does not create, groups would lose their members.
    """
    members = 2 * HANDLERS_MAX
    all_members = asyncio.Barrier(members)

    async def handle(request: FakeRequest) -> Body:
        if request.api_key == key:
            await all_members.wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        for number in range(members):
            source.put(FakeRequest(100 + number, f"other {number}", answers))
            assert await answers.get() == (100 + number, {"ok": 100 + number})
            source.put(FakeRequest(number, f"member {number}", answers, api_key=key))
        joined = [await answers.get() for _ in range(members)]
        assert sorted(number for number, _ in joined) == list(range(members))

    play(monkeypatch, handle, script)


def test_a_waiting_handler_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: asyncio.Queue[int] = asyncio.Queue()

    async def handle(request: FakeRequest) -> Body:
        if request.api_key == JOIN:
            begun.put_nowait(request.number)
            await asyncio.Event().wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        source.put(FakeRequest(1, "a", answers, api_key=JOIN), FakeRequest(2, "b", answers, api_key=JOIN))
        assert [await begun.get(), await begun.get()] == [1, 2]
        source.leave("a")
        assert await answers.get() == (1, None)
        # A request whose connection has ended already, and a connection without requests here.
        source.gone = ["c", "nobody"]
        source.put(FakeRequest(3, "c", answers, api_key=JOIN), FakeRequest(4, "a", answers))
        assert await answers.get() == (3, None)
        assert await answers.get() == (4, {"ok": 4})
        assert begun.empty()

    play(monkeypatch, handle, script)


def test_waiting_requests_are_closed_at_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def handle(request: FakeRequest) -> Body:
        begun.set()
        await asyncio.Event().wait()
        return {}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        source.put(FakeRequest(1, "a", answers))
        await begun.wait()
        await bridge.stop()
        assert await answers.get() == (1, None)

    play(monkeypatch, handle, script)


def test_requests_after_the_bridge_gave_up_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a stopping broker would wait for handlers that are never called."""
    begun: asyncio.Queue[int] = asyncio.Queue()

    async def handle(request: FakeRequest) -> Body:
        begun.put_nowait(request.number)
        await asyncio.Event().wait()
        return {}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        source.put(*(FakeRequest(number, str(number), answers) for number in range(5)))
        assert [await begun.get() for _ in range(HANDLERS_MAX)] == [0, 1]
        await bridge.give_up()
        source.put(FakeRequest(5, "late", answers))
        async with asyncio.timeout(PATIENCE):
            closed = [await answers.get() for _ in range(6)]
        assert closed == [(number, None) for number in range(6)]
        assert begun.empty()

    play(monkeypatch, handle, script)


def test_the_garbage_collector_pauses_for_large_requests_one_at_a_time_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the pause a collection among hundreds of thousands of objects stops everything. Without its end
    garbage would stay.
    """
    monkeypatch.setattr(collector, "_PAUSE_SECONDS_MAX", 0.0)
    enabled, enable = asyncio.Event(), gc.enable

    def told_enable() -> None:
        enable()
        enabled.set()

    monkeypatch.setattr(gc, "enable", told_enable)
    gates = {number: asyncio.Event() for number in (1, 2, 3)}
    begun: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()

    async def handle(request: FakeRequest) -> Body:
        begun.put_nowait((request.number, gc.isenabled()))
        await gates[request.number].wait()
        return {"ok": request.number}

    async def script(source: FakeSource, answers: Answers, bridge: Bridge) -> None:
        source.put(FakeRequest(1, "a", answers))
        assert await begun.get() == (1, True)
        source.put(FakeRequest(2, "b", answers, large=True))
        assert (await begun.get())[0] == 2
        await enabled.wait()
        assert gc.isenabled()
        gates[1].set()
        gates[2].set()
        await answers.get()
        await answers.get()
        monkeypatch.setattr(collector, "_PAUSE_SECONDS_MAX", 60.0)
        source.put(FakeRequest(3, "c", answers, large=True))
        assert await begun.get() == (3, False)
        enabled.clear()
        gates[3].set()
        assert await answers.get() == (3, {"ok": 3})
        await enabled.wait()
        assert gc.isenabled()

    play(monkeypatch, handle, script)
