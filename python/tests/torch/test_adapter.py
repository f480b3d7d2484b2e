# SPDX-License-Identifier: Apache-2.0
"""State dicts, replacements, stages, and what is refused."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pool import forking_context
from ports import free_port
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from training import build, differences, reference, train

import shardwire as sw
import shardwire.torch as swt


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    parts = dict(zip(("model", "optim"), get_state_dict(model, optimizer)))
    return {**parts, "train": {"losses": [1.5, "a"], "betas": (1, 2), "generator": torch.arange(5, dtype=torch.uint8)}}


def load_state_dict(rank: int, world: int, source: str, target: str) -> Any:
    with swt.join() as session:
        before, optimizer = build(source, "adamw", 1, world)
        train(before, optimizer, 2)
        publication = swt.publish_state_dict(session, state_of(before, optimizer), step=2)
        after, other = build(target, "adamw", 2, world)
        train(after, other, 1)  # as in the source, unused parameters get no state
        wanted = state_of(after, other)
        wanted["train"] = {"losses": [0.0, ""], "betas": (0, 0), "generator": torch.zeros(5, dtype=torch.uint8)}
        reader = swt.PeerReader(session, step=2, verify="digest")
        dcp.load(wanted, storage_reader=reader)
        set_state_dict(after, other, model_state_dict=wanted["model"], optim_state_dict=wanted["optim"],
                       options=StateDictOptions(strict=False))
        assert wanted["train"]["losses"] == [1.5, "a"] and wanted["train"]["betas"] == (1, 2)
        assert torch.equal(wanted["train"]["generator"], torch.arange(5, dtype=torch.uint8))
        assert reader.report.needed_bytes == reader.report.moved_bytes + reader.report.local_bytes - reader.report.overread_bytes > 0
        wrong = differences(reference(before, optimizer), reference(after, other))
        alone = {"model": {"blocks.0.up.bias": torch.zeros(28)}}
        if rank == 1:
            dcp.load(alone, storage_reader=swt.PeerReader(session), no_dist=True)
        whole = reference(before, optimizer)["blocks.0.up.bias:param"]
        assert rank != 1 or torch.equal(alone["model"]["blocks.0.up.bias"], whole)
        session.gather("loaded", b"", 60)
        publication.retire()
        return [name for name in wrong if not name.endswith(":options")]  # dcp gives options other types


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source, target", [("fsdp2", "fsdp2 x tp 2"), ("fsdp2 x tp 2", "fsdp2"), ("hsdp", "ddp")])
def test_dcp_loads_from_peers(pool, source, target):
    assert pool(4, load_state_dict, source, target) == [[]] * 4


def test_dcp_loads_uneven_strided_shards(pool):
    # 28 and 14 rows over 3 x 2 ranks: dcp's own items name wrong rows.
    assert pool(6, load_state_dict, "fsdp2", "fsdp2 x tp 2") == [[]] * 6


def raise_in_load(rank: int, world: int) -> Any:
    class Raising(swt.PeerReader):
        def read_data(self, plan: Any, planner: Any) -> Any:
            if rank == 1:
                raise ZeroDivisionError("in the middle")
            return super().read_data(plan, planner)

    with swt.join() as session:
        publication = swt.publish_state_dict(session, {"weight": torch.ones(4)})
        session.await_step("dcp", 0, 20)
        began = time.monotonic()
        with pytest.raises(dcp.CheckpointException, match="in the middle"):
            dcp.load({"weight": torch.zeros(4)}, storage_reader=Raising(session, timeout=60))
        session.gather("raised", b"", 60)
        publication.retire()
        return time.monotonic() - began


def test_a_rank_that_raises_in_a_load_holds_up_nobody(pool):
    assert max(pool(4, raise_in_load)) < 50


def wrong_types(rank: int, world: int) -> Any:
    with swt.join() as session:
        publication = swt.publish_state_dict(session, {"a": torch.ones(4), "b": torch.ones(3)})
        session.await_step("dcp", 0, 20)
        wanted = {"a": torch.zeros(4), "b": torch.zeros(3, dtype=torch.float64)}
        with pytest.raises(dcp.CheckpointException, match="b: source has f32, target wants f64"):
            dcp.load(wanted, storage_reader=swt.PeerReader(session, timeout=20))
        assert not wanted["a"].any() and not wanted["b"].any()
        session.gather("refused", b"", 60)
        publication.retire()


def test_dcp_converts_nothing(pool):
    pool(4, wrong_types)


class Stage(nn.Module):
    def __init__(self, layers: range) -> None:
        super().__init__()
        for layer in layers:
            self.add_module(f"layer{layer}", nn.Linear(3, 3))


def pipeline(rank: int, world: int) -> Any:
    torch.manual_seed(rank)
    with swt.join() as session:
        stage = Stage(range(2 * rank, 2 * rank + 2))
        optimizer = torch.optim.Adam(stage.parameters())
        sum(parameter.sum() for parameter in stage.parameters()).backward()
        optimizer.step()
        publication = swt.publish(session, stage, optimizer, step=1)
        whole = Stage(range(2 * world))
        everything = torch.optim.Adam(whole.parameters())
        swt.restore_into(session, whole, everything, step=1)
        # And two stages from four.
        half = Stage(range(4 * (rank // 2), 4 * (rank // 2) + 4))
        swt.restore_into(session, half, torch.optim.Adam(half.parameters()), step=1)
        session.gather("restored", b"", 60)
        publication.retire()
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, reference(stage, optimizer))
        expected = {name: value for one in gathered for name, value in one.items()}
        mine = {name: value for name, value in expected.items() if name.split(".")[0] in dict(half.named_children())}
        assert len(mine) == len(expected) // 2
        return differences(expected, reference(whole, everything))


def test_pipeline_stages_become_one(pool):
    assert pool(4, pipeline) == [[]] * 4


def after_no_grad(rank: int, world: int) -> Any:
    with swt.join() as session:
        before, optimizer = build("fsdp2", "adamw", 1, world)
        train(before, optimizer, 1)
        expected = reference(before, optimizer)
        words = torch.zeros(2, 3, dtype=torch.long)
        with torch.no_grad():
            before(words)  # leaves gathered parameters registered
        publication = swt.publish(session, before, optimizer, step=1)
        after, other = build("fsdp2", "adamw", 2, world)
        with torch.no_grad():
            after(words)
        swt.restore_into(session, after, other, step=1)
        with torch.no_grad():
            same = torch.equal(before(words), after(words))
        session.gather("restored", b"", 60)
        publication.retire()
        return same, differences(expected, reference(after, other))


def test_gathered_copies_do_not_hide_what_is_restored(pool):
    assert pool(4, after_no_grad) == [(True, [])] * 4


def repeat(rank: int, world: int) -> Any:
    with swt.join() as session:
        model, optimizer = build("fsdp2", "adamw", 1, world)
        train(model, optimizer, 1)
        state = swt.State(model, optimizer)
        first = state.catalog()
        assert state.catalog() is first
        other, other_optimizer = build("fsdp2", "adamw", 2, world)
        wanted = swt.State(other, other_optimizer)
        for step in range(3):
            train(model, optimizer, 1)
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            publication = state.publish(session, step=step, extra={"step": step})
            result = wanted.restore(session, step=step)
            assert result.extra == {"step": step} and result.as_dict()["step"] == step
            assert other_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
            session.gather(f"restored {step}", b"", 60)
            publication.retire()
            assert differences(reference(model, optimizer), reference(other, other_optimizer)) == []
        assert state.catalog() is first
        with torch.no_grad():
            next(iter(optimizer.state.values()))["exp_avg"] = torch.zeros_like(next(iter(optimizer.state.values()))["exp_avg"])
        assert state.catalog() is not first


def test_a_restore_can_be_repeated(pool):
    pool(4, repeat)


def one_of_four(rank: int, port: int, again: bool, pipe: Any) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = "4"
    # Shards without communication: each process is one rank of HSDP 2 x 2 whose other ranks it does not see.
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    model, optimizer = build("hsdp", "adamw", 1, 4)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    session = swt.join(store, rank, 4, join_timeout=30)
    sharded = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for number, parameter in enumerate(sharded):
        local = parameter.to_local()
        with torch.no_grad():
            local.fill_(-1 if again else number)
        if not again:
            optimizer.state[parameter] = {"step": torch.tensor(7.0), "exp_avg": torch.full_like(parameter, number + 0.5),
                                          "exp_avg_sq": torch.full_like(parameter, number + 0.25)}
    if not again:
        publication = swt.publish(session, model, optimizer, step=7)
        pipe.send("published")
        pipe.recv()
        publication.retire()
        return
    began = time.monotonic()
    result = swt.restore_into(session, model, optimizer, timeout=30)
    took = time.monotonic() - began
    for number, parameter in enumerate(sharded):
        assert (parameter.to_local() == number).all()
        state = optimizer.state[parameter]
        assert (state["exp_avg"].to_local() == number + 0.5).all() and (state["exp_avg_sq"].to_local() == number + 0.25).all()
        assert state["step"] == 7
    pipe.send((result.step, took, result.report.moved_bytes))


def test_a_killed_rank_is_replaced_alone(pool, record_property):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = forking_context()
    started: list[tuple[Any, Any]] = []

    def start(rank: int, again: bool) -> tuple[Any, Any]:
        here, there = context.Pipe()
        started.append((context.Process(target=one_of_four, args=(rank, store.port, again, there), daemon=True), here))
        started[-1][0].start()
        there.close()  # else the end of the process is not the end of what is read
        return started[-1]

    try:
        ranks = [start(rank, False) for rank in range(4)]
        assert [pipe.recv() for _, pipe in ranks] == ["published"] * 4
        killed, _ = ranks[3]
        killed.kill()
        killed.join()
        _, pipe = start(3, True)
        step, took, moved = pipe.recv()
        assert step == 7 and moved > 0
        record_property("replacement_seconds", took)
        print(f"the replacement took {took:.3f} s")
        assert all(process.is_alive() for process, _ in ranks[:3])
    finally:
        for process, _ in started:
            process.kill()
            process.join()


@pytest.fixture
def session():
    with sw.Session.join(rank=0, world_size=1, port=free_port()) as joined:
        yield joined


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_state_of_another_model_is_refused(session):
    publication = swt.publish(session, *small(), step=1)
    other = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    before = [parameter.detach().clone() for parameter in other.parameters()]
    with pytest.raises(sw.LayoutMismatch, match="0.weight"):
        swt.restore_into(session, other, torch.optim.Adam(other.parameters()), timeout=20)
    assert all(map(torch.equal, before, other.parameters()))
    wider = nn.Linear(3, 4)
    before = [parameter.detach().clone() for parameter in wider.parameters()]
    with pytest.raises(sw.LayoutMismatch, match=r"weight:param: source has f32 \(2, 3\), target wants f32 \(4, 3\)"):
        swt.restore_into(session, wider, timeout=20)
    with pytest.raises(sw.LayoutMismatch, match="bias:param: source has f32 .*, target wants f64"):
        swt.restore_into(session, nn.Linear(3, 2).double(), timeout=20)
    assert all(map(torch.equal, before, wider.parameters()))
    del publication


def test_parameters_that_no_peer_has_may_be_skipped(session):
    publication = swt.publish(session, *small(), step=1)
    model, _ = small()
    model.register_parameter("adapter", nn.Parameter(torch.full((5,), 3.0)))
    with pytest.raises(sw.LayoutMismatch, match="adapter"):
        swt.restore_into(session, model, timeout=20)
    swt.restore_into(session, model, timeout=20, absent={"adapt*": "skip"})
    assert (model.adapter == 3).all()
    del publication


def test_what_no_peer_has_may_become_zero(session):
    publication = swt.publish(session, *small(), step=1)
    model, _ = small()
    model.register_parameter("adapter", nn.Parameter(torch.full((5,), 3.0)))
    model.register_parameter("one", nn.Parameter(torch.full((1,), 3.0)))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in (model.adapter, model.one):
        optimizer.state[parameter] = {"step": torch.tensor(7.0), "exp_avg": torch.ones_like(parameter).detach(),
                                      "exp_avg_sq": torch.ones_like(parameter).detach()}
    swt.restore_into(session, model, optimizer, timeout=20, absent={"adapter": "zero", "one": "zero"})
    for parameter in (model.adapter, model.one):
        state = optimizer.state[parameter]
        assert not parameter.any() and not state["exp_avg"].any() and not state["exp_avg_sq"].any() and state["step"] == 7
    del publication


def test_a_step_that_nobody_has(session):
    publication = swt.publish(session, *small(), step=1)
    with pytest.raises(sw.TimedOut):
        swt.restore_into(session, *small(), step=2, timeout=0.3)
    publication.update(swt.catalog_of(*small()), 3)
    with pytest.raises(sw.StepMismatch):
        swt.restore_into(session, *small(), step=2, timeout=20)
    with pytest.raises(sw.TimedOut, match="'other' was not there .* nobody publishes it"):
        swt.restore_into(session, *small(), name="other", timeout=0.3)


def test_tensors_without_memory_are_refused(session):
    with pytest.raises(sw.LayoutMismatch, match="weight:param is on the meta device"):
        swt.publish(session, nn.Linear(2, 2, device="meta"), step=1)
    model = nn.Linear(2, 2)
    model.weight.untyped_storage().resize_(0)
    with pytest.raises(sw.LayoutMismatch, match="memory of weight:param has been freed"):
        swt.publish(session, model, step=1)
    with pytest.raises(sw.LayoutMismatch, match="w.*meta"):
        swt.publish_state_dict(session, {"w": torch.empty(2, device="meta")})


def test_a_sparse_tensor_in_a_target_is_refused_by_name(session):
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    target.weight = nn.Parameter(torch.eye(3).to_sparse())
    before = target.bias.detach().clone()
    with swt.publish(session, source, step=1, name="sparse"):
        with pytest.raises(sw.Unsupported, match="weight:param is a Parameter of layout torch.sparse_coo"):
            swt.restore_into(session, target, name="sparse", timeout=20)
    assert torch.equal(target.bias, before)


def partial(rank: int, world: int) -> None:
    mesh = DeviceMesh("cpu", list(range(world)))
    tensor = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    with pytest.raises(sw.LayoutMismatch, match="Partial"):
        swt.layout_of(tensor)
    with swt.join() as session:
        with pytest.raises(sw.LayoutMismatch, match="weight: .*[Pp]artial"):
            swt.publish_state_dict(session, {"weight": tensor})
        session.gather("refused", b"", 60)  # member 0 stays until all have joined
    assert swt.layout_of(DTensor.from_local(torch.ones(3), mesh, [Replicate()])).kind == "mesh"


def test_partial_placements_are_refused(pool):
    pool(4, partial)


def test_tensors_that_require_grad_are_refused_by_dlpack():
    catalog = sw.Catalog(0, 1)
    with pytest.raises(sw.InvalidArgument, match="w:param"):
        catalog.add("w", "param", torch.float32, (3,), sw.Layout.replicated(), torch.ones(3, requires_grad=True))
    catalog.add("w", "param", torch.float32, (3,), sw.Layout.replicated(), torch.ones(3))
    catalog.add("b", "param", torch.bfloat16, (3,), sw.Layout.replicated(), torch.ones(3, dtype=torch.bfloat16))
    with pytest.raises(sw.InvalidArgument, match="v:param"):
        catalog.add("v", "param", torch.float32, (3,), sw.Layout.replicated(), torch.ones(3, dtype=torch.bfloat16))


def test_a_store_that_raises_ends_the_join():
    class Broken:
        def set(self, key: str, value: bytes) -> None:
            raise OSError("the store is gone")

        def wait(self, keys: Any, timeout: Any) -> None:
            raise OSError("the store is gone")

    for rank in range(2):
        with pytest.raises(OSError, match="the store is gone"):
            swt.join(Broken(), rank, 2, join_timeout=10, local_size=2)


def test_buddies_copy_what_a_keeper_holds(session):
    with pytest.raises(sw.InvalidArgument, match="set keep"):
        swt.publish(session, *small(), step=1, buddies=1)
    with pytest.raises(sw.InvalidArgument, match="no keeper was named"):
        swt.publish(session, *small(), step=1, keep=1, buddies=1)


@pytest.mark.parametrize("thing", [{1: "a", 2: {"b": torch.ones(2, 2)}}, torch.tensor(3, dtype=torch.bfloat16),
                                   {"rng": torch.get_rng_state()}, [1, (2.5, None)], 1 << 70], ids=str)
def test_extra_state_comes_back(session, thing):
    model, optimizer = small()
    publication = swt.publish(session, model, optimizer, step=1, extra={"thing": thing, "mine": swt.PerRank(thing)})
    extra = swt.restore_into(session, *small(), timeout=20).extra
    for received in (extra["thing"], extra["mine"]):
        assert str(received) == str(thing) and type(received) is type(thing)
    del publication


def test_schedulers_and_options_go_on(session):
    model, optimizer = small()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scheduler.step()
    publication = swt.publish(session, model, [optimizer], step=1, extra={"scheduler": scheduler.state_dict()})
    other, other_optimizer = small()
    other_optimizer.param_groups[0]["lr"] = torch.tensor(1.0)
    restored = swt.restore_into(session, other, {"adam": other_optimizer}, timeout=20)
    later = torch.optim.lr_scheduler.CosineAnnealingLR(other_optimizer, 10)
    later.load_state_dict(restored.extra["scheduler"])
    assert later.state_dict() == scheduler.state_dict()
    assert other_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]  # a number, as after load_state_dict()
    assert other_optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    del publication
