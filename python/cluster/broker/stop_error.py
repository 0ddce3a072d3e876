"""What a stop could not do."""

from __future__ import annotations


class BrokerStopError(Exception):
    """One sentence for a person: what ended, or was not closed, as it should. All that could be stopped is."""
