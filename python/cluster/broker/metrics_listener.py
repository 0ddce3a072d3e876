"""The HTTP listener for Prometheus: `metrics.listener`.

It has its own threads, so a scrape does not wait for the event loop and works while the loop is stuck. The
number of scrapes and their time are limited, because an idle connection holds a thread. It is plain HTTP
without authentication: bind it to an address that only the monitoring system reaches.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from cluster.broker.metrics import BrokerCollector
from cluster.broker.parts import Parts

log = logging.getLogger(__name__)

_SCRAPES_MAX = 8
_SCRAPE_TIMEOUT_SECONDS = 10.0
"""The time for a request and its response, as Prometheus' default `scrape_timeout`."""


class MetricsListener:
    """Serves the metrics of `parts` on `host` and `port` (0: a free port). Raises OSError if it cannot
    listen.
    """

    def __init__(self, parts: Parts, host: str, port: int) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(BrokerCollector(parts))
        ProcessCollector(registry=registry)
        self._server = _Server(host, port, _guarded(make_wsgi_app(registry)))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The URL of the metrics."""
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes | bytearray) else host
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/metrics"

    def stop(self) -> None:
        """Stops accepting and frees the port. Does not wait for running scrapes."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def _guarded(app: _App) -> _App:
    """Logs a scrape that fails. Otherwise its traceback would go to standard error."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except Exception:
            log.exception("a scrape of the metrics failed")
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the scrape failed; the broker's log says why\n"]

    return guarded


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, app: _App) -> None:
        self._slots = threading.BoundedSemaphore(_SCRAPES_MAX)
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        # Not HTTPServer's method, which resolves this host's name.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "metrics", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timeout = threading.Timer(_SCRAPE_TIMEOUT_SECONDS, _shut_down, [request])
        timeout.daemon = True
        timeout.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timeout.cancel()
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a scrape from %s ended early", client_address, exc_info=True)


def _shut_down(request: socket.socket) -> None:
    """Ends the thread's read or write on the socket."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
