# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core: models with their distributed optimizer, published and restored in place.

Tested with megatron-core 0.16.1. Names, and the place of each tensor in the whole model, are those of Megatron's
`sharded_state_dict`. Calls use the tensors of the calling rank only and run no collective.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.optimizer import ChainedOptimizer, DistributedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.optimizer.optimizer import param_group_identifier_keys
from torch import nn

from . import Box, InvalidArgument, Inventory, Layout, PlacedBox, Progress, Publication, Session, TensorKey, Unsupported
from ._types import Absent, Seconds, Snapshot, Verify
from .torch.adapter import (BUFFER, GROUP, PARAM, Entries, Local, RestoreResult, dtype_of, groups_differ, like, options, publish_entries,
                            restore_entries, step_device)

__all__ = ["RestoreResult", "publish", "restore_into"]

MASTER = "master"
"""State under which the 32-bit copy of a 16-bit parameter is published."""
_STEP = "step"
# Megatron keeps it in states or in groups, depending on the optimizer inside. It is published with the options of the group.
_EXPERT = "is_expert_parallel"
# An option that follows from the degrees of parallelism: it differs between the sides, and is never restored.
_GROUPS = TensorKey("", "param_groups")
# Options of all groups, for groups none of whose parameters has elements on this rank.

ModelChunks = Union[nn.Module, Sequence[nn.Module]]


@dataclasses.dataclass(slots=True)
class _Piece:
    """A part of a parameter or buffer that is a tensor of its own in the whole model, such as the gate of a SwiGLU layer."""

    name: str
    owner: torch.Tensor
    first: int
    """Where it begins in the owner, in elements; as `strides`."""
    strides: tuple[int, ...]
    size: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    """Of the whole tensor, in which this rank has the box of `offset` and `size`."""


@dataclasses.dataclass(slots=True)
class _Shard:
    """The elements `start` to `end` of a model's parameter, whose state this rank's optimizer keeps."""

    optimizer: Any
    parameter: torch.Tensor
    main: torch.Tensor
    """What the optimizer inside updates, and under which it keeps states."""
    start: int
    end: int
    group: dict[str, Any]

    @property
    def scaled(self) -> bool:
        """Whether the optimizer inside holds the main parameter, and states in a representation of its own."""
        return bool(type(self.optimizer) is DistributedOptimizer
                    and self.optimizer.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8)

    @property
    def state(self) -> dict[str, Any]:
        known: dict[str, Any] = self.optimizer.optimizer.state.get(self.main, {})
        return known

    def tensors(self) -> dict[str, torch.Tensor]:
        """States of one element per element of the shard, and the main parameter if it is not the model's own memory."""
        if self.scaled and self.state:
            # Copies, unless the optimizer keeps them as they are.
            found = dict(self.optimizer._get_main_param_and_optimizer_states(self.parameter))
            found[MASTER] = found.pop("param")
        else:
            found = dict(self.state)
            if self.main.dtype != self.parameter.dtype:
                found[MASTER] = self.main
        found.pop(_STEP, None)
        for name, tensor in found.items():
            if not isinstance(tensor, torch.Tensor) or tensor.numel() != self.end - self.start or not tensor.is_contiguous():
                raise Unsupported(f"state {name} of a parameter of shape {tuple(self.parameter.shape)} has not one element for "
                                  f"each of the {self.end - self.start} elements of its shard")
        return found

    def options(self) -> dict[str, Any]:
        step = self.state.get(_STEP, self.group.get(_STEP))
        found = {name: value for name, value in options(self.group) if name != _EXPERT}
        return {**found, _STEP: None if step is None else int(step)}


def _chunks(chunks: ModelChunks) -> list[nn.Module]:
    """Without the wrappers, all of which keep what they wrap under one name."""
    found = []
    for chunk in [chunks] if isinstance(chunks, nn.Module) else chunks:
        while isinstance(getattr(chunk, "module", None), nn.Module):
            chunk = chunk.module  # type: ignore[assignment]
        found.append(chunk)
    return found


