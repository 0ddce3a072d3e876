"""ZooKeeper's metrics for Prometheus: ``metricsProvider.className=...PrometheusMetricsProvider``.

Owns its settings and its HTTP port. :mod:`.exposition` has the text. A restart sets all numbers to 0,
``srst`` does not. With ``exportJvmInfo`` there are metrics of the process, too. Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ..errors import CoordinatorError
from ..metrics import ServerMetrics
from ..ports.http import HttpServer, Request, Response
from ..ports.listener import cannot_listen
from ..settings.values import INT_MAX, LONG_MAX, Values
from .exposition import GaugeSets, exposition

CLASS_NAME = "metricsProvider.className"
PROMETHEUS = "org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider"
_OTHERS = (
    "org.apache.zookeeper.metrics.impl.DefaultMetricsProvider",
    "org.apache.zookeeper.metrics.impl.NullMetricsProvider",
)
_WORKERS = {
    "metricsProvider.numWorkerThreads": (-INT_MAX - 1, INT_MAX),
    "metricsProvider.maxQueueSize": (1, INT_MAX),
    "metricsProvider.workerShutdownTimeoutMs": (-LONG_MAX - 1, LONG_MAX),
}
"""Settings without an effect, because there are no such threads.

Values on which ZooKeeper does not start are refused.
"""
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_IDLE_SECONDS = 30.0


@dataclass(frozen=True)
class PrometheusSettings:
    """The address, and whether there are metrics of the process."""

    host: str = "0.0.0.0"
    port: int = 7000
    exports_process: bool = True


def prometheus_settings(values: Values) -> PrometheusSettings | None:
    """Returns None for ZooKeeper's other providers.

    Raises CoordinatorError for an unknown one, or a bad setting.
    """
    name = values.text(CLASS_NAME)
    settings = PrometheusSettings(
        values.text("metricsProvider.httpHost") or PrometheusSettings.host,
        values.number("metricsProvider.httpPort", PrometheusSettings.port, 0, 65535),
        values.boolean("metricsProvider.exportJvmInfo", True),
    )
    for worker, (least, most) in _WORKERS.items():
        if name == PROMETHEUS:
            values.number(worker, 1, least, most)
        else:
            values.text(worker)
    if name and name not in (PROMETHEUS, *_OTHERS):
        raise CoordinatorError(
            f"{CLASS_NAME} is {name!r}, a Java class, which cannot be used here: use {PROMETHEUS}"
        )
    return settings if name == PROMETHEUS else None


class PrometheusProvider:
    """Serves ``/metrics``. ``gauges`` returns the gauges, and those by namespace, at each scrape."""

    def __init__(
        self,
        settings: PrometheusSettings,
        metrics: ServerMetrics,
        gauges: Callable[[], tuple[Mapping[str, int | float], GaugeSets]],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._gauges = gauges
        self._http = HttpServer(self._answer, _IDLE_SECONDS)
        # Imported late: it takes 5 MB and a tenth of the start, and few servers have this port.
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        process = CollectorRegistry(auto_describe=False)
        if settings.exports_process:
            ProcessCollector(registry=process)
        self._process = partial(generate_latest, process)

    async def start(self) -> int:
        """Listens, and returns the port. Raises CoordinatorError."""
        host, port = self._settings.host, self._settings.port
        try:
            return await self._http.start(host, port)
        except (OSError, UnicodeError) as error:
            mend = "stop what uses the port or choose another with metricsProvider.httpPort"
            raise cannot_listen(
                "the metrics provider", host, port, error, "metricsProvider.httpHost", mend
            ) from error

    async def stop(self) -> None:
        await self._http.stop()

    async def _answer(self, request: Request) -> Response:
        if request.path != "/metrics":
            return Response(b"the metrics are at /metrics\n", status=404)
        if request.method not in ("GET", "HEAD"):
            return Response(b"use GET\n", status=405, headers={"Allow": "GET, HEAD"})
        text = exposition(self._metrics, *self._gauges()).encode()
        return Response(text + self._process(), _CONTENT_TYPE)
