"""The program that makes the tables.

If one of these failed, the tables would differ from Apache's definitions, or a contradiction between two
releases would go unnoticed.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.compat.conftest import ROOT, peer_jars

CRATE = ROOT / "rust/crates/protocol"
JARS = {
    "messages.table": (
        "kafka-3.9.1/kafka-clients-3.9.1.jar",
        "kafka-4.1.0/kafka-clients-4.1.0.jar",
        "kafka-clients-4.2.0/kafka-clients-4.2.0.jar",
    ),
    "metadata.table": ("kafka-3.9.1/kafka-metadata-3.9.1.jar", "kafka-3.9.1/kafka-storage-3.9.1.jar"),
}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_table", CRATE / "tools/make_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    spec.loader.exec_module(module)
    return module


make_table = load()


@pytest.mark.compat
@pytest.mark.parametrize("name", JARS)
def test_the_table_is_made_from_the_jars(name: str) -> None:
    jars = [peer_jars(peer) / jar for peer, jar in (path.split("/") for path in JARS[name])]
    made = make_table.table([str(jar) for jar in jars])
    assert (CRATE / "src" / name).read_text().splitlines() == made


OLD: dict[str, Any] = {
    "apiKey": 5,
    "type": "request",
    "name": "ExampleRequest",
    "validVersions": "0-3",
    "flexibleVersions": "2+",
    "fields": [
        {"name": "Topic", "type": "string", "versions": "0+", "nullableVersions": "1+"},
        {"name": "Count", "type": "int32", "versions": "1+", "default": "-1"},
    ],
}
NEW: dict[str, Any] = copy.deepcopy(OLD) | {"validVersions": "2-5"}
NEW["fields"][0]["versions"] = "0-3"
NEW["fields"].insert(1, {"name": "TopicId", "type": "uuid", "versions": "4+"})


def merge(change: Callable[[dict[str, Any]], None]) -> list[str]:
    """The lines for the old definition together with the changed new one."""
    changed = copy.deepcopy(NEW)
    change(changed)
    read = [make_table.read_message(message, False) for message in (OLD, changed)]
    lines: list[str] = make_table.merged(*read).lines()
    return lines


def test_the_table_has_the_versions_of_both_releases() -> None:
    assert merge(lambda new: None) == [
        "request 5 Example 0-5 2+",
        " topic string 0-3 null=1+",
        " topic_id uuid 4+",
        " count int32 1+ default=-1",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda new: new.update(name="OtherRequest"),
        lambda new: new.update(flexibleVersions="3+"),
        lambda new: new["fields"][0].update(type="bytes"),
        lambda new: new["fields"][0].update(nullableVersions="3+"),
        lambda new: new["fields"][0].update(versions="0-2"),
        lambda new: new["fields"][2].update(default="0"),
        lambda new: new["fields"][2].update(taggedVersions="2+", tag=0),
        lambda new: new["fields"].reverse(),
        lambda new: new["fields"].pop(),
        lambda new: new["fields"].append({"name": "More", "type": "int8", "versions": "2+"}),
    ],
)
def test_releases_that_contradict_each_other_are_refused(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(SystemExit, match="the releases do not agree"):
        merge(change)


def test_an_unstable_version_is_left_out() -> None:
    assert make_table.read_message(OLD, True).lines()[0] == "request 5 Example 0-2 2+"
    assert make_table.read_message(OLD | {"validVersions": "0"}, True) is None
    assert (
        make_table.read_message({"name": "Example", "type": "request", "validVersions": "none"}, False)
        is None
    )
