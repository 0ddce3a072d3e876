"""The server-side assignors of the consumer protocol (KIP-848): pure functions from members and topics to a
target assignment.

- `spec.py`: their input and output.
- `uniform.py`: partitions spread evenly, with as few moves as possible.
- `ranges.py`: contiguous ranges, the same ones of every topic.

As Kafka 3.9 and 4.0, they ignore racks.
"""

from cluster.groups.assignors.ranges import RangeAssignor
from cluster.groups.assignors.spec import EMPTY, Assignment, Assignor, MemberSpec
from cluster.groups.assignors.uniform import UniformAssignor

ASSIGNORS: dict[str, Assignor] = {each.name: each for each in (UniformAssignor(), RangeAssignor())}
"""By name, in the order of `group.consumer.assignors`' default. The first one is the default assignor."""

__all__ = ["ASSIGNORS", "EMPTY", "Assignment", "Assignor", "MemberSpec", "RangeAssignor", "UniformAssignor"]
