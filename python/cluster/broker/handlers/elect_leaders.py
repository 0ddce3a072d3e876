"""ElectLeaders: answered when clients of this broker see the new leaders (KIP-183, KIP-460)."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.broker.context import Body, Context, Request
from cluster.controller import ElectionResults, ElectionType, outcome_of
from cluster.errors import NONE, ElectionNotNeeded, InvalidRequest, KafkaProtocolError, for_code
from cluster.model import TopicPartition
from cluster.time_slice import TimeSlice

API = "ElectLeaders"

_TYPED = 1
"""From this version on a request names the kind of election. Before, it is of preferred leaders."""


async def handle(context: Context, request: Request) -> Body:
    """Elects leaders of the named partitions, or of all. Of all, those that need no election are left out of
    the response.
    """
    body = request.body
    try:
        kind = ElectionType(body["election_type"] if request.api_version >= _TYPED else 0)
    except ValueError:
        return failure(request, InvalidRequest.code)
    is_of_all = body["topic_partitions"] is None
    partitions = await _all(context) if is_of_all else await _named(request)
    results: ElectionResults = {}

    async def elect() -> None:
        results.update(await context.controller.operations.elect_leaders(partitions, kind))

    error = await outcome_of(elect(), body["timeout_ms"])
    if error is not None:
        # As in Kafka, also a broker that is not the controller names each partition.
        results = dict.fromkeys(partitions, error)
    if is_of_all:
        await _leave_out(results, ElectionNotNeeded)
    return {"error_code": NONE, "replica_election_results": await _results(results)}


async def _leave_out(results: ElectionResults, error: type[KafkaProtocolError]) -> None:
    time_slice = TimeSlice()
    for partition in [*results]:
        if isinstance(results[partition], error):
            del results[partition]
        await time_slice.yield_if_over()


async def _all(context: Context) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    time_slice = TimeSlice()
    for name in context.metadata.names():
        topic = context.metadata.topic(name)
        found += [TopicPartition(name, number) for number in (topic.assignment if topic is not None else ())]
        await time_slice.yield_if_over()
    return found


async def _named(request: Request) -> list[TopicPartition]:
    found: dict[TopicPartition, None] = {}
    time_slice = TimeSlice()
    for item in request.body["topic_partitions"]:
        for number in item["partitions"]:
            found[TopicPartition(item["topic"], number)] = None
            await time_slice.yield_if_over()
    return list(found)


async def _results(results: Mapping[TopicPartition, KafkaProtocolError | None]) -> list[Body]:
    topics: dict[str, list[Body]] = {}
    time_slice = TimeSlice()
    for partition, error in results.items():
        topics.setdefault(partition.topic, []).append(_result(partition.partition, error))
        await time_slice.yield_if_over()
    return [{"topic": name, "partition_result": partitions} for name, partitions in topics.items()]


def _result(number: int, error: KafkaProtocolError | None) -> Body:
    return {
        "partition_id": number,
        "error_code": NONE if error is None else error.code,
        "error_message": None if error is None else str(error),
    }


def failure(request: Request, code: int) -> Body:
    """The whole request, and each named partition, has the error."""
    error = for_code(code)()
    named = request.body["topic_partitions"] or ()
    return {
        # Version 0 has the errors of the partitions only.
        "error_code": code if request.api_version >= _TYPED else NONE,
        "replica_election_results": [
            {"topic": item["topic"], "partition_result": [_result(n, error) for n in item["partitions"]]}
            for item in named
        ],
    }
