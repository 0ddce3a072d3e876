"""Settings that change while the broker runs: of topics, brokers and loggers, and the quotas of clients.

They are in Kafka 3.9's znodes below /config, where Apache brokers and kafka-configs.sh read and write them
too.

- `live`: the broker's current configuration.
- `alteration`, `broker_rules`, `quotas`: which changes are allowed (pure).
- `mutations`: the quota of topic creations and deletions (pure).
- `description`: DescribeConfigs' entries and their sources (pure).
- `store`: reads and writes the znodes.
- `driver`: watches the znodes and applies changes.
- `loggers`: the levels of Python's loggers.
"""