def _inner(optimizer: Any) -> list[Any]:
    """The optimizers that keep states on this rank."""
    if optimizer is None:
        return []
    found = list(optimizer.chained_optimizers) if type(optimizer) is ChainedOptimizer else [optimizer]
    for one in found:
        if type(one) not in (DistributedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer):
            raise Unsupported(f"a {type(one).__name__} is none of the optimizers of Megatron whose states are known")
        if isinstance(one.optimizer, HybridDeviceOptimizer):
            raise Unsupported("states of optimizers with CPU offload are not published")
        if type(one) is DistributedOptimizer and one.ddp_config.use_megatron_fsdp:
            raise Unsupported("parameters and states of Megatron-FSDP are not published")
        if one.config.use_precision_aware_optimizer and not one.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8:
            raise Unsupported("states of precision-aware optimizers of 8-bit parameters are not published")
    return [one for one in found if not one.is_stub_optimizer]


def _shards(optimizer: Any) -> list[_Shard]:
    """In the order of param_groups."""
    found = []
    for one in _inner(optimizer):
        groups = one.optimizer.param_groups
        for index, group in enumerate(groups):
            if type(one) is FP32Optimizer:
                pairs = [(parameter, parameter) for parameter in group["params"]]
            elif type(one) is Float16OptimizerWithFloat16Params:
                pairs = [*zip(one.float16_groups[index], one.fp32_from_float16_groups[index]),
                         *((parameter, parameter) for parameter in one.fp32_from_fp32_groups[index])]
            else:
                own = one.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8
                # Not by model_param_group_index_map: its order is wrong for a group with parameters of both widths.
                mains = one.shard_float16_groups if own else one.shard_fp32_from_float16_groups
                pairs = [*zip(one.model_float16_groups[index], mains[index]),
                         *zip(one.model_fp32_groups[index], one.shard_fp32_groups[index])]
            for parameter, main in pairs:
                start, end = 0, parameter.numel()
                if type(one) is DistributedOptimizer:
                    within = one._get_model_param_range_map(parameter)["param"]
                    start, end = within.start, within.end
                found.append(_Shard(one, parameter, main, start, end, group))
    return found


def _pieces(chunk: nn.Module, vocab_size: int | None) -> list[_Piece]:
    if not hasattr(chunk, "sharded_state_dict"):
        raise Unsupported(f"a {type(chunk).__name__} has no sharded_state_dict: make it a MegatronModule")
    group = getattr(getattr(chunk, "pg_collection", None), "dp_cp", None)  # says who would write, no more
    if group is None:
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    # Layers, experts and halves of SwiGLU get names of their own, with numbers of the whole model.
    model: Any = chunk
    listed = model.sharded_state_dict(metadata={"singleton_local_shards": True, "non_homogeneous_layers": True,
                                                "dp_cp_group": group})
    apply_factories(listed)
    owners = sorted((tensor for tensor in (*chunk.parameters(), *chunk.buffers()) if tensor.numel()), key=torch.Tensor.data_ptr)
    starts = [tensor.data_ptr() for tensor in owners]
    found: dict[str, _Piece] = {}
    for sharded in nested_values(listed):
        # The others are extra state of Transformer Engine.
        if isinstance(sharded, ShardedTensor) and sharded.data is not None and sharded.data.numel():
            index = bisect.bisect_right(starts, sharded.data.data_ptr()) - 1
            piece = _piece(sharded, owners[index] if index >= 0 else sharded.data, vocab_size)
            known = found.setdefault(piece.name, piece)
            if known.owner is not piece.owner or (known.first, known.offset) != (piece.first, piece.offset):
                raise Unsupported(f"{piece.name} is the name of several tensors of this rank")
    _require_all(chunk, list(found.values()))
    return list(found.values())


