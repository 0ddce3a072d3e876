"""The clients of `cluster.client`, their pure parts and against a broker."""
