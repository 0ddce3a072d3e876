"""A slow and lossy link: packets that enter a TUN device leave it later, or never.

Run as a program in a router's namespace: ``slow_link.py DEVICE DELAY_MS LOSS SEED``. It prints ``ready`` when
the device is there, and works until it is killed. `tc netem` does the same, but not every kernel has it.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_PACKET_MAX = 65_536


def main(device: str, delay_ms: str, loss: str, seed: str) -> None:
    delay, lost, chance = int(delay_ms) / 1000, float(loss), random.Random(int(seed))
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER))
    print("ready", flush=True)
    # When each packet leaves. The delay is the same for all, so they keep their order.
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([tun], [], [], timeout)[0]:
            with suppress(OSError):
                packet = os.read(tun, _PACKET_MAX)
                if chance.random() >= lost:
                    waiting.append((time.monotonic() + delay, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            with suppress(OSError):
                os.write(tun, waiting.popleft()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
