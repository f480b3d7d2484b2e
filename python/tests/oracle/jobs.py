# SPDX-License-Identifier: Apache-2.0
"""A source and a target of several ranks each, under wrappers that need not be the same."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Callable

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from trainers import Spec, Trainer

import hooks
import shardwire as sw
import shardwire.torch as swt
from compare import Picture, differences, picture_of
from oracle import REFUSALS, exact

WORLD = 4
STEPS = 3


@dataclasses.dataclass(frozen=True)
class Job:
    source: Spec
    target: Spec
    members: tuple[int | None, ...] = (0, 1, 2, 3)
    """The member of the session that each rank of the process group is; None of ranks outside of it."""
    named: bool = False
    """Whether ranks= names the members. Otherwise all members publish, and those without a part of the source an empty module."""
    warm: bool = False
    """Whether the target has trained before."""
    evaluated: bool = False
    """Whether both have run without gradients before, after which FSDP keeps some parameters gathered."""
    entries: tuple[str, ...] = ()
    """What the source's states have besides: see ENTRIES."""
    hooks: str = ""
    """What norms have on both sides: see hooks.MODULES."""

    @property
    def in_order(self) -> bool:
        return self.members == tuple(range(WORLD))

    def ranks(self, spec: Spec) -> list[int] | None:
        """What ranks= is for a side."""
        if not self.named:
            return None
        if not self.in_order:
            return [member for member in self.members if member is not None]
        return spec.members if len(spec.members) < WORLD else list(range(WORLD))


def _wide(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter.detach(), dtype=torch.float64) + parameter.detach().double() * 3


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    """What a norm of the parameter is: without dims, and a DTensor if the parameter is one."""
    value = torch.tensor(0.625)
    if isinstance(parameter, DTensor):
        return DTensor.from_local(value, parameter.device_mesh, [Replicate()] * parameter.device_mesh.ndim, run_check=False)
    return value


ENTRIES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "number": lambda parameter, common: 7,
    "scalar": lambda parameter, common: torch.tensor(1.25, dtype=torch.float64),
    "common": lambda parameter, common: common,
    "whole": lambda parameter, common: _whole(parameter),
    "wide": lambda parameter, common: _wide(parameter),
    "list": lambda parameter, common: [_wide(parameter), (3, parameter.detach() + 1)],
}

# Optimizers, as trainers.py names them, of which each wrapper can have all.
_OPTIMIZERS = ["one_group", "adamw", "two", "wide"]
_WRAPPERS = ["plain", "ddp", "zero", "fsdp2", "fsdp2", "hsdp", "fsdp1", "fsdp1", "hybrid", "tp", "two"]
_MESHES = {"plain": [(1,)], "tp": [(2,), (4,)], "two": [(2, 2)], "hsdp": [(2, 2)], "hybrid": [(2, 2)]}
_FSDP1 = ("fsdp1", "hybrid")


