"""zkCli's shell (ZooKeeperMain of ZooKeeper 3.9) on kazoo.

- `terminal` reads lines, `arguments` parses them, `shell` runs them.
- `commands`, `quotas` and `reconfig` have a function for each command; `printing` formats what they print.
- `session` sends requests, over kazoo's client as `client` extends it; `watches` keeps the session's watches.
- `errors` has zkCli's messages and exit codes, `console` writes the output, `tls` reads the settings of TLS.
"""
