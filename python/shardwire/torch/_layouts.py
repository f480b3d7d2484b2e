# SPDX-License-Identifier: Apache-2.0
"""Which layout a tensor has, and where this rank's elements lie."""

from __future__ import annotations

import dataclasses
from typing import Sequence

import torch

from .. import InvalidArgument, Layout
from . import _dtensor


@dataclasses.dataclass(slots=True)
class Local:
    """This rank's part of a tensor. `tensor` holds its elements and keeps their memory alive."""

    shape: tuple[int, ...]  # global
    layout: Layout
    tensor: torch.Tensor


class Ranks:
    """Numbers of ranks of the default process group in the layouts."""

    def __init__(self, own: int, world_size: int, given: int | Sequence[int] | None) -> None:
        self.numbers: dict[int, int] | None = None
        self.count = world_size
        self.own = own
        if isinstance(given, int):
            self.count = given
        elif given is not None:
            self.numbers = {rank: number for number, rank in enumerate(given)}
            self.count = len(self.numbers)
            if own not in self.numbers:
                raise InvalidArgument(f"rank {own} is not among the ranks {list(given)} of the layouts")
            self.own = self.numbers[own]
        if not 0 <= self.own < self.count:
            raise InvalidArgument(f"rank {own} has no number among {self.count} ranks of the layouts")
        self.key = (self.own, self.count, tuple(given) if isinstance(given, Sequence) else None)

    def of(self, ranks: Sequence[int]) -> list[int]:
        if self.numbers is None:
            return list(ranks)
        missing = [rank for rank in ranks if rank not in self.numbers]
        if missing:
            raise InvalidArgument(f"ranks {missing} of a process group are not among the ranks of the layouts")
        return [self.numbers[rank] for rank in ranks]


REPLICATED = Layout.replicated()


def local_of(tensor: torch.Tensor, ranks: Ranks, strided_first: bool | None = None) -> Local:
    """The local part of a DTensor, or of a tensor that this rank holds whole. `strided_first`: see layout_of_dtensor()."""
    if _dtensor.is_dtensor(tensor):
        return Local(tuple(tensor.shape), _dtensor.layout_of_dtensor(tensor, ranks.of, ranks.key, strided_first),
                     _dtensor.local_tensor(tensor))
    return Local(tuple(tensor.shape), REPLICATED, tensor.detach())
