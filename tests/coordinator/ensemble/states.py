"""Compares the states of members."""

from __future__ import annotations

from cluster.coordinator.ensemble.agreed import Agreed


def fingerprint(agreed: Agreed) -> tuple[object, ...]:
    """A member's whole state, in a comparable form."""
    machine = agreed.machine
    return (
        agreed.index,
        agreed.term,
        agreed.epoch,
        agreed.counter,
        agreed.time_ms,
        machine.last_zxid,
        sorted(machine.sessions.all()),
        sorted(agreed.attachments.items()),
        sorted(agreed.last_ids.items()),
        sorted(machine.tree.export()),
    )