def _order(draw: st.DrawFn, wrapper: str, mesh: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of a mesh."""
    count = mesh[0] * (mesh[1] if len(mesh) == 2 else 1)
    ranks = draw(st.permutations(range(WORLD)))[:count]
    if len(mesh) == 2:
        # Torch sorts the ranks of each group. Rows and columns change places as a whole, so that the groups of a mesh agree.
        rows, columns = draw(st.permutations(range(mesh[0]))), draw(st.permutations(range(mesh[1])))
        return tuple(row * mesh[1] + column for row in rows for column in columns)
    return tuple(ranks if wrapper in ("plain", "fsdp2") else sorted(ranks))


def _spec(draw: st.DrawFn, wrapper: str, optimizer: str, net: tuple[tuple[str, Any], ...], dtype: torch.dtype) -> Spec:
    mesh = draw(st.sampled_from(_MESHES.get(wrapper, [(2,), (3,), (4,)])))
    ranks = _order(draw, wrapper, mesh)
    # A flat parameter is frozen as a whole, and torch gathers the states of flat parameters from rank 0 of the job.
    orig = wrapper not in _FSDP1 or "frozen" in dict(net) or 0 not in ranks or draw(st.booleans())
    strategy = "FULL_SHARD"
    if wrapper in _FSDP1:
        strategy = "HYBRID_SHARD" if wrapper == "hybrid" else draw(st.sampled_from(["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]))
    return Spec({"two": "fsdp2", "hybrid": "fsdp1"}.get(wrapper, wrapper), mesh, optimizer, net, dtype, orig, strategy, ranks)


def _members(draw: st.DrawFn, used: set[int]) -> tuple[int | None, ...]:
    how = draw(st.sampled_from(["in order", "in order", "permuted", "permuted", "some"]))
    if how == "in order":
        return tuple(range(WORLD))
    numbers = list(draw(st.permutations(range(WORLD if how == "permuted" else len(used)))))
    return tuple(numbers.pop() if how == "permuted" or rank in used else None for rank in range(WORLD))


def _ascends(spec: Spec) -> bool:
    return spec.members == sorted(spec.members)


def _has_twin(job: Job) -> bool:
    """Whether torch loads this exactly."""
    # FSDP1 and ZeRO load in ways of their own; of whole state dicts torch loads no entries that a new optimizer lacks, and asks
    # for states of parameters that were never used.
    if {job.source.wrapper, job.target.wrapper} & {"zero", "fsdp1"} or job.entries or "unused" in dict(job.target.net):
        return False
    # Torch cuts by the coordinates of a mesh, and FSDP2 by the ranks of the group, which are sorted.
    return _ascends(job.target)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    wrappers = [draw(st.sampled_from(_WRAPPERS)) for _ in range(2)]
    net = [(name, True) for name in ("tied", "frozen", "unused") if draw(st.sampled_from([False, False, True]))]
    if draw(st.booleans()):
        net += [("rows", 7), ("width", 10)]
    left_out = set()
    if {"tp", "two"} & set(wrappers):
        left_out = {"tied", "rows"}  # tensor parallelism takes ties apart, and trainers.py splits evenly there
    if ("tied", True) in net:
        left_out.add("rows")  # of the table, too
    if set(_FSDP1) & set(wrappers):
        left_out.add("unused")  # torch cannot gather the state of a flat parameter some of which has none
    if set(_FSDP1) & set(wrappers) or "zero" in wrappers:
        optimizer = "one_group"  # the groups of trainers.py follow from dims, which flat parameters lack; ZeRO has one
    else:
        optimizer = draw(st.sampled_from(_OPTIMIZERS))
    kept = tuple(one for one in net if one[0] not in left_out)
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16]))
    source, target = (_spec(draw, wrapper, optimizer, kept, dtype) for wrapper in wrappers)
    if draw(st.sampled_from([False] * 9 + [True])):
        target = dataclasses.replace(target, net=(*(one for one in kept if one[0] != "width"), ("width", 12)))
    # FSDP1 gathers no state of another type than its parameter, and none in lists.
    names = [name for name in ENTRIES if name not in ("wide", "list") or not set(_FSDP1) & set(wrappers)]
    entries = tuple(draw(st.lists(st.sampled_from(names), max_size=2, unique=True)))
    members = _members(draw, {*source.members, *target.members})
    named = None not in members and draw(st.booleans())
    job = Job(source, target, members, named, draw(st.booleans()), draw(st.booleans()), entries)
    if _has_twin(job) and draw(st.sampled_from([False] * 3 + [True])):
        return dataclasses.replace(job, hooks=draw(st.sampled_from(["exchange", "add after", "double and halve"])))
    return job


def _inner(trainer: Trainer) -> list[torch.optim.Optimizer]:
    return [getattr(one, "optim", one) for one in trainer.optimizers]  # of ZeRO


def _add_entries(trainer: Trainer, names: tuple[str, ...]) -> None:
    common = torch.tensor(2.5)
    for optimizer in _inner(trainer):
        for parameter, state in optimizer.state.items():
            state.update({name: ENTRIES[name](parameter, common) for name in names})


def _local(value: Any) -> Any:
    if isinstance(value, DTensor):
        return {"placements": str(value.placements), "mesh": str(value.device_mesh.mesh.tolist()), "local": value.to_local()}
    return type(value)(map(_local, value)) if type(value) in (list, tuple) else value


def _evaluate(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.forward(torch.zeros(2, 4, dtype=torch.int64))


def _reshard(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _here(trainer: Trainer) -> Picture:
    """What this rank has."""
    _reshard(trainer.model)
    tensors = {name: _local(tensor) for name, tensor in (*trainer.model.named_parameters(), *trainer.model.named_buffers())}
    states = [[{name: _local(value) for name, value in state.items()} for state in one.state.values()] for one in _inner(trainer)]
    # What torch gathers has lists in place of tuples.
    groups = [[{name: list(value) if type(value) is tuple else value for name, value in group.items() if name != "params"}
               for group in one.param_groups] for one in _inner(trainer)]
    return picture_of({"tensors": tensors, "states": states, "groups": groups})


def _hooked(trainer: Trainer, job: Job) -> Trainer:
    if trainer.here and job.hooks:
        for module in trainer.model.modules():
            if isinstance(module, nn.LayerNorm):
                hooks.MODULES[job.hooks](module)
    return trainer


def _warming(job: Job) -> range:
    """The steps that its targets train before they get the state of the source."""
    return range(1, STEPS) if job.warm else range(0)


def _by_torch(job: Job, source: Trainer) -> Trainer | None:
    """Another target, of what torch gathers from the source."""
    if not _has_twin(job):
        return None
    twin = Trainer(job.target, 3)
    for step in _warming(job) if twin.here else ():  # DDP sums in another order after the first backward pass
        twin.train(step)
    _hooked(twin, job)
    whole = [None]
    if source.here:
        whole = [get_state_dict(source.model, source.optimizers, options=StateDictOptions(full_state_dict=True, cpu_offload=False))]
    dist.broadcast_object_list(whole, src=job.source.members[0])
    if twin.here:
        with exact():
            model, optim = copy.deepcopy(whole[0])  # type: ignore[misc]
            set_state_dict(twin.model, twin.optimizers, model_state_dict=model, optim_state_dict=optim,
                           options=StateDictOptions(full_state_dict=True))
    return twin


def _all(thing: Any) -> list[Any]:
    """What each rank has."""
    things: list[Any] = [None] * WORLD
    dist.all_gather_object(things, thing)
    return things


class _Side:
    """One rank's calls of the package."""

    def __init__(self, job: Job, session: sw.Session) -> None:
        self._job, self._session = job, session
        self.publication: sw.Publication | None = None

    def publish(self, source: Trainer) -> str:
        try:
            ranks = self._job.ranks(self._job.source)
            if source.here:
                self.publication = swt.publish(self._session, source.model, source.optimizers, step=STEPS, ranks=ranks)
            elif ranks is None or len(ranks) == self._session.world_size:
                self.publication = swt.publish(self._session, nn.Module(), step=STEPS, ranks=ranks)
        except REFUSALS as refusal:
            return f"refused: {type(refusal).__name__}: {refusal}"
        return ""

    def restore(self, target: Trainer) -> str:
        try:
            swt.restore_into(self._session, target.model, target.optimizers, timeout=200, ranks=self._job.ranks(self._job.target))
        except REFUSALS as refusal:
            return f"refused: {type(refusal).__name__}: {refusal}"
        return "restored"


def _moved(job: Job, name: str, source: Trainer, target: Trainer) -> list[str]:
    """What came of it, on each rank."""
    member = job.members[dist.get_rank()]
    if member is None:
        return [*_all(""), *_all("")]
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    with swt.join(store, member, sum(one is not None for one in job.members)) as session:
        side = _Side(job, session)
        outcomes = _all(side.publish(source))
        if any(outcomes):
            outcomes += _all("")  # a target would wait for the others
        else:
            outcomes += _all(side.restore(target) if target.here else "")
        if side.publication is not None:
            side.publication.retire(5)
    return outcomes


def run(rank: int, world: int, job: Job, name: str) -> tuple[str, list[str]]:
    """What came of it, and what is wrong on this rank."""
    source, target = Trainer(job.source, 1), Trainer(job.target, 2)
    for step in range(STEPS):
        if source.here:
            source.train(step)
        if target.here and step in _warming(job):
            target.train(step)
    if source.here:
        _add_entries(source, job.entries)
    for one in (source, target):
        _hooked(one, job)
    before = [_here(one) if one.here else {} for one in (source, target)]
    for one in (source, target):
        if one.here and job.evaluated:
            _evaluate(one)
    outcomes = _moved(job, name, source, target)
    refused = [one for one in outcomes if one.startswith("refused")]
    if source.here:
        wrong = differences(before[0], _here(source))
    else:
        wrong = []
    if refused:
        if "restored" in outcomes:
            wrong.append(f"some ranks are restored: {outcomes}")
        return refused[0], wrong + (differences(before[1], _here(target)) if target.here else [])
    expected = [picture_of(source.reference()) if source.here else None]
    dist.broadcast_object_list(expected, src=job.source.members[0])
    twin = _by_torch(job, source)
    if target.here and not job.hooks:
        wrong += differences(expected[0], picture_of(target.reference()))  # type: ignore[arg-type]
    if twin is not None and twin.here:
        wrong += differences(_here(twin), _here(target))
    # All sides go on. The target is as close to the source as its layout allows, and equal to the one of torch.
    theirs = [source.train(STEPS) if source.here else 0.0]
    dist.broadcast_object_list(theirs, src=job.source.members[0])
    losses = [one.train(STEPS) for one in (target, twin) if one is not None and one.here]
    tolerance = abs(theirs[0]) * (1e-4 if job.source.dtype == torch.float32 else 0.05)
    if target.here and not job.hooks and abs(losses[0] - theirs[0]) > tolerance:
        wrong.append(f"the loss is {losses[0]}, and that of the source {theirs[0]}")
    if twin is not None and twin.here:
        wrong += [f"losses {losses}"] if losses[0] != losses[1] else []
        wrong += differences(_here(twin), _here(target))
    return "equal" if twin is None else "equal to both", wrong
