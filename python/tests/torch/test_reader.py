# SPDX-License-Identifier: Apache-2.0
"""State dicts of one process through dcp.load, where files would do."""

from __future__ import annotations

import dataclasses
import io
import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, init_from_local_shards
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor import Shard as SplitDim

import shardwire as sw
import shardwire.torch as swt
from shardwire.torch import _entries, _peer_reader
from shardwire.torch._model import synchronize


@pytest.fixture(scope="module")
def session():
    with sw.Session.join(rank=0, world_size=1, port=0) as joined:
        yield joined


def state() -> dict[str, Any]:
    return {"model": {"w": torch.arange(12.0).reshape(3, 4), "scalar": torch.tensor(3.0), "words": torch.arange(3),
                      "none": torch.empty(0, 3), "one": torch.tensor([5.0]), "half": torch.ones(3, dtype=torch.bfloat16)},
            "list": [1, torch.ones(2), {"nothing": None}], "pair": (1, 2), "text": "a"}


def zeros() -> dict[str, Any]:
    wanted = state()
    for key, tensor in wanted["model"].items():
        wanted["model"][key] = torch.zeros_like(tensor)
    return {**wanted, "list": [0, torch.zeros(2), {"nothing": 1}], "pair": None, "text": ""}


def load(session: sw.Session, wanted: dict[str, Any], planner: Any = None, reader: Any = None, **options: Any) -> None:
    dcp.load(wanted, storage_reader=reader or swt.PeerReader(session, timeout=60, **options), planner=planner, no_dist=True)


@pytest.fixture
def published(session):
    with swt.publish_state_dict(session, state(), step=4) as publication:
        yield publication


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_everything_comes_back(session, published):
    wanted = zeros()
    assert not same(wanted, state())
    load(session, wanted)
    assert same(wanted, state())


def test_destinations_with_strides(session, published):
    wide, tall = torch.zeros(6, 8), torch.zeros(4, 3)
    load(session, {"model": {"w": wide[::2, 1:5]}})
    load(session, {"model": {"w": tall.t()}})
    expected = torch.zeros(6, 8)
    expected[::2, 1:5] = state()["model"]["w"]
    assert torch.equal(wide, expected) and torch.equal(tall, state()["model"]["w"].t())


@pytest.mark.parametrize("whole, place", [(torch.zeros(3, 4), ()), (torch.zeros(6, 8), (slice(0, 6, 2), slice(1, 5)))])
def test_two_names_of_one_tensor(session, whole, place):
    tensor = whole[place]
    with swt.publish_state_dict(session, {"a": torch.ones(3, 4), "b": torch.ones(3, 4), "c": torch.full((3, 4), 2.0)}, name="tied"):
        with pytest.raises(dcp.CheckpointException, match="a and c are one tensor here, but two in the sources, which differ"):
            load(session, {"a": tensor, "c": tensor}, name="tied")
        assert torch.equal(tensor, torch.ones(3, 4)) and whole.sum() == 12  # those of the first entry
        tensor.zero_()
        reader = swt.PeerReader(session, name="tied", timeout=60)
        load(session, {"a": tensor, "b": tensor}, reader=reader)
        other, third = torch.zeros(3, 4), torch.zeros(3, 4)
        load(session, {"a": third, "b": third, "c": other}, name="tied")
    assert torch.equal(tensor, torch.ones(3, 4)) and whole.sum() == 12
    assert reader.report.needed_bytes == 2 * 12 * 4  # one restore has looked at both
    assert torch.equal(third, torch.ones(3, 4)) and torch.equal(other, torch.full((3, 4), 2.0))


def test_queued_work_on_devices_ends_before_memory_is_read_or_overwritten(session, monkeypatch):
    calls: list[Any] = []
    for module in (_entries, _peer_reader):
        monkeypatch.setattr(module, "synchronize", lambda tensors: calls.extend(tensor.data_ptr() for tensor in tensors))
    publish, restore = sw.Session.publish, sw.Session.restore
    monkeypatch.setattr(sw.Session, "publish", lambda *given, **options: calls.append("publish") or publish(*given, **options))
    monkeypatch.setattr(sw.Session, "restore", lambda *given, **options: calls.append("restore") or restore(*given, **options))
    held, twin, wanted = torch.ones(3), torch.ones(3), torch.zeros(3)
    with swt.publish_state_dict(session, {"a": held, "b": twin}, name="queued"):
        load(session, {"a": wanted, "b": wanted}, name="queued")
    copy = calls[4]
    assert calls == [held.data_ptr(), twin.data_ptr(), "publish", wanted.data_ptr(), copy, "restore"]
    assert copy != wanted.data_ptr()


