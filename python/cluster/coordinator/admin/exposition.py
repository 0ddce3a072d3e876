"""ZooKeeper's metrics as text: names and types as those of 3.9's Prometheus provider (exposition format
0.0.4).

Names have no prefix, and counters no ``_total``. Summaries have quantiles. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..metrics import QUOTA_EXCEEDED, ServerMetrics, Summary

GaugeSets = Mapping[str, Mapping[str, int]]
_NONE: GaugeSets = {}
_KEY = "key"


class Sample(NamedTuple):
    """A line: a name, its labels, and a number."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


def exposition(
    metrics: ServerMetrics, gauges: Mapping[str, int | float], gauge_sets: GaugeSets = _NONE
) -> str:
    """Returns the text, without the process's metrics. ``gauge_sets`` are by namespace."""
    lines = []
    for name, kind, family in _families(metrics, gauges, gauge_sets):
        lines += [f"# HELP {name} {name}", f"# TYPE {name} {kind}"]
        for sample in family:
            labels = "".join(f'{label}="{_escaped(value)}",' for label, value in sample.labels)
            lines.append(f"{sample.name}{'{' + labels + '}' if labels else ''} {java_double(sample.value)}")
    return "".join(line + "\n" for line in lines)


def samples(
    metrics: ServerMetrics, gauges: Mapping[str, int | float], gauge_sets: GaugeSets = _NONE
) -> dict[str, float]:
    """Returns the metrics as ``mntr`` has them with this provider: every number is a double, and the name
    has the labels."""
    found = {}
    for _name, _kind, family in _families(metrics, gauges, gauge_sets):
        for sample in family:
            labels = ",".join(f'{label}="{value}"' for label, value in sample.labels)
            found[f"{sample.name}{'{' + labels + '}' if labels else ''}"] = sample.value
    return found


def _families(
    metrics: ServerMetrics, gauges: Mapping[str, int | float], gauge_sets: GaugeSets
) -> Iterator[tuple[str, str, list[Sample]]]:
    for name, value in gauges.items():
        yield name, "gauge", [Sample(name, (), float(value))]
    for name, values in gauge_sets.items():
        yield name, "gauge", [Sample(name, ((_KEY, key),), float(value)) for key, value in values.items()]
    for name, count in metrics.counters.items():
        yield name, "counter", [Sample(name, (), float(count))]
    exceeded = [
        Sample(QUOTA_EXCEEDED, ((_KEY, key),), float(count)) for key, count in metrics.quota_exceeded.items()
    ]
    yield QUOTA_EXCEEDED, "counter", exceeded
    for name, summary in metrics.basic.items():
        yield name, "summary", _summary(name, summary, (0.5,))
    for name, summaries in metrics.by_namespace.items():
        parts = (_summary(name, each, (0.5,), ((_KEY, key),)) for key, each in summaries.items())
        yield name, "summary", [sample for part in parts for sample in part]
    for name, summary in metrics.advanced.items():
        yield name, "summary", _summary(name, summary, (0.5, 0.9, 0.99))


def _summary(
    name: str, summary: Summary, shares: tuple[float, ...], labels: tuple[tuple[str, str], ...] = ()
) -> list[Sample]:
    quantiles = zip(shares, summary.quantiles(*shares), strict=True)
    return [
        *(Sample(name, (*labels, ("quantile", str(share))), value) for share, value in quantiles),
        Sample(f"{name}_count", labels, float(summary.count)),
        Sample(f"{name}_sum", labels, float(summary.total)),
    ]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def java_double(value: float) -> str:
    """Writes a number as Java's ``Double.toString``, and infinity as Prometheus."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size == 0 or 1e-3 <= size < 1e7:
        return repr(value)
    for precision in range(17):
        text = f"{value:.{precision}e}"
        if float(text) == value:
            break
    digits, _e, exponent = text.partition("e")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"
