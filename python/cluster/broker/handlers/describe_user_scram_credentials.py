"""DescribeUserScramCredentials: which users have credentials, and how they were made; never the credentials."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from cluster.broker.context import Body, Context, Request
from cluster.broker.dynamic.quotas import USER, entity_of
from cluster.errors import NONE, DuplicateResource, KafkaProtocolError, ResourceNotFound

API_KEY = 50
VERSIONS = (0, 0)

_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers (`ScramMechanism`); the names are the keys in a user's znode."""

_ITERATIONS = re.compile(r"(?:^|,)iterations=([0-9]+)")


async def handle(context: Context, request: Request) -> Body:
    """Answers at once: for all users who have credentials, or for those named."""
    known = {
        entity[USER] or "": infos
        for path, config in context.dynamic.quotas.items()
        if (entity := entity_of(path)) is not None
        and list(entity) == [USER]
        and entity[USER] is not None
        and (infos := _infos(config))
    }
    asked = [item["name"] for item in request.body["users"] or ()]
    counts = Counter(asked)
    results = [_result(name, counts[name], known) for name in counts] if asked else _all(known)
    return {"error_code": NONE, "error_message": None, "results": results}


def _infos(config: Mapping[str, str]) -> list[Body]:
    return [
        {"mechanism": number, "iterations": int(found[1])}
        for name, number in _MECHANISMS.items()
        if (found := _ITERATIONS.search(config.get(name, "")))
    ]


def _all(known: Mapping[str, list[Body]]) -> list[Body]:
    return [_result(name, 1, known) for name in sorted(known)]


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
    """Nothing but the error."""
    return {"error_code": code, "error_message": None, "results": []}
