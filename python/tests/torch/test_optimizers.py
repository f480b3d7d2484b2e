# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch, and such as users write: a fresh one goes on as the published one does."""

from __future__ import annotations

import collections
import gc
import random
from typing import Any, Callable

import numpy
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.testing._internal.two_tensor import TwoTensor

import shardwire as sw
import shardwire.torch as swt

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01, t0=1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam with a tensor for its rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.01, max_iter=3),
    "Muon": lambda p: torch.optim.Muon([one for one in p if one.dim() == 2], lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
}


@pytest.fixture(scope="module")
def session():
    with sw.Session.join(rank=0, world_size=1, port=0) as joined:
        yield joined


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def train(model: nn.Module, optimizers: Any, steps: int, seed: int) -> list[float]:
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * seed + step)
        x = torch.randn(8, 5, generator=generator).to(next(model.parameters()).dtype)

        def loss() -> torch.Tensor:
            model.zero_grad()
            value = model(x).float().square().mean()
            value.backward()
            return value

        for optimizer in optimizers:
            losses.append(optimizer.step(loss).item())
    return losses


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) and torch.equal(
            a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def move(session: sw.Session, before: Any, after: Any, steps: int = 3) -> None:
    """Trains, moves the state, and trains both on."""
    model, optimizers = before
    other, others = after
    listed, other_listed = [list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else [one]
                            for one in (optimizers, others)]
    train(model, listed, steps, 1)
    with swt.publish(session, model, optimizers, step=steps, name="optimizer"):
        swt.restore_into(session, other, others, name="optimizer", timeout=20)
    for old, new in zip(listed, other_listed):
        assert same(old.state_dict(), new.state_dict())
    assert train(model, listed, 4, 2) == train(other, other_listed, 4, 2)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fresh_optimizer_goes_on(session, name):
    one, two = network(1), network(2)
    move(session, (one, OPTIMIZERS[name](list(one.parameters()))), (two, OPTIMIZERS[name](list(two.parameters()))))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_used_optimizer_goes_on(session, name):
    one, two = network(1), network(2)
    used = OPTIMIZERS[name](list(two.parameters()))
    train(two, [used], 2, 3)
    move(session, (one, OPTIMIZERS[name](list(one.parameters()))), (two, used))


def several(model: nn.Module) -> list[torch.optim.Optimizer]:
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    return [torch.optim.Muon(weights, lr=0.01),
            torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.dim() != 2], lr=0.02)]


def test_several_optimizers_in_a_list(session):
    one, two = network(1), network(2)
    move(session, (one, several(one)), (two, several(two)))


def test_several_optimizers_in_a_dict(session):
    one, two = network(1), network(2)
    move(session, (one, dict(zip("ab", several(one)))), (two, dict(zip("ab", several(two)))))


