# SPDX-License-Identifier: Apache-2.0
"""Restoring a model with its optimizers in place."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterator, Mapping, Sequence, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.distributed.tensor.placement_types import Replicate
from torch.distributed.tensor.placement_types import Shard as TorchShard

from .. import Inventory, LayoutMismatch, Restore, Session, TensorInfo, TensorKey
from .._types import Absent
from . import _shared as shared
from ._awaiting import Deadline
from ._catalog import Absences, Catalogs, ModelCatalog, Parts, parts_of, without_collections
from ._dtensor import is_dtensor, local_tensor
from ._dtypes import dtype_of
from ._entries import BUFFER, EXTRA, GROUP, PARAM, Entries, each_object
from ._extra import received_extra
from ._hooks import is_of_hooks, load_optimizer, loader, loads
from ._layouts import Local, Ranks
from ._lists import Tensors, is_one, sent_tensors, tensors_in, tensors_of, with_tensors
from ._model import PLAIN, Memories, buffers, extra_states, reshard, synchronize, text_of
from ._moving import Look, Published, RestoreResult, Target, absence_of, copies_of, move, require_equal, restore
from ._optimizers import (Optimized, empty_groups, entry_of, groups_differ, loaded, options, require_loadable, show_options, step_device,
                          steps_on_device)
from ._quantized import new_part
from ._values import from_value, is_same


class _Asked:
    """What a wanting catalog depends on beside the model. To hash all of it for each look would take longer than the look."""

    def __init__(self, name: str, published: Published, absent: Mapping[str, Absent]) -> None:
        self._all = (name, published.values, published.tensors, sorted(absent.items()))

    def __hash__(self) -> int:
        name, values, tensors, _ = self._all
        return hash((name, len(values), len(tensors)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self._all == other._all


def _new_state(one: Optimized, state: str, info: TensorInfo) -> torch.Tensor:
    key, dtype = one.parameter.key, dtype_of(info.dtype)
    part = new_part(state, dtype, info.shape, key) if "[" in state else None
    if part is not None:
        return part
    if info.shape == one.parameter.local.shape and info.shape != ():
        return torch.empty_like(key, dtype=dtype)
    if info.shape == ():
        return torch.zeros((), dtype=dtype, device=step_device(one.group, key))
    if isinstance(key, DTensor):
        # A reduction of the parameter, as Adafactor has: dims that remain are sharded as before.
        shape, placements = tuple(key.shape), []
        for placement in key.placements:
            kept = isinstance(placement, TorchShard) and placement.dim < len(info.shape) and len(info.shape) == len(shape) and (
                info.shape[placement.dim] == shape[placement.dim])
            placements.append(placement if kept else Replicate())
        return empty_dtensor(*info.shape, dtype=dtype, device_mesh=key.device_mesh, placements=placements)
    return torch.empty(info.shape, dtype=dtype, device=key.device)


class _StateTensors:
    """Chooses the tensors of states: those that are there, or new ones. Two states have one tensor where they have in the sources."""

    def __init__(self, parts: Parts, published: Published) -> None:
        self._published = published
        self._shared = {key.fqn for tie in published.ties.items() for key in tie}
        self._chosen: dict[TensorKey, tuple[TensorKey, torch.Tensor]] = {}
        self._taken = Memories()
        for tensor in (*(one.local.tensor for one in parts.parameters), *(buffer for _, buffer in buffers(parts.modules))):
            if type(tensor) in PLAIN and tensor.layout is torch.strided:
                self._taken.first(tensor, self)

    def of(self, one: Optimized, state: str, info: TensorInfo, known: Any) -> torch.Tensor:
        if not self._shared:
            return self._apart(one, state, info, known)
        fqns = [self._published.aliases.get(name, name) for name in (one.parameter.fqn, *one.parameter.aliases)]
        if self._shared.isdisjoint(fqns):
            return self._apart(one, state, info, known)
        keys = [TensorKey(fqn, state) for fqn in fqns]
        first = next((self._published.ties[key] for key in keys if key in self._published.ties), keys[0])
        key, tensor = self._chosen.get(first, (keys[0], None))
        if tensor is None or key == keys[0]:  # parameters that are one in the sources, and several here, have states of their own
            tensor = self._apart(one, state, info, known)
        self._chosen.setdefault(first, (keys[0], tensor))
        return tensor

    def _apart(self, one: Optimized, state: str, info: TensorInfo, known: Any) -> torch.Tensor:
        """The known tensor unless a parameter, a buffer or another state has it."""
        if is_one(known):
            this = object()
            if self._taken.first(local_tensor(known) if is_dtensor(known) else known, this) is this or one.parameter.shares_state:
                return cast(torch.Tensor, known)
        return _new_state(one, state, info)


@contextlib.contextmanager
def _undone_by_errors(found: Sequence[Optimized]) -> Iterator[None]:
    """An error in the block takes back what it did to states: the optimizers must not train on the bytes of new ones."""
    before = [(one, dict(there) if (there := one.optimizer.state.get(one.parameter.key)) else None) for one in found]
    try:
        yield
    except BaseException:
        for one, there in before:
            if there:
                state = one.optimizer.state[one.parameter.key]
                state.clear()
                state.update(there)
            else:
                one.optimizer.state.pop(one.parameter.key, None)
        raise


def _drop_other_states(found: Sequence[Optimized], published: Published, policy: Absences) -> None:
    """The sources' optimizer has never stepped a parameter without state: as after load_state_dict(), it has none here either."""
    optimized = {fqn for fqn, state in published.values if state == GROUP}
    stateful = {key.fqn for key in published.values if key.state != GROUP} | published.stateful
    for one in found:
        if not one.state:
            continue
        names = {name for alias in (one.parameter.fqn, *one.parameter.aliases) for name in (alias, published.aliases.get(alias, alias))}
        # States of a flat parameter are those of all its members.
        if one.parameter.shares_state or not names & optimized or names & stateful:
            continue
        for state in list(one.state):
            if policy(TensorKey(one.parameter.fqn, state), False, False) == "error":
                del one.state[state]


