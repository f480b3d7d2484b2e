# SPDX-License-Identifier: Apache-2.0
"""A State keeps its catalogs for the next call, and no longer than they are right."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import threading
import weakref
from typing import Any, Callable

import pytest
import torch
from torch import nn
from training import build, train

import shardwire as sw
import shardwire.torch as swt


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_parameter("scale", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def made() -> tuple[Net, torch.optim.Optimizer]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def load_optimizer(model: Net, optimizer: torch.optim.Optimizer) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    for one in state["state"].values():
        one["exp_avg"] += 5
    state["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(state)


def load_parameters(model: Net, optimizer: torch.optim.Optimizer) -> None:
    loaded = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.load_state_dict(loaded, assign=True)
    for group in optimizer.param_groups:
        old, group["params"] = group["params"], list(model.parameters())
        for before, after in zip(old, group["params"]):
            optimizer.state[after] = optimizer.state.pop(before)


def new_memory(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.body[0].weight.data = torch.full((4, 3), 9.0)


def other_strides(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.body[0].weight.data = model.body[0].weight.data.t()


def fewer_rows(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.body[0].weight.data = model.body[0].weight.data[:2]


def new_memory_of_a_state(model: Net, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state[model.body[0].weight]
    state["exp_avg"].data = torch.full_like(state["exp_avg"], 3.0)


def new_state(model: Net, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state[model.body[0].weight]
    state["exp_avg"] = torch.full_like(state["exp_avg"], 3.0)


def new_module(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.body.append(nn.Linear(2, 2))


def other_module(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.body[1] = nn.Linear(4, 2)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    step(model, optimizer)


def new_parameter(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.body[0].register_parameter("more", nn.Parameter(torch.ones(2)))


def new_parameter_in_a_group(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.more = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [model.more], "lr": 0.125})


def new_buffer(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.register_buffer("more", torch.ones(2))


def other_buffer(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.seen = torch.ones(3)


def persistent_buffer(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.register_buffer("scratch", model.scratch)


def parameter_in_place_of_none(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model.scale = nn.Parameter(torch.ones(2))


def renamed_module(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model._modules["trunk"] = model._modules.pop("body")


def renamed_state(model: Net, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["variance"] = state.pop("exp_avg_sq")


def other_groups(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups = torch.optim.Adam(model.parameters(), lr=0.25).param_groups


def dropped_state(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


CHANGES = [load_optimizer, load_parameters, new_memory, other_strides, fewer_rows, new_memory_of_a_state, new_state, new_module,
           other_module, new_parameter, new_parameter_in_a_group, new_buffer, other_buffer, persistent_buffer,
           parameter_in_place_of_none, renamed_module, renamed_state, other_groups, dropped_state]


@pytest.fixture(scope="module")
def session():
    with sw.Session.join(rank=0, world_size=1, port=0) as joined:
        yield joined


def content(catalog: sw.Catalog, session: sw.Session) -> dict[Any, Any]:
    """What a peer gets."""
    wanted, out = sw.Catalog(0, 1), {}
    for key, info in catalog.tensors().items():
        out[key] = torch.full(info.shape, float("nan"))
        wanted.add(*key, info.dtype, info.shape, sw.Layout.replicated(), out[key])
    with session.publish(catalog, name="content"):
        session.restore(wanted, name="content").wait()
    return out


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(session, change: Callable[[Net, torch.optim.Optimizer], None]):
    model, optimizer = made()
    state = swt.State(model, optimizer)
    first = state.catalog(rank=0, world_size=1)
    state.publish(session, step=1, name="change").retire()
    step(model, optimizer)
    assert state.catalog(rank=0, world_size=1) is first
    change(model, optimizer)
    catalog = state.catalog(rank=0, world_size=1)
    expected = {(name, "param"): parameter for name, parameter in model.named_parameters()}
    expected |= {(name, "buffer"): buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    expected |= {(names[parameter], name): value for parameter, states in optimizer.state.items() if parameter in names
                 for name, value in states.items()}
    got = content(catalog, session)
    assert got.keys() == expected.keys()
    assert [key for key in got if not torch.equal(got[key], expected[key])] == []
    # And what publish() keeps.
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    with state.publish(session, step=2, name="change"):
        wanted = sw.Catalog(0, 1)
        for parameter in rates:
            wanted.add_value(names[parameter], "param_group")
        restore = session.restore(wanted, name="change")
        restore.wait()
        assert {names[parameter]: rate for parameter, rate in rates.items()} == {
            key.fqn: value["lr"] for key, value in restore.values().items()}
        out = {key: torch.full_like(value, -1) for key, value in expected.items()}
        wanted = sw.Catalog(0, 1)
        for key, value in out.items():
            wanted.add(*key, "f32", value.shape, sw.Layout.replicated(), value)
        session.restore(wanted, name="change").wait()
        assert [key for key in out if not torch.equal(out[key], expected[key])] == []


def test_a_parameter_that_joins_the_group_before_its_own_has_the_options_of_that(session):
    model = Net()
    weight, *others = model.parameters()
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.25}, {"params": others, "lr": 0.5}])
    state = swt.State(model, optimizer)
    state.publish(session, step=1, name="moved").retire()
    before, after = optimizer.param_groups
    before["params"].append(after["params"].pop(0))
    with state.publish(session, step=2, name="moved"):
        wanted = sw.Catalog(0, 1)
        for name, _ in model.named_parameters():
            wanted.add_value(name, "param_group")
        restore = session.restore(wanted, name="moved")
        restore.wait()
        assert [options["lr"] for options in restore.values().values()] == [0.25, 0.25, 0.5, 0.5]


@pytest.mark.parametrize("history, append", [
    ([torch.zeros(2), [1, 2]], lambda history: history[1].append(3)),
    ([], lambda history: history.append(torch.ones(2))),
    ([torch.zeros(2), torch.ones(2)], lambda history: history.reverse()),
], ids=["number", "tensor", "order"])
def test_a_list_that_changes_in_place_is_noticed(session, history: list[Any], append: Callable[[list[Any]], object]):
    model, target = nn.Linear(1, 2), nn.Linear(1, 2)
    optimizer, other = torch.optim.SGD(model.parameters()), torch.optim.SGD(target.parameters())
    optimizer.state[model.bias]["history"] = history
    state = swt.State(model, optimizer)
    state.catalog(rank=0, world_size=1)
    state.publish(session, step=1, name="list").retire()
    append(history)
    assert [name for _, name in state.catalog(rank=0, world_size=1).tensors() if name != "param"] == [
        f"history[{number}]" for number, item in enumerate(history) if isinstance(item, torch.Tensor)]
    with state.publish(session, step=2, name="list"):
        swt.restore_into(session, target, other, name="list", timeout=20)
    assert str(other.state[target.bias]["history"]) == str(history)


@pytest.mark.parametrize("before, after", [(1, True), (2, 2.0), (0.0, -0.0), ([1], [1.0]), ({"a": 0}, {"a": False})], ids=str)
def test_an_option_of_another_type_is_noticed(session, before: Any, after: Any):
    model, target = nn.Linear(1, 2), nn.Linear(1, 2)
    optimizer, other = torch.optim.SGD(model.parameters()), torch.optim.SGD(target.parameters())
    optimizer.param_groups[0]["option"] = before
    state = swt.State(model, optimizer)
    state.publish(session, step=1, name="type").retire()
    optimizer.param_groups[0]["option"] = after
    with state.publish(session, step=2, name="type"):
        swt.restore_into(session, target, other, name="type", timeout=20)
    assert repr(other.param_groups[0]["option"]) == repr(after)


def test_a_catalog_keeps_memory_and_neither_model_nor_optimizer():
    model, optimizer = made()
    catalog = swt.catalog_of(model, optimizer, rank=0, world_size=1)
    moment = optimizer.state[model.body[0].weight]["exp_avg"]
    known, expected = (weakref.ref(optimizer), weakref.ref(model), weakref.ref(moment)), moment.clone()
    del model, optimizer, moment
    gc.collect()
    assert [one() for one in known] == [None] * 3
    with sw.Session.join(rank=0, world_size=1, port=0) as session:
        assert torch.equal(content(catalog, session)["body.0.weight", "exp_avg"], expected)


def test_a_state_publishes_each_step_in_place_of_the_one_before(session):
    model, optimizer = made()
    state = swt.State(model, optimizer)
    for number in range(3):
        step(model, optimizer)
        publication = state.publish(session, step=number, name="latest", snapshot="copy")
        target, other = made()
        assert swt.restore_into(session, target, other, name="latest", timeout=20).step == number
        assert all(map(torch.equal, target.parameters(), model.parameters()))
    with pytest.raises(sw.InvalidArgument, match="retire"):
        state.publish(session, step=4, name="latest")
        state.publish(session, step=5, name="latest")  # of the same memory
    publication.retire()
    state.publish(session, step=6, name="latest")
    assert session.inventory("latest").step == 6
    del state
    gc.collect()
    assert not session.inventory("latest").publishers


def test_a_state_always_publishes_some_step(session):
    model, optimizer = made()
    state = swt.State(model, optimizer)
    state.publish(session, step=0, name="latest", snapshot="copy")
    ended = threading.Event()

    def watch() -> tuple[int, list[int]]:
        looked, gaps = 0, []
        while not ended.is_set() or looked == 0:
            looked += 1
            if not session.inventory("latest").publishers:
                gaps.append(looked)
        return looked, gaps

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watch)
        for number in range(1, 200):
            state.publish(session, step=number, name="latest", snapshot="copy")
        ended.set()
        looked, gaps = watching.result(60)
    assert not gaps, (looked, gaps)


def test_a_catalog_follows_the_optimizers_of_a_state(session):
    model, optimizer = made()
    listed = [optimizer]
    state = swt.State(model, listed)
    first = state.catalog(rank=0, world_size=1)
    listed[0] = torch.optim.SGD(model.parameters())
    catalog = state.catalog(rank=0, world_size=1)
    assert catalog is not first and not any(name == "exp_avg" for _, name in catalog.tensors())


def after_forward(rank: int, world: int, wrapper: str) -> Any:
    model, optimizer = build(wrapper, "one group", 1, world)
    train(model, optimizer, 1)
    state = swt.State(model, optimizer)
    first = state.catalog()
    for _ in range(2):
        train(model, optimizer, 1)
        with torch.no_grad():
            model(torch.zeros(2, 3, dtype=torch.long))
        assert state.catalog() is first
    del first, state
    known = weakref.ref(model)
    del model, optimizer
    gc.collect()
    return known() is None


@pytest.mark.parametrize("wrapper", ["fsdp2", "hsdp", "fsdp2 x tp 2", "ddp", "fsdp1", "fsdp1 original", "fsdp1 grad_op"])
def test_a_catalog_is_kept_as_long_as_its_model(pool, wrapper):
    assert pool(4, after_forward, wrapper) == [True] * 4
