"""Why a broker does not start."""

from __future__ import annotations


class BrokerStartError(Exception):
    """One sentence for a person: what is wrong, with which setting, file or address, and what to do."""
