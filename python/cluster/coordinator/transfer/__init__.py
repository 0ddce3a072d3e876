"""Moving in and out: what Apache ZooKeeper keeps or serves, as a state of :mod:`..machine`, and the way back.

:mod:`.directory` reads its data directories and writes one, :mod:`.ensemble` asks its servers as a client,
:mod:`.own` begins and reads data directories of ours. Everything blocks, holds the whole tree in memory, and
changes nothing where it reads but what a start would.
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
