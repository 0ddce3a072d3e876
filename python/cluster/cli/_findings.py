"""Findings as text and as JSON, the same for `logcore verify` and `logcore repair`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logcore import Finding


def finding_text(finding: Finding) -> str:
    """Two lines: what is wrong and where, and what to do."""
    place = os.fspath(finding.path)
    if finding.position is not None:
        place += f", byte {finding.position}"
    if finding.offset is not None:
        place += f", offset {finding.offset}"
    text = f"{finding.severity} ({finding.kind}): {place}: {finding.what}"
    return f"{text}\n  {finding.remedy}" if finding.remedy else text


def finding_json(finding: Finding) -> dict[str, str | int | None]:
    return {
        "severity": finding.severity,
        "kind": finding.kind,
        "path": os.fspath(finding.path),
        "position": finding.position,
        "offset": finding.offset,
        "what": finding.what,
        "remedy": finding.remedy,
    }


def tally(findings: Sequence[Finding]) -> str:
    """`nothing wrong`, or how many of each severity."""
    counts = Counter(finding.severity for finding in findings)
    if not counts:
        return "nothing wrong"
    names = {"damage": "damage", "hint": "hint" if counts["hint"] == 1 else "hints", "stray": "stray"}
    return ", ".join(f"{counts[severity]} {name}" for severity, name in names.items() if counts[severity])
