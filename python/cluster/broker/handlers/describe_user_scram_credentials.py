"""DescribeUserScramCredentials: users with credentials, their mechanisms and iterations; never the
credentials.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from operator import itemgetter

from cluster.broker.context import Body, Context, Request
from cluster.broker.dynamic.quotas import USER, entity_of
from cluster.errors import NONE, DuplicateResource, KafkaProtocolError, ResourceNotFound
from cluster.time_slice import TimeSlice

API = "DescribeUserScramCredentials"

_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers (`ScramMechanism`); the names are the keys in a user's znode."""

_ITERATIONS = re.compile(r"(?:^|,)iterations=([0-9]+)")


async def handle(context: Context, request: Request) -> Body:
    """Answers at once, for the named users or for all users with credentials."""
    known, time_slice = {}, TimeSlice()
    for path, config in list(context.dynamic.quotas.items()):
        entity = entity_of(path)
        name = entity[USER] if entity is not None and list(entity) == [USER] else None
        if name is not None and (infos := _infos(config)):
            known[name] = infos
        await time_slice.yield_if_over()
    counts = Counter(map(itemgetter("name"), request.body["users"] or ())) or dict.fromkeys(sorted(known), 1)
    results = []
    for user, times in counts.items():
        results.append(_result(user, times, known))
        await time_slice.yield_if_over()
    return {"error_code": NONE, "error_message": None, "results": results}


def _infos(config: Mapping[str, str]) -> list[Body]:
    return [
        {"mechanism": number, "iterations": int(found[1])}
        for name, number in _MECHANISMS.items()
        if (found := _ITERATIONS.search(config.get(name, "")))
    ]


def _result(name: str, times: int, known: Mapping[str, list[Body]]) -> Body:
    if not name:
        return _failed(name, ResourceNotFound("Username must not be empty"))
    if times > 1:
        return _failed(
            name,
            DuplicateResource(
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            ),
        )
    if name not in known:
        return _failed(
            name, ResourceNotFound(f"Attempt to describe a user credential that does not exist: {name}")
        )
    return {"user": name, "error_code": NONE, "error_message": None, "credential_infos": known[name]}


def _failed(name: str, error: KafkaProtocolError) -> Body:
    return {
        "user": name,
        "error_code": error.code,
        "error_message": str(error),
        "credential_infos": [],
    }


def failure(request: Request, code: int) -> Body:
    """The error, without users."""
    return {"error_code": code, "error_message": None, "results": []}
