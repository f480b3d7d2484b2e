#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the catalog of a 70B model takes: 723 parameters with AdamW under FSDP2, as one of 8 ranks sees it.

usage: perf/torch/catalog.py [--repeats N]   (with the package installed; memory is allocated and never touched)
Prints one JSON row: milliseconds of a first catalog, and of one that is kept, as median and spread.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import shardwire.torch as swt

RANKS, LAYERS, WIDTH, HIDDEN, KEYS, WORDS = 8, 80, 8192, 28672, 1024, 128256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"q": (WIDTH, WIDTH), "k": (KEYS, WIDTH), "v": (KEYS, WIDTH), "o": (WIDTH, WIDTH), "gate": (HIDDEN, WIDTH),
                            "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN), "norm1": (WIDTH,), "norm2": (WIDTH,)}.items():
            setattr(self, name, nn.Parameter(torch.empty(shape, device="meta")))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.embed, self.head = (nn.Parameter(torch.empty(WORDS, WIDTH, device="meta")) for _ in range(2))
        self.norm = nn.Parameter(torch.empty(WIDTH, device="meta"))


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Model()
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(5.0), "exp_avg": torch.empty_like(parameter).detach(),
                                      "exp_avg_sq": torch.empty_like(parameter).detach()}
    return model, optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    model, optimizer = make()
    entries = len(swt.catalog_of(model, optimizer).tensors())
    milliseconds: dict[str, list[float]] = {"first": [], "kept": []}
    for _ in range(options.repeats):
        state = swt.State(model, optimizer)
        gc.collect()
        for which in ("first", "kept", "kept", "kept"):
            began = time.perf_counter()
            state.catalog()
            milliseconds[which].append(1000 * (time.perf_counter() - began))
    print(json.dumps({"case": "catalog of 723 parameters of FSDP2 with AdamW, 1 of 8 ranks", "entries": entries,
                      "torch": torch.__version__, "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
                      "repeats": options.repeats,
                      "milliseconds": {name: {"median": round(statistics.median(all_), 2), "min": round(min(all_), 2),
                                              "max": round(max(all_), 2)} for name, all_ in milliseconds.items()}}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
