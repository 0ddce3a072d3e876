#!/usr/bin/env python3
"""Prints a table of messages from the definitions inside Apache Kafka's jars.

    cd rust/crates/protocol
    tools/make_table.py kafka-clients-{3.9.1,4.1.0,4.2.0}.jar > src/messages.table
    tools/make_table.py kafka-metadata-3.9.1.jar kafka-storage-3.9.1.jar > src/metadata.table

The second has the records of KRaft's controller and of the remote log metadata manager.

A message that several jars define gets all their versions, because later releases dropped old ones.
Two definitions of the same version must be equal; otherwise the program ends with an error.

The top of the table describes its format. Only facts are taken: names, types, versions, tags and defaults.
Unstable versions, requests without a stable version, and KRaft's requests are left out.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from dataclasses import dataclass, replace
from typing import Any

Versions = frozenset[int]
Structs = dict[str, list[dict[str, Any]]]

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

# Messages that a later release renamed, with their fields. The bytes of their versions stayed (KIP-1142).
RENAMED = {"ListClientMetricsResources"}

# Schemas of data inside a request or a response.
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
# Apache Kafka's messages, made by tools/make_table.py; do not edit. From {source}.
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
    """The explicit default in the table's form; None when it is the default of the type."""
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


def versions_of(text: str, among: Versions) -> Versions:
    """The versions `among` those of the message that a definition's text ("none", "3", "0-4", "2+") means."""
    if text == "none":
        return frozenset()
    first, _, last = text.partition("-")
    lowest = int(first.rstrip("+"))
    highest = int(last or first) if not first.endswith("+") else max(among, default=0)
    return among & frozenset(range(lowest, highest + 1))


def text_of(versions: Versions, among: Versions) -> str:
    """The text of versions. A range up to the message's newest version stays open."""
    if not versions:
        return "none"
    lowest, highest = min(versions), max(versions)
    if versions != among & frozenset(range(lowest, highest + 1)):
        raise SystemExit(f"the table has no form for versions with a gap: {sorted(versions)}")
    if highest == max(among):
        return f"{lowest}+"
    return str(lowest) if lowest == highest else f"{lowest}-{highest}"


@dataclass
class Field:
    """A field in all versions."""

    name: str
    kind: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int | None
    default: str | None
    ignorable: bool
    fields: list[Field]

    def at(self, version: int) -> tuple[object, ...] | None:
        """Everything that determines the bytes in a version; None when it lacks the field."""
        if version not in self.versions:
            return None
        tag = self.tag if version in self.tagged else None
        return self.kind, version in self.nullable, tag, self.default

    def line(self, among: Versions) -> str:
        parts = [self.name, self.kind, text_of(self.versions, among)]
        if self.nullable:
            parts.append(f"null={text_of(self.nullable, among)}")
        if self.tagged:
            parts.append(f"tag={self.tag}:{text_of(self.tagged, among)}")
        if self.default is not None:
            parts.append(f"default={self.default}")
        if self.ignorable:
            parts.append("ignorable")
        return " ".join(parts)


@dataclass
class Message:
    """The definition of a message, of one release or of several together."""

    kind: str
    key: int | None
    name: str
    versions: Versions
    flexible: Versions
    fields: list[Field]

    def lines(self) -> list[str]:
        lowest, highest = min(self.versions), max(self.versions)
        versions = str(lowest) if lowest == highest else f"{lowest}-{highest}"
        key = "" if self.kind == "data" else f"{self.key} "
        head = f"{self.kind} {key}{self.name} {versions} {text_of(self.flexible, self.versions)}"
        return [head, *field_lines(self.fields, self.versions, 1)]


def field_lines(fields: list[Field], among: Versions, depth: int) -> list[str]:
    lines = []
    for field in fields:
        lines.append(" " * depth + field.line(among))
        lines += field_lines(field.fields, among, depth + 1)
    return lines


def read_fields(fields: list[dict[str, Any]], common: Structs, among: Versions) -> list[Field]:
    """The fields of a struct. Common structs are repeated wherever they are used."""
    found = []
    for field in fields:
        if "flexibleVersions" in field:
            raise SystemExit(f"{field['name']}: the table has no form for a field's own flexible versions")
        array = "[]" if field["type"].startswith("[]") else ""
        element = field["type"].removeprefix("[]")
        is_struct = element[0].isupper()
        inner = field.get("fields") or common[element] if is_struct else []
        found.append(
            Field(
                name=snake_case(field["name"]),
                kind=array + ("struct" if is_struct else element),
                versions=versions_of(field["versions"], among),
                nullable=versions_of(field.get("nullableVersions", "none"), among),
                tagged=versions_of(field.get("taggedVersions", "none"), among),
                tag=field.get("tag"),
                default=default_of(field),
                ignorable=field.get("ignorable", False),
                fields=read_fields(inner, common, among),
            )
        )
    return found


def belongs(kind: str, name: str) -> bool:
    """Whether a message belongs in the table."""
    if kind in ("request", "response"):
        return short_name(name) not in KRAFT | RENAMED
    return kind == "metadata" or (kind == "data" and name in DATA)


def short_name(name: str) -> str:
    return name.removesuffix("Request").removesuffix("Response")


