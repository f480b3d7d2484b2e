# SPDX-License-Identifier: Apache-2.0
"""A restore gives what state_dict() and load_state_dict() of torch would give, or refuses by name."""

from __future__ import annotations

import copy
from typing import Any, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import shardwire as sw
import shardwire.torch as swt


@pytest.fixture
def session() -> Iterator[sw.Session]:
    with swt.join(dist.HashStore(), 0, 1) as joined:
        yield joined


def moved(session: sw.Session, source: Any, target: Any, **options: Any) -> swt.RestoreResult:
    """Restores (model, optimizer) from another one."""
    with swt.publish(session, *source, step=1, **options):
        return swt.restore_into(session, *target, timeout=20)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, width: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, width), 1.0 + step)).square().mean().backward()
        optimizer.step()


class Remembering(nn.Linear):
    """Keeps what it has seen beside its tensors."""

    def __init__(self, seen: list[float]) -> None:
        super().__init__(3, 3)
        self.seen = seen

    def get_extra_state(self) -> object:
        return {"seen": torch.tensor(self.seen), "version": 2}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"].tolist()


def with_buffer(buffer: torch.Tensor | None, persistent: bool = True) -> nn.Module:
    model = nn.Linear(3, 3)
    model.register_buffer("scale", buffer, persistent=persistent)
    return model


@pytest.mark.parametrize("source, target, name", [
    (nn.Linear(3, 3), nn.Linear(3, 3, bias=False), "bias"), (with_buffer(torch.ones(2)), with_buffer(None), "scale"),
    (with_buffer(torch.ones(2)), with_buffer(torch.zeros(2), False), "scale"), (Remembering([1.0]), nn.Linear(3, 3), "_extra_state"),
], ids=["parameter", "buffer", "not persistent", "extra state"])
def test_what_a_module_lacks_here_is_refused(session: sw.Session, source: nn.Module, target: nn.Module, name: str) -> None:
    with pytest.raises(RuntimeError, match=f'Unexpected key.*"{name}"'):
        copy.deepcopy(target).load_state_dict(source.state_dict())
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(sw.LayoutMismatch, match=f"more of modules that are here: .*{name}.* absent="):
        moved(session, (source,), (target,))
    assert all(map(torch.equal, before.values(), target.state_dict().values()))
    with swt.publish(session, source, step=1):
        swt.restore_into(session, target, timeout=20, absent={name: "skip"})
    assert torch.equal(target.weight, source.weight)


def test_an_identity_stands_for_a_module_of_another_rank(session: sw.Session) -> None:
    source, target = nn.Sequential(nn.Linear(3, 3), Remembering([1.0])), nn.Sequential(nn.Linear(3, 3), nn.Identity())
    moved(session, (source,), (target,))
    assert torch.equal(target[0].weight, source[0].weight)


def test_extra_state_of_modules_arrives(session: sw.Session) -> None:
    source, target = nn.Sequential(Remembering([1.0, 4.0])), nn.Sequential(Remembering([]))
    moved(session, (source,), (target,))
    assert target[0].seen == [1.0, 4.0]
    source[0].seen.append(9.0)
    moved(session, (source,), (target,))  # by catalogs that are kept
    assert target[0].seen == [1.0, 4.0, 9.0]


def test_extra_state_that_no_source_has_is_refused_by_name(session: sw.Session) -> None:
    target = nn.Sequential(Remembering([2.0]))
    before = target[0].weight.detach().clone()
    with pytest.raises(sw.LayoutMismatch, match="0._extra_state"):
        moved(session, (nn.Sequential(nn.Linear(3, 3)),), (target,))
    assert torch.equal(target[0].weight, before) and target[0].seen == [2.0]


class Clocked(torch.optim.SGD):
    """Keeps something that belongs to no parameter."""

    def __init__(self, params: Any, **common: Any) -> None:
        super().__init__(params, momentum=0.9)
        if common:
            self.state["clock"] = common  # type: ignore[index]


