"""The settings of this broker that Kafka does not have, in the form of `_broker_table`."""

TABLE = """
log.format string text text|json s
metrics.listener string ~ - s
slow.request.log.ms long 1000 -1.. s
socket.busy.poll.us int 100 0..10000 s
"""