class Master(torch.optim.Optimizer):
    """bf16 parameters with copies and moments in fp32, a counter and a history that are no tensors."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "window": (2, 3)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            value = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(master=parameter.detach().float(), moment=torch.zeros_like(parameter, dtype=torch.float32),
                                 count=0, seen=[])
                state["count"] += 1
                state["seen"].append(float(state["count"]) / 3)
                state["moment"].mul_(0.9).add_(parameter.grad.float())
                state["master"].add_(state["moment"], alpha=-group["lr"])
                parameter.copy_(state["master"])
        return value


def test_half_precision_with_whole_moments(session):
    one, two = network(1).bfloat16(), network(2).bfloat16()
    move(session, (one, Master(one.parameters())), (two, Master(two.parameters(), lr=5.0)))


def sharded(rank: int, world: int) -> bool:
    mesh = DeviceMesh("cpu", list(range(world)))
    one, two = fully_shard(network(1).bfloat16(), mesh=mesh), fully_shard(network(2).bfloat16(), mesh=mesh)
    before, after = Master(one.parameters()), Master(two.parameters())
    train(one, [before], 3, 1)
    with swt.join() as session:
        publication = swt.publish(session, one, before, step=1)
        swt.restore_into(session, two, after)
        session.gather("restored", b"", 60)
        publication.retire()
    for old, new in zip(before.state.values(), after.state.values()):
        assert isinstance(new["moment"], DTensor) and new["moment"].dtype == torch.float32
        assert torch.equal(old["moment"].full_tensor(), new["moment"].full_tensor())
        assert torch.equal(old["master"].full_tensor(), new["master"].full_tensor())
        assert (old["count"], old["seen"]) == (new["count"], new["seen"]) and len(old["seen"]) == 3
    return train(one, [before], 3, 2) == train(two, [after], 3, 2)


def test_half_precision_over_shards(pool):
    assert pool(4, sharded) == [True] * 4


def local_states(rank: int, world: int) -> list[str]:
    """An optimizer that makes its state of the local parts, as plain tensors."""
    mesh = DeviceMesh("cpu", list(range(world)))
    one, two = fully_shard(network(1), mesh=mesh), fully_shard(network(2), mesh=mesh)
    before, after = torch.optim.SGD(one.parameters()), torch.optim.SGD(two.parameters())
    for parameter in one.parameters():
        before.state[parameter]["moment"] = parameter.detach().to_local() * 3
    for parameter in two.parameters():
        after.state[parameter]["moment"] = torch.zeros_like(parameter.to_local())
    with swt.join() as session:
        with swt.publish(session, one, before, step=1):
            swt.restore_into(session, two, after)
            session.gather("restored", b"", 60)
        wrong = [name for name, parameter in two.named_parameters()
                 if not torch.equal(after.state[parameter]["moment"], parameter.to_local() * 3)]
        # One that is neither whole nor the local part.
        for parameter in one.parameters():
            before.state[parameter]["scales"] = torch.ones(13)
        with pytest.raises(sw.Unsupported, match=r"0\.weight:scales.*\(13,\)"):
            swt.publish(session, one, before, step=2)
    return wrong


def test_states_of_local_parts(pool):
    assert pool(4, local_states) == [[]] * 4


class Blocks(torch.optim.Optimizer):
    """State of eight bits, with a scale for each block of 16 elements."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            value = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                count = -(-parameter.numel() // 16)
                if not state:
                    state.update(codes=torch.zeros_like(parameter, dtype=torch.uint8), scales=torch.zeros(count), map=torch.arange(256.0))
                padded = torch.zeros(count * 16)
                padded[:parameter.numel()] = (state["codes"].float() * 0.5 + parameter.grad).flatten()
                state["scales"].copy_(padded.reshape(count, 16).abs().amax(1))
                state["codes"].copy_(padded[:parameter.numel()].reshape(parameter.shape).mul(255).clamp(0, 255))
                parameter.sub_(state["codes"] * 1e-3 * state["scales"].mean())
        return value


def test_blocks_of_eight_bits(session):
    one, two = network(1), network(2)
    move(session, (one, Blocks(one.parameters())), (two, Blocks(two.parameters())))


def test_frozen_unused_and_shared(session):
    def model(seed: int) -> nn.Module:
        made = network(seed)
        made.requires_grad_(False)
        made[2].weight.requires_grad_(True)
        made.unused = nn.Parameter(torch.randn(3))
        made[0].twice = made[2]  # a second name
        return made

    one, two = model(1), model(2)
    move(session, (one, torch.optim.Adam([p for p in one.parameters() if p.requires_grad])),
         (two, torch.optim.Adam([p for p in two.parameters() if p.requires_grad])))
    assert torch.equal(one.unused, two.unused) and torch.equal(one[0].weight, two[0].weight)


def test_an_optimizer_of_another_model_is_refused(session):
    one, two = network(1), network(2)
    with pytest.raises(sw.InvalidArgument, match="that the model lacks"):
        swt.publish(session, one, torch.optim.Adam(two.parameters()), step=1)
    with pytest.raises(sw.InvalidArgument, match="0.weight"):
        swt.publish(session, one, [torch.optim.Adam(one.parameters()), torch.optim.SGD(one.parameters())], step=1)


def test_another_optimizer_is_refused(session):
    one, two = network(1), network(2)
    before = torch.optim.SGD(one.parameters(), momentum=0.9)
    train(one, [before], 1, 1)
    after = torch.optim.Adam(two.parameters())
    train(two, [after], 1, 1)
    kept = [parameter.detach().clone() for parameter in two.parameters()]
    with swt.publish(session, one, before, step=1, name="other"):
        with pytest.raises(sw.LayoutMismatch, match="0.weight:exp_avg"):
            swt.restore_into(session, two, after, name="other", timeout=20)
    assert all(map(torch.equal, kept, two.parameters()))