def test_entries_of_no_parameter_arrive_and_others_go(session: sw.Session) -> None:
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    before, after = Clocked(source.parameters(), ticks=3, sums=torch.ones(2)), Clocked(target.parameters(), ticks=9)
    after.state["other"] = {"stale": 1}  # type: ignore[index]
    moved(session, (source, before), (target, after))
    assert after.state["clock"]["ticks"] == 3 and torch.equal(after.state["clock"]["sums"], torch.ones(2))
    assert "other" not in after.state
    del before.state["clock"]  # type: ignore[arg-type]
    moved(session, (source, before), (target, after))
    assert "clock" not in after.state


def test_an_entry_of_an_optimizer_that_is_not_here_is_refused_each_time(session: sw.Session) -> None:
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    before = [torch.optim.SGD([source.weight]), Clocked([source.bias], ticks=3)]
    state = swt.State(target, torch.optim.SGD(target.parameters()))
    with swt.publish(session, source, before, step=1):
        for _ in range(2):  # the second restore finds the catalog of the first
            with pytest.raises(sw.LayoutMismatch, match="the sources' optimizer 1 keeps 'clock'"):
                state.restore(session, timeout=20)


def test_hooks_of_optimizers_run_as_after_a_load(session: sw.Session) -> None:
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    before, after = torch.optim.Adam(source.parameters(), lr=0.5), torch.optim.Adam(target.parameters())
    del before.param_groups[0]["decoupled_weight_decay"]  # an older torch has fewer options
    rates = []
    after.register_load_state_dict_post_hook(lambda optimizer: rates.append(optimizer.param_groups[0]["lr"]))
    moved(session, (source, before), (target, after))
    assert rates == [0.5] and after.param_groups[0]["decoupled_weight_decay"] is False


class Strict(torch.optim.SGD):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["momentum"] /= group["divisor"]


def test_an_optimizer_that_refuses_its_state_does_so_before_anything_changes(session: sw.Session) -> None:
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    before, after = (Strict(model.parameters(), lr=lr, momentum=0.5) for model, lr in ((source, 0.5), (target, 0.25)))
    before.param_groups[0]["divisor"], after.param_groups[0]["divisor"] = 0, 1
    weight = target.weight.detach().clone()
    with pytest.raises(sw.LayoutMismatch, match=r"Strict.__setstate__\(\) refuses .*: ZeroDivisionError"):
        moved(session, (source, before), (target, after))
    assert torch.equal(target.weight, weight) and after.param_groups[0]["lr"] == 0.25 and after.param_groups[0]["momentum"] == 0.5
    before.param_groups[0]["divisor"] = 2
    moved(session, (source, before), (target, after))
    assert torch.equal(target.weight, source.weight) and after.param_groups[0]["momentum"] == 0.25


def test_an_entry_that_is_neither_of_a_parameter_nor_of_text_is_refused_by_name(session: sw.Session) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[7] = {"ticks": 1}  # type: ignore[index]
    with pytest.raises(sw.Unsupported, match="key 7"):
        swt.publish(session, model, optimizer, step=1)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("lazy", [lambda table: table.conj(), lambda table: table.conj().imag], ids=["conjugate", "negated"])
def test_views_that_change_signs_are_refused_by_name(session: sw.Session, side: str, lazy: Any) -> None:
    source, target = nn.Module(), nn.Module()
    table = torch.polar(torch.ones(6), torch.arange(6.0))
    for model, is_lazy in ((source, side == "source"), (target, side == "target")):
        view = lazy(table)
        model.register_buffer("phase", view if is_lazy else view.resolve_conj().resolve_neg().clone())
    with pytest.raises(sw.Unsupported, match="phase:buffer"):
        moved(session, (source,), (target,))


