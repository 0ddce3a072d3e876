"""The bridge from the data plane's queue to the handlers and back. All requests enter Python here.

- Order: as in Kafka, a connection's next request begins when the last one is answered. Connections do not
  wait for each other.
- Limit: while all permitted handlers are at work, no request is taken. Then the queue fills, and sockets are
  not read. Handlers that wait for group members or the coordinator do not count. Otherwise they could block
  the requests that they wait for.
- Large requests: of an API whose handler does not wait, one at a time is decoded and answered, because its
  response can be many times as long.
- Handlers that never wait are called at once. The others get a task.
- Failures: a handler that raises answers its own request with UNKNOWN_SERVER_ERROR. A waiting handler ends
  with its connection.

The data plane's reports (failed logs, followers, replicated appends) and its log lines come here too.
Lives on the event loop, woken by the server's descriptor.
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
from cluster.broker.handlers import ANSWERS, APIS, HANDLERS, WAITING_APIS
from cluster.broker.verification import Question
from cluster.errors import KafkaProtocolError, UnknownServerError

log = logging.getLogger(__name__)

_THREAD_PARTS = 5000
"""A response with so many parts takes some milliseconds to encode, so a thread encodes it."""

_PLAIN = (int, float, str, bytes, type(None))
"""The plain parts of a response. Any other part is a dict, or an iterable of parts."""


_BETWEEN_BROKERS = frozenset(
    APIS[name].key
    for name in (
        "LeaderAndIsr",
        "StopReplica",
        "UpdateMetadata",
        "ControlledShutdown",
        "AlterPartition",
        "AllocateProducerIds",
    )
)
"""The requests of brokers to each other, which a broker answers while it starts."""

OnFailed = Callable[[Sequence[tuple[str, int]], str | None], None]
"""Called with the result of `Source.take_failed` if it is not empty."""


OnFacts = Callable[[Sequence[tuple[str, int, int, int, str]]], None]
"""Called with the result of `Source.take_replica_facts` if it is not empty."""


OnReplicated = Callable[[Sequence[tuple[int, int]]], None]
"""Called with the result of `Source.take_replicated` if it is not empty."""


OnQuestions = Callable[[Sequence[Question]], None]
"""Called with the result of `Source.take_verifications` if it is not empty."""


class Source(Protocol):
    """The part of `logcore._native.Server` that brings requests."""

    @property
    def wake_fd(self) -> int:
        """A descriptor that is readable while there is something to take."""

    def take_requests(self, max: int) -> Sequence[Request]:
        """The queued requests, at most `max`."""

    def take_gone(self) -> Sequence[str]:
        """The connections that ended while a handler of theirs waited."""

    def take_failed(self) -> tuple[Sequence[tuple[str, int]], str | None]:
        """The partitions whose logs went offline, and the reason if no log directory is left."""

    def take_replica_facts(self) -> Sequence[tuple[str, int, int, int, str]]:
        """The followers that fell behind or caught up since the last call."""

    def take_replicated(self) -> Sequence[tuple[int, int]]:
        """The appends that every in-sync replica has, or that failed: number and error code."""

    def take_verifications(self) -> Sequence[Question]:
        """The questions about transactions since the last call."""

    def take_log_lines(self) -> Sequence[tuple[int, str, Mapping[str, str]]]:
        """The data plane's log lines: level, text and fields."""


