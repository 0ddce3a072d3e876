"""How many partitions a second clients may create and delete (`controller_mutation_rate`, KIP-599).

Owns the bounds of users and client ids, and a token bucket for each that is used: a client that was silent may change as
many partitions at once as the window has seconds. Does not own the waiting: the answer tells the throttle time, and the
data plane does not read the connection for so long. Reads no clock; lives on the event loop. After a crash every bucket is
full. Source: ControllerMutationQuotaManager, TokenBucket, ClientQuotaManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cluster.broker.dynamic.quotas import ClientQuota
from cluster.errors import ThrottlingQuotaExceeded

KEY = "controller_mutation_rate"

_THROTTLE_MS_MAX = 2**31 - 1
_BUCKETS_MAX = 65_536
"""Those that are full again are forgotten when there are so many."""

Clock = Callable[[], float]
"""Seconds since some moment."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    updated: float

    def refill(self, per_second: float, burst: float, now: float) -> None:
        self.tokens = min(burst, self.tokens + per_second * (now - self.updated))
        self.updated = now


class MutationQuotas:
    """The quotas of all clients; `window_seconds` is `controller.quota.window.num` times its `size.seconds`."""

    def __init__(self, window_seconds: float, clock: Clock) -> None:
        self.clock = clock
        self._window_seconds = window_seconds
        self._bounds: dict[tuple[str | None, str | None], float] = {}
        # By the hash of whose they are, which nobody can foresee: a client's id has whatever length it likes.
        self._buckets: dict[int, _Bucket] = {}

    def replace(self, quotas: Iterable[ClientQuota]) -> None:
        """Takes other bounds; what clients have used stays used."""
        self._bounds = {(user, client): values[KEY] for user, client, values in quotas if KEY in values}
        if not self._bounds:
            self._buckets = {}

    def of(self, user: str, client_id: str, strict: bool) -> MutationQuota:
        """The quota of one request; see `MutationQuota`."""
        return MutationQuota(self, user, client_id, strict)

    def bound(self, user: str, client_id: str) -> tuple[float, tuple[str, str]] | None:
        """The most specific bound, and with whom it is shared; "" is everybody."""
        for whose in (user, ""):
            for client, shared in ((client_id, client_id), ("", client_id), (None, "")):
                if (whose, client) in self._bounds:
                    return self._bounds[whose, client], (user, shared)
        for client in (client_id, ""):
            if (None, client) in self._bounds:
                return self._bounds[None, client], ("", client_id)
        return None

    def bucket(self, whose: tuple[str, str], per_second: float, now: float) -> _Bucket:
        """What is left for a client now; negative when it took more than it had."""
        key = hash(whose)
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
        # After a window a bucket that was just empty is full; one that is deep in debt is forgiven.
        kept = {key: one for key, one in self._buckets.items() if now - one.updated < self._window_seconds}
        self._buckets = kept if len(kept) < _BUCKETS_MAX else {}


class MutationQuota:
    """The quota of one request. A strict one refuses what comes once it is used up; the other, for versions whose clients
    do not know the error, takes everything. Both have the client wait.
    """

    def __init__(self, quotas: MutationQuotas, user: str, client_id: str, strict: bool) -> None:
        self._quotas = quotas
        self._client = user, client_id
        self._strict = strict
        self._waits_until = 0.0

    def record(self, partitions: int) -> None:
        """Takes so many; ThrottlingQuotaExceeded when it is strict and was used up before."""
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
        """For how long the client has to wait from now on."""
        waits = round((self._waits_until - self._quotas.clock()) * 1000) if self._waits_until else 0
        return min(max(waits, 0), _THROTTLE_MS_MAX)


def _refill_seconds(tokens: float, per_second: float) -> float:
    return min(-tokens / per_second, _THROTTLE_MS_MAX / 1000) if per_second else _THROTTLE_MS_MAX / 1000
