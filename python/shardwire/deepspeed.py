# SPDX-License-Identifier: Apache-2.0
"""State of DeepSpeed engines between ranks: publish an engine, restore it into another, of any ZeRO stage and number of ranks.

Tested with DeepSpeed 0.19.8. Calls use the tensors of the calling rank only and run no collective of DeepSpeed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from . import FlatMember, InvalidArgument, Inventory, Layout, LayoutMismatch, Progress, Publication, Session, TensorKey, Unsupported
from ._types import Absent, Seconds, Snapshot, Verify
from .torch.adapter import (BUFFER, GROUP, PARAM, Entries, Local, Ranks, RestoreResult, dtype_of, entries_of, groups_differ, in_shard, like,
                            options, publish_entries, restore_entries, step_device, to_value)

__all__ = ["publish", "restore_into"]

MASTER = "master"
"""State under which the fp32 copy of a parameter is published."""

_COUNTERS = TensorKey("", "deepspeed/counters")
_SCHEDULER = TensorKey("", "deepspeed/lr_scheduler")
_SCALER = TensorKey("", "deepspeed/loss_scaler")


@dataclasses.dataclass(eq=False)
class _Member:
    """A parameter in a tensor for which the optimizer keeps state."""

    fqn: str
    shape: tuple[int, ...]
    layout: Layout
    within: Callable[[torch.Tensor], torch.Tensor]
    """This rank's elements in the tensor, or in a state that has its shape."""

    def local(self, tensor: torch.Tensor) -> Local:
        return Local(self.shape, self.layout, self.within(tensor.detach()), tensor)


@dataclasses.dataclass(eq=False)
class _Optimized:
    """A tensor for which the optimizer keeps state: the fp32 copies of some parameters, one after another."""

    tensor: torch.Tensor
    group: dict[str, Any]
    members: list[_Member]


def _split_evenly(shapes: Sequence[tuple[int, ...]], offsets: Sequence[int], size: int, world: int) -> list[Layout]:
    """Layouts of parameters in a buffer of `size` elements, of which each rank of `world` has an equal part."""
    members, places, end = list[FlatMember](), list[int](), 0
    for shape, offset in zip(shapes, offsets):
        if offset > end:
            members.append(FlatMember((offset - end,)))  # DeepSpeed aligns what follows
        places.append(len(members))
        members.append(FlatMember(shape))
        end = offset + math.prod(shape)
    if size > end:
        members.append(FlatMember((size - end,)))
    made = Layout.flat(members, world)
    return [made[place] for place in places]


