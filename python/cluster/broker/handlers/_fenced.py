"""What the version of a transactions' request says of its client."""

from __future__ import annotations

from cluster.broker.context import Request
from cluster.errors import InvalidProducerEpoch, ProducerFenced
from cluster.transactions import EPOCH_A_TRANSACTION

_KNOWS_FENCED = 2


def known_code(request: Request, code: int) -> int:
    """The code, or INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED for versions before 2."""
    fenced = code == ProducerFenced.code and request.api_version < _KNOWS_FENCED
    return InvalidProducerEpoch.code if fenced else code


def client_version(request: Request, first: int) -> int:
    """The `transaction.version` that the client follows: 2 from the request's version `first` on, else 0."""
    return EPOCH_A_TRANSACTION if request.api_version >= first else 0
