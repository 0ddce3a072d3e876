"""Quotas of partition creations and deletions a second (`controller_mutation_rate`, KIP-599).

Owns the rates of users and client ids, and a token bucket for each that is in use. A full bucket has the
tokens of one window. The response has the throttle time, and the data plane does not read the connection for
that time. Reads no clock; lives on the event loop. After a crash every bucket is full. Source:
ControllerMutationQuotaManager, TokenBucket, ClientQuotaManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cluster.broker.dynamic.quotas import ClientQuota
from cluster.errors import ThrottlingQuotaExceeded

KEY = "controller_mutation_rate"

_THROTTLE_MS_MAX = 2**31 - 1
_BUCKETS_MAX = 65_536
"""At this number full buckets are dropped."""

Clock = Callable[[], float]
"""Seconds since any fixed moment."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    updated: float

    def refill(self, per_second: float, burst: float, now: float) -> None:
        self.tokens = min(burst, self.tokens + per_second * (now - self.updated))
        self.updated = now


class MutationQuotas:
    """All clients' quotas. `window_seconds` is `controller.quota.window.num` times its `size.seconds`."""

    def __init__(self, window_seconds: float, clock: Clock) -> None:
        self.clock = clock
        self._window_seconds = window_seconds
        self._bounds: dict[tuple[str | None, str | None], float] = {}
        # By the hash of user and client id: a client id can be long, and the hash is not predictable.
        self._buckets: dict[int, _Bucket] = {}

    def replace(self, quotas: Iterable[ClientQuota]) -> None:
        """Replaces the rates. Buckets keep their state."""
        self._bounds = {(user, client): values[KEY] for user, client, values in quotas if KEY in values}
        if not self._bounds:
            self._buckets = {}

    def of(self, user: str, client_id: str, strict: bool) -> MutationQuota:
        """The quota of one request."""
        return MutationQuota(self, user, client_id, strict)

    def bound(self, user: str, client_id: str) -> tuple[float, tuple[str, str]] | None:
        """The most specific rate, and the user and client id that share its bucket ("": all)."""
        for owner in (user, ""):
            for client, shared in ((client_id, client_id), ("", client_id), (None, "")):
                if (owner, client) in self._bounds:
                    return self._bounds[owner, client], (user, shared)
        for client in (client_id, ""):
            if (None, client) in self._bounds:
                return self._bounds[None, client], ("", client_id)
        return None

    def bucket(self, owner: tuple[str, str], per_second: float, now: float) -> _Bucket:
        """The refilled bucket of a user and client id. Its tokens are negative after an overdraft."""
        key = hash(owner)
        burst = per_second * self._window_seconds
        bucket = self._buckets.get(key)
        if bucket is None:
            self._forget_full(now)
            bucket = self._buckets[key] = _Bucket(burst, now)
        bucket.refill(per_second, burst, now)
        return bucket

    def _forget_full(self, now: float) -> None:
        if len(self._buckets) < _BUCKETS_MAX:
            return
        # An empty bucket is full after one window. A bucket with a large debt is dropped too.
        kept = {key: one for key, one in self._buckets.items() if now - one.updated < self._window_seconds}
        self._buckets = kept if len(kept) < _BUCKETS_MAX else {}


class MutationQuota:
    """The quota of one request. A strict quota refuses changes once its bucket is empty.

    The other accepts them all, for versions without the error. Both throttle the client.
    """

    def __init__(self, quotas: MutationQuotas, user: str, client_id: str, strict: bool) -> None:
        self._quotas = quotas
        self._client = user, client_id
        self._strict = strict
        self._waits_until = 0.0

    def record(self, partitions: int) -> None:
        """Takes tokens for `partitions`. Raises ThrottlingQuotaExceeded if it is strict and the bucket was
        empty.
        """
        found = self._quotas.bound(*self._client)
        if found is None:
            return
        per_second, key = found
        now = self._quotas.clock()
        bucket = self._quotas.bucket(key, per_second, now)
        if self._strict and bucket.tokens < 0:
            self._waits_until = now + _refill_seconds(bucket.tokens, per_second)
            raise ThrottlingQuotaExceeded
        bucket.tokens -= partitions
        if not self._strict and bucket.tokens < 0:
            self._waits_until = now + _refill_seconds(bucket.tokens, per_second)

    def throttle_ms(self) -> int:
        """How long the client has to wait from now on."""
        waits = round((self._waits_until - self._quotas.clock()) * 1000) if self._waits_until else 0
        return min(max(waits, 0), _THROTTLE_MS_MAX)


def _refill_seconds(tokens: float, per_second: float) -> float:
    return min(-tokens / per_second, _THROTTLE_MS_MAX / 1000) if per_second else _THROTTLE_MS_MAX / 1000
