"""Recorded histories of clients of a ZooKeeper, and checkers that say what in them no ZooKeeper may do.

Pure: no process, no socket, no clock. `tests/compat/ensemble` records them on real ensembles under faults; the tests here give
each checker good histories, which it must accept, and bad ones, which it must refuse.
"""
