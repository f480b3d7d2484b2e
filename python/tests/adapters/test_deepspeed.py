# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed engines restored under another ZeRO stage or number of ranks."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("deepspeed")

from deepspeed_engines import deepspeed, differences, full_state, make_engine, session_of, start_job, train  # noqa: E402

import shardwire as sw  # noqa: E402
import shardwire.deepspeed as swd  # noqa: E402

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "deepspeed.md"


def move(rank: int, world: int, folder: str, source: tuple[str, int], target: tuple[str, int], dtype: str) -> Any:
    publication = None
    with session_of(folder, rank, world) as session:
        if rank < source[1]:
            start_job(folder, "source", rank, source[1])
            engine = make_engine(source[0], 1, dtype=dtype)
            train(engine, range(3))
            publication = swd.publish(session, engine, step=3, snapshot="copy", extra={"note": [1, "a"]})
            state = full_state(engine)
            losses = train(engine, range(3, 5))
            if rank == 0:
                torch.save((state, losses), f"{folder}/whole")
        session.gather("trained", b"", 60)
        expected, losses = torch.load(f"{folder}/whole", weights_only=False)
        wrong, after = [], losses
        if rank < target[1]:
            start_job(folder, "target", rank, target[1])
            fresh = make_engine(target[0], 2, dtype=dtype)
            if target[0] == "3p":
                train(fresh, range(9, 11))  # it has gathered the parameters that it keeps whole
            result = swd.restore_into(session, fresh, verify="digest")
            assert result.step == 3 and result.extra == {"note": [1, "a"]}
            wrong = differences(expected, full_state(fresh, link=False))
            after = train(fresh, range(3, 5))
        session.gather("restored", b"", 60)
        if publication is not None:
            publication.retire()
        return wrong, losses, after


@pytest.mark.parametrize("source, target, dtype", [
    (("1", 4), ("1", 2), "bf16"), (("2", 2), ("2", 3), "bf16"), (("3", 4), ("3", 3), "bf16"), (("1", 4), ("3", 2), "fp32"),
    (("3", 3), ("1", 4), "fp32"), (("3p", 2), ("3p", 3), "fp32"), (("1a", 3), ("2", 2), "bf16"), (("2", 2), ("1a", 4), "bf16"),
    (("1o", 2), ("3o", 3), "fp32"), (("0", 2), ("2", 3), "fp32"), (("3", 4), ("0", 2), "fp32"), (("0", 2), ("1", 4), "bf16")],
    ids=lambda one: one if isinstance(one, str) else f"zero{one[0]}x{one[1]}")
def test_an_engine_is_restored_bit_for_bit_under_another_layout(pool, tmp_path, source, target, dtype):
    for wrong, losses, after in pool(4, move, str(tmp_path), source, target, dtype):
        assert wrong == []
        if dtype == "fp32":  # in bf16 another split of the batches rounds other values
            assert after == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("kind, dtype", [("1", "bf16"), ("2", "fp32"), ("3p", "bf16"), ("1a", "bf16"), ("0", "bf16")])
def test_training_goes_on_with_equal_losses(pool, tmp_path, kind, dtype):
    for wrong, losses, after in pool(4, move, str(tmp_path), (kind, 3), (kind, 3), dtype):
        assert wrong == [] and after == losses


def refuse(rank: int, world: int, folder: str, wanted: dict[str, Any], step: int, error: str, words: str) -> None:
    """A restore that cannot succeed, into an engine without states."""
    with session_of(folder, rank, world) as session:
        start_job(folder, "job", rank, world)
        engine = make_engine("2", 1, dtype="bf16")
        train(engine, range(2))
        with swd.publish(session, engine, step=2):
            target = make_engine(wanted.pop("kind"), 2, **wanted)
            before = full_state(target)
            with pytest.raises(getattr(sw, error), match=words):
                swd.restore_into(session, target, step=step, timeout=5)
            assert differences(before, full_state(target)) == []
            assert not any(target.optimizer.optimizer.state.values())
            train(target, range(1))
            session.gather("refused", b"", 60)


@pytest.mark.parametrize("wanted, step, error, words", [
    ({"kind": "1", "dtype": "fp32"}, 2, "LayoutMismatch", r"scale:param: source has bf16 \(1,\), target wants f32"),
    ({"kind": "3", "dtype": "bf16", "width": 6}, 2, "LayoutMismatch", r"embed.weight:param: source has bf16 \(11, 5\), target"),
    ({"kind": "1", "dtype": "bf16", "groups": 1}, 2, "LayoutMismatch",
     "scale and embed.weight are in one group, but their sources differ in (initial_)?lr"),
    ({"kind": "3", "dtype": "bf16"}, 7, "TimedOut", "step 7")], ids=["dtype", "shape", "groups", "step"])
def test_a_restore_that_cannot_succeed_leaves_the_engine_as_it_was(pool, tmp_path, wanted, step, error, words):
    pool(2, refuse, str(tmp_path), wanted, step, error, words)


