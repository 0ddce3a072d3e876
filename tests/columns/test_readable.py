"""What a reader of a replica's directory may read: up to the high watermark or the last stable offset, and
only what the partition's leader certainly has.

Broken if they failed: Spark would read records that are not replicated and may yet be truncated.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logcore import CorruptLogError
from logcore.columns import partition_covers, partition_offsets
from tests.logcore.segments import TransactionalSegment

UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"


@pytest.fixture
def replica(tmp_path: Path) -> TransactionalSegment:
    """Offsets 0 to 9 in the epoch 3: plain records, a committed transaction, and from 7 on an open one."""
    segment = TransactionalSegment(tmp_path / "t-0")
    segment.plain(b"0", b"1", b"2")
    segment.write(7, b"3", b"4", b"5")
    segment.finish(7, commit=True)
    segment.write(8, b"7", b"8", b"9")
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n2 0\n3 5\n")
    return segment


def note_high_watermark(directory: Path, offset: int) -> None:
    """As the replica's broker does from time to time."""
    (directory.parent / "replication-offset-checkpoint").write_text(f"0\n2\nother 0 1\nt 0 {offset}\n")


# Broken if it failed: a read of a directory would end too early, or after records that are not replicated.
def test_the_end_is_what_the_broker_noted(replica: TransactionalSegment) -> None:
    directory = replica.directory
    assert partition_offsets(directory) == (0, 10)
    assert partition_offsets(directory, UNCOMMITTED) == (0, 10)
    assert partition_offsets(directory, COMMITTED) == (0, 7)
    for noted, uncommitted, committed in ((9, 9, 7), (7, 7, 7), (6, 6, 3), (2, 2, 2), (12, 10, 7)):
        note_high_watermark(directory, noted)
        assert partition_offsets(directory) == (0, 10)
        assert partition_offsets(directory, UNCOMMITTED) == (0, uncommitted), noted
        # Below the marker at offset 6, nobody can know how the transaction ends.
        assert partition_offsets(directory, COMMITTED) == (0, committed), noted


# Broken if it failed: a task would read records of a replica that are not those of the leader, or ask brokers
# for records that are there.
@pytest.mark.parametrize(
    ("noted", "end", "epoch", "isolation", "covered"),
    [
        # Its latest epoch is the leader's: all of it is the leader's log.
        (0, 10, 3, UNCOMMITTED, True),
        (0, 11, 3, UNCOMMITTED, False),
        (0, 7, 3, COMMITTED, True),
        (0, 8, 3, COMMITTED, False),
        # The replica is of another epoch than the leader. Its replicated records are certain, no other is.
        (6, 6, 4, UNCOMMITTED, True),
        (6, 7, 4, UNCOMMITTED, False),
        (6, 3, 4, COMMITTED, True),
        (6, 6, 4, COMMITTED, False),
        (6, 6, -1, UNCOMMITTED, True),
        (6, 7, -1, UNCOMMITTED, False),
    ],
)
def test_a_replica_covers_what_is_certain(
    replica: TransactionalSegment, noted: int, end: int, epoch: int, isolation: str, covered: bool
) -> None:
    note_high_watermark(replica.directory, noted)
    assert partition_covers(replica.directory, 1, end, epoch, isolation) == covered


# Broken if it failed: records that retention has deleted would be looked for in files.
def test_a_replica_covers_nothing_before_its_start(replica: TransactionalSegment) -> None:
    (replica.directory.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    assert not partition_covers(replica.directory, 3, 5, 3, UNCOMMITTED)
    assert partition_covers(replica.directory, 4, 5, 3, UNCOMMITTED)


# Broken if it failed: a damaged checkpoint would make everything readable.
def test_a_damaged_checkpoint_is_an_error(replica: TransactionalSegment) -> None:
    (replica.directory.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 many\n")
    with pytest.raises(CorruptLogError, match="replication-offset-checkpoint"):
        partition_offsets(replica.directory, UNCOMMITTED)
