"""`python -m cluster.cli` is `logcore`."""

from cluster.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