class _Engine:
    """Where an engine keeps its state on this rank."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.optimizer = engine.optimizer
        _refuse(engine)
        # Layouts number the ranks of the engine, which may be some of the session's.
        self.ranks = Ranks(dist.get_rank(), dist.get_world_size(), None)
        self.model = entries_of(engine.module, self.ranks)
        self._fqns = {id(local.source): key.fqn for key, local in self.model.tensors.items() if key.state == PARAM}
        self.optimized = list(self._find_optimized())
        own = self.optimizer if type(self.optimizer) not in _WRAPPERS else self.optimizer.optimizer
        self.state: dict[torch.Tensor, dict[str, Any]] = own.state

    def _fqn(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self._fqns:
            raise InvalidArgument(f"the optimizer has a parameter of shape {tuple(tensor.shape)} that the model lacks")
        return self._fqns[id(tensor)]

    def _find_optimized(self) -> Iterator[_Optimized]:
        return _WRAPPERS.get(type(self.optimizer), _Engine._whole)(self)

    def _whole(self) -> Iterator[_Optimized]:
        """Stage 0 in fp32: a plain optimizer of whole parameters."""
        for group in self.optimizer.param_groups:
            for tensor in group["params"]:
                if tensor.requires_grad:
                    yield self._whole_copy(tensor, tensor, group)

    def _whole_copies(self) -> Iterator[_Optimized]:
        """Stage 0 in low precision: a whole fp32 copy of each parameter."""
        for group, low, high in zip(self.optimizer.optimizer.param_groups, self.optimizer.fp16_groups, self.optimizer.fp32_groups):
            for tensor, copy in zip(low, high):
                yield self._whole_copy(tensor, copy, group)

    def _whole_copy(self, tensor: torch.Tensor, copy: torch.Tensor, group: dict[str, Any]) -> _Optimized:
        return _Optimized(copy, group, [_Member(self._fqn(tensor), tuple(tensor.shape), Layout.replicated(), lambda state: state)])

    def _zero12(self) -> Iterator[_Optimized]:
        """Stages 1 and 2: the parameters of a group lie in one buffer, of which each rank has a part in fp32."""
        one = self.optimizer
        yield from self._partitions(one.round_robin_bit16_groups, one.round_robin_bit16_offsets, one.bit16_groups_flat,
                                    one.single_partition_of_fp32_groups)

    def _zero1_bf16(self) -> Iterator[_Optimized]:
        """Stage 1 in bf16 with gradients in fp32."""
        one = self.optimizer
        offsets = [[sum(tensor.numel() for tensor in group[:index]) for index in range(len(group))] for group in one.bf16_groups]
        yield from self._partitions(one.bf16_groups, offsets, one.bf16_groups_flat, one.fp32_groups_flat_partition)

    def _partitions(self, groups: Any, all_offsets: Any, buffers_of: Any, copies: Any) -> Iterator[_Optimized]:
        for index, (tensors, offsets, buffer, copy) in enumerate(zip(groups, all_offsets, buffers_of, copies)):
            numbers = self.ranks.of(dist.get_process_group_ranks(self.optimizer.real_dp_process_group[index]))
            layouts = _split_evenly([tuple(tensor.shape) for tensor in tensors], offsets, buffer.numel(), len(numbers))
            members = []
            for tensor, made in zip(tensors, layouts):
                layout = Layout.on_ranks(made, numbers)
                members.append(self._member(self._fqn(tensor), tuple(tensor.shape), layout))
                _require_place(members[-1], tensor._hp_mapping, self.ranks.own)
            yield _Optimized(copy, self.optimizer.optimizer.param_groups[index], members)

    def _member(self, fqn: str, shape: tuple[int, ...], layout: Layout, start: int = 0) -> _Member:
        own = self.ranks.own
        return _Member(fqn, shape, layout, lambda flat: in_shard(flat[start:], flat, shape, layout, own).tensor)

    def _zero3(self) -> Iterator[_Optimized]:
        """Stage 3: each rank has an equal part of each parameter; the fp32 copies of its parts lie in buffers."""
        one = self.optimizer
        for index, (tensors, copy) in enumerate(zip(one.fp16_groups, one.fp32_partitioned_groups_flat)):
            members, start = [], 0
            for tensor in tensors:
                members.append(self._member(self._fqn(tensor), tuple(tensor.ds_shape), self._layout_of(tensor), start))
                start += tensor.ds_tensor.ds_numel
            yield _Optimized(copy, one.optimizer.param_groups[one.sub_group_to_group_id[index]], members)

    def _layout_of(self, tensor: Any) -> Layout:
        """Of a parameter of stage 3. The parts are equal: the last ones may end behind the last element."""
        numbers = self.ranks.of(dist.get_process_group_ranks(tensor.ds_process_group))
        size = tensor.ds_tensor.ds_numel * len(numbers)
        return Layout.on_ranks(_split_evenly([tuple(tensor.ds_shape)], [0], size, len(numbers))[0], numbers)

    def _own(self, fqn: str, local: Local) -> Local:
        """The parameter itself, in the precision in which the model computes."""
        tensor: Any = local.source
        if not hasattr(tensor, "ds_tensor"):
            return local
        if tensor.ds_tensor.status.name != "AVAILABLE" or hasattr(tensor.ds_tensor, "ds_quant_scale"):
            raise Unsupported(f"{fqn} is swapped out or quantized")
        part = tensor.ds_tensor
        return in_shard(part.detach(), part, tuple(tensor.ds_shape), self._layout_of(tensor), self.ranks.own)

    def entries(self, wanting: bool) -> Entries:
        entries = Entries(aliases=dict(self.model.aliases))
        memory = set()
        for key, local in self.model.tensors.items():
            if key.state == PARAM:
                local = self._own(key.fqn, local)
                memory.add(local.tensor.untyped_storage().data_ptr())
            entries.tensors[key] = local
        groups = {id(one.group): dict(options(one.group)) for one in self.optimized}
        for one in self.optimized:
            # In fp32 some engines have no other copy than the parameters.
            own_memory = one.tensor.untyped_storage().data_ptr() not in memory
            for member in one.members:
                fqn = member.fqn
                if own_memory or not wanting:
                    entries.tensors[TensorKey(fqn, MASTER)] = member.local(one.tensor)
                entries.values[TensorKey(fqn, GROUP)] = groups[id(one.group)]
                for name, value in self.state.get(one.tensor, {}).items():
                    if isinstance(value, torch.Tensor) and value.dim() and value.shape == one.tensor.shape:
                        entries.tensors[TensorKey(fqn, name)] = member.local(value)
                    elif isinstance(value, torch.Tensor) and value.numel() > 1:
                        raise Unsupported(f"{fqn}:{name} has the shape {tuple(value.shape)}, which does not tell what belongs to "
                                          "which parameter")
                    else:
                        entries.values[TensorKey(fqn, name)] = value
        entries.values.update(self._values())
        return entries

    def _values(self) -> dict[TensorKey, Any]:
        engine = self.engine
        values: dict[TensorKey, Any] = {_COUNTERS: {
            "global_steps": engine.global_steps, "global_samples": engine.global_samples, "skipped_steps": engine.skipped_steps,
            "accumulated_steps": engine.micro_steps // engine.gradient_accumulation_steps()}}
        if engine.lr_scheduler is not None:
            values[_SCHEDULER] = engine.lr_scheduler.state_dict()
        if self.scaler is not None:
            values[_SCALER] = {"class": type(self.scaler).__name__, **_numbers_of(self.scaler)}
        return values

    @property
    def scaler(self) -> Any:
        """Of fp16 only: others have none, or one that does nothing."""
        if not self.engine.fp16_enabled():
            return None
        return getattr(self.optimizer, "loss_scaler", None) or getattr(self.optimizer, "loss_scale_config", None)

    def create_missing_states(self, published: Inventory) -> list[tuple[dict[str, Any], list[str]]]:
        """DeepSpeed creates them in the first step. The result tells which were created."""
        created = []
        states: dict[str, dict[str, Any]] = {}
        own_name = self._own_names(published)
        for key, info in published.tensors.items():
            states.setdefault(own_name(key.fqn), {})[key.state] = info
        for one in self.optimized:
            wanted: dict[str, Any] = {}
            for member in one.members:
                wanted = {**states.get(member.fqn, {}), **wanted}
            names = [name for name in wanted if name not in (PARAM, MASTER, BUFFER)]
            if not names:
                continue
            state = self.state.setdefault(one.tensor, {})
            missing = [name for name in names if name not in state]
            for name in missing:
                # Zeros, because the buffer has elements that belong to no parameter.
                state[name] = torch.zeros_like(one.tensor, dtype=dtype_of(wanted[name].dtype), requires_grad=False)
            created.append((state, missing))
        return created

    def remove_created_states(self, created: list[tuple[dict[str, Any], list[str]]]) -> None:
        for state, names in created:
            for name in names:
                del state[name]
        for one in self.optimized:
            if not self.state.get(one.tensor, True):
                del self.state[one.tensor]

    def _own_names(self, published: Inventory) -> Callable[[str], str]:
        """Gives the name that a parameter of the sources has here: each side publishes it under one of its names."""
        here = {**{fqn: fqn for fqn in self._fqns.values()}, **self.model.aliases}
        others = {fqn: here[alias] for alias, fqn in published.aliases.items() if alias in here}
        return lambda fqn: here.get(fqn) or others.get(fqn, fqn)

    def request_values(self, entries: Entries, published: Inventory) -> None:
        """States that are no tensors, such as `step`, which this rank may lack."""
        names: dict[str, list[str]] = {}
        own_name = self._own_names(published)
        for key in published.values:
            names.setdefault(own_name(key.fqn), []).append(key.state)
        for one in self.optimized:
            for member in one.members:
                for name in names.get(member.fqn, []):
                    entries.values.setdefault(TensorKey(member.fqn, name), None)

    def check(self, values: Mapping[TensorKey, Any]) -> None:
        """Raises LayoutMismatch if parameters with a common group or state received different ones, or scalers differ."""
        received = _by_name(values)
        first: dict[tuple[int, str], tuple[str, Any]] = {}
        for one in self.optimized:
            for fqn in (member.fqn for member in one.members):
                for state, value in received.get(fqn, {}).items():
                    holder = id(one.group) if state == GROUP else id(one.tensor)
                    other, known = first.setdefault((holder, state), (fqn, value))
                    if known is not value and to_value(known) != to_value(value):
                        if state != GROUP:
                            known, value = {state: known}, {state: value}
                        raise groups_differ(fqn, other, to_value(known), to_value(value))
        scaler = values.get(_SCALER)
        if scaler is not None and scaler["class"] != type(self.scaler).__name__:
            raise LayoutMismatch(f"loss scaler: source has {scaler['class']}, target wants {type(self.scaler).__name__}")

    def apply(self, values: Mapping[TensorKey, Any]) -> None:
        """What check() has seen."""
        received = _by_name(values)
        for one in self.optimized:
            of_members = {state: value for member in one.members for state, value in received.get(member.fqn, {}).items()}
            for option, value in of_members.pop(GROUP, {}).items():
                one.group[option] = like(value, one.group.get(option))
            for name, value in of_members.items():
                state = self.state.setdefault(one.tensor, {})
                if state.get(name) is None and isinstance(value, torch.Tensor):
                    value = value.to(step_device(one.group, one.tensor))
                state[name] = like(value, state.get(name))
        engine = self.engine
        counters = values.get(_COUNTERS)
        if counters is not None:
            engine.global_steps, engine.global_samples = counters["global_steps"], counters["global_samples"]
            engine.skipped_steps = counters["skipped_steps"]
            # The number of micro batches in a step may be another one here.
            engine.micro_steps = counters["accumulated_steps"] * engine.gradient_accumulation_steps()
        if _SCHEDULER in values:
            engine.lr_scheduler.load_state_dict(values[_SCHEDULER])
        for name, number in values.get(_SCALER, {}).items():
            if name != "class":
                setattr(self.scaler, name, number)
        self._refresh()

    def _refresh(self) -> None:
        """Drops what DeepSpeed has made of the former state."""
        if type(self.optimizer) is DeepSpeedZeroOptimizer_Stage3:
            self.optimizer._partition_all_parameters()  # frees gathered copies, which the next forward gathers again
        elif hasattr(self.optimizer, "_lazy_init_hp_params_optimizer_state"):
            self.optimizer._hp_optimizer_states_linked = False
            if all(self.state.get(one.tensor) for one in self.optimized):
                self.optimizer._lazy_init_hp_params_optimizer_state()  # for DeepSpeed's own readers of states


_WRAPPERS: dict[type, Callable[[_Engine], Iterator[_Optimized]]] = {
    DeepSpeedZeroOptimizer: _Engine._zero12, BF16_Optimizer: _Engine._zero1_bf16, DeepSpeedZeroOptimizer_Stage3: _Engine._zero3,
    FP16_UnfusedOptimizer: _Engine._whole_copies}


def _by_name(values: Mapping[TensorKey, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        found.setdefault(key.fqn, {})[key.state] = value
    return found


def _numbers_of(scaler: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(scaler).items() if type(value) in (bool, int, float)}


def _require_place(member: _Member, mapping: Any, own: int) -> None:
    """DeepSpeed tells where the elements of this rank lie; the layout has to agree."""
    placed = [(one.local_offset, math.prod(one.box.size)) for one in member.layout.boxes_of(member.shape, own)]
    elements = sum(size for _, size in placed)
    theirs = None if mapping is None else (mapping.hp_fragment_address.start, mapping.hp_fragment_address.numel)
    if theirs != ((placed[0][0], elements) if elements else None):
        raise Unsupported(f"{member.fqn}: this version of DeepSpeed places parameters differently")


def _refuse(engine: Any) -> None:
    one = engine.optimizer
    known = type(one) in _WRAPPERS or isinstance(one, torch.optim.Optimizer)
    stage3 = type(one) is DeepSpeedZeroOptimizer_Stage3
    reasons = {
        f"its optimizer is a {type(one).__name__}": not known,
        "it is a pipeline": isinstance(engine.module, PipelineModule),
        "it has experts": engine.has_moe_layers,
        "it is tensor parallel": engine.mp_world_size > 1 or engine.autotp_size() > 1,
        "it swaps to NVMe": getattr(one, "swap_optimizer", False) or getattr(one, "params_in_nvme_and_cpu", False),
        "it has secondary partitions (hpZ)": stage3 and one.zero_hpz_partition_size > 1,
        "it has a GradScaler of torch": getattr(one, "torch_autocast_gradscaler", None) is not None,
        "its states are offloaded: call engine.reload_states() first": getattr(one, "offloaded_states", False),
    }
    wrong = [reason for reason, applies in reasons.items() if applies]
    if wrong:
        raise Unsupported(f"the engine cannot be published or restored: {'; '.join(wrong)}")
    managed = engine.managed_gradient_accumulation()
    if engine.micro_steps % engine.gradient_accumulation_steps() if managed else engine._unmanaged_backward_count:
        raise InvalidArgument("the engine has accumulated gradients, which are not published: call at the end of a step")


@torch.no_grad()
def publish(session: Session, engine: Any, *, step: int, name: str = "torch", snapshot: Snapshot = "none",
            extra: Mapping[str, Any] | None = None) -> Publication:
    """Makes the state of an engine readable by peers. Every rank of the engine calls it, at the end of a step.

    With snapshot "none" the engine must not train on until the publication is retired; "copy" lets it. `extra` is as in
    shardwire.torch.publish().
    """
    held = _Engine(engine)
    return publish_entries(session, held.entries(wanting=False), step=step, name=name, snapshot=snapshot, extra=extra,
                           ranks=held.ranks)


@torch.no_grad()
def restore_into(session: Session, engine: Any, *, step: int | None = None, name: str = "torch", timeout: Seconds = 60,
                 verify: Verify = "generation", absent: Mapping[str, Absent] | None = None,
                 progress: Callable[[Progress], object] | None = None) -> RestoreResult:
    """Overwrites an engine with the state that peers published, in place. Every rank of the engine calls it.

    Creates optimizer states that the engine lacks; after an error they are removed again. `absent` maps globs of "name" or
    "name:state" to "skip" or "zero", for what no peer has. Raises LayoutMismatch, before a byte is written, if types, shapes
    or options differ or parts are missing; StepMismatch, TimedOut, PeerLost as Session.restore().
    """
    own = _Engine(engine)
    created: list[tuple[dict[str, Any], list[str]]] = []

    def wanted(inventory: Inventory) -> Entries:
        created.extend(own.create_missing_states(inventory))
        entries = own.entries(wanting=True)
        own.request_values(entries, inventory)
        return entries

    try:
        result, values = restore_entries(session, wanted, step=step, name=name, timeout=timeout, verify=verify, absent=absent,
                                         progress=progress, ranks=own.ranks, check=own.check)
    except BaseException:
        own.remove_created_states(created)
        raise
    own.apply(values)
    return result
