"""Every setting of a Kafka 3.9 topic, in the form of `_broker_table`, then the broker settings it takes its
default from.

Source: `LogConfig.configDefCopy` and `ServerTopicConfigSynonyms` of Kafka 3.9.1. The first broker setting is
the one Kafka names as the synonym; `*N` turns its unit into the topic setting's.
"""

TABLE = """
cleanup.policy list delete compact|delete s log.cleanup.policy
compression.gzip.level int -1 -1|1..9 s compression.gzip.level
compression.lz4.level int 9 1..17 - compression.lz4.level
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer s compression.type
compression.zstd.level int 3 -131072..22 s compression.zstd.level
delete.retention.ms long 86400000 0.. s log.cleaner.delete.retention.ms
file.delete.delay.ms long 60000 0.. s log.segment.delete.delay.ms
flush.messages long 9223372036854775807 1.. s log.flush.interval.messages
flush.ms long 9223372036854775807 0.. s log.flush.interval.ms,log.flush.scheduler.interval.ms
follower.replication.throttled.replicas list "" - - -
index.interval.bytes int 4096 0.. s log.index.interval.bytes
leader.replication.throttled.replicas list "" - - -
local.retention.bytes long -2 -2.. - log.local.retention.bytes
local.retention.ms long -2 -2.. - log.local.retention.ms
max.compaction.lag.ms long 9223372036854775807 1.. s log.cleaner.max.compaction.lag.ms
max.message.bytes int 1048588 0.. s message.max.bytes
message.downconversion.enable boolean true - s log.message.downconversion.enable
message.format.version string 3.0-IV1 version - log.message.format.version
message.timestamp.after.max.ms long 9223372036854775807 0.. s log.message.timestamp.after.max.ms
message.timestamp.before.max.ms long 9223372036854775807 0.. s log.message.timestamp.before.max.ms
message.timestamp.difference.max.ms long 9223372036854775807 0.. s log.message.timestamp.difference.max.ms
message.timestamp.type string CreateTime CreateTime|LogAppendTime s log.message.timestamp.type
min.cleanable.dirty.ratio double 0.5 0..1 s log.cleaner.min.cleanable.ratio
min.compaction.lag.ms long 0 0.. s log.cleaner.min.compaction.lag.ms
min.insync.replicas int 1 1.. s min.insync.replicas
preallocate boolean false - - log.preallocate
remote.log.copy.disable boolean false - - -
remote.log.delete.on.disable boolean false - - -
remote.storage.enable boolean false - - -
retention.bytes long -1 - s log.retention.bytes
retention.ms long 604800000 -1.. s log.retention.ms,log.retention.minutes*60000,log.retention.hours*3600000
segment.bytes int 1073741824 14.. s log.segment.bytes
segment.index.bytes int 10485760 4.. s log.index.size.max.bytes
segment.jitter.ms long 0 0.. s log.roll.jitter.ms,log.roll.jitter.hours*3600000
segment.ms long 604800000 1.. s log.roll.ms,log.roll.hours*3600000
unclean.leader.election.enable boolean false - - unclean.leader.election.enable
"""
