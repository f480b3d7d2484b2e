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
from multiprocessing import connection
from typing import Any, Callable, Iterator, NoReturn

import pytest

_AFTER_A_FAILURE = 10.0
_MOST_THREADS = 100  # of a worker that is kept: torch keeps the groups of meshes, and gloo's threads look for work all the time


class Failed(AssertionError):
    """A function raised on a rank; carries the exception's text and type."""


def _times(process: int) -> str:
    """Tells a process that hangs from one that a busy machine does not run."""
    with contextlib.suppress(OSError):
        ran, waited, _ = (int(time) / 1e9 for time in pathlib.Path(f"/proc/{process}/schedstat").read_text().split())
        return f"its main thread ran {ran:.1f} s, and waited {waited:.1f} s for a processor"
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
            pipe.send(("done", result, len(os.listdir("/proc/self/task"))))
        except BaseException:
            pipe.send(("failed", traceback.format_exc(), 0))


def forking_context() -> Any:
    """Forks from a process that has imported what most ranks need, which takes longer than most functions do."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.checkpoint",
                                    "torch._dynamo"])
    return context


class Pool:
    """Workers of each number of ranks that a test has asked for: what starts them takes longer than most functions do."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Job] = {}

    def stop(self) -> None:
        for world in [*self._jobs]:
            self._stop(world)

    def _stop(self, world: int) -> None:
        self._jobs.pop(world).stop()

    def __call__(self, world: int, function: Callable[..., Any], *arguments: Any, seconds: float = 120) -> list[Any]:
        """The results of function(rank, world, *arguments) by rank."""
        if world not in self._jobs:
            self._jobs[world] = _Job(world)
        workers, store = self._jobs[world].workers, self._jobs[world].folder.name + "/store"
        end = time.monotonic() + seconds
        for rank, (_, pipe) in enumerate(workers):
            pipe.send((function.__module__, function.__name__, rank, world, store, arguments))
        ranks = {pipe: rank for rank, (_, pipe) in enumerate(workers)}
        results: dict[int, tuple[str, Any, int]] = {}
        failed: dict[int, str] = {}
        while len(results) < world:
            ready = connection.wait([pipe for pipe, rank in ranks.items() if rank not in results], max(0.0, end - time.monotonic()))
            if not ready:
                self._raise_hang([rank for rank in range(world) if rank not in results], world, failed)
            for pipe in ready:
                rank = ranks[pipe]
                results[rank] = pipe.recv()
                if results[rank][0] == "failed":
                    failed[rank] = f"rank {rank}:\n{results[rank][1]}"
                    end = min(end, time.monotonic() + _AFTER_A_FAILURE)  # the others may wait for it
        if failed:
            self._stop(world)  # the ranks may not be alike any more
            raise Failed("\n".join(failed.values()))
        if max(threads for _, _, threads in results.values()) > _MOST_THREADS:
            self._stop(world)
        return [results[rank][1] for rank in range(world)]

    def _raise_hang(self, ranks: list[int], world: int, failed: dict[int, str]) -> NoReturn:
        processes = [process for process, _ in self._jobs[world].workers]
        times = [f"rank {rank}: {_times(process.pid)}" for rank, process in enumerate(processes)]
        for process in processes:
            os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        self._stop(world)
        raise Failed("\n".join([f"ranks {ranks} hang", *times, *failed.values()]))


class _Job:
    """The workers of one number of ranks, and their store."""

    def __init__(self, world: int) -> None:
        context = forking_context()
        self.folder = tempfile.TemporaryDirectory()
        self.workers: list[tuple[Any, Any]] = []
        for _ in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, sys.path), daemon=True)
            process.start()
            self.workers.append((process, here))

    def stop(self) -> None:
        for process, pipe in self.workers:
            process.kill()  # first, else it complains about the pipe
            process.join()
            pipe.close()
        self.folder.cleanup()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", TORCH_CPP_LOG_LEVEL="ERROR")
    started = Pool()
    yield started
    started.stop()
