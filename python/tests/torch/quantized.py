# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a case of quantized states do."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import shardwire.torch as swt

BLOCK, ROWS, COLUMNS = 16, 48, 64


class Blocks(torch.Tensor):
    """A tensor quantized by blocks: a byte of each element, a scale of each block, and a table."""

    codes: torch.Tensor
    scale: torch.Tensor
    qmap: torch.Tensor

    @staticmethod
    def __new__(cls: Any, codes: torch.Tensor, scale: torch.Tensor, qmap: torch.Tensor, signed: bool) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, qmap: torch.Tensor, signed: bool) -> None:
        self.codes, self.scale, self.qmap, self.signed = codes, scale, qmap, signed

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale", "qmap"], [self.signed]

    @classmethod
    def __tensor_unflatten__(cls, tensors: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(tensors["codes"], tensors["scale"], tensors["qmap"], *context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is torch.ops.aten.view.default:  # DTensor.from_local() asks for it
            one = arguments[0]
            return cls(one.codes.view(arguments[1]), one.scale, one.qmap, one.signed)
        raise NotImplementedError(str(function))


def blocks(shape: Any, block: int, seed: int, signed: bool = True) -> Blocks:
    made = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=made)
    return Blocks(codes, torch.rand(codes.numel() // block, generator=made), torch.rand(256, generator=made), signed)


class Optimizer(torch.optim.Optimizer):
    """Keeps a quantized state of each parameter, of which `seed` tells the elements of the whole."""

    def __init__(self, parameters: Any, seed: int, block: int = BLOCK, signed: bool = True) -> None:
        super().__init__(parameters, {"lr": 1.0})
        for group in self.param_groups:
            for number, parameter in enumerate(group["params"]):
                if seed:
                    state = part_of(blocks(parameter.shape, block, seed + number, signed), parameter, block)
                    self.state[parameter].update(step=torch.tensor(float(seed)), moment=state)


def part_of(whole: Blocks, parameter: torch.Tensor, block: int) -> Any:
    """This rank's part of a quantized tensor, sharded as the parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    # What torchao does: the local elements are quantized by themselves.
    codes = distribute_tensor(whole.codes, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
    scales = whole.scale.repeat_interleave(block).view(whole.codes.shape)
    scale = distribute_tensor(scales, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local().reshape(-1)[::block]
    return DTensor.from_local(Blocks(codes.clone(), scale.clone(), whole.qmap, whole.signed), parameter.device_mesh,
                              parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride())


class Model(nn.Module):
    def __init__(self, layout: Any, rows: int, columns: int, ranks: int) -> None:
        super().__init__()
        mesh = DeviceMesh("cpu", list(range(ranks))) if layout is not None else None
        for name, shape in (("weight", (rows, columns)), ("bias", (rows * BLOCK,))):
            tensor = torch.zeros(shape)
            if mesh is not None:
                placement = Shard(layout) if layout < len(shape) else Replicate()
                tensor = distribute_tensor(tensor, mesh, [placement], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(tensor))


def move(rank: int, world: int, source: Any, target: Any, warm: int, columns: int = COLUMNS, signed: bool = True) -> Any:
    """`source` and `target`: the sharded dim, None for a plain model on rank 0, and the number of ranks."""
    theirs = Model(source[0], ROWS, columns, source[1])
    ours = Model(target[0], ROWS, columns, target[1])
    text, wrong = "", []
    with swt.join() as session:
        publication = None
        try:
            if rank < source[1]:
                publication = swt.publish(session, theirs, Optimizer(theirs.parameters(), 1), step=1, ranks=source[1])
        except Exception as error:
            text = f"publish: {type(error).__name__}: {error}"
        refused: list[Any] = [None] * world
        dist.all_gather_object(refused, text)
        if not any(refused) and rank < target[1]:
            optimizer = Optimizer(ours.parameters(), warm, signed=signed)
            before = dict(optimizer.state)
            expected = Optimizer(ours.parameters(), 1)
            try:
                swt.restore_into(session, ours, optimizer, timeout=20)
                wrong = [name for name, one in ours.named_parameters() if not same(optimizer.state[one], expected.state[one])]
                wrong += [name for name, one in ours.named_parameters() if warm and optimizer.state[one]["moment"] is not before[one][
                    "moment"]]
            except Exception as error:
                text = f"restore: {type(error).__name__}: {error}"
        dist.barrier()
        if publication is not None:
            publication.retire(5)
    return text, wrong


def same(one: Any, other: Any) -> bool:
    local = [state["moment"].to_local() if isinstance(state["moment"], DTensor) else state["moment"] for state in (one, other)]
    if any(type(state) is not Blocks for state in local) or local[0].signed != local[1].signed or one["step"] != other["step"]:
        return False
    return all(torch.equal(getattr(local[0], name), getattr(local[1], name)) for name in ("codes", "scale", "qmap"))
