#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on one GPU: two processes hold rows of a layer as DTensors, and restore columns.

usage: perf/torch/device.py [--device cpu] [--columns C] [--rounds N]   (with the package installed; uses 127.0.0.1)
Every element is compared with what torch's own save and load give. In the rounds the source's last kernel still runs when it
publishes, the target's when it restores, and the target's next one is queued at once. Prints a JSON row for the first restore, for
later ones, and for the rounds. Exits 77 where torch, its device or the package is missing, with the reason on standard error.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

RANKS, REPEATS, SKIPPED = 2, 10, 77
EXPANDABLE = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
except ImportError as error:
    print(f"there is no torch: {error}", file=sys.stderr)
    sys.exit(SKIPPED)
try:
    import shardwire.torch as swt
except ModuleNotFoundError as error:
    print(f"the Python package is not here: {error}", file=sys.stderr)
    sys.exit(SKIPPED)
except (AttributeError, ImportError) as error:
    print(f"the Python package does not run with torch {torch.__version__}: {error}", file=sys.stderr)
    sys.exit(1)

State = tuple[nn.Module, torch.optim.Optimizer]


def make(mesh: DeviceMesh, columns: int, dim: int) -> State:
    """Parts of tensors that are split along a dim, unevenly some of them, with AdamW's states. Memory is not written."""
    model = nn.Module()
    shapes = {"query": (columns, columns), "up": (7 * columns // 2, columns), "odd": (columns - 1, columns + 1), "wide": (3, 1001)}
    for name, shape in shapes.items():
        dtype = torch.bfloat16 if name == "odd" else torch.float32
        part = torch.empty(shape, device="meta").chunk(RANKS, dim)[mesh.get_local_rank()].shape
        local = torch.empty(part, dtype=dtype, device=mesh.device_type)
        whole = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False, shape=torch.Size(shape), stride=(shape[1], 1))
        setattr(model, name, nn.Parameter(whole))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(5.0), "exp_avg": torch.empty_like(parameter).detach(),
                                      "exp_avg_sq": torch.empty_like(parameter).detach()}
    return model, optimizer


def tensors(state: State) -> dict[str, DTensor]:
    model, optimizer = state
    out = {}
    for name, parameter in model.named_parameters():
        out[name] = parameter.detach()
        out.update((f"{name}.{key}", value) for key, value in optimizer.state[parameter].items() if key != "step")
    return out


def parts(state: State) -> list[torch.Tensor]:
    return [tensor.to_local() for tensor in tensors(state).values()]


def fill(state: State, rank: int, seed: int) -> None:
    for number, part in enumerate(parts(state)):
        generator = torch.Generator(part.device).manual_seed(1000 * seed + 2 * number + rank)
        part.copy_(torch.randn(part.shape, dtype=torch.float32, device=part.device, generator=generator))


class Member:
    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        self.rank, self.options = rank, options
        self.on_gpu = options.device == "cuda"
        self.mesh = init_device_mesh(options.device, (RANKS,))
        self.session = swt.join()
        self.source, self.target = make(self.mesh, options.columns, 0), make(self.mesh, options.columns, 1)

    def finish(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def timed(self, call: Callable[[], object]) -> float:
        """Seconds of the slower process."""
        self.finish()
        dist.barrier()
        began = time.perf_counter()
        call()
        self.finish()
        seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    def require_equal(self, expected: State, when: str) -> None:
        for (name, tensor), other in zip(tensors(self.target).items(), parts(expected)):
            if not torch.equal(tensor.to_local().contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)):
                raise RuntimeError(f"{name} of rank {self.rank} has other bytes than after torch's own load, {when}")

    def restores(self) -> None:
        taken: list[float] = []
        expected = make(self.mesh, self.options.columns, 1)
        for seed in range(REPEATS + 1):
            fill(self.source, self.rank, seed)
            with swt.publish(self.session, *self.source, step=seed):
                taken.append(self.timed(lambda: swt.restore_into(self.session, *self.target, step=seed)))
                if seed in (0, REPEATS):
                    folder = f"{self.options.folder}/{seed}"
                    dcp.save(tensors(self.source), checkpoint_id=folder)
                    dcp.load(tensors(expected), checkpoint_id=folder)
                    self.require_equal(expected, f"restore {seed}")
                self.session.gather(f"restored {seed}", b"", 60)
        pairs = [(part, torch.ones_like(part)) for part in parts(self.target)]
        plain = [self.timed(lambda: [part.copy_(ones) for part, ones in pairs]) for _ in range(REPEATS + 1)][1:]
        self.report("restore, cold", taken[:1], plain)
        self.report("restore, warm", taken[1:], plain)

    def rounds(self) -> None:
        stream = torch.cuda.stream(torch.cuda.Stream()) if self.on_gpu else contextlib.nullcontext()
        source, target = swt.State(*self.source), swt.State(*self.target)
        stale = torch.zeros((), dtype=torch.int64, device=self.options.device)

        def write(state: State, value: int) -> None:
            if self.on_gpu:
                torch.cuda._sleep(2_000_000)  # a millisecond, so that what follows is still queued at the next call
            for part in parts(state):
                part.fill_(value)

        self.finish()
        with stream:
            for number in range(1, self.options.rounds + 1):
                value = number % 251  # bfloat16 has it exactly
                write(self.source, value)
                with source.publish(self.session, step=number, name="rounds"):
                    write(self.target, -1)
                    target.restore(self.session, step=number, name="rounds")
                    for part in parts(self.target):
                        stale += (part != value).sum() * part.element_size()
                    self.session.gather(f"round {number}", b"", 60)
            total = stale.cpu()
        dist.all_reduce(total)
        self.report("rounds", [], [], rounds=self.options.rounds, stale_bytes=total.item())
        if total.item() > 0:
            raise RuntimeError(f"{total.item()} stale bytes in {self.options.rounds} rounds")

    def report(self, name: str, taken: list[float], plain: list[float], **more: Any) -> None:
        if self.rank > 0:
            return
        row: dict[str, Any] = {
            "name": f"PyTorch{', expandable segments' if EXPANDABLE else ''}: {name}", "target": "gpu", "commit": self.options.commit,
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda}, "processes": RANKS,
            "transport": [one.split()[0] for one in self.session.transports],
            "device": {"name": torch.cuda.get_device_name() if self.on_gpu else "cpu"}}
        if taken:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors(self.target).values())
            seconds, bound = statistics.median(taken), statistics.median(plain)
            row |= {"bytes": size, "repeats": len(taken), "seconds": seconds, "seconds_min": min(taken), "seconds_max": max(taken),
                    "bytes_per_second": size / seconds, "bound": "torch, contiguous", "bound_seconds": bound, "ratio": bound / seconds}
        print(json.dumps(row | more), flush=True)


def work(rank: int, options: argparse.Namespace) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS), LOCAL_RANK="0")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    member = Member(rank, options)
    member.restores()
    member.rounds()
    member.session.close()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--columns", type=int, default=4096, help="width of the layer (4096: 1.2 GB of state)")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--commit", default="unknown", help="of the rows")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} has no CUDA here", file=sys.stderr)
        return SKIPPED
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as options.folder:
        mp.spawn(work, (options,), nprocs=RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