def read_message(message: dict[str, Any], unstable: bool) -> Message | None:
    """A message with its stable versions; None when it has none, or does not belong in the table."""
    kind, name, text = message["type"], message["name"], message["validVersions"]
    if not belongs(kind, name) or text == "none":
        return None
    first, _, last = text.partition("-")
    versions = frozenset(range(int(first), int(last or first) + 1 - unstable))
    if not versions:
        return None
    common: Structs = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", [])}
    for field in walk(message["fields"]):
        if "fields" in field:
            common.setdefault(field["type"].removeprefix("[]"), field["fields"])
    return Message(
        kind="data" if kind == "metadata" else kind,
        key=message.get("apiKey"),
        name=name if kind in ("data", "metadata") else short_name(name),
        versions=versions,
        flexible=versions_of(message["flexibleVersions"], versions),
        fields=read_fields(message["fields"], common, versions),
    )


def walk(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every field at every depth."""
    return [inner for field in fields for inner in [field, *walk(field.get("fields", []))]]


def merged(old: Message, new: Message) -> Message:
    """A message with the versions of both releases. They must agree about versions that both have."""
    shared = old.versions & new.versions
    path = f"{old.name}, a {old.kind}"
    if (old.name, old.flexible & shared) != (new.name, new.flexible & shared):
        raise SystemExit(f"{path}: the releases do not agree about its name or its flexible versions")
    fields = merged_fields(old.fields, new.fields, shared, path)
    for side in (old, new):
        check_order(side.fields, fields, side.versions, path)
    return replace(
        old, versions=old.versions | new.versions, flexible=old.flexible | new.flexible, fields=fields
    )


def merged_fields(old: list[Field], new: list[Field], shared: Versions, path: str) -> list[Field]:
    """The fields of both. A field of the newer release only comes after the same field as there."""
    news = {field.name: field for field in new}
    fields = [merged_field(field, news.get(field.name), shared, path) for field in old]
    position = 0
    for field in new:
        known = [other.name for other in fields]
        if field.name in known:
            position = known.index(field.name) + 1
        else:
            fields.insert(position, merged_field(field, None, shared, path))
            position += 1
    return fields


def merged_field(old: Field, new: Field | None, shared: Versions, path: str) -> Field:
    path = f"{path}.{old.name}"
    for version in shared:
        if old.at(version) != (new.at(version) if new else None):
            raise SystemExit(f"{path}: the releases do not agree about version {version}")
    if new is None:
        return old
    if (old.kind, old.default) != (new.kind, new.default):
        raise SystemExit(f"{path}: the table has no form for a type or a default that changes")
    if old.tagged and new.tagged and old.tag != new.tag:
        raise SystemExit(f"{path}: the table has no form for a tag that changes")
    return replace(
        old,
        versions=old.versions | new.versions,
        nullable=old.nullable | new.nullable,
        tagged=old.tagged | new.tagged,
        tag=old.tag if old.tag is not None else new.tag,
        ignorable=old.ignorable or new.ignorable,
        fields=merged_fields(old.fields, new.fields, shared & old.versions, path),
    )


def check_order(side: list[Field], fields: list[Field], versions: Versions, path: str) -> None:
    """Checks that each version has its fields in the order of its release."""
    for version in versions:
        wanted = [field.name for field in side if version in field.versions]
        if wanted != [field.name for field in fields if version in field.versions]:
            raise SystemExit(f"{path}: the releases do not agree about the order of version {version}")
    by_name = {field.name: field for field in fields}
    for field in side:
        check_order(
            field.fields, by_name[field.name].fields, versions & field.versions, f"{path}.{field.name}"
        )


def definitions(jar: str) -> list[dict[str, Any]]:
    with zipfile.ZipFile(jar) as archive:
        return [
            json.loads(strip_comments(archive.read(entry).decode()))
            for entry in archive.namelist()
            if entry.startswith(DIRECTORIES) and entry.endswith(".json")
        ]


def read_jar(jar: str) -> list[Message]:
    """The messages of one jar that belong in the table."""
    found = definitions(jar)
    unstable = {
        message["apiKey"]: bool(message.get("latestVersionUnstable"))
        for message in found
        if message["type"] == "request"
    }
    read = (read_message(message, unstable.get(message.get("apiKey"), False)) for message in found)
    return [message for message in read if message is not None]


def identity(message: Message) -> tuple[str, int | str]:
    """Identifies a message in every release: the name of an API may change, its key does not."""
    return message.kind, message.name if message.key is None or message.kind == "data" else message.key


def order(message: Message) -> tuple[int, int, str]:
    """Sorts by key, a request before its response, and data last."""
    kinds = {"request": 0, "response": 1, "data": 2 if message.key is None else 3}
    return 1 << 16 if message.key is None else message.key, kinds[message.kind], message.name


def table(jars: list[str]) -> list[str]:
    """The lines of the table. Messages of several jars are merged; the oldest release's jar comes first."""
    messages: dict[tuple[str, int | str], Message] = {}
    for message in (message for jar in jars for message in read_jar(jar)):
        known = messages.get(identity(message))
        messages[identity(message)] = merged(known, message) if known else message
    names = [jar.rpartition("/")[2].removesuffix(".jar") for jar in jars]
    lines = PREAMBLE.format(source=", ".join(names)).splitlines()
    return lines + [line for message in sorted(messages.values(), key=order) for line in message.lines()]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    print("\n".join(table(sys.argv[1:])))