def test_each_device_of_tensors_is_waited_for_once(monkeypatch):
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    stand_ins = [SimpleNamespace(is_cuda=name != "cpu", device=name) for name in ("cpu", "cuda:0", "cuda:1", "cuda:0")]
    synchronize(stand_ins)
    assert sorted(waited) == ["cuda:0", "cuda:1"]


class Halves(DefaultLoadPlanner):
    """Reads the upper half of the first entry, and the lower half of the second, into the upper half of their tensors."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        return dataclasses.replace(plan, items=[
            dataclasses.replace(item, storage_offsets=torch.Size([2 * number, 0]), lengths=torch.Size([2, 3]))
            for number, item in enumerate(plan.items)])


def test_two_parts_that_are_one_tensor(session):
    rows = torch.arange(12.0).reshape(4, 3)
    tensor = torch.zeros(4, 3)
    with swt.publish_state_dict(session, {"a": rows, "b": rows.roll(2, 0), "c": rows}, name="parts"):
        load(session, {"a": tensor, "b": tensor}, Halves(), name="parts")
        assert torch.equal(tensor[:2], rows[:2]) and not tensor[2:].any()
        with pytest.raises(dcp.CheckpointException, match="a and c are one tensor here"):
            load(session, {"a": tensor, "c": tensor}, Halves(), name="parts")


class Pairs(DefaultLoadPlanner):
    """Reads pairs of rows of each entry into pairs of rows of its tensor."""

    def __init__(self, **pairs: list[tuple[int, int]]) -> None:
        super().__init__()
        self.pairs = pairs

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        return dataclasses.replace(plan, items=[
            dataclasses.replace(item, storage_offsets=torch.Size([theirs, 0]), dest_offsets=torch.Size([ours, 0]),
                                lengths=torch.Size([2, 3]))
            for item in plan.items for theirs, ours in self.pairs[item.storage_index.fqn]])


def test_two_names_of_a_tensor_that_is_read_in_several_parts(session):
    rows, tensor = torch.arange(18.0).reshape(6, 3), torch.zeros(6, 3)
    other = rows.clone()
    other[3] = -1
    reader = swt.PeerReader(session, name="pairs", timeout=60)
    with swt.publish_state_dict(session, {"a": rows, "b": rows, "c": other}, name="pairs"):
        load(session, {"a": tensor, "b": tensor}, Pairs(a=[(0, 0), (2, 3)], b=[(2, 3), (0, 0)]), reader)
        assert tensor[:, 0].tolist() == [0, 3, 0, 6, 9, 0] and reader.report.needed_bytes == 2 * 4 * 3 * 4
        load(session, {"a": tensor, "b": tensor}, Pairs(a=[(0, 0), (2, 3)], b=[(2, 3)]), reader)  # a part of it
        with pytest.raises(dcp.CheckpointException, match="a and c are one tensor here, but two in the sources, which differ"):
            load(session, {"a": tensor, "c": tensor}, Pairs(a=[(0, 0), (2, 3)], c=[(0, 0), (2, 3)]), reader)
        tensor.zero_()
        with pytest.raises(dcp.CheckpointException, match="memory of wanted b:? overlaps memory of wanted a"):
            load(session, {"a": tensor, "b": tensor}, Pairs(a=[(0, 0), (2, 2)], b=[(0, 0), (4, 4)]), reader)
        assert not tensor.any()


def test_a_reader_serves_several_loads_and_steps(session, published):
    reader, wanted = swt.PeerReader(session, timeout=60), {"model": {"w": torch.zeros(3, 4)}}
    for _ in range(2):
        load(session, wanted, reader=reader)
    assert torch.equal(wanted["model"]["w"], state()["model"]["w"])
    later = state()
    later["model"]["w"] += 1
    assert swt.publish_state_dict(session, later, step=5, replace=published) is published
    load(session, wanted, reader=reader)
    assert torch.equal(wanted["model"]["w"], later["model"]["w"])


def test_a_reader_that_does_not_wait(session, published):
    wanted = {"model": {"w": torch.zeros(3, 4)}}
    with pytest.raises(dcp.CheckpointException, match="nobody publishes step 9") as raised:
        load(session, wanted, reader=swt.PeerReader(session, step=9, timeout=60, wait=False))
    assert type(raised.value.failures[0][0]) is sw.StepMismatch
    load(session, wanted, reader=swt.PeerReader(session, step=4, timeout=60, wait=False))
    assert torch.equal(wanted["model"]["w"], state()["model"]["w"])


class Late(swt.PeerReader):
    """The sources go on to step 5 once this rank has looked, and before another rank looks."""

    def __init__(self, session: sw.Session, published: sw.Publication, others_see: int, later: Any = None) -> None:
        super().__init__(session, timeout=60)
        self.published, self.others_see, self.later = published, others_see, later or state()
        if later is None:
            self.later["model"]["w"] += 1

    def prepare_global_plan(self, plans: Any) -> Any:
        swt.publish_state_dict(self._session, self.later, step=5, replace=self.published)
        return super().prepare_global_plan([*plans, dataclasses.replace(plans[0], storage_data=self.others_see)])[:1]


def test_ranks_that_saw_other_steps_load_one(session, published):
    wanted = {"model": {"w": torch.zeros(3, 4)}}
    load(session, wanted, reader=Late(session, published, 5))
    assert torch.equal(wanted["model"]["w"], state()["model"]["w"] + 1)


def test_a_tensor_that_the_sources_no_longer_have(session, published):
    wanted = {"model": {"w": torch.zeros(3, 4)}}
    with pytest.raises(dcp.CheckpointException, match="model.w: the sources no longer have it"):
        load(session, wanted, reader=Late(session, published, 5, {"text": "a"}))
    assert not wanted["model"]["w"].any()


def test_ranks_do_not_go_on_to_another_step_one_by_one(session, published):
    wanted = {"model": {"w": torch.zeros(3, 4)}}
    with pytest.raises(dcp.CheckpointException, match="published step 4 of 'dcp' when this restore began"):
        load(session, wanted, reader=Late(session, published, 4))
    assert not wanted["model"]["w"].any()
    load(session, wanted)
    assert torch.equal(wanted["model"]["w"], state()["model"]["w"] + 1)


def test_the_coordinator_passes_plans_on_as_they_are(session, published):
    reader = swt.PeerReader(session, timeout=60)
    planner = DefaultLoadPlanner()
    planner.set_up_planner(zeros(), reader.read_metadata())
    plan = planner.create_local_plan()
    sent = pickle.dumps(reader.prepare_local_plan(plan))
    passed, looked_at = pickle.loads(sent), pickle.loads(sent)
    assert pickle.dumps(passed) == sent and "data" not in vars(passed.items)
    del looked_at.items[0]
    assert list(passed.items) == plan.items and list(pickle.loads(pickle.dumps(looked_at)).items) == plan.items[1:]


class Counter:
    def __init__(self, count: int) -> None:
        self.count, self.tensor = count, torch.full((2,), float(count))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.tensor = state["count"], state["tensor"]


def test_stateful_objects(session):
    counter = Counter(1)
    with swt.publish_state_dict(session, {"counter": Counter(7)}, name="stateful"):
        load(session, {"counter": counter}, name="stateful")
    assert counter.count == 7 and torch.equal(counter.tensor, torch.full((2,), 7.0))


def test_a_file_in_memory(session):
    file = io.BytesIO(b"what torch.save wrote")
    file.seek(4)
    wanted = {"losses": io.BytesIO()}
    with swt.publish_state_dict(session, {"losses": file}, name="file"):
        load(session, wanted, name="file")
    assert (wanted["losses"].getvalue(), wanted["losses"].tell()) == (file.getvalue(), 4)


def test_what_is_missing_may_be_left(session, published):
    wanted = {"model": {"w": torch.zeros(3, 4), "more": torch.full((2,), 3.0)}}
    with pytest.raises(dcp.CheckpointException, match="model.more"):
        load(session, wanted)
    assert not wanted["model"]["w"].any()
    load(session, wanted, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert torch.equal(wanted["model"]["w"], state()["model"]["w"]) and (wanted["model"]["more"] == 3).all()


@pytest.mark.parametrize("wanted, match", [(torch.zeros(4, 3), "Size mismatch"), (torch.zeros(3, 4, dtype=torch.float64),
                                                                                "source has f32, target wants f64")])
def test_other_tensors_are_refused(session, published, wanted, match):
    with pytest.raises(dcp.CheckpointException, match=match):
        load(session, {"model": {"w": wanted}})
    assert not wanted.any()


class Looking(DefaultLoadPlanner):
    """Looks at the metadata before the reader is asked for anything else."""

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        assert metadata.state_dict_metadata
        super().set_up_planner(state_dict, metadata, is_coordinator)


@pytest.mark.parametrize("planner", [DefaultLoadPlanner, Looking])
def test_a_step_that_nobody_has_costs_one_timeout(session, published, planner, monkeypatch):
    waits: list[Any] = []
    look = sw.Session.await_step
    monkeypatch.setattr(sw.Session, "await_step", lambda *arguments: waits.append(arguments) or look(*arguments))
    with pytest.raises(dcp.CheckpointException, match="step 9|other step"):
        load(session, {"text": ""}, planner(), swt.PeerReader(session, step=9, timeout=1))
    assert len(waits) == 1


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.complex(torch.ones(2), torch.ones(2)).conj(),
                                    torch.ones(1).expand(4)], ids=["sparse", "conjugate", "expanded"])
def test_what_is_no_array_is_refused(session, tensor):
    with pytest.raises(sw.Error, match="odd") as raised:
        swt.publish_state_dict(session, {"odd": tensor}, name="odd")
    assert raised.value.code in ("unsupported", "invalid_argument")


def sharded_tensors(rank: int, world: int) -> bool:
    """What FSDP1 and torchrec put into state dicts."""
    whole = torch.arange(4.0 * 2 * world).reshape(2 * world, 4)
    rows = whole[2 * rank:2 * rank + 2].clone()
    own = Shard.from_tensor_and_offsets(rows, [2 * rank, 0], rank)
    tensor: ShardedTensor = init_from_local_shards([own], 2 * world, 4)
    wanted = {"t": distribute_tensor(torch.zeros(2 * world, 4), DeviceMesh("cpu", list(range(world))), [SplitDim(1)])}
    with swt.join() as session:
        publication = swt.publish_state_dict(session, {"t": tensor})
        dcp.load(wanted, storage_reader=swt.PeerReader(session))
        session.gather("loaded", b"", 60)
        publication.retire()
    return torch.equal(wanted["t"].full_tensor(), whole)


def test_sharded_tensors(pool):
    assert pool(4, sharded_tensors) == [True] * 4


def described(tensor: torch.Tensor, shape: Any, *parts: Any) -> torch.Tensor:
    """With the attributes by which dcp of torch 2.14 knows parts of a global tensor: (global offset, local offset, size) each."""
    for name, value in zip(("global_offsets", "local_offsets", "local_sizes"), zip(*parts)):
        setattr(tensor, name, value)
    tensor.global_shape = shape
    return tensor


def test_tensors_that_say_which_parts_they_hold(session):
    whole = torch.arange(35.0).reshape(5, 7)
    padded = torch.full((6, 9), -1.0)[:, ::2]  # 6 x 5, of which 4 x 4 are used
    padded[0:2, 1:5], padded[3:5, 1:5] = whole[0:2, 3:7], whole[3:5, 3:7]
    left = described(whole[:, 0:3].contiguous(), (5, 7), ((0, 0), (0, 0), (5, 3)))
    held = {"left": left, "t": described(padded, (5, 7), ((0, 3), (0, 1), (2, 4)), ((3, 3), (3, 1), (2, 4)))}
    with swt.publish_state_dict(session, held, step=1):
        part = torch.zeros(2, 3)
        assert session.inventory("dcp", 1, 20).tensors[sw.TensorKey("t", "")].shape == (5, 7)
        catalog = sw.Catalog(0, 1)
        catalog.add("t", "", "f32", (5, 7), sw.Layout.boxes({0: [sw.PlacedBox(sw.Box((3, 4), (2, 3)), 0, (3, 1))]}), part)
        session.restore(catalog, name="dcp", timeout=20).wait()
        assert torch.equal(part, whole[3:5, 4:7])
    with pytest.raises(sw.LayoutMismatch, match=r"t: part \(3, 4\) at \(3, 3\)"):
        swt.publish_state_dict(session, {"t": described(padded, (5, 7), ((3, 3), (0, 0), (3, 4)))})
    with pytest.raises(sw.Unsupported, match="t: a tensor of 2 dims"):
        swt.publish_state_dict(session, {"t": described(padded, (5, 7, 1), ((3, 3, 0), (0, 0, 0), (1, 1, 1)))})


def by_some_ranks(rank: int, world: int) -> Any:
    """The first ranks publish, the others only load."""
    with swt.join() as session:
        half = list(range(world // 2))
        mesh = DeviceMesh("cpu", half)
        whole = torch.arange(7.0 * 3).reshape(7, 3)
        publication = None
        if rank in half:
            publication = swt.publish_state_dict(session, {"t": distribute_tensor(whole, mesh, [SplitDim(0)])}, ranks=half, step=2)
        wanted = {"t": distribute_tensor(torch.zeros(7, 3), DeviceMesh("cpu", list(range(world))), [SplitDim(1)])}
        began = time.monotonic()
        dcp.load(wanted, storage_reader=swt.PeerReader(session, step=2, timeout=60))
        took = time.monotonic() - began
        session.gather("loaded", b"", 60)
        if publication is not None:
            publication.retire()
    return torch.equal(wanted["t"].full_tensor(), whole) and took < 50


def test_ranks_that_publish_nothing_are_not_waited_for(pool):
    assert pool(4, by_some_ranks) == [True] * 4
