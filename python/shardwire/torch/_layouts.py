# SPDX-License-Identifier: Apache-2.0
"""Which layout a tensor has, and where this rank's elements lie."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .. import InvalidArgument, Layout, Session, Unsupported
from ._dtensor import is_dtensor, layout_of_dtensor, local_tensor


@dataclasses.dataclass(slots=True)
class Local:
    """This rank's part of a tensor. `tensor` holds its elements. It may require grad."""

    shape: tuple[int, ...]  # global
    layout: Layout
    tensor: torch.Tensor
    source: torch.Tensor
    """Of which `tensor` is a part: the object whose memory may become another."""


State = Callable[[torch.Tensor], "Local | None"]


@dataclasses.dataclass(slots=True, eq=False)
class Parameter:
    """One parameter. Several names of one tensor are one parameter."""

    fqn: str
    """Empty until the modules of a wrapped one are named."""
    local: Local
    key: torch.Tensor
    """The tensor under which optimizers keep its state."""
    state: State
    """The local part of a state tensor of more than one element; None if it has none of this parameter's elements."""
    shares_state: bool = False
    """Whether other parameters have the same state tensors."""
    now: Callable[[], object] | None = None
    """Of a wrapped parameter, which its module does not always register as it is: the present `key`. Keeps no model alive."""
    identity: object = None
    """Of a wrapped parameter: the same for all its names."""
    places: tuple[tuple[dict[str, Any], str], ...] = ()
    """Of another one: where modules register it."""
    aliases: tuple[str, ...] = ()


class Ranks:
    """Numbers of ranks of the default process group in the layouts."""

    unknown = ""
    """Why ranks of the process group have no numbers."""

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
        self.layouts: dict[tuple[Any, ...], tuple[Any, Layout]] = {}  # of DTensors
        self.key = (self.own, self.count, tuple(given) if isinstance(given, Sequence) else None)

    def of(self, ranks: Sequence[int]) -> list[int]:
        if self.unknown:
            raise InvalidArgument(self.unknown)
        if self.numbers is None:
            return list(ranks)
        missing = [rank for rank in ranks if rank not in self.numbers]
        if missing:
            raise InvalidArgument(f"ranks {missing} of a process group are not among the ranks of the layouts")
        return [self.numbers[rank] for rank in ranks]


def ranks_of(session: Session, given: int | Sequence[int] | Ranks | None = None) -> Ranks:
    """Numbers of ranks in the layouts of this process.

    They are the ranks of the default process group, as in meshes, whatever number a member has in the session. Without a group, or
    where it is larger than the session, they are those of the session. `given`: the members of the session that have the numbers,
    in order. Raises InvalidArgument if that contradicts the process group.
    """
    if isinstance(given, Ranks):
        return given
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks(session.rank, session.world_size, given)
    rank, size = dist.get_rank(), dist.get_world_size()
    if given is None and size <= session.world_size:
        return Ranks(rank, size, None)
    ranks = Ranks(session.rank, session.world_size, given)
    if isinstance(given, Sequence) and len(ranks.numbers or ()) == size:
        if ranks.own != rank:
            raise InvalidArgument(f"ranks= gives member {session.rank} of the session the number {ranks.own}, but it is rank {rank} of "
                                  "the process group")
        ranks.numbers = None
    elif rank != session.rank:
        ranks.unknown = (f"member {session.rank} of the session is rank {rank} of a process group of {size}: ranks= has to name the member "
                         "of each rank of the group")
    return ranks


def default_ranks(rank: int | None = None, world_size: int | None = None, ranks: int | Sequence[int] | None = None) -> Ranks:
    """Numbers of ranks where there is no session."""
    if rank is None or world_size is None:
        joined = dist.is_available() and dist.is_initialized()
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    return Ranks(rank, world_size, ranks)


REPLICATED = Layout.replicated()


def local_of(tensor: torch.Tensor, ranks: Ranks, strided_first: bool | None = None) -> Local:
    """The local part of a DTensor, or of a tensor that this rank holds whole. `strided_first`: see layout_of_dtensor()."""
    if is_dtensor(tensor):
        return Local(tuple(tensor.shape), layout_of_dtensor(tensor, ranks.of, ranks.layouts, strided_first),
                     local_tensor(tensor), tensor)
    return Local(tuple(tensor.shape), REPLICATED, tensor, tensor)


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of a DTensor over the ranks of the default process group; `Layout.replicated()` of another tensor.

    Parameters of FSDP1 do not know theirs: see catalog_of(). For many tensors, local_of(tensor, ranks) with one
    `ranks = ranks_of(session)` keeps the layouts.
    """
    return local_of(tensor, default_ranks()).layout


def state_like(parameter: Local, ranks: Ranks, strided_first: bool | None = None) -> State:
    """States of a DTensor."""
    shape, layout, own = parameter.shape, parameter.layout, parameter.tensor
    spec = parameter.source._spec  # type: ignore[attr-defined]

    def state(tensor: torch.Tensor) -> Local | None:
        if isinstance(tensor, DTensor):
            other = tensor._spec
            # Most states are sharded as their parameter is. To see that is faster than to look for the layout.
            if other is spec or (other.mesh is spec.mesh and other.placements == spec.placements and tensor.shape == shape
                                 and other.shard_order == spec.shard_order):
                return Local(shape, layout, local_tensor(tensor), tensor)
            return local_of(tensor, ranks, strided_first)
        if tensor.shape == own.shape:  # made of the local part
            return Local(shape, layout, tensor, tensor)
        raise Unsupported(f"a plain tensor of shape {tuple(tensor.shape)} is state of a parameter that is a DTensor with "
                          f"{tuple(own.shape)} elements here: it does not tell which of them it belongs to")

    return state