def test_options_of_a_group_travel_once(session):
    """Two million items, were they sent with each of their parameters."""
    milestones = [float(number) for number in range(1000)]

    def made() -> tuple[nn.ParameterList, torch.optim.Optimizer]:
        model = nn.ParameterList(torch.zeros(1) for _ in range(2000))
        return model, torch.optim.SGD([{"params": list(model), "milestones": []}], lr=0.1)

    (model, optimizer), (target, fresh) = made(), made()
    optimizer.param_groups[0]["milestones"] = milestones
    with torch.no_grad():
        for number, parameter in enumerate(model):
            parameter.fill_(number)
    with swt.publish(session, model, optimizer, step=1, name="many"):
        swt.restore_into(session, target, fresh, name="many")
    assert fresh.param_groups[0]["milestones"] == milestones
    assert [parameter.item() for parameter in target] == list(range(2000))
    assert gc.isenabled()


def test_groups_that_differ_at_the_source_are_not_merged(session):
    one, two = network(1), network(2)
    before = torch.optim.Adam([{"params": one[0].parameters(), "lr": 0.5}, {"params": one[2].parameters(), "lr": 0.25}])
    train(one, [before], 1, 1)
    after = torch.optim.Adam(two.parameters(), lr=0.125)
    kept = [parameter.detach().clone() for parameter in two.parameters()]
    with swt.publish(session, one, before, step=1, name="groups"):
        with pytest.raises(sw.LayoutMismatch, match="0.weight and 2.weight are in one group, but their sources differ in lr"):
            swt.restore_into(session, two, after, name="groups", timeout=20)
    assert all(map(torch.equal, kept, two.parameters())) and not after.state and after.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("thing", [{"a": [lambda: 1]}, collections.deque([1])], ids=["function", "deque"])
def test_what_no_receiver_could_make_is_not_published(session, thing):
    with pytest.raises(sw.Unsupported, match="extra 'odd': a .* cannot be sent"):
        swt.publish(session, network(1), step=1, name="odd", extra={"even": 2, "odd": thing})


def test_states_of_random_generators(session):
    numpy.random.seed(3)
    extra = {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state(),
             "own": numpy.random.default_rng(5).bit_generator.state, "loss": numpy.float64(1.5), "flags": numpy.array([[True], [False]])}
    expected = random.random(), numpy.random.random(), torch.rand(1)
    with swt.publish(session, network(1), step=1, name="random", extra={**extra, "mine": swt.PerRank(extra)}):
        received = swt.restore_into(session, network(2), name="random", timeout=20).extra
    for states in (received, received["mine"]):
        random.setstate(states["python"])
        numpy.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])
        assert (random.random(), numpy.random.random(), torch.rand(1)) == expected
        assert states["own"] == extra["own"] and states["loss"] == 1.5 and type(states["loss"]) is numpy.float64
        assert states["flags"].dtype == bool and states["flags"].tolist() == [[True], [False]]


def test_a_state_that_is_its_parameter_becomes_a_tensor_of_its_own(session):
    """As after load_state_dict(), whatever the bytes are."""
    one, two = network(1), network(2)
    before, after = (torch.optim.SGD(model.parameters(), lr=0.5) for model in (one, two))
    before.state[one[0].weight]["anchor"] = one[0].weight.detach().clone()
    after.state[two[0].weight]["anchor"] = two[0].weight.detach()
    with swt.publish(session, one, before, step=1, name="anchor"):
        swt.restore_into(session, two, after, name="anchor", timeout=20)
    assert torch.equal(two[0].weight, one[0].weight)
    two[0].weight.data.zero_()
    assert torch.equal(after.state[two[0].weight]["anchor"], one[0].weight)