def _create_missing_states(parts: Parts, published: Published) -> None:
    """In the order of param_groups, because gathers of torch follow the order of the state. No parameter keeps an empty one."""
    values: dict[str, list[str]] = {}
    tensors = _StateTensors(parts, published)
    for key in published.values:
        if key.fqn and key.state != GROUP:
            values.setdefault(key.fqn, []).append(key.state)
    for one in parts.optimized:
        names = [one.parameter.fqn, *one.parameter.aliases]
        wanted = next((published.optimized(name) for name in names if name in published.states), {})
        others = dict.fromkeys(state for name in names for state in values.get(name, [])) if values else {}
        # FSDP1 keeps no state for an original parameter without an element in this shard.
        if not wanted and not others or one.parameter.key.numel() == 0 and 0 not in one.parameter.local.shape:
            continue
        kept = one.optimizer.state[one.parameter.key]
        for state in others:
            known = sent_tensors(one, state, kept.get(state))
            items = {item: tensors.of(one, item, wanted.pop(item), known.get(item))
                     for item in list(wanted) if item.startswith(f"{state}[")}
            if items.keys() != known.keys() or any(items[item] is not known[item] for item in items):
                kept[state] = Tensors(items)
            elif is_one(kept.get(state)):
                kept[state] = None  # the sources have something else there
        for state, info in wanted.items():
            kept[state] = tensors.of(one, state, info, kept.get(state))
        for state in others:
            kept.setdefault(state, None)
    for one in parts.optimized:
        if not one.state:
            one.optimizer.state.pop(one.parameter.key, None)


def _require_no_more(parts: Parts, published: Published, policy: Absences) -> None:
    """Raises LayoutMismatch if the sources have more of the modules that are here, as load_state_dict() does.

    Other modules may be those of other ranks, for which some models put an Identity. Hooks of either side may leave out what is too much.
    """
    if loads(parts.modules) or any(is_of_hooks(key.state) for key in published.values if key.fqn == ""):
        return
    theirs = [TensorKey(prefix + name, state) for prefix, module in parts.modules
              for name, tensor in (*module._parameters.items(), *module._buffers.items())
              if tensor is None or name in module._non_persistent_buffers_set
              for state in (PARAM, BUFFER) if state in published.states.get(prefix + name, ())]
    known = {fqn for fqn, _ in extra_states(parts.modules)}
    here = {f"{prefix}_extra_state" for prefix, module in parts.modules if not isinstance(module, nn.Identity)} - known
    theirs += [key for key in published.values if key.state == EXTRA and key.fqn in here]
    wrong = [text_of(key) for key in theirs if policy(key, False, False) == "error"]
    if wrong:
        raise LayoutMismatch(f"the sources have more of modules that are here: {', '.join(wrong[:10])}{' ..' if len(wrong) > 10 else ''}. "
                             "Name in absent= what is to be left out, also if another rank has it")


