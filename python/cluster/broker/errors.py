"""Why a broker does not start, or did not stop cleanly."""

from __future__ import annotations


class BrokerStartError(Exception):
    """One sentence: what is wrong, with which setting, file or address, and what to do."""


class BrokerStopError(Exception):
    """One sentence: which part did not stop or was not closed cleanly. All other parts are stopped."""
