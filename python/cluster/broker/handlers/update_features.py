"""UpdateFeatures: finalizes versions of features, when this broker's clients see them (KIP-584, KIP-778)."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.broker.context import Body, Context, Request
from cluster.controller import outcome_of
from cluster.controller.features import FeatureUpdate, Upgrade
from cluster.errors import NONE, KafkaProtocolError, for_code

API = "UpdateFeatures"

_TYPED = 1
"""From this version on a request says what kind of upgrade each is. Before, whether it may be a downgrade."""


async def handle(context: Context, request: Request) -> Body:
    """Asks the controller."""
    body = request.body
    updates = [_update(request, item) for item in body["feature_updates"]]
    is_trial = request.api_version >= _TYPED and body["validate_only"]
    results: dict[str, KafkaProtocolError | None] = {}

    async def update() -> None:
        found, epoch = await context.controller.operations.update_features(updates, validate_only=is_trial)
        await context.features.reached(epoch)
        results.update(found)

    error = await outcome_of(update(), body["timeout_ms"])
    return _answer(request, error, results)


def _update(request: Request, item: Body) -> FeatureUpdate:
    if request.api_version < _TYPED:
        kind = Upgrade.SAFE_DOWNGRADE if item["allow_downgrade"] else Upgrade.UPGRADE
    elif item["upgrade_type"] in iter(Upgrade):
        kind = Upgrade(item["upgrade_type"])
    else:
        kind = Upgrade.UNKNOWN
    return FeatureUpdate(item["feature"], item["max_version_level"], kind)


def _answer(
    request: Request, error: KafkaProtocolError | None, results: Mapping[str, KafkaProtocolError | None]
) -> Body:
    return {
        **_outcome(error),
        "results": [
            {"feature": item["feature"], **_outcome(error or results.get(item["feature"]))}
            for item in request.body["feature_updates"]
        ],
    }


def _outcome(error: KafkaProtocolError | None) -> Body:
    return {
        "error_code": NONE if error is None else error.code,
        "error_message": None if error is None else str(error),
    }


def failure(request: Request, code: int) -> Body:
    """The whole request, and each feature, has the error."""
    return _answer(request, for_code(code)(), {})
