"""The metrics of a member's log: what was agreed on, what was written, and how long each took.

Owns what was reported and is not counted yet. The member counts after it has answered its clients. Runs on
the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics import ServerMetrics, Sizes
from .contact import Contact
from .quorum import Entry, Flush


class Accounting:
    """``proposals`` gets the sizes of what is agreed on while this member leads."""

    def __init__(self, metrics: ServerMetrics, contact: Contact, proposals: Sizes) -> None:
        self._metrics = metrics
        self._contact = contact
        self._proposals = proposals
        self._applied: list[Entry] = []
        self._flushes: list[Flush] = []
        self._transactions = 0

    def applied(self, entries: Sequence[Entry]) -> None:
        self._applied.extend(entries)

    def flushed(self, flushes: Sequence[Flush]) -> None:
        self._flushes.extend(flushes)

    @property
    def has_applied(self) -> bool:
        """Whether there are applied entries that are not counted yet."""
        return bool(self._applied)

    def take_transactions(self) -> int:
        """Returns how many transactions were counted since the last call.

        An entry without commands counts as one.
        """
        transactions, self._transactions = self._transactions, 0
        return transactions

    def count(self, applied_ms: int) -> None:
        """Counts what was reported, in the role that the member has now. ``applied_ms`` is the wall clock's
        time at which the entries were applied."""
        self._count_flushes()
        self._count_applied(applied_ms)

    def _count_applied(self, now: int) -> None:
        entries, self._applied = self._applied, []
        metrics, role, latency_ms = self._metrics, self._contact.role, self._contact.latency_ms
        # A member learns at once that its own command is agreed on, and some milliseconds later that
        # another's is.
        agreed = "quorum_ack_latency" if role == "leader" else "commit_propagation_latency"
        acknowledged, propagated = metrics.advanced[agreed], metrics.advanced["propagation_latency"]
        total = 0
        for _index, _term, time_ms, commands, _members in entries:
            number = len(commands)
            total += number
            self._transactions += max(number, 1)
            if (latency := latency_ms(time_ms, now)) is not None:
                acknowledged.add(latency, number)
                propagated.add(latency, number)
            if role == "leader":
                for _mine, _ticket, data in commands:
                    self._proposals.add(len(data))
        counters = metrics.counters
        counters["commit_count"] += total
        if role == "leader":
            counters["proposal_count"] += total
        elif role != "looking":
            counters["learner_commit_received_count"] += total
            if role == "follower":
                counters["learner_proposal_received_count"] += total

    def _count_flushes(self) -> None:
        flushes, self._flushes = self._flushes, []
        metrics, role, latency_ms = self._metrics, self._contact.role, self._contact.latency_ms
        for took_ms, entries in flushes:
            metrics.add("fsynctime", took_ms)
            number = 0
            for commands, time_ms, came_ms, on_disk_ms in entries:
                number += commands
                if role == "follower" and (came := latency_ms(time_ms, came_ms)) is not None:
                    metrics.advanced["proposal_latency"].add(came, commands)
                if role != "observer" and (on_disk := latency_ms(time_ms, on_disk_ms)) is not None:
                    metrics.advanced["proposal_ack_creation_latency"].add(on_disk, commands)
            if number:
                metrics.add("sync_processor_batch_size", number)
