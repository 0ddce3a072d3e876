"""Which offsets `consumer-groups --reset-offsets` commits: scopes, targets, and the CSV files of plans.

Source: ConsumerGroupCommand and CsvUtils of Apache Kafka 3.9.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cluster.cli._admin_tool import reason
from cluster.cli._common import CommandError

if TYPE_CHECKING:
    from cluster.client import AdminClient, OffsetSpec


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


Offsets = dict[Partition, int]

TARGETS = (
    "to-offset",
    "shift-by",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "to-current",
    "from-file",
)

_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+(?:\.\d{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3})(Z|[-+]\d{2}(?::?\d{2})?)?", re.ASCII)


def milliseconds_of(text: str) -> int:
    """The time of `YYYY-MM-DDTHH:mm:SS.sss` with or without a zone, in milliseconds since 1970
    (Utils.getDateTime). Raises CommandError.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is not None:
        moment, zone = found.groups()
        try:
            parsed = datetime.fromisoformat(moment + ("+00:00" if zone in (None, "Z") else zone))
            return (parsed - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
        except ValueError:
            pass
    raise CommandError(f"--to-datetime: {text!r} is not of the form YYYY-MM-DDTHH:mm:SS.sss", status=2)


def milliseconds_before(now_ms: int, duration: str) -> int:
    """The time that an ISO 8601 duration (`PnDTnHnMnS`) before `now_ms` is. Raises CommandError."""
    found = _DURATION.fullmatch(duration)
    if found is None or duration.upper().strip("+-") in ("P", "PT"):
        raise CommandError(f"--by-duration: {duration!r} is not of the form PnDTnHnMnS", status=2)
    parts = {name: float(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")}
    try:
        length = timedelta(**parts) // timedelta(milliseconds=1)
    except OverflowError:
        raise CommandError(f"--by-duration: {duration!r} is too long", status=2) from None
    return now_ms - (-length if found["sign"] == "-" else length)


def partitions_of(topic: str) -> list[Partition]:
    """The partitions of an argument such as `topic:0,1,2`. Raises CommandError."""
    name, _, numbers = topic.partition(":")
    if not name or not numbers or ":" in numbers:
        raise CommandError(f"Invalid topic arg '{topic}', expected topic name and partitions", status=2)
    try:
        return [Partition(name, int(number)) for number in numbers.split(",")]
    except ValueError:
        raise CommandError(f"Invalid partition specified in topic arg '{topic}'", status=2) from None


def read_plans(path: str, groups: Sequence[str]) -> dict[str, Offsets]:
    """The offsets of each group in a CSV file: topic, partition and offset in each line if there is one
    group, with the group before them otherwise. Raises CommandError.
    """
    try:
        rows = [row for row in csv.reader(io.StringIO(Path(path).read_text())) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise CommandError(f"--from-file: {path} cannot be read: {error}") from None
    plans: dict[str, Offsets] = {}
    for number, row in enumerate(rows, 1):
        if len(row) == 3 and len(groups) == 1:
            row = [groups[0], *row]
        try:
            group, topic, partition, offset = row
            plans.setdefault(group, {})[Partition(topic, int(partition))] = int(offset)
        except ValueError:
            needed = "topic,partition,offset" if len(groups) == 1 else "group,topic,partition,offset"
            raise CommandError(f"--from-file: line {number} of {path} is not {needed}") from None
    return plans


def csv_of(plans: dict[str, Offsets], single: bool) -> str:
    """The plans as a CSV file that `read_plans` reads. `single`: without the group."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, offsets in plans.items():
        for (topic, number), offset in offsets.items():
            writer.writerow([topic, number, offset] if single else [group, topic, number, offset])
    return out.getvalue()


class Resets:
    """What the options say about the offsets of each group."""

    def __init__(self, admin: AdminClient, options: argparse.Namespace, timeout: float, now_ms: int) -> None:
        self._admin = admin
        self._options = options
        self._timeout = timeout
        self._now_ms = now_ms
        self._plans: dict[str, Offsets] = {}
        if options.from_file is not None:
            self._plans = read_plans(options.from_file, options.group or ())

    def of(self, group: str) -> Offsets | None:
        """The offsets to commit for a group; None if the file has none for it."""
        options = self._options
        if options.from_file is not None:
            plan = self._plans.get(group)
            return None if plan is None else self._in_range(plan)
        scope = self._scope(group)
        if options.to_offset is not None:
            return self._in_range(dict.fromkeys(scope, options.to_offset))
        if options.to_earliest:
            return self._known(scope, "starting", lambda spec: spec.earliest())
        if options.to_latest:
            return self._known(scope, "ending", lambda spec: spec.latest())
        if options.to_datetime is not None:
            return self._at(scope, milliseconds_of(options.to_datetime))
        if options.by_duration is not None:
            return self._at(scope, milliseconds_before(self._now_ms, options.by_duration))
        committed = committed_offsets(self._admin, group, self._timeout)
        if options.to_current:
            without = [partition for partition in scope if partition not in committed]
            kept = {partition: committed[partition] for partition in scope if partition in committed}
            return kept | self._known(without, "ending", lambda spec: spec.latest())
        for partition in scope:
            if partition not in committed:
                raise CommandError(
                    f"Cannot shift offset for partition {partition} since there is no current "
                    "committed offset",
                    status=2,
                )
        return self._in_range({partition: committed[partition] + options.shift_by for partition in scope})

    def _scope(self, group: str) -> list[Partition]:
        if self._options.all_topics:
            return list(committed_offsets(self._admin, group, self._timeout))
        return named_partitions(self._admin, self._options.topic, self._timeout)

    def _offsets(
        self, partitions: Iterable[Partition], which: Callable[[type[OffsetSpec]], OffsetSpec]
    ) -> Offsets:
        from cluster.client import OffsetSpec

        return log_offsets(self._admin, partitions, which(OffsetSpec), self._timeout)

    def _known(
        self, partitions: Sequence[Partition], what: str, which: Callable[[type[OffsetSpec]], OffsetSpec]
    ) -> Offsets:
        offsets = self._offsets(partitions, which)
        for partition in partitions:
            if partition not in offsets:
                raise CommandError(f"Error getting {what} offset of topic partition: {partition}")
        return offsets

    def _at(self, partitions: Sequence[Partition], timestamp: int) -> Offsets:
        """The first offsets at or after a time; the end where there is none."""
        if timestamp < 0:
            raise CommandError("the time is before 1970", status=2)
        found = self._known(partitions, "by timestamp", lambda spec: spec.for_timestamp(timestamp))
        after = [partition for partition, offset in found.items() if offset < 0]
        for topic, number in after:
            print(
                f"\nWarn: Partition {number} from topic {topic} is empty. Falling back to latest known "
                f"offset."
            )
        return found | self._known(after, "ending", lambda spec: spec.latest())

    def _in_range(self, wanted: Offsets) -> Offsets:
        starts = self._offsets(wanted, lambda spec: spec.earliest())
        ends = self._offsets(wanted, lambda spec: spec.latest())
        found = {}
        for partition, offset in wanted.items():
            within = offset
            if partition in ends and offset > ends[partition]:
                within = ends[partition]
                relation = "higher than latest"
            elif partition in starts and offset < starts[partition]:
                within = starts[partition]
                relation = "lower than earliest"
            if within != offset:
                print(
                    f"WARN New offset ({offset}) is {relation} offset for topic partition {partition}. Value "
                    f"will be set to {within}",
                    file=sys.stderr,
                )
            found[partition] = within
        return found


def committed_offsets(admin: AdminClient, group: str, timeout: float) -> Offsets:
    """The committed offsets of a group, in the order of their partitions. Raises KafkaException."""
    from cluster.client import ConsumerGroupTopicPartitions

    [future] = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=timeout
    ).values()
    found = future.result().topic_partitions or []
    return dict(sorted((Partition(one.topic, one.partition), one.offset) for one in found if one.offset >= 0))


def log_offsets(
    admin: AdminClient, partitions: Iterable[Partition], which: OffsetSpec, timeout: float
) -> Offsets:
    """An offset of each partition; those that have none are left out, with a line on standard error."""
    from cluster.client import KafkaException, TopicPartition

    asked = {TopicPartition(topic, number): which for topic, number in partitions}
    found: Offsets = {}
    for item, future in admin.list_offsets(asked, request_timeout=timeout).items() if asked else ():
        try:
            found[Partition(item.topic, item.partition)] = future.result().offset
        except KafkaException as error:
            print(f"{item.topic}-{item.partition}: {reason(error.error)}", file=sys.stderr)
    return found


def named_partitions(admin: AdminClient, topics: Iterable[str], timeout: float) -> list[Partition]:
    """The partitions of arguments such as `topic` and `topic:0,1`, each once. Raises KafkaException for a
    topic that does not exist.
    """
    from cluster.client import TopicCollection

    found: list[Partition] = []
    whole = []
    for topic in topics:
        if ":" in topic:
            found += partitions_of(topic)
        else:
            whole.append(topic)
    if whole:
        described = admin.describe_topics(TopicCollection(whole), request_timeout=timeout)
        for name, future in described.items():
            found += [Partition(name, one.id) for one in future.result().partitions]
    return list(dict.fromkeys(found))


def commit(admin: AdminClient, group: str, offsets: Offsets, timeout: float) -> None:
    """Commits offsets for a group without members. Raises CommandError for those that were refused."""
    from cluster.client import ConsumerGroupTopicPartitions, TopicPartition

    if not offsets:
        return
    wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    [future] = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=timeout
    ).values()
    refused = [
        f"{one.topic}-{one.partition}: {reason(one.error)}"
        for one in future.result().topic_partitions or []
        if one.error is not None
    ]
    if refused:
        lines = ", ".join(refused)
        raise CommandError(f"group {group}: offsets were not committed: {lines}")