def _piece(sharded: Any, owner: torch.Tensor, vocab_size: int | None) -> _Piece:
    data, added = sharded.data, sharded.prepend_axis_num
    place = data.data_ptr() - owner.data_ptr()
    span = 1 + sum((count - 1) * stride for count, stride in zip(data.shape, data.stride()))
    first = place // owner.element_size()
    if data.dtype != owner.dtype or first < 0 or first + span > owner.numel() or not owner.is_contiguous():
        raise Unsupported(f"Megatron's sharded_state_dict has {sharded.key} in another form than the parameter")
    size, shape, offset = [1] * added + list(data.shape), list(sharded.global_shape), tuple(sharded.global_offset)
    if vocab_size is not None and sharded.allow_shape_mismatch:
        if shape[added] < vocab_size:
            raise InvalidArgument(f"{sharded.key} has {shape[added]} rows, fewer than vocab_size = {vocab_size}")
        shape[added] = vocab_size
        size[added] = max(0, min(size[added], vocab_size - offset[added]))
    return _Piece(sharded.key, owner, first, (owner.numel(),) * added + tuple(data.stride()), tuple(size), offset, tuple(shape))


def _require_all(chunk: nn.Module, pieces: Sequence[_Piece]) -> None:
    """Modules that are no MegatronModules may lack parameters in sharded_state_dict, or have them as if they were whole."""
    by_owner: dict[int, list[_Piece]] = {}
    for piece in pieces:
        by_owner.setdefault(id(piece.owner), []).append(piece)
    for name, parameter in chunk.named_parameters():
        known = by_owner.get(id(parameter), [])
        if not known and parameter.numel():
            raise Unsupported(f"Megatron's sharded_state_dict lacks the parameter {name}")
        split = getattr(parameter, "tensor_model_parallel", False) and _tensor_parallel_size(chunk, parameter) > 1
        if split and any(piece.size == piece.shape for piece in known):
            raise Unsupported(f"{name} is split over tensor-parallel ranks, but Megatron's sharded_state_dict has it whole")


def _tensor_parallel_size(chunk: nn.Module, parameter: torch.Tensor) -> int:
    # Parameters of experts are not all-reduced with the others.
    name, find = (("tp", parallel_state.get_tensor_model_parallel_group) if getattr(parameter, "allreduce", True)
                  else ("expt_tp", parallel_state.get_expert_tensor_parallel_group))
    group = getattr(getattr(chunk, "pg_collection", None), name, None)
    if group is None:
        group = find(check_initialized=False)
    return 1 if group is None else int(group.size())


