"""Import and export: the data of Apache ZooKeeper as a state of :mod:`cluster.coordinator.state.machine`, and
the way back.

:mod:`.directory` reads and writes ZooKeeper's data directories, :mod:`.ensemble` reads its servers as a
client, and :mod:`.own` makes and reads this coordinator's data directories. All calls block, and have the
whole tree in memory. Reading changes nothing, except as :func:`.own.read_own` says.
"""

from .common import Damaged, Moved, Progress
from .directory import Contradiction, read_directory, write_directory
from .ensemble import Address, Credentials, parse_addresses, read_ensemble
from .own import begin_directory, load_directory, read_own, require_empty

__all__ = [
    "Address",
    "Contradiction",
    "Credentials",
    "Damaged",
    "Moved",
    "Progress",
    "begin_directory",
    "load_directory",
    "parse_addresses",
    "read_directory",
    "read_ensemble",
    "read_own",
    "require_empty",
    "write_directory",
]