def _absences(absent: Mapping[str, Absent], published: Published) -> Absences:
    def policy(key: TensorKey, shares: bool, scalar: bool) -> Absent:
        chosen = absence_of(key, absent) if absent else None
        if chosen is not None:
            return chosen
        # A flat parameter has state for members that were never used; elsewhere they have none, which is the same as zeros.
        if shares and published.stateful and key.fqn not in published.stateful:
            return "skip" if scalar else "zero"
        return "error"

    return policy


def _request_values(wanted: ModelCatalog, optimizers: Sequence[torch.optim.Optimizer], listed: Published, policy: Absences) -> None:
    """Asks for states that are no tensors, and for options of groups."""
    published = set(listed.values)
    beside = [key for key in listed.values if key.fqn == "" and (is_of_hooks(key.state) or optimizers and entry_of(key.state))]
    for number, name in filter(None, (entry_of(key.state) for key in beside)):
        if number >= len(optimizers):
            raise LayoutMismatch(f"the sources' optimizer {number} keeps '{name}' in its state; here is no such optimizer")
    states: dict[str, list[str]] = {fqn: [] for fqn in listed.aliases.values()}
    for key in listed.values:
        if key.fqn in states:
            states[key.fqn].append(key.state)
    aliased = {TensorKey(alias, state) for alias, fqn in listed.aliases.items() for state in states[fqn]}
    keys = [*wanted.values, *wanted.group_keys, *(key for key, _ in wanted.extra_states)]
    asked = [key for key in keys if key in published or key in aliased or policy(key, False, False) == "error"]
    each_object(wanted.catalog.add_values, ((key, None) for key in asked))
    for key in beside:
        wanted.catalog.add_value("", key.state)
    for name, _ in empty_groups(optimizers):
        if TensorKey("", name) in published:
            wanted.catalog.add_value("", name, agree="any")


@dataclasses.dataclass(frozen=True)
class _Values:
    """What a restore received besides tensors of more than one element, checked."""

    optimized: list[Optimized]
    states: list[tuple[dict[str, Any], str, Any]]
    groups: list[tuple[dict[str, Any], dict[str, Any]]]
    shared: list[tuple[torch.Tensor, torch.Tensor]]
    entries: list[tuple[torch.optim.Optimizer, dict[str, Any]]]
    """Of each optimizer what it keeps of no parameter: these and no others."""
    tied: set[int]
    """Ids of tensors at several places, which get no memory that is there."""
    storages: Callable[[], set[int]]
    """Addresses of the memory into which tensors were received."""
    others: dict[str, Any]
    """What hooks and methods of the sources made of their state dicts."""
    load_model: Callable[[], object]
    extra: dict[str, Any]

    def apply(self) -> None:
        storages: set[int] = set()
        written: set[int] = set()

        def placed(value: Any, local: Any) -> Any:
            """In the memory of the local tensor, unless something else that has been received lies there."""
            if (value is local or type(local) not in PLAIN or not isinstance(value, torch.Tensor) or id(value) in self.tied
                    or local.layout is not torch.strided):
                return value
            if not storages:
                storages.update(self.storages())
            if local.untyped_storage().data_ptr() in storages or local.data_ptr() in written:
                return value
            written.add(local.data_ptr())
            fits = local.is_contiguous() and (local.dtype, local.shape) == (value.dtype, value.shape)
            return local.copy_(value) if fits else value

        for state, name, value in self.states:
            local = state.get(name)
            state[name] = placed(with_tensors(name, value, tensors_in(name, local)), local)
        moved = {id(group) for group, received in self.groups if steps_on_device(group) != steps_on_device(received)}
        for group, received_options in self.groups:
            for option in [option for option, _ in options(group) if option not in received_options]:
                del group[option]
            for option in dict.fromkeys([*group, *received_options]):  # `lr` comes before what was made of it
                if option in received_options:
                    group[option] = placed(received_options[option], group.get(option))
        for tensor, received in self.shared:
            tensor.copy_(received)
        steps: dict[int, tuple[Any, torch.Tensor]] = {}  # several parameters may have one
        for one in self.optimized if moved else ():
            step = one.state.get("step")
            if id(one.group) in moved and type(step) is torch.Tensor and step.dim() == 0:
                if id(step) not in steps:
                    steps[id(step)] = step, step.to(step_device(one.group, one.parameter.key))
                one.state["step"] = steps[id(step)][1]
        for number, (optimizer, received_entries) in enumerate(self.entries):
            kept: dict[Any, Any] = optimizer.state
            for key in [key for key in kept if not isinstance(key, torch.Tensor) and key not in received_entries]:
                del kept[key]
            for key, value in received_entries.items():
                kept[key] = placed(value, kept.get(key))
            if not load_optimizer(number, optimizer, self.others):
                loaded(optimizer)
        self.load_model()


