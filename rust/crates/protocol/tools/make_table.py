#!/usr/bin/env python3
"""Prints src/messages.table, made from the message definitions inside Apache Kafka's kafka-clients jar, or
src/metadata.table, from the definitions of records in those of KRaft's controller and of the remote log metadata manager.

    tools/make_table.py kafka-clients-3.9.1.jar > src/messages.table
    tools/make_table.py kafka-metadata-3.9.1.jar kafka-storage-3.9.1.jar > src/metadata.table

The format of the table is described at its top and in src/table.rs. Only facts are taken: names, types,
versions, tags and defaults. A newest version which the definition calls unstable is left out, and so is a
request that has no stable version, and so are the requests of KRaft, which this project does not serve.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from typing import Any

DIRECTORIES = ("common/message/", "common/metadata/", "message/")

# KRaft's own requests: a ZooKeeper-mode cluster has none of them.
KRAFT = {
    "AddRaftVoter",
    "AssignReplicasToDirs",
    "BeginQuorumEpoch",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "ControllerRegistration",
    "DescribeQuorum",
    "EndQuorumEpoch",
    "FetchSnapshot",
    "RemoveRaftVoter",
    "UnregisterBroker",
    "UpdateRaftVoter",
    "Vote",
}

# Schemas that are neither request nor response, but travel inside one.
DATA = {
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "DefaultPrincipalData",
    "KRaftVersionRecord",
    "SnapshotFooterRecord",
    "SnapshotHeaderRecord",
    "VotersRecord",
}

PREAMBLE = """\
# Apache Kafka's messages, from {source}. Made by tools/make_table.py; do not edit.
#
# request|response KEY NAME VERSIONS FLEXIBLE, or data NAME VERSIONS FLEXIBLE, then a line for each field,
# indented once for each struct it lies in:
#   NAME TYPE VERSIONS [null=VERSIONS] [tag=TAG:VERSIONS] [default=VALUE] [ignorable]
# VERSIONS is "3", "0-4", "2+" or "none". The fields of TYPE "struct" and "[]struct" follow it."""


def snake_case(name: str) -> str:
    """Kafka's own rule (MessageGenerator.toSnakeCase): one underscore before each run of capitals."""
    return re.sub(r"(?<=[^A-Z])([A-Z]+)", r"_\1", name).lower()


def strip_comments(text: str) -> str:
    """Removes // comments outside of strings."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*', lambda match: match[1] or "", text)


def default_of(field: dict[str, Any]) -> str | None:
    """The explicit default as the table writes it; None when it is the type's own."""
    if "default" not in field:
        return None
    default = field["default"]
    text = str(default).lower() if isinstance(default, bool) else str(default)
    if text == "null":
        return "null"
    kind = field["type"]
    if kind == "string":
        return text or None
    if kind == "bool":
        return "true" if text == "true" else None
    if kind == "float64":
        return text if float(text) else None
    number = int(text, 0)
    return str(number) if number else None


def field_lines(
    fields: list[dict[str, Any]], common: dict[str, list[dict[str, Any]]], depth: int
) -> list[str]:
    """The lines of these fields; common structs are written out wherever they are used."""
    lines = []
    for field in fields:
        array = "[]" if field["type"].startswith("[]") else ""
        element = field["type"].removeprefix("[]")
        is_struct = element[0].isupper()
        parts = [snake_case(field["name"]), array + ("struct" if is_struct else element), field["versions"]]
        if "nullableVersions" in field:
            parts.append(f"null={field['nullableVersions']}")
        if "taggedVersions" in field:
            parts.append(f"tag={field['tag']}:{field['taggedVersions']}")
        default = default_of(field)
        if default is not None:
            parts.append(f"default={default}")
        if field.get("ignorable"):
            parts.append("ignorable")
        if "flexibleVersions" in field:
            raise SystemExit(f"{field['name']}: the table has no word for a field's own flexible versions")
        lines.append(" " * depth + " ".join(parts))
        if is_struct:
            lines += field_lines(field.get("fields") or common[element], common, depth + 1)
    return lines


def stable_versions(message: dict[str, Any], unstable: bool) -> str | None:
    """validVersions without an unstable newest one; None when nothing remains."""
    first, _, last = message["validVersions"].partition("-")
    lowest, highest = int(first), int(last or first) - unstable
    if highest < lowest:
        return None
    return str(lowest) if highest == lowest else f"{lowest}-{highest}"


def message_lines(message: dict[str, Any], unstable: bool) -> list[str]:
    """A message's headline and fields, or nothing when it does not belong in the table."""
    name = message["name"]
    versions = stable_versions(message, unstable)
    if message["type"] == "metadata" or (message["type"] == "data" and name in DATA):
        head = f"data {name}"
    elif message["type"] in ("request", "response"):
        short = name.removesuffix("Request").removesuffix("Response")
        if short in KRAFT:
            return []
        head = f"{message['type']} {message['apiKey']} {short}"
    else:
        return []
    if versions is None:
        return []
    common = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", [])}
    for field in walk(message["fields"]):
        if "fields" in field:
            common.setdefault(field["type"].removeprefix("[]"), field["fields"])
    return [f"{head} {versions} {message['flexibleVersions']}", *field_lines(message["fields"], common, 1)]


def walk(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every field at every depth."""
    return [inner for field in fields for inner in [field, *walk(field.get("fields", []))]]


def definitions(jar: str) -> list[dict[str, Any]]:
    with zipfile.ZipFile(jar) as archive:
        return [
            json.loads(strip_comments(archive.read(entry).decode()))
            for entry in archive.namelist()
            if entry.startswith(DIRECTORIES) and entry.endswith(".json")
        ]


def main(jars: list[str]) -> None:
    messages = [message for jar in jars for message in definitions(jar)]
    unstable = {
        message["apiKey"]: bool(message.get("latestVersionUnstable"))
        for message in messages
        if message["type"] == "request"
    }
    order = {"request": 0, "response": 1, "data": 2}
    messages.sort(
        key=lambda message: (message.get("apiKey", 1 << 16), order.get(message["type"], 3), message["name"])
    )
    names = [jar.rpartition("/")[2].removesuffix(".jar") for jar in jars]
    print(PREAMBLE.format(source=" and ".join(names)))
    for message in messages:
        for line in message_lines(message, unstable.get(message.get("apiKey"), False)):
            print(line)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
