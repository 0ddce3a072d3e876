"""The documents name files and links that are there.

If this failed, a reader would be sent to a file that was moved or deleted.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "bench/results").glob("*.md")),
]
TOP = ("python", "rust", "tests", "docs", "bench", "spark", "tools", "demo", "requirements")
ARCHITECTURE_LINES_MAX = 300


def outside_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_are_there(document: Path) -> None:
    text = outside_fences(document.read_text())
    links = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in target]
    missing = [target for target in links if not (document.parent / target).exists()]
    for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text):
        if path.partition("/")[0] in TOP and not path.startswith("build/") and not (ROOT / path).exists():
            missing.append(path)
    assert not missing, f"{document.relative_to(ROOT)} names what is not there"


def test_links_to_headings_are_there() -> None:
    missing = []
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", outside_fences(document.read_text())):
            if "://" in target:
                continue
            headings = re.findall(
                r"^#+ (.*)$", ((document.parent / target) if target else document).read_text(), flags=re.M
            )
            slugs = {
                re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
            }
            if anchor not in slugs:
                missing.append(f"{document.relative_to(ROOT)}: {target}#{anchor}")
    assert not missing


def test_the_architecture_stays_readable() -> None:
    assert len((ROOT / "docs/architecture.md").read_text().splitlines()) <= ARCHITECTURE_LINES_MAX
