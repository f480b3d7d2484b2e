#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One layer of Adam state, FSDP2 over 4 ranks -> FSDP2 2 x TP 2, restored by each of what PyTorch users have.

usage: perf/torch/restore.py [--repeats N] [--columns C] [--transport T]   (with the package installed; uses 127.0.0.1 and /dev/shm)
Prints one JSON row: the median seconds of the slowest rank for each way, in turns, and their ratios to the library alone.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import threading
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwire.torch as swt

RANKS, FOLDER = 4, "/dev/shm/shardwire-perf-torch"


class Layer(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        self.norm = nn.LayerNorm(width)


def make(columns: int, two_ways: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    layer = Layer(columns, 7 * columns // 2)
    if two_ways:
        mesh = init_device_mesh("cpu", (RANKS // 2, 2), mesh_dim_names=("shard", "tp"))
        parallelize_module(layer, mesh["tp"], {**{name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")},
                                               **{name: RowwiseParallel() for name in ("out", "down")}})
        fully_shard(layer, mesh=mesh["shard"])
    else:
        fully_shard(layer, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.AdamW(layer.parameters())
    for parameter in layer.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(5.0), "exp_avg": torch.rand_like(parameter).detach(),
                                      "exp_avg_sq": torch.rand_like(parameter).detach()}
    return layer, optimizer


def flat(layer: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, parameter in layer.named_parameters():
        out[name] = parameter.detach()
        out.update((f"{name}.{state}", value) for state, value in optimizer.state[parameter].items())
    return out


def timed(call: Callable[[], object]) -> float:
    dist.barrier()
    began = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def resident() -> int:
    """Bytes of anonymous memory and of arenas that this process has touched."""
    with open("/proc/self/status") as status:
        return sum(1024 * int(line.split()[1]) for line in status if line.startswith(("RssAnon:", "RssShmem:")))


def growth(call: Callable[[], object]) -> int:
    """Most bytes that this process gains while `call` runs."""
    before, most, ended = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.001):
            most = max(most, resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    ended.set()
    watcher.join()
    return max(most, resident() - before)


def work(rank: int, repeats: int, columns: int, transport: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PERF_PORT"], RANK=str(rank), WORLD_SIZE=str(RANKS),
                      LOCAL_WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session = swt.join(transport=transport)
    source, target = make(columns, False), make(columns, True)
    held = [swt.publish(session, *source, step=5), swt.publish_state_dict(session, flat(*source), step=5, snapshot="none")]
    session.await_step("torch", 5, 60)
    session.await_step("dcp", 5, 60)
    state = swt.State(*target)
    wanted = state.catalog()
    into = flat(*target)

    def library() -> None:
        session.restore(wanted, name="torch", step=5, discovery_grace=0, replicas="first").wait()

    def copy() -> None:
        for own, other in copies:
            own.copy_(other)

    locals_ = [tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor for tensor in into.values()]
    copies = [(tensor, torch.ones_like(tensor)) for tensor in locals_]
    ways: dict[str, Callable[[], object]] = {
        "library": library,
        "State.restore": lambda: state.restore(session, step=5),
        "PeerReader": lambda: dcp.load(into, storage_reader=swt.PeerReader(session, step=5)),
        "PeerReader, no_dist": lambda: dcp.load(into, storage_reader=swt.PeerReader(session, step=5), no_dist=True),
        "memcpy": copy,
        "dcp.load from tmpfs": lambda: dcp.load(into, checkpoint_id=FOLDER),
    }
    grown = torch.tensor(growth(lambda: state.restore(session, step=5)))  # the first restore allocates most
    dist.all_reduce(grown, dist.ReduceOp.MAX)
    dcp.save(flat(*source), checkpoint_id=FOLDER)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            way()  # plans: a session keeps two plans, and the ways before this one have left theirs
            seconds[name].append(timed(way))
    if rank == 0:
        medians = {name: statistics.median(all_) for name, all_ in seconds.items()}
        names = session.transports
        moved = sum(tensor.numel() * tensor.element_size() for tensor in into.values())
        print(json.dumps({"case": "one layer, fsdp2 4 -> fsdp2 2 x tp 2", "bytes": moved, "transport": [name.split()[0] for name in names],
                          "torch": torch.__version__,
                          "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "repeats": repeats,
                          "growth of memory, MiB": {"State.restore": round(grown.item() / (1 << 20), 1), "allowed": 256 + 64},
                          "seconds": {name: round(value, 4) for name, value in medians.items()},
                          "over library": {name: round(value / medians["library"], 2) for name, value in medians.items()}}))
    session.gather("done", b"", 60)
    for one in held:
        one.retire()
    session.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--columns", type=int, default=2048, help="width of the layer (2048: 715 MB)")
    parser.add_argument("--transport", default="", help="as in Session.join(); default: the library's choice")
    options = parser.parse_args()
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ["PERF_PORT"] = str(listener.getsockname()[1])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        mp.spawn(work, (options.repeats, options.columns, options.transport), nprocs=RANKS)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main()
