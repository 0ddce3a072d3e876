"""Recorded histories of ZooKeeper's clients, and checkers that find what ZooKeeper's promises forbid.

Pure: no process, no socket, no clock. `tests/compat/ensemble` records histories on real ensembles under
faults. The tests here give each checker good histories, which it must accept, and bad ones, which it must
refuse.
"""
