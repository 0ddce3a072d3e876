"""Transaction markers in __consumer_offsets: their sender goes away, or they come before what they end.

If one failed, the offsets of a transaction would stay open in their group, although the marker is in the log.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.broker.context import Context
from cluster.broker.handlers import HANDLERS
from cluster.broker.verification import TransactionVerification
from cluster.errors import NONE, InvalidTxnState, TransactionAbortable
from cluster.groups.messages import Commit, CommitResult
from cluster.model import GROUP_METADATA_TOPIC, BrokerId, TopicPartition

from .test_handlers import FakeRequest
from .wire import KEYS

TIMEOUT = 30.0


MARKED = TopicPartition(GROUP_METADATA_TOPIC, 3)
MARKER = {
    "producer_id": 7,
    "producer_epoch": 1,
    "transaction_result": True,
    "coordinator_epoch": 0,
    "topics": [{"name": MARKED.topic, "partition_indexes": [MARKED.partition]}],
}
COMMIT = {
    "transactional_id": "x",
    "group_id": "g",
    "producer_id": 7,
    "producer_epoch": 1,
    "topics": [
        {
            "name": "t",
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}],
        }
    ],
}


def handling(context: SimpleNamespace, name: str, version: int, body: dict[str, Any]) -> asyncio.Task[Any]:
    request = FakeRequest(KEYS[name], version, body)
    handle = HANDLERS[KEYS[name]].handle
    return asyncio.ensure_future(handle(cast(Context, context), cast(Any, request)))


def test_a_group_learns_of_a_marker_although_its_sender_is_gone() -> None:
    async def run() -> None:
        replicated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        appended = asyncio.Event()

        def append(*_: object) -> asyncio.Future[None]:
            appended.set()
            return replicated

        ended: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
        context = SimpleNamespace(
            config=SimpleNamespace(number=lambda name: 30_000),
            state_log=SimpleNamespace(append_encoded=append),
            verification=SimpleNamespace(marked=lambda *arguments: None),
            groups=SimpleNamespace(
                partitions=SimpleNamespace(is_loaded=lambda partition: True),
                transaction_ended=lambda *arguments: ended.set_result(arguments),
            ),
        )
        answering = handling(context, "WriteTxnMarkers", 1, {"markers": [MARKER]})
        await appended.wait()
        answering.cancel()
        await asyncio.wait([answering])
        replicated.set_result(None)
        assert await ended == (3, (7, 1), True)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


@pytest.mark.parametrize(
    ("verified", "code"),
    [
        ([(False, NONE)], NONE),
        ([(True, NONE), (False, NONE)], NONE),
        ([(True, NONE), (False, TransactionAbortable.code)], TransactionAbortable.code),
        ([(True, NONE), (True, NONE)], InvalidTxnState.code),
    ],
    ids=["no-marker", "marker-of-the-one-before", "own-marker", "two-markers"],
)
def test_a_marker_during_the_verification_has_it_repeated(
    verified: list[tuple[bool, int]], code: int
) -> None:
    """For each verification: a marker comes meanwhile, and the coordinator's answer. The marker may be that
    of the transaction before. After a transaction's own marker nothing may be written in it.
    """

    async def run() -> None:
        verification = TransactionVerification(cast(Any, None), lambda: 1, BrokerId(0), 1000, cast(Any, None))
        commits = []

        async def commit(request: Commit) -> CommitResult:
            commits.append(request)
            return CommitResult()

        context = SimpleNamespace(
            config=SimpleNamespace(number=lambda name: 30_000, flag=lambda name: True),
            state_log=SimpleNamespace(append_encoded=lambda *arguments: None),
            verification=verification,
            has_partition=lambda topic, partition: True,
            groups=SimpleNamespace(
                partitions=SimpleNamespace(
                    is_loaded=lambda partition: True, partition_of=lambda group: MARKED.partition
                ),
                status=lambda group: NONE,
                now=lambda: 0,
                transaction_ended=lambda *arguments: None,
                commit=commit,
            ),
        )
        answers = iter(verified)

        async def verify(*_: object, **__: object) -> int:
            is_marked, answer = next(answers)
            if is_marked:
                await handling(context, "WriteTxnMarkers", 1, {"markers": [MARKER]})
            return answer

        verification.verify = verify  # type: ignore[assignment]
        answer = await handling(context, "TxnOffsetCommit", 4, COMMIT)
        assert answer["topics"][0]["partitions"][0]["error_code"] == code
        assert next(answers, None) is None
        assert len(commits) == (code == NONE)
        assert not verification._guards

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))
