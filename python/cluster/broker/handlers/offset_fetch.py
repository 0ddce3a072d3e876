"""OffsetFetch: the committed offsets of a group, or (version 8) of several. Version 0 reads the same offsets
as others.

As in Kafka, a partition that is named twice is answered once (`GroupMetadataManager.getOffsets`). A request
of four megabytes can name a million partitions, so each entry is made while the response is encoded.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._repeats import RepeatBudget
from cluster.errors import NONE, InvalidRequest, UnstableOffsetCommit
from cluster.groups import CommittedOffset
from cluster.model import TopicPartition
from cluster.time_slice import TimeSlice, release_interpreter

API = "OffsetFetch"

_BATCHED = 8
_TOP_LEVEL_ERROR = 2
_LEADER_EPOCH = 5

_NOT_COMMITTED = CommittedOffset(-1)

_MANY = 1000
"""With more partitions or topics the lookup yields to other requests, so it works on a copy of the offsets.
"""

_Committed = Mapping[TopicPartition, CommittedOffset]
_Found = dict[str, dict[int, CommittedOffset | None]]
"""By topic and partition."""


class Partitions:
    """The entries of a topic's partitions, made one at a time."""

    def __init__(
        self,
        version: int,
        kept: Mapping[int, CommittedOffset | None],
        code: int = NONE,
        unstable: Container[int] = (),
    ) -> None:
        """`unstable`: the partitions whose offset may change soon."""
        self._version = version
        self._kept = kept
        self._code = code
        self._unstable = unstable

    def __iter__(self) -> Iterator[Body]:
        for index, (number, kept) in enumerate(self._kept.items()):
            release_interpreter(index)
            unstable = number in self._unstable
            shown = _NOT_COMMITTED if unstable or kept is None else kept
            entry: Body = {
                "partition_index": number,
                "committed_offset": shown.offset,
                "metadata": shown.metadata,
                "error_code": UnstableOffsetCommit.code if unstable else self._code,
            }
            if self._version >= _LEADER_EPOCH:
                entry["committed_leader_epoch"] = shown.leader_epoch
            yield entry


async def handle(context: Context, request: Request) -> Body:
    """Answers at once, with -1 for partitions without a committed offset."""
    body, time_slice = request.body, TimeSlice()
    if request.api_version < _BATCHED:
        return await _group(context, request, time_slice, body["group_id"], body["topics"])
    repeats = RepeatBudget()
    groups = []
    for item in body["groups"]:
        groups.append(await _named(context, request, time_slice, item, repeats))
        await time_slice.yield_if_over()
    return {"groups": groups}


async def _named(
    context: Context, request: Request, time_slice: TimeSlice, item: Body, repeats: RepeatBudget
) -> Body:
    group = item["group_id"]
    try:
        again = repeats.is_again(group)
    except InvalidRequest as error:
        return {"group_id": group, **_failed(request, None, error.code)}
    refused = context.groups.check_fetch(group, item["member_id"], item["member_epoch"])
    if refused:
        return {"group_id": group, **_failed(request, None, refused)}
    answer = await _group(context, request, time_slice, group, item["topics"])
    if again:
        repeats.count(answer)
    return {"group_id": group, **answer}


async def _group(
    context: Context, request: Request, time_slice: TimeSlice, group: str, topics: list[Body] | None
) -> Body:
    error = context.groups.status(group, empty_allowed=True)
    if error:
        return _failed(request, topics, error)
    committed = context.groups.committed(group)
    found = await (
        _everything(committed, time_slice) if topics is None else _asked(committed, topics, time_slice)
    )
    entries = []
    stable = request.body.get("require_stable", False)
    for name, kept in found.items():
        unstable = context.groups.unstable(group, name, kept) if stable else ()
        entries.append({"name": name, "partitions": Partitions(request.api_version, kept, unstable=unstable)})
        await time_slice.yield_if_over()
    return {"topics": entries, "error_code": NONE}


async def _everything(committed: _Committed, time_slice: TimeSlice) -> _Found:
    found: _Found = {}
    for item, kept in dict(committed).items():
        found.setdefault(item.topic, {})[item.partition] = kept
        await time_slice.yield_if_over()
    ordered: _Found = {}
    for name in sorted(found):
        ordered[name] = dict(sorted(found[name].items()))
        await time_slice.yield_if_over()
    return ordered


async def _asked(committed: _Committed, topics: list[Body], time_slice: TimeSlice) -> _Found:
    if len(topics) > _MANY or sum(len(topic["partition_indexes"]) for topic in topics) > _MANY:
        committed = dict(committed)
    found: _Found = {}
    for topic in topics:
        name = topic["name"]
        for number in topic["partition_indexes"]:
            found.setdefault(name, {})[number] = committed.get(TopicPartition(name, number))
            await time_slice.yield_if_over()
        await time_slice.yield_if_over()
    return found


def _failed(request: Request, topics: list[Body] | None, code: int) -> Body:
    if request.api_version >= _TOP_LEVEL_ERROR:
        return {"topics": [], "error_code": code}
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": Partitions(
                    request.api_version, dict.fromkeys(topic["partition_indexes"]), code
                ),
            }
            for topic in topics or ()
        ]
    }


def failure(request: Request, code: int) -> Body:
    """No offsets, and the error."""
    body = request.body
    if request.api_version < _BATCHED:
        return _failed(request, body["topics"], code)
    return {
        "groups": [
            {"group_id": item["group_id"], "topics": [], "error_code": code} for item in body["groups"]
        ]
    }
