"""The APIs that Python answers: one module for each, found by its `API`.

A handler module has three names. `API` is the API's name in the table of `rust/crates/server/src/apis.rs`,
which has its versions and all other facts. `async handle(context, request)` returns the response's body.
`failure(request, code)` returns a body that reports only the error. A module that never waits has `answer`,
too, which does the same as `handle` at once. A handler changes nothing itself: it asks the controller, the
group coordinator or the dynamic settings. A module whose name begins with an underscore is no handler.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from cluster.broker.context import Body, Context, Request
from logcore import _native


class Api(NamedTuple):
    """A row of the table of APIs."""

    key: int
    name: str
    first: int
    """The first version that is served."""
    last: int
    """The last version that is served."""
    native: bool
    """Rust answers it."""
    waits: bool
    """Its handler may wait for the coordinator or for members of a group. It does not count as work then."""


class Handler(Protocol):
    """What a handler module offers."""

    API: str

    async def handle(self, context: Context, request: Request) -> Body:
        """The body of the response."""

    def failure(self, request: Request, code: int) -> Body:
        """The body of a response that reports only `code`."""


APIS: dict[str, Api] = {row.name: row for row in map(Api._make, _native.apis())}


def _handlers() -> dict[int, Handler]:
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    modules = [cast(Handler, import_module(f"{__name__}.{name}")) for name in names]
    return {APIS[module.API].key: module for module in modules}


HANDLERS: dict[int, Handler] = _handlers()
"""The handlers by API key."""

ANSWERS: dict[int, Callable[[Context, Request], Body]] = {
    key: module.answer for key, module in HANDLERS.items() if hasattr(module, "answer")
}
"""By API key, what answers without waiting. The responses are short."""

WAITING_APIS = frozenset(api.key for api in APIS.values() if api.waits)
"""The keys of the APIs whose handlers may wait."""
