"""Golden scripts of the group machine.

If one failed, a client would get another result than from Apache Kafka's coordinator at the same point.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .script import play

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    real = play(path)
    if os.environ.get("GOLDEN") == "rewrite":
        path.write_text(real)
    assert real == path.read_text()
