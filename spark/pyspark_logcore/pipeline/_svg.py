"""Drawing primitives as inline SVG, and numbers as text. Classes name colours of page.css."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10


def svg(width: float, height: float, body: Sequence[str], label: str) -> str:
    """A drawing that scales with the page; `label` is for screen readers."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="xMinYMin meet">{"".join(body)}</svg>'
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "", extra: str = "") -> str:
    """A rectangle; browsers show `title` as a tooltip."""
    tip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}" '
        f'class="{kind}" {extra}>{tip}</rect>'
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def circle(x: float, y: float, radius: float, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{kind}"/>'


def grouped(parts: Sequence[str], title: str) -> str:
    """Marks with one tooltip."""
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to about `top`."""
    if top <= 0:
        return [0.0]
    rough = top / wanted
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * index for index in range(int(top / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number for an axis: 1,500 is 1.5k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def number(value: float) -> str:
    """A number in full, with as many digits as say something."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
