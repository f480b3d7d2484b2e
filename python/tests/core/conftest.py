# SPDX-License-Identifier: Apache-2.0
"""Jobs whose members all live in this process, and programs that are started as strangers."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator

import pytest

import shardwire as sw

sys.path[:0] = [str(pathlib.Path(__file__).parent.parent)]


class Store:
    """A key-value store of this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, timeout: float) -> bytes | None:
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, timeout)
            return self.values.get(key)


def on_all(calls: list[Callable[[], Any]]) -> list[Any]:
    """Runs the calls at once, each on a thread; their results."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


class Job(list[sw.Session]):
    """The sessions of members 0..n-1."""


@pytest.fixture
def job() -> Iterator[Callable[..., Job]]:
    opened: list[sw.Session] = []

    def start(members: int, **options: Any) -> Job:
        store = Store()

        def join(rank: int) -> sw.Session:
            return sw.Session.join(rank=rank, world_size=members, local_size=members, store=store, join_timeout=20, **options)

        sessions = on_all([lambda rank=rank: join(rank) for rank in range(members)])  # type: ignore[misc]
        opened.extend(sessions)
        return Job(sessions)

    yield start
    for session in reversed(opened):
        session.close(2)


class Program:
    """A script in a process of its own."""

    def __init__(self, text: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})})

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, timeout: float = 30) -> tuple[int, str, str]:
        try:
            out, error = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, error = self.process.communicate()
            raise AssertionError(f"the program hangs; it printed {out!r}, {error!r}") from None
        # Processes start as far apart as a busy machine wants.
        error = "".join(line for line in error.splitlines(True) if "waits for member 0" not in line)
        return self.process.returncode, out, error


@pytest.fixture
def run() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(text: str, *arguments: str, **options: Any) -> Program:
        started.append(Program(text, *arguments, **options))
        return started[-1]

    yield start
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
            program.process.communicate()


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether the condition comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