def test_values_with_changed_signs_arrive_as_they_look(session: sw.Session) -> None:
    phase = torch.tensor([1 + 2j, 3 - 4j]).conj()
    received = moved(session, (nn.Linear(1, 1),), (nn.Linear(1, 1),), extra={"phase": phase, "sine": phase.imag}).extra
    assert torch.equal(received["phase"], phase.resolve_conj()) and torch.equal(received["sine"], phase.imag.resolve_neg())


class Head(nn.Module):
    def __init__(self, seed: int, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def headed(seed: int, tied: bool, steps: int) -> tuple[Head, torch.optim.Optimizer]:
    model = Head(seed, tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.arange(5)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_weights_that_were_trained_apart_do_not_fit_a_tied_one(session: sw.Session) -> None:
    target = headed(2, True, 0)
    before = target[0].embed.weight.detach().clone()
    with pytest.raises(sw.LayoutMismatch, match="embed.weight.*head.weight"):
        moved(session, headed(1, False, 2), target)
    assert torch.equal(target[0].embed.weight, before) and not target[1].state


def test_weights_that_are_no_longer_tied_have_states_of_their_own(session: sw.Session) -> None:
    source, target = headed(1, True, 2), headed(2, False, 0)
    moved(session, source, target)
    theirs = source[1].state[source[0].embed.weight]["exp_avg"]
    ours = [target[1].state[weight]["exp_avg"] for weight in (target[0].embed.weight, target[0].head.weight)]
    assert all(torch.equal(moment, theirs) for moment in ours) and ours[0].data_ptr() != ours[1].data_ptr()


def test_equal_copies_fit_a_tied_weight(session: sw.Session) -> None:
    source, target = headed(1, False, 0), headed(2, True, 0)
    with torch.no_grad():
        source[0].head.weight.copy_(source[0].embed.weight)
    moved(session, source, target)
    assert torch.equal(target[0].head.weight, source[0].embed.weight)
    with torch.no_grad():
        source[0].head.weight[0, 0] = -0.0
        source[0].embed.weight[0, 0] = 0.0
    with pytest.raises(sw.LayoutMismatch, match="which differ"):
        moved(session, source, target)


def test_weights_tied_by_their_data_are_restored_once(session: sw.Session) -> None:
    source, target = Head(1, False), Head(2, False)
    for model in (source, target):
        model.head.weight.data = model.embed.weight.data
    moved(session, (source,), (target,))
    assert torch.equal(target.embed.weight, source.embed.weight) and torch.equal(target.head.weight, source.embed.weight)
    with pytest.raises(sw.LayoutMismatch, match="embed.weight.*head.weight"):
        moved(session, (Head(3, False),), (target,))


@pytest.mark.parametrize("name", ["table", "buffer"])
def test_states_may_be_one_tensor(session: sw.Session, name: str) -> None:
    def made(seed: int, table: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        train(model, optimizer, 1, 3)
        common, step = torch.full((4,), table), torch.tensor(table)
        for parameter in model.parameters():
            optimizer.state[parameter].update({name: common, "step": step})
        return model, optimizer

    target = made(2, 0.5)
    moved(session, made(1, 3.0), target)
    states = list(target[1].state.values())
    assert states[0][name] is states[1][name] and states[0][name].tolist() == [3.0] * 4 and states[1]["step"].item() == 3.0


class Branches(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)
        self.both = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x) + (self.idle(x) if self.both else 0)


@pytest.mark.parametrize("steps", [0, 4], ids=["cold", "warm"])
def test_parameters_that_were_never_stepped_count_as_that_again(session: sw.Session, steps: int) -> None:
    source, target = Branches(1), Branches(2)
    before, after = (torch.optim.AdamW(model.parameters(), lr=0.05) for model in (source, target))
    source.both = False
    train(source, before, 3, 3)
    train(target, after, steps, 3)
    moved(session, (source, before), (target, after))
    expected = Branches(3)
    by_torch = torch.optim.AdamW(expected.parameters(), lr=0.05)
    expected.load_state_dict(source.state_dict())
    by_torch.load_state_dict(copy.deepcopy(before.state_dict()))
    assert len(after.state) == len(by_torch.state) == 2
    train(target, after, 2, 3)
    train(expected, by_torch, 2, 3)
    assert all(map(torch.equal, target.parameters(), expected.parameters()))


def test_states_come_back_if_a_restore_fails(session: sw.Session) -> None:
    source, target = Branches(1), Branches(2)
    before, after = (torch.optim.AdamW(model.parameters()) for model in (source, target))
    source.both = False
    train(source, before, 1, 3)
    train(target, after, 2, 3)
    target.register_buffer("more", torch.ones(2))
    kept = {key: dict(state) for key, state in after.state.items()}
    with pytest.raises(sw.LayoutMismatch, match="more:buffer"):
        moved(session, (source, before), (target, after))
    assert list(after.state) == list(kept) and all(after.state[key][name] is value for key, state in kept.items()
                                                   for name, value in state.items())


def test_a_model_without_its_optimizer_leaves_states_alone_and_is_refused(session: sw.Session) -> None:
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    after = torch.optim.AdamW(target.parameters())
    train(target, after, 1, 3)
    with pytest.raises(sw.LayoutMismatch, match="weight:exp_avg"):
        moved(session, (source,), (target, after))
    assert len(after.state) == 2


def test_a_default_device_is_for_new_tensors_of_the_caller_alone(session: sw.Session) -> None:
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    before, after = (torch.optim.Adam(model.parameters(), lr=torch.tensor(rate)) for model, rate in ((source, 0.25), (target, 0.5)))
    train(source, before, 1, 3)
    with torch.device("meta"):
        received = moved(session, (source, before), (target, after), extra={"average": torch.arange(3.0, device="cpu")}).extra
    assert received["average"].tolist() == [0, 1, 2] and after.param_groups[0]["lr"].item() == 0.25
    assert torch.equal(after.state[target.weight]["exp_avg"], before.state[source.weight]["exp_avg"])


def test_a_buffer_is_found_by_each_of_its_names(session: sw.Session) -> None:
    def blocks(numbers: range, first: float) -> nn.Module:
        table, model = nn.Module(), nn.Module()
        table.register_buffer("angles", torch.arange(4.0) + first)
        for number in numbers:
            model.add_module(f"block{number}", nn.ModuleDict({"table": table}))
        return model

    target = blocks(range(2, 4), 0)
    moved(session, (blocks(range(4), 7),), (target,))
    assert target.state_dict()["block3.table.angles"].tolist() == [7, 8, 9, 10]


def preconditioned(*items: Any, **others: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    """A layer whose optimizer keeps a list of its weight, and what `others` name."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if items:
        optimizer.state[model.weight] = {"step": 3, "Q": list(items), **others}
    return model, optimizer


def test_tensors_in_lists_are_tensors(session: sw.Session) -> None:
    first, second = torch.rand(4, 4), torch.rand(7, dtype=torch.float64)
    source, target = preconditioned(first, None, (second, 2.5), torch.tensor(4)), preconditioned()
    with swt.publish(session, *source, step=1):
        listed = {key.state: info.shape for key, info in session.inventory("torch").tensors.items()}
        assert listed == {"param": (4, 4), "Q[0]": (4, 4), "Q[2][0]": (7,), "Q[3]": ()}
        swt.restore_into(session, *target, timeout=20)
    kept = target[1].state[target[0].weight]
    assert set(kept) == {"step", "Q"} and type(kept["Q"]) is list and type(kept["Q"][2]) is tuple
    assert torch.equal(kept["Q"][0], first) and torch.equal(kept["Q"][2][0], second) and kept["Q"][2][0].dtype == torch.float64
    assert kept["Q"][1] is None and kept["Q"][2][1] == 2.5 and torch.equal(kept["Q"][3], torch.tensor(4))


def test_lists_of_a_warm_optimizer_become_those_of_the_sources(session: sw.Session) -> None:
    source, target = preconditioned(torch.rand(4, 4), torch.rand(2)), preconditioned(torch.zeros(4, 4), torch.zeros(2))
    theirs, ours = source[1].state[source[0].weight], target[1].state[target[0].weight]
    memory = ours["Q"][0].data_ptr()
    moved(session, source, target)
    assert ours["Q"][0].data_ptr() == memory and all(map(torch.equal, ours["Q"], theirs["Q"]))
    theirs["Q"][1] = torch.rand(2)  # another tensor in the same list
    moved(session, source, target)
    assert all(map(torch.equal, ours["Q"], theirs["Q"]))
    theirs["Q"].append(torch.rand(3))
    moved(session, source, target)
    assert len(ours["Q"]) == 3 and ours["Q"][0].data_ptr() == memory and all(map(torch.equal, ours["Q"], theirs["Q"]))
    fewer: list[Any]
    for fewer in ([torch.rand(4, 4)], [None, 1], []):
        theirs["Q"] = fewer
        moved(session, source, target)
        assert len(ours["Q"]) == len(fewer)
        assert all(torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b for a, b in zip(ours["Q"], fewer))


def test_a_list_with_another_shape_is_refused_and_the_state_stays(session: sw.Session) -> None:
    target = preconditioned(torch.zeros(2))
    ours = target[1].state[target[0].weight]
    before = ours["Q"]
    with pytest.raises(sw.LayoutMismatch, match=r"weight:Q\[0\]"):
        moved(session, preconditioned(torch.rand(3)), target)
    assert ours["Q"] is before and torch.equal(before[0], torch.zeros(2))
    with pytest.raises(sw.Unsupported, match=r"'Q\[0\]' is named like an item of the list 'Q'"):
        swt.publish(session, *preconditioned(torch.rand(3), **{"Q[0]": 1}), step=1)


def _sharded_lists(rank: int, world: int) -> list[Any]:
    mesh = DeviceMesh("cpu", list(range(world)))

    def made(*items: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = fully_shard(nn.Linear(4, 4, bias=False), mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if items:
            optimizer.state[model.weight] = {"history": list(items)}
        return model, optimizer

    whole = torch.arange(16.0).reshape(4, 4)
    shard = distribute_tensor(whole, mesh, [Shard(0)])
    # A sharded tensor, one of the shape of this rank's part, and a factor that is equal on all ranks but tells nothing of parts.
    one, other, plain = made(shard, shard.to_local() + 100), made(), preconditioned()
    with swt.join() as session:
        with swt.publish(session, *one, step=1):
            swt.restore_into(session, *other, timeout=30)
            swt.restore_into(session, *plain, timeout=30)
            session.gather("lists", b"", 30)
        one[1].state[one[0].weight]["history"] = [torch.ones(3)]
        with swt.publish(session, *one, step=2, name="by value"):
            swt.restore_into(session, *other, name="by value", timeout=30)
            session.gather("values", b"", 30)
    sharded, alone = other[1].state[other[0].weight]["history"], plain[1].state[plain[0].weight]["history"]
    return [all(map(torch.equal, alone, (whole, whole + 100))), sharded[0].tolist()]


def test_tensors_in_lists_are_sharded_as_their_parameter(pool: Any) -> None:
    assert pool(2, _sharded_lists) == [[True, [1, 1, 1]]] * 2


def _scalar_dtensor(rank: int, world: int) -> bool:
    mesh = DeviceMesh("cpu", list(range(world)))

    def made(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = fully_shard(nn.Linear(4, 4), mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        for parameter in model.parameters():
            optimizer.state[parameter]["scale"] = distribute_tensor(torch.tensor(value), mesh, [Replicate()])
        return model, optimizer

    (source, before), (target, after) = made(2.5), made(0.0)
    with swt.join() as session, swt.publish(session, source, before, step=1):
        swt.restore_into(session, target, after, timeout=30)
        session.gather("restored", b"", 30)
    return all(state["scale"].to_local().item() == 2.5 for state in after.state.values())


def test_a_state_may_be_a_dtensor_without_dims(pool: Any) -> None:
    assert pool(2, _scalar_dtensor) == [True] * 2


def _shard_with_a_second_name(rank: int, world: int) -> list[bool]:
    """The second name is a plain tensor: its shape is that of the shard."""
    mesh = DeviceMesh("cpu", list(range(world)))
    rows = torch.arange(6.0).reshape(2, 3)

    def made(weight: torch.Tensor, part: torch.Tensor) -> nn.Module:
        model = nn.Linear(3, 2 * world, bias=False)
        model.weight = nn.Parameter(weight)
        model.register_buffer("part", part)
        return model

    shard = distribute_tensor(torch.zeros(2 * world, 3), mesh, [Shard(0)])
    source, target = made(rows.repeat(world, 1), rows.clone()), made(shard, shard.to_local())
    assert target.part.data_ptr() == target.weight.to_local().data_ptr()
    with swt.join() as session:
        with swt.publish(session, source, step=1):
            swt.restore_into(session, target, timeout=30)
            session.gather("restored", b"", 30)
        equal = torch.equal(target.part, rows)
        source.part[1, 2] = -1
        target.part.zero_()
        with swt.publish(session, source, step=2, name="differ"):
            with pytest.raises(sw.LayoutMismatch, match="weight:param and part:buffer are one tensor here, but two in the sources"):
                swt.restore_into(session, target, name="differ", timeout=30)
            session.gather("refused", b"", 30)
    return [equal, not target.part.any()]


def test_a_shard_may_have_a_second_name(pool: Any) -> None:
    assert pool(2, _shard_with_a_second_name) == [[True, True]] * 2


_MEMBERS = [2, 0, 3, 1]  # the member of the session that each rank of the process group is


def _other_members(rank: int, world: int, given: list[int] | None) -> list[int]:
    """Rows of a model that is whole, from shards of one over a process group whose ranks are other members."""
    mesh = DeviceMesh("cpu", list(range(world)))
    source, target = nn.Linear(2, 8, bias=False), nn.Linear(2, 8, bias=False)
    with torch.no_grad():
        source.weight.copy_(torch.arange(8.0).reshape(8, 1).expand(8, 2))
    fully_shard(source, mesh=mesh)
    store = dist.PrefixStore(f"members{given}", dist.distributed_c10d._get_default_store())
    with swt.join(store, _MEMBERS[rank], world) as session:
        with swt.publish(session, source, step=1, ranks=given):
            swt.restore_into(session, target, ranks=given, timeout=30)
            session.gather("restored", b"", 30)
    return [int(row[0].item()) for row in target.weight]


@pytest.mark.parametrize("given", [None, _MEMBERS], ids=["as they are", "given"])
def test_ranks_of_meshes_are_those_of_the_process_group(pool: Any, given: list[int] | None) -> None:
    assert pool(4, _other_members, given) == [list(range(8))] * 4


def _contradiction(rank: int, world: int) -> None:
    store = dist.PrefixStore("contradiction", dist.distributed_c10d._get_default_store())
    with swt.join(store, _MEMBERS[rank], world) as session:
        with pytest.raises(sw.InvalidArgument, match="of the process group"):
            swt.publish(session, nn.Linear(1, 1), step=1, ranks=list(range(world)))
        with pytest.raises(sw.InvalidArgument, match="of the process group"):
            swt.restore_into(session, nn.Linear(1, 1), ranks=list(range(world)), timeout=30)
        session.gather("refused", b"", 30)


def test_ranks_that_contradict_the_process_group_are_refused(pool: Any) -> None:
    pool(4, _contradiction)