class Bridge:
    """Takes requests while fewer than `handlers_max` handlers are at work, and calls their handlers."""

    def __init__(
        self,
        source: Source,
        context: Context,
        handlers_max: int,
        on_failed: OnFailed,
        on_facts: OnFacts,
        on_replicated: OnReplicated,
        on_questions: OnQuestions,
    ) -> None:
        self._source = source
        self._context = context
        self._handlers_max = handlers_max
        self._on_failed = on_failed
        self._on_facts = on_facts
        self._on_replicated = on_replicated
        self._on_questions = on_questions
        self._at_work = 0
        self._given_up = False
        self._stopped = False
        self._large: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By API: held by its large request that is at work."""
        self._waiting: dict[str, deque[Request]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Starts taking requests."""
        asyncio.get_running_loop().add_reader(self._source.wake_fd, self._wake)

    async def give_up(self) -> None:
        """Drops all requests that are not answered, and all later ones, which closes their connections."""
        self._given_up = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Gives up, and takes no more requests."""
        self._stopped = True
        asyncio.get_running_loop().remove_reader(self._source.wake_fd)
        await self.give_up()
        self._flush_log()

    def _wake(self) -> None:
        if self._stopped:
            return
        # The tasks of these requests begin, and count, before the loop checks the descriptor again.
        # Reports are taken at the limit too: handlers may wait for them.
        requests = self._source.take_requests(max(self._handlers_max - self._at_work, 0))
        gone = set(self._source.take_gone())
        failed, every_dir = self._source.take_failed()
        if failed or every_dir is not None:
            self._on_failed(failed, every_dir)
        facts = self._source.take_replica_facts()
        if facts:
            self._on_facts(facts)
        replicated = self._source.take_replicated()
        if replicated:
            self._on_replicated(replicated)
        questions = self._source.take_verifications()
        if questions:
            self._on_questions(questions)
        for request in requests:
            if self._given_up or request.connection_id in gone:
                request.close()
                continue
            waiting = self._waiting.get(request.connection_id)
            if waiting is not None:
                waiting.append(request)
                continue
            if self._is_for_now(request):
                self._answer_at_once(request)
                continue
            self._waiting[request.connection_id] = deque()
            self._tasks[request.connection_id] = asyncio.create_task(self._serve(request))
        for connection in gone & self._tasks.keys():
            self._tasks[connection].cancel()
        self._flush_log()

    def _is_for_now(self, request: Request) -> bool:
        """Nothing of the request waits."""
        at_once = request.api_key in ANSWERS and not request.large
        return at_once and self._context.replicas.informed.is_set()

    def _permit(self, request: Request) -> AbstractAsyncContextManager[None]:
        """The lock of large requests, held from before decoding until the response is handed over."""
        if request.large and request.api_key not in WAITING_APIS:
            return self._large[request.api_key]
        return nullcontext()

    @contextmanager
    def _work(self, api_key: int) -> Iterator[None]:
        """Counts a handler that is at work."""
        counted = api_key not in WAITING_APIS
        self._at_work += counted
        try:
            yield
        finally:
            if counted and self._at_work >= self._handlers_max:
                # The descriptor does not say again that requests wait.
                asyncio.get_running_loop().call_soon(self._wake)
            self._at_work -= counted

    def _flush_log(self) -> None:
        for level, text, fields in self._source.take_log_lines():
            log.log(level, "%s", text, extra=fields)

    async def _serve(self, request: Request) -> None:
        """Answers a connection's requests until none is queued."""
        connection = request.connection_id
        waiting = self._waiting[connection]
        try:
            while True:
                try:
                    if request.api_key not in _BETWEEN_BROKERS:
                        # Until a controller has sent the metadata, clients would see a cluster without
                        # topics.
                        await self._context.replicas.informed.wait()
                    # A request that waits for this lock does not count against the limit.
                    async with self._permit(request):
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
        except Exception as error:
            code = _code_of(error, request)
        with _closed_if_it_fails(request):
            if request.large:
                body = await asyncio.to_thread(handler.failure, request, code)
            else:
                body = handler.failure(request, code)
            await _respond(request, body)

    def _answer_at_once(self, request: Request) -> None:
        try:
            request.respond(ANSWERS[request.api_key](self._context, request))
            return
        except Exception as error:
            code = _code_of(error, request)
        with _closed_if_it_fails(request):
            request.respond(HANDLERS[request.api_key].failure(request, code))


def _code_of(error: Exception, request: Request) -> int:
    """The error code for the client. An error that is not part of the protocol is logged."""
    if isinstance(error, KafkaProtocolError):
        return error.code
    log.error(
        "a request failed: API %d version %d",
        request.api_key,
        request.api_version,
        exc_info=error,
        extra=_fields(request),
    )
    return UnknownServerError.code


@contextmanager
def _closed_if_it_fails(request: Request) -> Iterator[None]:
    """Closes the connection if the response to a failed request cannot be encoded."""
    try:
        yield
    except Exception:
        log.exception(
            "the response to a failed request cannot be encoded; its connection is closed",
            extra=_fields(request),
        )
        request.close()


async def _respond(request: Request, body: Body) -> None:
    """Sends the response. A thread encodes a long one, so that the event loop does not wait."""
    if _parts(body, _THREAD_PARTS) < _THREAD_PARTS:
        request.respond(body)
    else:
        await asyncio.to_thread(request.respond, body, release_gil=True)


def _parts(value: object, most: int) -> int:
    """The number of parts of a response, counted up to `most`."""
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif not isinstance(value, _PLAIN):
        inner = cast(Iterable[object], value)
    count = 1
    for part in inner:
        if count >= most:
            break
        count += _parts(part, most - count)
    return count


def _fields(request: Request) -> dict[str, str]:
    """The fields of a log line about a request."""
    return {
        "connection": request.connection_id,
        "client_id": request.client_id or "",
        "listener": request.listener,
    }
