# SPDX-License-Identifier: Apache-2.0
"""Ports that no other test process takes while this one runs: the blocks of tests/support/job.cpp."""

from __future__ import annotations

import itertools
import random
import socket
from typing import Iterator

_FIRST, _OF_BLOCK, _BLOCKS = 10_000, 200, 110  # all are below the kernel's range for outgoing connections
_reserved = socket.socket(socket.AF_UNIX)


def _ports() -> Iterator[int]:
    for block in random.Random().sample(range(_BLOCKS), _BLOCKS):
        first = _FIRST + _OF_BLOCK * block
        try:
            _reserved.bind(f"\0shardwire-test-ports-{first}")
        except OSError:
            continue  # another process has it
        return itertools.cycle(range(first, first + _OF_BLOCK))
    raise RuntimeError("no block of ports is free")


_of_this_process = _ports()


def free_port() -> int:
    for port in itertools.islice(_of_this_process, _OF_BLOCK):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port on the loopback interface")
