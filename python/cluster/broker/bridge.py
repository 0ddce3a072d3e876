"""From the data plane's queue to the handlers and back: the one place where requests enter Python.

Owns the order of each connection's requests: as in Kafka, the next one of a connection begins when the last
one is answered, and connections do not wait for each other. While as many handlers are at work as there may be, it takes no
requests, which fills the queue and stops the reading of sockets. Who only waits is not counted: a member of a group would
keep those out whom it waits for, and a coordinator that is away would stop what can be answered without it. A handler that
raises costs its own request an UNKNOWN_SERVER_ERROR answer and nobody else anything. One that waits for others ends with its
connection. What the data plane tells of its logs' failures comes this way too. Of the large requests of an API that waits for nobody, one at a time is made into Python's objects and answered: its
answer may be many times as long. Lives on the event loop, woken by the server's descriptor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Protocol, cast

from cluster.broker.collector import paused
from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers import HANDLERS, WAITING_APIS
from cluster.errors import KafkaProtocolError, UnknownServerError

log = logging.getLogger(__name__)

_LARGE = 5000
"""An answer of so many parts takes some milliseconds to encode."""

_PLAIN = (int, float, str, bytes, type(None))
"""What an answer's parts are at the end; others than these and dicts are lists, or make their parts one at a time."""


OnFailed = Callable[[Sequence[tuple[str, int]], str | None], None]
"""Called with what `Source.take_failed` gives, when that is something."""


class Source(Protocol):
    """The part of `logcore._native.Server` that brings requests."""

    @property
    def wake_fd(self) -> int:
        """Readable while something waits."""

    def take_requests(self, max: int) -> Sequence[Request]:
        """What waits, at most `max`."""

    def take_gone(self) -> Sequence[str]:
        """The connections that ended while their requests waited for others to come."""

    def take_failed(self) -> tuple[Sequence[tuple[str, int]], str | None]:
        """The partitions whose logs went offline, and why, if that leaves no log directory."""

    def take_log_lines(self) -> Sequence[tuple[int, str, Mapping[str, str]]]:
        """What the data plane has to say, and its fields."""


class Bridge:
    """Takes requests, while fewer than `handlers_max` handlers are at work, and has them answered."""

    def __init__(self, source: Source, context: Context, handlers_max: int, on_failed: OnFailed) -> None:
        self._source = source
        self._context = context
        self._handlers_max = handlers_max
        self._on_failed = on_failed
        self._at_work = 0
        self._given_up = False
        self._stopped = False
        self._listening = False
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: dict[str, deque[Request]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begins to take requests."""
        self._listen()

    async def give_up(self) -> None:
        """Answers nothing more: what is not answered yet is dropped, and so is what comes, which closes those connections."""
        self._given_up = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Gives up, and takes no more."""
        self._stopped = True
        self._listen()
        await self.give_up()
        self._flush_log()

    def _wake(self) -> None:
        # Those that were taken are at work before this is called again: their tasks begin before the descriptor is looked at.
        requests = self._source.take_requests(self._handlers_max - self._at_work)
        gone = set(self._source.take_gone())
        failed, every_dir = self._source.take_failed()
        if failed or every_dir is not None:
            self._on_failed(failed, every_dir)
        for request in requests:
            if self._given_up or request.connection_id in gone:
                request.close()
                continue
            waiting = self._waiting.get(request.connection_id)
            if waiting is not None:
                waiting.append(request)
                continue
            self._waiting[request.connection_id] = deque()
            self._tasks[request.connection_id] = asyncio.create_task(self._serve(request))
        for connection in gone & self._tasks.keys():
            self._tasks[connection].cancel()
        self._flush_log()

    def _listen(self) -> None:
        """Waits for requests, or does no longer."""
        wanted = not self._stopped and self._at_work < self._handlers_max
        loop = asyncio.get_running_loop()
        if wanted and not self._listening:
            loop.add_reader(self._source.wake_fd, self._wake)
        elif self._listening and not wanted:
            loop.remove_reader(self._source.wake_fd)
        self._listening = wanted

    def _turn(self, request: Request) -> AbstractAsyncContextManager[None]:
        """The request's turn, from before its objects are made until its answer is handed over."""
        if request.large and request.api_key not in WAITING_APIS:
            return self._turns[request.api_key]
        return nullcontext()

    @contextmanager
    def _work(self, api_key: int) -> Iterator[None]:
        """Counts a handler while it is at work."""
        counted = api_key not in WAITING_APIS
        self._at_work += counted
        self._listen()
        try:
            yield
        finally:
            self._at_work -= counted
            self._listen()

    def _flush_log(self) -> None:
        for level, text, fields in self._source.take_log_lines():
            log.log(level, "%s", text, extra=fields)

    async def _serve(self, request: Request) -> None:
        """Answers a connection's requests until none waits."""
        connection = request.connection_id
        waiting = self._waiting[connection]
        try:
            while True:
                try:
                    # Who waits for a turn keeps nobody else out.
                    async with self._turn(request):
                        with self._work(request.api_key):
                            await self._answer(request)
                except asyncio.CancelledError:
                    request.close()
                    raise
                if not waiting:
                    return
                request = waiting.popleft()
        finally:
            del self._waiting[connection]
            del self._tasks[connection]

    async def _answer(self, request: Request) -> None:
        handler = HANDLERS.get(request.api_key)
        if handler is None:
            log.error("API %d is advertised but has no handler; its connection is closed", request.api_key)
            request.close()
            return
        try:
            with paused(request.large):
                if request.large:
                    await asyncio.to_thread(lambda: request.body)
                await _respond(request, await handler.handle(self._context, request))
            return
        except KafkaProtocolError as error:
            code = error.code
        except Exception:
            log.exception(
                "a request failed: API %d version %d",
                request.api_key,
                request.api_version,
                extra=_fields(request),
            )
            code = UnknownServerError.code
        try:
            if request.large:
                body = await asyncio.to_thread(handler.failure, request, code)
            else:
                body = handler.failure(request, code)
            await _respond(request, body)
        except Exception:
            log.exception(
                "no answer fits the request that failed; its connection is closed", extra=_fields(request)
            )
            request.close()


async def _respond(request: Request, body: Body) -> None:
    """Sends the answer; one of many parts is made in a thread, so that nobody waits for it."""
    if _parts(body, _LARGE) < _LARGE:
        request.respond(body)
    else:
        await asyncio.to_thread(request.respond, body, apart=True)


def _parts(said: object, most: int) -> int:
    """How many parts an answer has, counted up to `most`."""
    inner: Iterable[object] = ()
    if isinstance(said, dict):
        inner = said.values()
    elif not isinstance(said, _PLAIN):
        inner = cast(Iterable[object], said)
    count = 1
    for part in inner:
        if count >= most:
            break
        count += _parts(part, most - count)
    return count


def _fields(request: Request) -> dict[str, str]:
    """Whose request it is, for those who search the log."""
    return {
        "connection": request.connection_id,
        "client_id": request.client_id or "",
        "listener": request.listener,
    }