def _boxes(size: tuple[int, ...], strides: tuple[int, ...], first: int, start: int, end: int
           ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of the boxes of an array that lie in elements `start` to `end` of memory."""
    if 0 in size:
        return
    span = 1 + sum((count - 1) * stride for count, stride in zip(size, strides))
    if start <= first and first + span <= end:
        yield (0,) * len(size), size
        return
    if not size or first >= end or first + span <= start:
        return
    row = 1 + sum((count - 1) * stride for count, stride in zip(size[1:], strides[1:]))
    lower = upper = 0
    partial: Sequence[int] = range(size[0])
    if strides[0] >= row:  # rows follow one another, so all but two are inside or outside
        lower = min(max(0, -(-(start - first) // strides[0])), size[0])
        upper = min(max(lower, (end - row - first) // strides[0] + 1), size[0])
        partial = [index for index in sorted({lower - 1, upper}) if 0 <= index < size[0]]
    if lower < upper:
        yield (lower,) + (0,) * (len(size) - 1), (upper - lower, *size[1:])
    for index in partial:
        for offset, part in _boxes(size[1:], strides[1:], first + index * strides[0], start, end):
            yield (index, *offset), (1, *part)


def _local(piece: _Piece, tensor: torch.Tensor, start: int, end: int, base: int, own: int) -> Local | None:
    """The elements `start` to `end` of the owner, as far as they are in the piece. `tensor` begins with element `base`."""
    placed = []
    for offset, size in _boxes(piece.size, piece.strides, piece.first, start, end):
        place = piece.first - base + sum(index * stride for index, stride in zip(offset, piece.strides))
        box = Box(tuple(ours + index for ours, index in zip(piece.offset, offset)), size)
        placed.append(PlacedBox(box, place, piece.strides))
    return Local(piece.shape, Layout.boxes({own: placed}), tensor, tensor) if placed else None


class _Job:
    """What this rank has of the model and its optimizer."""

    def __init__(self, session: Session, chunks: ModelChunks, optimizer: Any, vocab_size: int | None) -> None:
        self.own = session.rank
        self.optimizers = _inner(optimizer)
        self.shards = _shards(optimizer)
        self.pieces: dict[str, _Piece] = {}
        for chunk in _chunks(chunks):
            for piece in _pieces(chunk, vocab_size):
                if piece.name in self.pieces:
                    raise Unsupported(f"{piece.name} is the name of several tensors of this rank")
                self.pieces[piece.name] = piece
        by_owner: dict[int, list[_Piece]] = {}
        for piece in self.pieces.values():
            by_owner.setdefault(id(piece.owner), []).append(piece)
        self.sharded = []
        for shard in self.shards:
            known = by_owner.get(id(shard.parameter))
            if known is None:
                raise InvalidArgument(f"the optimizer has a parameter of shape {tuple(shard.parameter.shape)} that the model lacks")
            self.sharded += [(shard, piece) for piece in known if next(_boxes(
                piece.size, piece.strides, piece.first, shard.start, shard.end), None) is not None]

    def model_entries(self, only_own: bool) -> dict[TensorKey, Local]:
        """Parameters and buffers. `only_own`: of parameters that wait for a gather, only the elements that are updated here."""
        ranges: dict[int, tuple[int, int]] = {}
        if only_own:
            for one in self.optimizers:
                if type(one) is DistributedOptimizer and one.ddp_config.overlap_param_gather:
                    ranges.update((id(parameter), (0, 0)) for buffer in one.buffers for parameter in buffer.params)
            ranges.update((id(shard.parameter), (shard.start, shard.end)) for shard in self.shards if id(shard.parameter) in ranges)
        found = {}
        for piece in self.pieces.values():
            start, end = ranges.get(id(piece.owner), (0, piece.owner.numel()))
            local = _local(piece, piece.owner.detach(), start, end, 0, self.own)
            if local is not None:
                local.source = piece.owner
                found[TensorKey(piece.name, PARAM if isinstance(piece.owner, nn.Parameter) else BUFFER)] = local
        return found

    def state_entries(self, tensors: Mapping[int, Mapping[str, torch.Tensor]]) -> dict[TensorKey, Local]:
        """`tensors`: of each shard, by its id."""
        found = {}
        for shard, piece in self.sharded:
            for state, tensor in tensors[id(shard)].items():
                local = _local(piece, tensor.detach(), shard.start, shard.end, shard.start, self.own)
                assert local is not None
                found[TensorKey(piece.name, state)] = local
        return found

    def require_no_gather(self) -> None:
        chunks = {id(chunk): chunk for one in self.optimizers for chunk in getattr(one, "model_chunks", ())}.values()
        for bucket in (bucket for chunk in chunks for name in ("bucket_groups", "expert_parallel_bucket_groups")
                       for bucket in getattr(chunk, name, ())):
            if getattr(bucket, "param_gather_handle", None) is not None:
                raise InvalidArgument("a gather of parameters is under way, which would overwrite what is restored: restore "
                                      "before zero_grad() and the forward pass of a step")

    def scalers(self) -> dict[TensorKey, Any]:
        """Of optimizers whose loss scale changes in training."""
        return {TensorKey("", f"grad_scaler/{index}"): one.grad_scaler for index, one in enumerate(self.optimizers)
                if getattr(one, "grad_scaler", None) is not None and one.grad_scaler.state_dict()}

    def groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.optimizer.param_groups]

    def groups_without_shard(self) -> dict[int, dict[str, Any]]:
        """By index in groups()."""
        used = {id(shard.group) for shard in self.shards}
        return {index: group for index, group in enumerate(self.groups()) if id(group) not in used}


def _identity(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """By which Megatron finds a group again."""
    return tuple(group.get(key, group.get(f"pre_{key}")) for key in param_group_identifier_keys if key != _EXPERT)


def publish(session: Session, model_chunks: ModelChunks, optimizer: Any, *, step: int, name: str = "torch",
            snapshot: Snapshot = "none", extra: Mapping[str, Any] | None = None, vocab_size: int | None = None) -> Publication:
    """Makes a model and its optimizer readable by peers.

    Every rank that has a part of the model calls it, between two training steps. `optimizer`: of get_megatron_optimizer(), or
    None. With snapshot "none" nothing may change until the publication is retired; "copy" lets training go on at once.
    `extra`: as for shardwire.torch.publish(). `vocab_size`: the rows of embeddings and output layers that are no padding,
    if the other side pads them to another size.
    """
    job = _Job(session, model_chunks, optimizer, vocab_size)
    tensors = {id(shard): shard.tensors() for shard in job.shards}
    entries = Entries({**job.model_entries(only_own=True), **job.state_entries(tensors)})
    for shard, piece in job.sharded:
        entries.values[TensorKey(piece.name, GROUP)] = shard.options()
    if job.optimizers:
        entries.values[_GROUPS] = [{option: value for option, value in options(group) if option != _STEP}
                                   for group in job.groups()]
    for key, scaler in job.scalers().items():
        entries.values[key] = scaler.state_dict()
    return publish_entries(session, entries, step=step, name=name, snapshot=snapshot, extra=extra)


@contextlib.contextmanager
def _missing_states(job: _Job, published: Mapping[TensorKey, Any]) -> Iterator[None]:
    """Creates states that are missing. An error in the block removes them."""
    before = [(shard, dict(shard.state)) for shard in job.shards]
    try:
        # Not by Megatron's own _init_optimizer_states_with_dummy_values(): it takes a step, which changes the parameters.
        states: dict[str, dict[str, Any]] = {}
        for key, info in published.items():
            if key.state not in (PARAM, BUFFER, MASTER):
                states.setdefault(key.fqn, {})[key.state] = info
        for one in job.optimizers:
            if states and hasattr(one.optimizer, "initialize_state") and one.init_state_fn is not None:  # of Transformer Engine
                one.init_state_fn(one.optimizer, one.config)
        for shard, piece in job.sharded:
            wanted = states.get(piece.name, {})
            if wanted and not shard.scaled:
                kept = shard.optimizer.optimizer.state[shard.main]
                for state, info in wanted.items():
                    # Zeros, because rows of padding of a vocabulary are not restored.
                    kept.setdefault(state, torch.zeros_like(shard.main, dtype=dtype_of(info.dtype), requires_grad=False))
        yield
    except BaseException:
        for shard, known in before:
            state = shard.optimizer.optimizer.state
            if shard.main in state and not known:
                del state[shard.main]
            elif known:
                for created in state[shard.main].keys() - known.keys():
                    del state[shard.main][created]
        raise


def _set_options(group: dict[str, Any], received: Mapping[str, Any]) -> None:
    for option, value in received.items():
        if option not in (_STEP, _EXPERT):
            group[option] = like(value, group.get(option))


def _set_step(shard: _Shard, step: int | None) -> None:
    if step is None:
        return
    kept = shard.optimizer.optimizer.state.get(shard.main)
    if not isinstance(shard.optimizer.optimizer, _STEP_IN_STATES):
        shard.group[_STEP] = step
    elif kept is not None:
        # A new one: loading a checkpoint of Megatron leaves one tensor to all states.
        kept[_STEP] = torch.tensor(float(step), dtype=torch.float32, device=step_device(shard.group, shard.main))


_STEP_IN_STATES = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def _chosen(job: _Job, values: Mapping[TensorKey, Any]) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    """The options of each group. Raises LayoutMismatch if parameters of one group received different ones."""
    chosen: dict[int, tuple[str, dict[str, Any], Mapping[str, Any]]] = {}
    for shard, piece in job.sharded:
        received = values.get(TensorKey(piece.name, GROUP))
        if received is None:
            continue
        first, _, known = chosen.setdefault(id(shard.group), (piece.name, shard.group, received))
        if known != received:
            raise groups_differ(first, piece.name, known, received)
    found: list[tuple[dict[str, Any], Mapping[str, Any]]] = [(group, received) for _, group, received in chosen.values()]
    listed = values.get(_GROUPS) or []
    for index, group in job.groups_without_shard().items():
        # Both sides have groups in one order, but one side may have groups of experts more. What identifies a group for Megatron
        # may be the same for several.
        same = [one for one in listed if _identity(one) == _identity(group)]
        same.sort(key=lambda one: one.get(_EXPERT) != group.get(_EXPERT))
        if len(listed) == len(job.groups()) and listed[index] in same:
            same.insert(0, listed[index])
        if same:
            found.append((group, same[0]))
    return found


def restore_into(session: Session, model_chunks: ModelChunks, optimizer: Any, *, step: int | None = None, name: str = "torch",
                 timeout: Seconds = 60, verify: Verify = "generation", absent: Mapping[str, Absent] | None = None,
                 progress: Callable[[Progress], object] | None = None, vocab_size: int | None = None) -> RestoreResult:
    """Overwrites a model and its optimizer with the state that peers published, in place.

    Degrees of tensor, data, pipeline and expert parallelism may be others than those of the publishers. Creates optimizer
    states that this rank lacks; after an error they are removed again. `absent`: as for shardwire.torch.restore_into().
    `vocab_size`: as in publish(); rows of padding keep what they have. Raises LayoutMismatch, before a byte is written, if
    types, shapes or options differ or parts are missing; StepMismatch, TimedOut, PeerLost as Session.restore().
    """
    job = _Job(session, model_chunks, optimizer, vocab_size)
    job.require_no_gather()
    scalers = job.scalers()
    chosen: list[tuple[dict[str, Any], Mapping[str, Any]]] = []
    tensors: dict[int, dict[str, torch.Tensor]] = {}
    with contextlib.ExitStack() as states:
        def wanted(inventory: Inventory) -> Entries:
            states.enter_context(_missing_states(job, inventory.tensors))
            tensors.update((id(shard), shard.tensors()) for shard in job.shards)
            return Entries({**job.model_entries(only_own=False), **job.state_entries(tensors)}, {
                **{TensorKey(piece.name, GROUP): None for _, piece in job.sharded},
                **({_GROUPS: None} if job.groups_without_shard() else {}), **{key: None for key in scalers}})

        result, values = restore_entries(
            session, wanted, step=step, name=name, timeout=timeout, verify=verify, absent=absent, progress=progress,
            check=lambda values: chosen.extend(_chosen(job, values)))
        for shard in job.shards:
            if shard.scaled and shard.state:
                found = dict(tensors[id(shard)])
                shard.optimizer._set_main_param_and_optimizer_states(shard.parameter, {"param": found.pop(MASTER), **found})
    for shard, piece in job.sharded:
        options_of = values.get(TensorKey(piece.name, GROUP))
        if options_of is not None:
            _set_step(shard, options_of.get(_STEP))
    for group, received in chosen:
        _set_options(group, received)
    for key, scaler in scalers.items():
        if key in values:
            scaler.load_state_dict(values[key])
    return result
