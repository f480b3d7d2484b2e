# SPDX-License-Identifier: Apache-2.0
"""A pool of worker processes that run functions as the ranks of a job. Importing torch is slow, so they are kept."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Iterator

import pytest

_AFTER_A_FAILURE = 10.0


class Failed(AssertionError):
    """A function raised on a rank; carries the exception's text and type."""


def _times(process: int) -> str:
    """Tells a process that hangs from one that a busy machine does not run."""
    with contextlib.suppress(OSError):
        ran, waited = (sum(int(pathlib.Path(task, "schedstat").read_text().split()[part]) for task in
                           pathlib.Path(f"/proc/{process}/task").iterdir()) / 1e9 for part in (0, 1))
        return f"ran {ran:.1f} s, waited {waited:.1f} s for a processor"
    return "times unknown"


def _work(pipe: Any, path: list[str]) -> None:
    sys.path[:] = path
    import faulthandler
    import importlib

    faulthandler.register(signal.SIGUSR1)  # a rank that hangs says where

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        task = pipe.recv()
        if task is None:
            return
        module, name, rank, world, store, arguments = task
        try:
            # Once: torch keeps groups of equal meshes for longer than the default group.
            if not dist.is_initialized():
                dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
            result = getattr(importlib.import_module(module), name)(rank, world, *arguments)
            pipe.send(("done", result))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))


class Pool:
    def __init__(self) -> None:
        self._workers: list[tuple[Any, Any]] = []

    def _start(self, world: int) -> None:
        # Workers are forked from a process that has imported what most of them need, which takes longer than most functions do.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.checkpoint",
                                        "torch._dynamo"])
        self._folder = tempfile.TemporaryDirectory()
        for _ in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, sys.path), daemon=True)
            process.start()
            self._workers.append((process, here))

    def stop(self) -> None:
        for process, pipe in self._workers:
            process.kill()  # first, else it complains about the pipe
            process.join()
            pipe.close()
        self._workers = []

    def __call__(self, world: int, function: Callable[..., Any], *arguments: Any, seconds: float = 120) -> list[Any]:
        """The results of function(rank, world, *arguments) by rank."""
        if len(self._workers) != world:
            self.stop()
            self._start(world)
        end = time.monotonic() + seconds
        store = self._folder.name + "/store"
        for rank, (_, pipe) in enumerate(self._workers):
            pipe.send((function.__module__, function.__name__, rank, world, store, arguments))
        results: list[Any] = []
        for rank, (_, pipe) in enumerate(self._workers):
            if any(how == "failed" for how, _ in results):
                end = min(end, time.monotonic() + _AFTER_A_FAILURE)  # the others may wait for the rank that failed
            if not pipe.poll(max(0.0, end - time.monotonic())):
                times = "\n".join(f"rank {other}: {_times(process.pid)}" for other, (process, _) in enumerate(self._workers))
                for process, _ in self._workers:
                    os.kill(process.pid, signal.SIGUSR1)
                time.sleep(1)
                self.stop()
                raise Failed("\n".join([f"rank {rank} hangs", times, *(result for how, result in results if how == "failed")]))
            results.append(pipe.recv())
        failed = [f"rank {rank}:\n{result}" for rank, (how, result) in enumerate(results) if how == "failed"]
        if failed:
            self.stop()  # the ranks may not be alike any more
            raise Failed("\n".join(failed))
        return [result for _, result in results]


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", TORCH_CPP_LOG_LEVEL="ERROR")
    started = Pool()
    yield started
    started.stop()
