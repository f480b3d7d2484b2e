# SPDX-License-Identifier: Apache-2.0
"""`shardwire keep` beside a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def keeper(test: str) -> Iterator[tuple[str, str]]:
    """A keeper of a job of this test alone: the command, and the name of the job."""
    command = shutil.which("shardwire")
    if command is None:
        pytest.skip("there is no shardwire command in PATH")
    name = f"{test}-{os.getpid()}"
    running = subprocess.Popen([command, "keep", "--job", name, "--budget", "64M"], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        assert name in running.stdout.readline()
        yield command, name
    finally:
        running.terminate()
        running.wait(30)
