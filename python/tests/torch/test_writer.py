# SPDX-License-Identifier: Apache-2.0
"""State dicts through dcp.save and dcp.async_save into the memory of peers, and back through dcp.load."""

from __future__ import annotations

import io
import logging
import pickle
import time
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_reader import same, state, zeros
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwire as sw
import shardwire.torch as swt


@pytest.fixture(scope="module")
def session():
    with sw.Session.join(rank=0, world_size=1, port=0) as joined:
        yield joined


@pytest.fixture
def writer(session):
    with swt.PeerWriter(session, step=4) as made:
        yield made


def save(writer: swt.PeerWriter, held: dict[str, Any], **options: Any) -> Any:
    return dcp.save(held, storage_writer=writer, no_dist=True, **options)


def load(session: sw.Session, wanted: dict[str, Any], step: int | None = None) -> dict[str, Any]:
    dcp.load(wanted, storage_reader=swt.PeerReader(session, step=step, timeout=5), no_dist=True)
    return wanted


def test_everything_comes_back(session, writer, tmp_path):
    metadata = save(writer, state())
    assert same(load(session, zeros(), 4), state())
    files = dcp.save(state(), storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    assert metadata.state_dict_metadata == files.state_dict_metadata and metadata.planner_data == files.planner_data
    assert metadata.storage_meta.checkpoint_id == "4"


def test_what_a_reader_tells_of_nested_dicts(session, writer):
    held = {"a": {"b.c": [torch.ones(2), {"": 7}]}, "d": 3}
    metadata = save(writer, held)
    assert swt.PeerReader(session).read_metadata().planner_data == metadata.planner_data
    assert same(_load_state_dict_from_keys(storage_reader=swt.PeerReader(session)), held)


def test_objects_and_files(session, writer):
    file = io.BytesIO(b"what torch.save wrote")
    save(writer, {"file": file, "rng": torch.get_rng_state(), "nested": {"dtype": torch.bfloat16, "pair": (1, "two", None)}})
    wanted = load(session, {"file": None, "rng": torch.zeros_like(torch.get_rng_state()), "nested": {"dtype": None, "pair": None}})
    assert wanted["file"].getvalue() == file.getvalue() and torch.equal(wanted["rng"], torch.get_rng_state())
    assert wanted["nested"] == {"dtype": torch.bfloat16, "pair": (1, "two", None)}


def test_training_goes_on_after_a_save(session, writer):
    weights = torch.ones(1000)
    save(writer, {"w": weights})
    weights.fill_(2)
    assert (load(session, {"w": torch.zeros(1000)})["w"] == 1).all()


class Reusing(AsyncStager):
    """Copies into the same memory each time."""

    _synchronize_after_execute = False

    def __init__(self) -> None:
        self.staged: dict[str, Any] = {}

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        for key, value in state_dict.items():
            if isinstance(value, torch.Tensor):
                self.staged.setdefault(key, torch.empty_like(value)).copy_(value)
            else:
                self.staged[key] = value
        return dict(self.staged)


_ONCE = pytest.mark.skipif(torch.__version__.startswith("2.11."),
                           reason="torch 2.11: DefaultStager.stage() closes what copies, and raises KeyError the next time")


@pytest.mark.parametrize("stager", [None, pytest.param(DefaultStager(StagingOptions(False, False, False, False)), marks=_ONCE),
                                    Reusing()], ids=["own", "reused", "written"])
@pytest.mark.filterwarnings("ignore")
def test_training_goes_on_during_an_async_save(session, writer, stager):
    weights, step = torch.ones(1 << 20), writer.step
    for turn in range(3):
        writer.step = step + turn
        saved = dcp.async_save({"w": weights, "n": turn}, storage_writer=writer, async_stager=stager, no_dist=True)
        weights.fill_(2 + turn)
        assert saved.result(30).storage_meta.checkpoint_id == str(step + turn)
        wanted = load(session, {"w": torch.zeros(1 << 20), "n": None}, step + turn)
        assert (wanted["w"] == 1 + turn).all() and wanted["n"] == turn


def test_what_async_save_stages_is_not_copied_again(session, writer, monkeypatch):
    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(session, name)

        def publish(self, *given: Any, **options: Any) -> Any:
            taken.append(options["snapshot"])
            return session.publish(*given, **options)

    taken: list[str] = []
    monkeypatch.setattr(writer._latest, "session", Recording())
    weights = {"w": torch.ones(4)}
    dcp.async_save(weights, storage_writer=writer, no_dist=True).result(30)
    writer.close()
    writer.stage(weights)  # and then the save fails
    save(writer, weights)
    assert taken == ["none", "copy"]


def test_the_checkpoint_id_is_the_step(session):
    with swt.PeerWriter(session) as writer:
        for step in (7, 9):
            save(writer, {"n": step}, checkpoint_id=str(step))
            wanted = {"n": None}
            dcp.load(wanted, storage_reader=swt.PeerReader(session, timeout=5), checkpoint_id=str(step), no_dist=True)
            assert wanted == {"n": step}
        with pytest.raises(dcp.CheckpointException, match="step 7|went on|later"):
            load(session, {"n": None}, 7)


def test_wrong_use_is_refused(session, writer):
    with pytest.raises(sw.InvalidArgument, match="'run/5' is no number"):
        save(writer, {"n": 1}, checkpoint_id="run/5")
    with pytest.raises(dcp.CheckpointException, match="needs a step"):
        save(swt.PeerWriter(session), {"n": 1})
    save(writer, {"n": 1})
    with pytest.raises(dcp.CheckpointException, match="step 4 of 'dcp' is saved already"):
        save(writer, {"n": 2})
    with pytest.raises(dcp.CheckpointException, match="'dcp' is already published by this member"):
        save(swt.PeerWriter(session, step=5), {"n": 2})
    writer.step = 5
    with pytest.raises(dcp.CheckpointException, match="odd.*conj"):
        save(writer, {"odd": torch.complex(torch.ones(2), torch.ones(2)).conj()})
    assert load(session, {"n": None}) == {"n": 1}
    writer.close()
    writer.step = 4
    save(writer, {"n": 3})
    assert load(session, {"n": None}) == {"n": 3}
    with pytest.raises(sw.Unsupported, match="AsyncCheckpointerType.THREAD"):
        pickle.dumps(writer)


class Halving(DefaultSavePlanner):
    def transform_object(self, item: Any, thing: Any) -> Any:
        return thing.half()


def test_planners_that_change_tensors_are_refused(session, writer):
    with pytest.raises(dcp.CheckpointException, match="Halving chooses or changes what is written"):
        save(writer, {"w": torch.ones(2)}, planner=Halving())
    save(writer, {"w": torch.ones(2), "n": {"m": 1}}, planner=DefaultSavePlanner(flatten_state_dict=False))
    assert same(load(session, {"w": torch.zeros(2), "n": None}), {"w": torch.ones(2), "n": {"m": 1}})


def test_a_lost_writer_is_reported(session, caplog):
    def inline() -> None:
        save(swt.PeerWriter(session, step=1), {"n": 1})

    with caplog.at_level(logging.WARNING):
        inline()
        assert "step 1 of 'dcp': keep it as long as peers read" in caplog.text
        caplog.clear()
        with swt.PeerWriter(session, step=2) as closed:
            save(closed, {"n": 1})
        del closed
        assert "keep it" not in caplog.text


WIDTH, HIDDEN = 12, 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def trainer(seed: int, two_ways: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(Block(), Block())
    if two_ways:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tp"))
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["shard"])
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    for turn in range(2):
        torch.manual_seed(seed + turn)
        model(torch.randn(4, WIDTH)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def whole(state_dict: Any) -> Any:
    """The state dict with all tensors gathered."""
    if isinstance(state_dict, dict):
        return {key: whole(value) for key, value in state_dict.items()}
    if isinstance(state_dict, list):
        return [whole(value) for value in state_dict]
    return state_dict.full_tensor() if hasattr(state_dict, "full_tensor") else state_dict


def nested(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return dict(zip(("model", "optim"), get_state_dict(model, optimizer)))


def reshard(rank: int, world: int, two_ways: bool, sync: bool) -> list[bool]:
    held, target = trainer(1, two_ways), trainer(2, not two_ways)
    expected = whole(nested(*held))
    found = []
    with swt.join() as session, swt.PeerWriter(session, step=3) as writer:
        before = nested(*held)
        if sync:
            metadata = dcp.save(before, storage_writer=writer)
        else:
            saved = dcp.async_save(before, storage_writer=writer)
            with torch.no_grad():
                for parameter in held[0].parameters():
                    parameter.fill_(7)
            metadata = saved.result(60)
        found.append("optim.state.0.up.weight.exp_avg" in metadata.state_dict_metadata)
        wanted = nested(*target)
        found.append(not same(whole(wanted), expected))
        reader = swt.PeerReader(session, step=3)
        dcp.load(wanted, storage_reader=reader)
        set_state_dict(*target, model_state_dict=wanted["model"], optim_state_dict=wanted["optim"])
        found.append(same(whole(nested(*target)), expected))
        found.append(len(session.inventory("dcp", 3).publishers) == world)
        session.gather("loaded", b"", 60)
    return found


@pytest.mark.parametrize("two_ways, sync", [(False, True), (True, True), (False, False)],
                         ids=["save fsdp2", "save fsdp2 x tp 2", "async_save fsdp2"])
def test_another_layout(pool, two_ways, sync):
    assert pool(4, reshard, two_ways, sync) == [[True] * 4] * 4


def replicas(rank: int, world: int) -> Any:
    """All holders of a tensor publish it, also those that dcp would not have write it."""
    mesh = DeviceMesh("cpu", list(range(world)))
    held = {"plain": torch.arange(6.0), "mesh": distribute_tensor(torch.arange(8.0), mesh, [Replicate()]), "n": 1}
    with swt.join() as session, swt.PeerWriter(session, step=1) as writer:
        dcp.save(held, storage_writer=writer)
        session.gather("saved", b"", 60)
        if rank > 0:
            writer.close()  # the last one that is left has all
        session.gather("closed", b"", 60)
        wanted = {"plain": torch.zeros(6), "mesh": torch.zeros(8), "n": 0}
        dcp.load(wanted, storage_reader=swt.PeerReader(session, wait=False), no_dist=True)
        session.gather("loaded", b"", 60)
    return torch.equal(wanted["plain"], torch.arange(6.0)) and torch.equal(wanted["mesh"], torch.arange(8.0)) and wanted["n"] == 1


def test_all_holders_publish(pool):
    assert pool(4, replicas) == [True] * 4


SAVES = 12
SEEN = (4, 8)  # steps that stay until the reader has seen them


def replace(rank: int, world: int) -> Any:
    """Three ranks save step after step; the last reads all the time, alone, and sees whole steps only."""
    sources = list(range(world - 1))
    mesh = DeviceMesh("cpu", sources)  # on all ranks, which then count groups alike
    with swt.join() as session:
        if rank in sources:
            with swt.PeerWriter(session, ranks=sources) as writer:
                for step in range(1, SAVES + 1):
                    held = {"w": distribute_tensor(torch.full((999, 100), float(step)), mesh, [Shard(0)]), "n": step}
                    dcp.save(held, storage_writer=writer, process_group=mesh.get_group(), checkpoint_id=str(step))
                    time.sleep(0.02 * (rank + 1))
                    if step in SEEN:
                        session.gather(f"seen {step}", b"", 100)
                session.gather("saved", b"", 100)
            return True
        seen = []
        reader = swt.PeerReader(session)
        while not seen or seen[-1] < SAVES:
            wanted = {"w": torch.zeros(999, 100), "n": 0}
            dcp.load(wanted, storage_reader=reader, no_dist=True)
            assert (wanted["w"] == wanted["n"]).all(), (wanted["w"].unique(), wanted["n"])
            if wanted["n"] in SEEN and wanted["n"] not in seen:
                session.gather(f"seen {wanted['n']}", b"", 100)
            seen.append(wanted["n"])
        session.gather("saved", b"", 100)
        return sorted(seen) == seen, seen


def test_a_save_replaces_the_one_before_without_a_gap(pool):
    *_, (good, seen) = pool(4, replace)
    assert good, seen
