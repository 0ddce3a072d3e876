#!/usr/bin/env python3
"""Builds the extension and installs the package for development, and says how far it is.

maturin and cargo print a line a crate, some 200. At a terminal this shows one line that counts them,
elsewhere a line each 20 seconds. Their whole output is in build/build.log, and is shown when the build fails.

usage: tools/build.py [--profile NAME]     (release is the default; dist is for wheels and benchmarks)
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "build/build.log"
USUAL = {"release": "4 to 11 minutes", "dist": "4 to 14 minutes"}
"""How long a first build takes on two cores."""
EVERY_S = 20


def crates() -> int:
    """How many crates a first build compiles."""
    tree = ["cargo", "tree", "--locked", "-p", "logcore-python", "-e", "normal,build", "--prefix", "none"]
    found = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, check=False)
    return len({line.removesuffix(" (*)") for line in found.stdout.splitlines()})


def main() -> int:
    parser = argparse.ArgumentParser(description="builds the extension into .venv", allow_abbrev=False)
    parser.add_argument(
        "--profile", default="release", choices=sorted(USUAL), help="cargo's profile (default: release)"
    )
    profile = parser.parse_args().profile
    LOG.parent.mkdir(exist_ok=True)
    venv = ROOT / ".venv"
    command = [str(venv / "bin/maturin"), "develop", "--profile", profile, "--locked"]
    environment = {**os.environ, "VIRTUAL_ENV": str(venv), "CARGO_TERM_COLOR": "never"}
    total = crates()
    print(
        f"build: the extension (profile {profile}; {USUAL[profile]} the first time on two cores)", flush=True
    )
    begun = said = time.monotonic()
    done = 0
    terminal = sys.stdout.isatty()
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as build,
    ):
        assert build.stdout is not None
        for line in build.stdout:
            log.write(line)
            if not (compiling := re.match(r"\s*Compiling (\S+)", line)):
                continue
            done += 1
            now = time.monotonic()
            minutes, seconds = divmod(int(now - begun), 60)
            text = f"build: crate {done} of {max(done, total)}, {compiling[1]} ({minutes}:{seconds:02d})"
            if terminal:
                print(f"\r\x1b[K{text}", end="", flush=True)
            elif now - said >= EVERY_S:
                said = now
                print(text, flush=True)
    if terminal and done:
        print("\r\x1b[K", end="")
    if build.returncode != 0:
        print(LOG.read_text(), file=sys.stderr)
        print(
            f"build: failed with status {build.returncode}; the lines above are in {LOG.relative_to(ROOT)}",
            file=sys.stderr,
        )
        return 1
    minutes, seconds = divmod(int(time.monotonic() - begun), 60)
    print(f"build: done in {minutes} min {seconds:02d} s ({done} crates compiled)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