def missing(rank: int, world: int, folder: str) -> None:
    with session_of(folder, rank, world) as session:
        start_job(folder, "job", rank, world)
        fresh, trained, scheduled = (make_engine("1", seed, scheduler=seed == 3) for seed in (1, 2, 3))
        train(trained, range(1))
        with swd.publish(session, fresh, step=0):
            before = full_state(trained)
            with pytest.raises(sw.LayoutMismatch, match="embed.weight:step"):
                swd.restore_into(session, trained)
            with pytest.raises(sw.LayoutMismatch, match="lr_scheduler"):
                swd.restore_into(session, scheduled)
            assert differences(before, full_state(trained)) == []
            swd.restore_into(session, scheduled, absent={"*lr_scheduler": "skip"})
            # The scheduler has noted the first learning rate among the options.
            assert differences(full_state(fresh), full_state(scheduled)) == ["options", "scheduler"]
            scalar = {"scale:*": "skip"}  # one element: zero is refused
            swd.restore_into(session, trained, absent={**scalar, "*:exp_avg*": "zero", "*:step": "skip"})
            after = full_state(trained)
            assert not after["up.bias:exp_avg_sq"].any() and torch.equal(after["up.bias"], full_state(fresh)["up.bias"])
            session.gather("missing", b"", 60)


def test_state_that_the_source_lacks_is_an_error_unless_it_may_be_absent(pool, tmp_path):
    pool(2, missing, str(tmp_path))


def accumulate(rank: int, world: int, folder: str) -> None:
    with session_of(folder, rank, world) as session:
        start_job(folder, "job", rank, world)
        source, target = (make_engine("2", seed, gradient_accumulation_steps=seed) for seed in (2, 3))
        train(source, range(4))
        with swd.publish(session, source, step=2):
            swd.restore_into(session, target)
            assert (target.global_steps, target.micro_steps) == (2, 6) and target.global_samples == source.global_samples
            train(target, range(1))
            with pytest.raises(sw.InvalidArgument, match="accumulated gradients"):
                swd.restore_into(session, target)
            session.gather("restored", b"", 60)
        train(source, range(1))
        with pytest.raises(sw.InvalidArgument, match="accumulated gradients"):
            swd.publish(session, source, step=3)


def test_gradients_in_accumulation_are_refused(pool, tmp_path):
    pool(2, accumulate, str(tmp_path))


def scale(rank: int, world: int, folder: str, source: str, target: str) -> None:
    from deepspeed.accelerator import get_accelerator

    with session_of(folder, rank, world) as session, pytest.MonkeyPatch.context() as patch:
        # DeepSpeed refuses fp16 on processors without instructions for it, where torch is only slow.
        patch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
        start_job(folder, "job", rank, world)
        settings = {"initial_scale_power": 4, "loss_scale_window": 2, "hysteresis": 1}
        engine, other = (make_engine(kind, seed, dtype="fp16", fp16=settings) for seed, kind in enumerate((source, target), 1))
        train(engine, range(4))
        assert engine.optimizer.cur_scale > 16
        with swd.publish(session, engine, step=4):
            swd.restore_into(session, other)
            assert vars(other.optimizer.loss_scaler) == vars(engine.optimizer.loss_scaler)
            assert differences(full_state(engine), full_state(other)) == []
            static = make_engine(target, 3, dtype="fp16", fp16={"loss_scale": 8})
            with pytest.raises(sw.LayoutMismatch, match="loss scaler: source has DynamicLossScaler, target wants LossScaler"):
                swd.restore_into(session, static)
            session.gather("restored", b"", 60)
        assert train(other, range(4, 7)) == pytest.approx(train(engine, range(4, 7)), rel=1e-3)


@pytest.mark.parametrize("source, target", [("2", "3"), ("3", "1")])
def test_the_loss_scaler_of_fp16_is_restored(pool, tmp_path, source, target):
    pool(2, scale, str(tmp_path), source, target)


def refuse_pipeline(rank: int, world: int, folder: str) -> None:
    with session_of(folder, rank, world) as session:
        start_job(folder, "job", rank, world)
        deepspeed.init_distributed("gloo")
        pipeline = deepspeed.pipe.PipelineModule([nn.Linear(3, 3), nn.Linear(3, 3)], num_stages=2, loss_fn=nn.functional.mse_loss)
        engine, *_ = deepspeed.initialize(model=pipeline, optimizer=torch.optim.AdamW(pipeline.parameters()),
                                          config={"train_micro_batch_size_per_gpu": 1})
        with pytest.raises(sw.Unsupported, match="it is a pipeline"):
            swd.publish(session, engine, step=0)


def test_pipelines_are_refused(pool, tmp_path):
    pool(2, refuse_pipeline, str(tmp_path))


def run_example(rank: int, world: int, folder: str, code: str) -> Any:
    start_job(folder, "job", rank, world)
    engine, new_engine = make_engine("2", 1), make_engine("3", 2)
    train(engine, range(2))
    names = {"engine": engine, "new_engine": new_engine, "tokens": 77}
    exec(code, names)
    names["session"].close()
    return names["tokens"], names["restored"].step, differences(full_state(engine), full_state(new_engine))


def test_the_example_of_the_document_runs(pool, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert pool(2, run_example, str(tmp_path), code) == [(77, 2, [])] * 2