def test_options_that_are_one_tensor_here_and_several_in_the_sources_become_several(session):
    one, two = network(1), network(2)
    before, after = (torch.optim.SGD(model.parameters(), lr=0.5) for model in (one, two))
    before.param_groups[0].update(lr=torch.tensor(0.5), initial_lr=torch.tensor(0.5), center=torch.ones(7, 5))
    rate = torch.tensor(0.25)
    after.param_groups[0].update(lr=rate, initial_lr=rate, center=two[0].weight.detach())
    with swt.publish(session, one, before, step=1, name="options"):
        swt.restore_into(session, two, after, name="options", timeout=20)
    assert torch.equal(two[0].weight, one[0].weight)
    group = after.param_groups[0]
    group["lr"].fill_(0.125)
    assert rate.item() == 0.125 and group["initial_lr"].item() == 0.5 and torch.equal(group["center"], torch.ones(7, 5))


def test_an_option_that_is_a_tensor_of_several_others_here_is_replaced(session):
    one, two = network(1), network(2)
    before, after = (torch.optim.SGD(model.parameters(), lr=0.5) for model in (one, two))
    before.param_groups[0]["center"], after.param_groups[0]["center"] = torch.ones(2), TwoTensor(torch.zeros(2), torch.zeros(2))
    with swt.publish(session, one, before, step=1, name="class"):
        swt.restore_into(session, two, after, name="class", timeout=20)
    center = after.param_groups[0]["center"]
    assert type(center) is torch.Tensor and center.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("theirs, mine", [(True, False), (True, True)])
def test_the_step_lies_where_the_options_of_the_sources_want_it(session, monkeypatch, theirs: bool, mine: bool):
    """The meta device stands for that of the parameters, once the values are there."""
    one, two = network(1), network(2)
    before, after = (torch.optim.Adam(model.parameters()) for model in (one, two))
    train(one, [before], 1, 1)
    before.param_groups[0]["capturable"], after.param_groups[0]["capturable"] = theirs, mine
    monkeypatch.setattr("shardwire.torch._restore.step_device", lambda group, key: torch.device(
        "meta" if group["capturable"] and not mine else "cpu"))
    with swt.publish(session, one, before, step=1, name="device"):
        swt.restore_into(session, two, after, name="device", timeout=20)
    assert {state["step"].is_meta for state in after.state.values()} == {theirs and not mine}


@pytest.mark.parametrize("thing", [
    collections.OrderedDict([("b", 1), (2, torch.ones(2))]), collections.Counter(a=2), collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {"a": 1}), nn.Linear(1, 1).state_dict(), {"in": [collections.OrderedDict(a=1)]}],
    ids=["ordered", "counter", "default", "no default", "attributes", "inside"])
def test_a_dict_keeps_its_class(session, thing: Any):
    with swt.publish(session, network(1), step=1, name="dict", extra={"thing": thing}):
        received = swt.restore_into(session, network(2), name="dict", timeout=20).extra["thing"]
    assert repr(received) == repr(thing) and getattr(received, "__dict__", None) == getattr(thing, "__dict__", None)
    assert getattr(received, "default_factory", None) is getattr(thing, "default_factory", None)


@pytest.mark.parametrize("thing, match", [(collections.defaultdict(lambda: 1), "a defaultdict that calls"),
                                          (numpy.ma.array([1.0, 2.0], mask=[True, False]), "MaskedArray cannot be sent")])
def test_what_would_lose_a_part_is_refused(session, thing: Any, match: str):
    with pytest.raises(sw.Unsupported, match=f"extra 'thing': .*{match}"):
        swt.publish(session, network(1), step=1, name="refused", extra={"thing": thing})


def options_of_zero(rank: int, world: int) -> Any:
    """After a scheduler has changed those of the source since its last step. On the target: shown, and used by the next step."""
    one, two = network(1), network(2)
    before, after = (ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.5) for model in (one, two))
    after.param_groups[0]["stale"] = 1
    train(one, [before], 1, 1)
    before.param_groups[0]["lr"] = 0.125
    with swt.join() as session:
        publication = swt.publish(session, one, before, step=1, name="zero")
        swt.restore_into(session, two, after, name="zero", timeout=60)
        session.gather("restored", b"", 60)
        publication.retire()
    shown = after.param_groups[0]["lr"]
    train(two, [after], 1, 2)
    return shown, after.optim.param_groups[0]["lr"], "stale" in after.param_groups[0]


def test_a_zero_optimizer_steps_by_the_options_that_it_received(pool):
    assert pool(2, options_of_zero) == [(0.125, 0.125, False)] * 2
