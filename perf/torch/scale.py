#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long very many parameters take: a model of 100,000 small ones with AdamW, published and restored in one process.

usage: perf/torch/scale.py [--parameters N] [--repeats N]   (with the package installed; about 3 GB)
Prints one JSON row: seconds of each call, the first and repeated ones, and the same as multiples of torch.save and torch.load of
the two state_dict() through memory, which move the same state in the same run.
"""
from __future__ import annotations

import argparse
import gc
import io
import json
import os
import platform
import statistics
import time
from typing import Any, Callable

import torch
from torch import nn

import shardwire as sw
import shardwire.torch as swt

PER_LAYER = 1000


def made(parameters: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Module()
    for layer in range(parameters // PER_LAYER):
        block = nn.Module()
        for number in range(PER_LAYER):
            block.register_parameter(f"experts_{number}_proj", nn.Parameter(torch.full((2, 2), float(number))))
        model.add_module(f"layer_{layer}", block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # adds initial_lr to the options
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(7.0), "exp_avg": torch.ones(2, 2), "exp_avg_sq": torch.ones(2, 2)}


def seconds(call: Callable[[], Any]) -> float:
    gc.collect()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def through_torch(parameters: int, source: nn.Module, before: torch.optim.Optimizer) -> dict[str, float]:
    target, after = made(parameters)
    file = io.BytesIO()

    def save() -> None:
        torch.save((source.state_dict(), before.state_dict()), file)

    def load() -> None:
        file.seek(0)
        model, optimizer = torch.load(file, weights_only=True)
        target.load_state_dict(model)
        after.load_state_dict(optimizer)

    return {"torch.save": seconds(save), "torch.load": seconds(load)}


def through_shardwire(parameters: int, source: nn.Module, before: torch.optim.Optimizer) -> dict[str, float]:
    target, after = made(parameters)
    took: dict[str, float] = {}
    published, restored = swt.State(source, before), swt.State(target, after)
    with sw.Session.join(rank=0, world_size=1, port=0) as session:
        for which in ("first", "again"):
            held: list[sw.Publication] = []
            took[f"publish, {which}"] = seconds(lambda: held.append(published.publish(session, step=7)))
            took[f"restore, {which}"] = seconds(lambda: restored.restore(session, timeout=600))
            held.pop().retire()
    wrong = sum(not torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters()))
    wrong += sum(not torch.equal(before.state[a][name], after.state[b][name])
                 for a, b in zip(source.parameters(), target.parameters()) for name in before.state[a])
    assert wrong == 0, f"{wrong} tensors differ"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    source, before = made(options.parameters)
    step(source, before)
    runs = [through_torch(options.parameters, source, before) | through_shardwire(options.parameters, source, before)
            for _ in range(options.repeats)]
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    over = {name: medians[name] / medians["torch.save" if "publish" in name else "torch.load"] for name in medians if "," in name}
    print(json.dumps({"case": f"{options.parameters:,} parameters with AdamW", "torch": torch.__version__,
                      "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "repeats": options.repeats,
                      "seconds": {name: round(median, 2) for name, median in medians.items()},
                      "over torch": {name: round(ratio, 2) for name, ratio in over.items()}}))


if __name__ == "__main__":
    main()