class _Objects:
    """The objects of received values, in which tensors are one that are one in the sources."""

    def __init__(self, wanted: ModelCatalog, values: Mapping[TensorKey, Any], published: Published) -> None:
        self._values = values
        self._objects: dict[TensorKey, Any] = {}
        self.tied: dict[int, torch.Tensor] = {}
        if published.tied_values:
            self._optimized = {name: one for one in wanted.optimized for name in (one.parameter.fqn, *one.parameter.aliases)}
            self._groups = {id(one.group): one.parameter.fqn for one in reversed(wanted.optimized)}
        for path, other in published.tied_values:
            (key, *places), (first, *there) = ((self._here(TensorKey(*names[:2])), *names[2:]) for names in (path, other))
            tensor = shared.at(self.of(first), tuple(there)) if first in values else self._state(first)
            if key in values and isinstance(tensor, torch.Tensor):
                self.tied[id(tensor)] = tensor
                self._objects[key] = shared.put_at(self.of(key), tuple(places), tensor)

    def of(self, key: TensorKey) -> Any:
        if key not in self._objects:
            self._objects[key] = from_value(self._values[key])
        return self._objects[key]

    def _here(self, key: TensorKey) -> TensorKey:
        """The key under which this rank has it."""
        one = self._optimized.get(key.fqn)
        if one is None:
            return key
        return TensorKey(self._groups[id(one.group)] if key.state == GROUP else one.parameter.fqn, key.state)

    def _state(self, key: TensorKey) -> torch.Tensor | None:
        one = self._optimized.get(key.fqn)
        if one is None:
            return None
        name = key.state.partition("[")[0]
        kept = one.state.get(key.state, one.state.get(name))
        return tensors_of(name, kept).get(key.state)


def _members_differ(one: TensorKey, other: TensorKey, received: Any, known: Any) -> LayoutMismatch:
    return LayoutMismatch(f"{one.fqn} and {other.fqn} are in one flat parameter, but their sources differ in {one.state}: "
                          f"{received!r:.40} and {known!r:.40}")


def _checked(wanted: ModelCatalog, optimizers: Sequence[torch.optim.Optimizer], published: Published, moving: Restore) -> _Values:
    """Raises LayoutMismatch if parameters that share a group, or a state, received different ones."""
    values = moving.values()
    objects = _Objects(wanted, values, published)
    by_fqn = {one.parameter.fqn: one for one in wanted.optimized}
    states: list[tuple[dict[str, Any], str, Any]] = []
    one_state: dict[tuple[int, str], TensorKey] = {}  # of members of a flat parameter
    for key in values:
        if key.state == GROUP or key.fqn not in by_fqn:
            continue
        one = by_fqn[key.fqn]
        member = one_state.setdefault((id(one.parameter.key), key.state), key)
        if member is key:
            states.append((one.state, key.state, objects.of(key)))
        elif not is_same(values[key], values[member]):
            raise _members_differ(key, member, values[key], values[member])
    chosen: dict[int, tuple[str, Any]] = {}
    groups: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for key, one in zip(wanted.group_keys, wanted.optimized):
        group = values.get(key)
        if group is None:
            continue
        fqn, known = chosen.setdefault(id(one.group), (one.parameter.fqn, group))
        if fqn == one.parameter.fqn:
            groups.append((one.group, objects.of(TensorKey(fqn, GROUP))))
        elif known is not group and known != group:
            raise groups_differ(fqn, one.parameter.fqn, known, group)
    for name, empty in empty_groups(optimizers):
        if TensorKey("", name) in values:
            groups.append((empty, objects.of(TensorKey("", name))))
    first: dict[int, tuple[TensorKey, torch.Tensor, torch.Tensor]] = {}
    for state, key in wanted.shared:
        if not moving.has_value(key.fqn, key.state):
            continue
        received = from_value(moving.value(key.fqn, key.state))
        other, _, value = first.setdefault(id(state), (key, state, received))
        if not torch.equal(value, received):
            raise _members_differ(key, other, received.item(), value.item())
    kept: list[tuple[torch.optim.Optimizer, dict[str, Any]]] = [(optimizer, {}) for optimizer in optimizers] if groups else []
    for key in values:
        entry = entry_of(key.state) if key.fqn == "" else None
        if entry is not None and kept:
            kept[entry[0]][1][entry[1]] = objects.of(key)
    tried = [(state, name, with_tensors(name, value, tensors_in(name, state.get(name)))) for state, name, value in states]
    for number, optimizer in enumerate(optimizers if groups else ()):
        require_loadable(optimizer, tried, groups, kept[number][1])
    extra_states = {key.fqn: (module, objects.of(key)) for key, module in wanted.extra_states if key in values}
    others = {key.state: objects.of(key) for key in values if key.fqn == "" and is_of_hooks(key.state)}
    return _Values(wanted.optimized, states, groups, [(state, received) for _, state, received in first.values()], kept,
                   set(objects.tied), wanted.storages, others, loader(wanted.modules, others, extra_states),
                   received_extra(values, objects.of))


