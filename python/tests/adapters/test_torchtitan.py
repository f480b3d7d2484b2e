# SPDX-License-Identifier: Apache-2.0
"""TorchTitan's real trainer, which saves to peers and loads from them."""

from __future__ import annotations

import os
import pathlib
import re
import time
from dataclasses import dataclass
from typing import Any, Iterator

import pytest
import torch
import torch.distributed as dist

import shardwire as sw

FIRST, LAST = 2, 5


def example() -> dict[str, Any]:
    """What docs/torchtitan.md defines."""
    text = (pathlib.Path(__file__).parents[3] / "docs" / "torchtitan.md").read_text()
    found: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", text, re.S).group(1), found)
    return found


def join(rank: int, world: int, folder: str) -> sw.Session:
    """A session of all processes, whose members count downwards: trainers have other numbers."""
    os.environ.update(SHARDWIRE_INTERFACE="lo", LOCAL_RANK=str(rank))
    import shardwire.torch as swt

    store = dist.FileStore(f"{folder}/session", world)
    return swt.join(store=store, rank=world - 1 - rank, world_size=world)


def regroup(rank: int, ranks: int, folder: str) -> None:
    """Another job: the first ranks are its ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    if rank < ranks:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/job{ranks}", ranks), rank=rank, world_size=ranks)


class Texts:
    """Where the files of a job are, and its trainers."""

    def __init__(self, folder: str, session: sw.Session | None) -> None:
        self.folder, self.session = folder, session

    def trainer(self, steps: int, peers: bool = True, **options: Any) -> Any:
        import titan
        from torchtitan.components.checkpointer import CheckpointManager

        names = ("load_step", "load_from_files", "exclude_from_loading", "files_interval", "verify", "timeout", "load_only",
                 "last_save_model_only")
        settings = {name: options.pop(name) for name in names if name in options}
        change = options.pop("change", lambda config: None)
        files = options.pop("files", "out")
        config = titan.config(f"{self.folder}/texts", f"{self.folder}/{files}", CheckpointManager.Config(enable=False), steps=steps,
                              **options)
        change(config)
        settings.setdefault("last_save_model_only", False)
        return titan.on_cpu(example()["make_trainer"](config, self.session, **settings) if peers else config.build())


def trained(trainer: Any, loader: bool = True) -> tuple[dict[int, float], Any]:
    import titan

    losses = titan.losses_of(trainer)
    trainer.train()
    state = titan.state_of(trainer, loader)
    trainer.close()
    return losses, state


def loaded(trainer: Any, step: int = -1) -> Any:
    import titan

    assert trainer.checkpointer.load(step)
    return titan.state_of(trainer)


def by_counted_samples(config: Any) -> None:
    """A data loader that knows one number, the samples so far, and so may go on under another number of ranks."""
    from torchtitan.components.dataloader import BaseDataLoader

    class Counted(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int,
                     **options: Any) -> None:
            self.samples, self.length = 0, seq_len
            self.mine = range(dp_rank * local_batch_size, (dp_rank + 1) * local_batch_size)
            self.all = dp_world_size * local_batch_size

        def __iter__(self) -> Iterator[Any]:
            while True:
                seeds = [torch.Generator().manual_seed(self.samples + at) for at in self.mine]
                rows = torch.stack([torch.randint(256, (self.length + 1,), generator=seed) for seed in seeds])
                self.samples += self.all
                yield {"input": rows[:, :-1]}, rows[:, 1:]

        def state_dict(self) -> dict[str, Any]:
            return {"samples": self.samples}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.samples = state["samples"]

    config.dataloader = Counted.Config()


def same_ranks(rank: int, world: int, folder: str) -> Any:
    """A trainer begins with other parameters where another ended, with the data loader of the framework."""
    with join(rank, world, folder) as session:
        job = Texts(folder, session)
        whole, end = trained(job.trainer(LAST, peers=False))
        first, middle = trained(job.trainer(FIRST))
        second = job.trainer(LAST, seed=2, verify="digest", load_from_files=False)
        restored = loaded(second)
        rest, other_end = trained(second)
        example()["use_session"](None)
        session.gather("end", b"", 60)
    return whole, {**first, **rest}, restored == middle, other_end == end, sorted(os.listdir(f"{folder}/out/checkpoint"))


def test_the_same_ranks_go_on(pool, tmp_path):
    write(tmp_path)
    for whole, parts, restored, ended, files in pool(2, same_ranks, str(tmp_path), seconds=240):
        assert whole == parts and sorted(whole) == list(range(1, LAST + 1))
        assert restored and ended and files == [f"step-{FIRST}", f"step-{LAST}"]


def write(folder: pathlib.Path) -> None:
    import titan

    titan.write_texts(folder / "texts")


def other_ranks(rank: int, world: int, folder: str, before: int, after: int, parallelism: dict[str, int]) -> Any:
    """A job of `before` ranks, then one of `after` ranks in the same processes."""
    out: dict[str, Any] = {}
    with join(rank, world, folder) as session:
        job = Texts(folder, session)
        if before != world:
            regroup(rank, before, folder)
        if rank < before:
            out["whole"], out["end"] = trained(job.trainer(LAST, peers=False, change=by_counted_samples))
            out["first"], out["middle"] = trained(job.trainer(FIRST, change=by_counted_samples))
        session.gather("published", b"", 120)
        regroup(rank, after, folder)
        if rank < after:
            trainer = job.trainer(LAST, seed=2, load_from_files=False, change=by_counted_samples, **parallelism)
            out["restored"] = loaded(trainer)
            trainer.checkpointer.load = lambda step: True  # what the other ranks had is retired next
        session.gather("loaded", b"", 120)
        if rank >= after:
            example()["use_session"](None)
        if rank < after:
            out["rest"], _ = trained(trainer)
            # What the smaller job published since is found too.
            again = job.trainer(LAST, seed=3, load_from_files=False, change=by_counted_samples, **parallelism)
            assert again.checkpointer.load() and again.step == LAST
            again.close()
            example()["use_session"](None)
        session.gather("end", b"", 120)
        if rank < after:
            dist.destroy_process_group()
    return out


@pytest.mark.parametrize("before, after, parallelism", [
    (4, 2, {}), (2, 4, {}), (2, 4, {"tensor_parallel_degree": 2})], ids=["4 to 2", "2 to 4", "2 to 2 x 2"])
def test_other_ranks_go_on(pool, tmp_path, before, after, parallelism):
    write(tmp_path)
    pool.stop()  # torch keeps groups of equal meshes
    results = pool(4, other_ranks, str(tmp_path), before, after, parallelism, seconds=240)
    pool.stop()
    first = results[0]
    for got in results[:after]:
        assert got["restored"] == first["middle"]
        for step in range(FIRST + 1, LAST + 1):
            assert got["rest"][step] == pytest.approx(first["whole"][step], rel=1e-6)
    assert sorted(first["rest"]) == list(range(FIRST + 1, LAST + 1))


def refused(rank: int, world: int, folder: str) -> dict[str, Any]:
    """What a trainer of something else, and of a step that nobody has, gets; and whether its parameters stay as they are."""
    import titan
    from torch.distributed.checkpoint.api import CheckpointException

    def wider(config: Any) -> None:
        config.model_spec.model.layers[0].feed_forward = config.model_spec.model.layers[0].feed_forward.__class__(**{
            name: getattr(config.model_spec.model.layers[0].feed_forward, name)
            for name in config.model_spec.model.layers[0].feed_forward.__slots__})
        for linear, sizes in (("w1", (256, 512)), ("w2", (512, 256)), ("w3", (256, 512))):
            made = getattr(config.model_spec.model.layers[0].feed_forward, linear)
            made.in_features, made.out_features = sizes

    def deeper(config: Any) -> None:
        config.model_spec.model.layers.append(config.model_spec.model.layers[0])

    def of_another_type(config: Any) -> None:
        config.training.dtype = "bfloat16"

    out: dict[str, Any] = {}
    with join(rank, world, folder) as session:
        job = Texts(folder, session)
        trained(job.trainer(FIRST))
        for name, change in (("shape", wider), ("missing", deeper), ("type", of_another_type)):
            trainer = job.trainer(LAST, seed=2, load_from_files=False, change=change)
            before = [titan.full(value).clone() for part in trainer.model_parts for value in part.state_dict().values()]
            try:
                trainer.checkpointer.load()
                out[name] = "nothing"
            except CheckpointException as error:
                after = [titan.full(value) for part in trainer.model_parts for value in part.state_dict().values()]
                out[name] = str(error), all(map(torch.equal, before, after)), len(error.failures)
            trainer.close()
        for files, expected in ((False, sw.StepMismatch), (True, FileNotFoundError)):
            trainer = job.trainer(LAST, load_from_files=files)
            with pytest.raises(expected, match="7"):
                trainer.checkpointer.load(7)
            trainer.close()
        example()["use_session"](None)
        session.gather("end", b"", 60)
    return out


def test_other_models_and_steps_are_refused(pool, tmp_path):
    write(tmp_path)
    for out in pool(2, refused, str(tmp_path), seconds=240):
        for kind, text in (("shape", r"layers\.0\.feed_forward\.w1\.weight"), ("missing", r"layers\.2\."),
                           ("type", "source has f32, target wants bf16")):
            message, untouched, failed = out[kind]
            assert re.search(text, message) and untouched and failed == 2


def files_and_peers(rank: int, world: int, folder: str) -> None:
    """Where peers have nothing, or less than files."""
    import titan

    with join(rank, world, folder) as session:
        job = Texts(folder, session)
        with pytest.raises(ValueError, match="files_interval 3"):
            job.trainer(4, files_interval=3)
        # Peers have step 4 and files only step 2.
        trained(job.trainer(4, files_interval=2, last_save_model_only=True, load_only=False))
        assert sorted(os.listdir(f"{folder}/out/checkpoint")) == ["step-2", "step-4"]
        at_four = loaded(job.trainer(4, seed=2, load_from_files=False))
        at_two = loaded(job.trainer(4, seed=2, files="out"), 2)
        assert at_two["trainer"]["step"] == 2 and at_four["trainer"]["step"] == 4
        # Peers that are gone.
        example()["use_session"](None)
        session.gather("retired", b"", 60)
        fresh = job.trainer(4, seed=2, load_from_files=False, files="none")
        assert fresh.checkpointer.load() is False and fresh.step == 0
        from_files = loaded(job.trainer(4, seed=2), 2)
        assert from_files == at_two
        # Files that are newer than peers.
        publisher = job.trainer(4, seed=3, files="none")
        publisher.step = 1
        publisher.checkpointer._publish(1)
        assert loaded(job.trainer(4, seed=2, last_save_model_only=False), 2) == at_two
        session.gather("end", b"", 60)
        example()["use_session"](None)


def test_files_where_peers_have_nothing(pool, tmp_path):
    write(tmp_path)
    pool(2, files_and_peers, str(tmp_path), seconds=240)


def a_rank_is_lost_while_it_saves(rank: int, world: int, folder: str) -> None:
    """The step before is still complete, and found."""
    import shardwire.torchtitan as titan_adapter

    with join(rank, world, folder) as session:
        job = Texts(folder, session)
        trained(job.trainer(FIRST))
        trainer = job.trainer(LAST)
        expected = loaded(trainer)
        manager = trainer.checkpointer
        published, barrier = titan_adapter.publish_state_dict, dist.barrier

        def dies(session: sw.Session, states: dict[str, Any], **options: Any) -> None:
            for state in states.values():
                if hasattr(state, "state_dict"):
                    state.state_dict()  # with collectives
            raise RuntimeError("lost")

        def never_ends() -> None:
            raise RuntimeError("lost")

        # Rank 0 publishes the next step. The other never does.
        if rank == 0:
            dist.barrier = never_ends
        else:
            titan_adapter.publish_state_dict = dies
        with pytest.raises(RuntimeError, match="lost"):
            manager._publish(9)
        titan_adapter.publish_state_dict, dist.barrier = published, barrier
        session.gather("lost", b"", 60)
        steps = {name: session.inventory(name).step for name in ("torchtitan/0", "torchtitan/1")}
        assert set(steps.values()) == {FIRST, 9}, steps
        again = job.trainer(LAST, seed=2, load_from_files=False, timeout=20)
        assert loaded(again) == expected
        # The next save replaces what was left of the lost one.
        again.checkpointer._publish(11)
        assert loaded(job.trainer(LAST, seed=3, load_from_files=False, timeout=20))["trainer"] == expected["trainer"]
        left = [session.inventory(name) for name in steps]
        assert {inventory.step for inventory in left if inventory.publishers} == {11}
        session.gather("end", b"", 60)
        example()["use_session"](None)


def test_a_save_that_is_cut_off(pool, tmp_path):
    write(tmp_path)
    pool(2, a_rank_is_lost_while_it_saves, str(tmp_path), seconds=240)


def a_rank_is_replaced(rank: int, world: int, folder: str, parallelism: dict[str, Any], counted: bool) -> Any:
    """What its replicas have is loaded from them; else files are."""
    parallelism["change"] = by_counted_samples if counted else lambda config: None
    session = join(rank, world, folder)
    job = Texts(folder, session)
    trained(job.trainer(2, **parallelism))
    expected = loaded(job.trainer(4, seed=2, load_from_files=False, **parallelism))
    if rank == 0:
        session.close()
        session = join(rank, world, folder)
    job = Texts(folder, session)
    trainer = job.trainer(4, seed=3, **parallelism)
    began = time.monotonic()
    from_peers: list[int] = []
    load = trainer.checkpointer._load_from_peers
    trainer.checkpointer._load_from_peers = lambda *which: (load(*which), from_peers.append(which[0]))
    same = loaded(trainer) == expected and time.monotonic() - began < 50
    dist.barrier()
    example()["use_session"](None)
    session.close()
    return same, from_peers


REPLICATED = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1}


@pytest.mark.parametrize("parallelism, counted, from_peers", [({}, True, []), (REPLICATED, False, []), (REPLICATED, True, [2])],
                         ids=["sharded", "with its part of the data loader", "replicated"])
def test_a_replaced_rank(pool, tmp_path, parallelism, counted, from_peers):
    write(tmp_path)
    assert pool(2, a_rank_is_replaced, str(tmp_path), parallelism, counted, seconds=240) == [(True, from_peers)] * 2


def without_a_session(rank: int, world: int, folder: str) -> None:
    """Managers join one of their own."""
    os.environ.update(SHARDWIRE_INTERFACE="lo", LOCAL_RANK=str(rank))
    job = Texts(folder, None)
    trainer = job.trainer(FIRST)
    trained(trainer)
    with pytest.raises(sw.InvalidArgument):
        trainer.checkpointer._peers.session.inventory("torchtitan/0")  # closed with the trainer
    after = job.trainer(FIRST, seed=2)
    assert loaded(after)["trainer"]["step"] == FIRST  # from files
    after.close()


def test_without_a_session_files_remain(pool, tmp_path):
    write(tmp_path)
    pool(2, without_a_session, str(tmp_path), seconds=240)