def _require_equal_ties(wanted: ModelCatalog, published: Published, policy: Absences, fill: Callable[[Target, Look], object]) -> None:
    """Raises LayoutMismatch if the sources keep apart what is one parameter, or one memory, here, and their bytes differ."""
    tied = [(first, second) for first, second in wanted.twins
            if second[0].state in published.states.get(second[0].fqn, ()) or policy(second[0], False, False) == "error"]
    states = {id(one.parameter): one for one in wanted.optimized}
    for parameter in wanted.parameters:
        names = [name for name in (parameter.fqn, *parameter.aliases) if TensorKey(name, PARAM) in published.tensors]
        if len(names) < 2:
            continue
        parts = {PARAM: parameter.local, **(_parts_of_states(states[id(parameter)]) if id(parameter) in states else {})}
        for state, local in parts.items():
            holders = [name for name in names if state in published.states[name]]
            if holders and len(holders) < len(names):
                raise LayoutMismatch(f"{' and '.join(names)} are one parameter here, but of its sources only {holders[0]} has {state}")
            tied.extend(((TensorKey(holders[0], state), local), (TensorKey(name, state), local)) for name in holders[1:])
    if tied:
        copies = {key: dataclasses.replace(local, tensor=copies_of([local.tensor])[0])
                  for key, local in dict(part for tie in tied for part in tie).items()}
        fill(Target(Entries(copies), wanted.ranks, None, {}), lambda moving: synchronize(copy.tensor for copy in copies.values()))
        require_equal((first, second, copies[first].tensor, copies[second].tensor) for (first, _), (second, _) in tied)


def _parts_of_states(one: Optimized) -> dict[str, Local]:
    return {state: local for name, kept in one.state.items()
            for state, value in ({name: kept} if is_one(kept) else sent_tensors(one, name, kept)).items()
            if (local := one.local(value)) is not None}


@torch.no_grad()
def restore_model(session: Session, catalogs: Catalogs, ranks: Ranks, absent: Mapping[str, Absent] | None, *, name: str,
                  **options: Any) -> RestoreResult:
    """See State.restore(). `options`: of restore()."""
    listed = catalogs.optimizers
    reshard(catalogs.model)
    received: list[_Values] = []
    with contextlib.ExitStack() as preparing, contextlib.ExitStack() as states:
        def target_of(inventory: Inventory, until: Deadline) -> tuple[Target, Look]:
            preparing.enter_context(without_collections())
            published = Published(inventory)
            policy = _absences(absent or {}, published)
            asked = _Asked(name, published, absent or {})
            wanted = catalogs.kept(ranks, asked)
            if wanted is not None:
                states.enter_context(_undone_by_errors(wanted.optimized))
            else:
                parts = parts_of(catalogs.model, listed, ranks)
                # States are made for parameters that are alike.
                published.require_alike((TensorKey(one.fqn, PARAM), one.local) for one in parts.parameters)
                _require_no_more(parts, published, policy)
                states.enter_context(_undone_by_errors(parts.optimized))
                _drop_other_states(parts.optimized, published, policy)
                _create_missing_states(parts, published)
                wanted = ModelCatalog(parts, listed, ranks, published, policy)
                _request_values(wanted, listed, published, policy)
                catalogs.keep(asked, wanted)
            _require_equal_ties(wanted, published, policy, lambda copies, look: move(
                session, copies, inventory, until, look, name=name, verify="generation", replicas=options["replicas"]))

            def look(moving: Restore) -> dict[str, Any]:
                received.append(_checked(wanted, listed, published, moving))
                preparing.close()
                return received[0].extra

            return wanted, look

        result = restore(session, target_of, name=name, **options)
        received[0].apply()
        show_options(catalogs.given)
    return result
