# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torchft through ShardwireTransport: torchft's own cases, errors, and groups of replicas under a real Manager."""

from __future__ import annotations

import collections
import concurrent.futures
import datetime
import json
import logging
import multiprocessing
import os
import pathlib
import random
import re
import threading
import time
import unittest
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as SplitDim
from torchft.checkpointing.transport_test import run_multi_recovery_test
from torchft.coordination import LighthouseServer

import shardwire as sw
from shardwire.torchft import ShardwireTransport

SECOND = datetime.timedelta(seconds=1)


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    monkeypatch.setenv("SHARDWIRE_INTERFACE", "lo")


@pytest.fixture
def made():
    """Makes transports, and ends them after the test."""
    transports: list[ShardwireTransport[Any]] = []

    def make(*arguments: Any, **options: Any) -> ShardwireTransport[Any]:
        transports.append(ShardwireTransport(*arguments, interface="lo", **options))
        return transports[-1]

    yield make
    for transport in transports:
        transport.shutdown()


def received(sender: Any, receiver: Any, state: Any, step: int = 3, timeout: datetime.timedelta = 20 * SECOND) -> Any:
    sender.send_checkpoint([1], step, state, timeout)
    return receiver.recv_checkpoint(0, sender.metadata(), step, timeout)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, DTensor):
        return isinstance(b, DTensor) and a._spec == b._spec and same(a._local_tensor, b._local_tensor)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def state() -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.5, 0.25))
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()
    return {"user": {"default": {"model": model.state_dict(), "optim": optimizer.state_dict()}},
            "torchft": {"step": 3, "batches_committed": 6}, 7: [1, (2, None), {"x": 1 << 70}], "half": torch.rand(9).bfloat16(),
            "strided": torch.rand(6, 8)[::2, 1:5], "turned": torch.rand(3, 4).t(), "none": torch.empty(0, 3), "empty": {},
            "scalar": torch.tensor(3.5), "bools": torch.tensor([True, False]), "array": np.arange(6.0).reshape(2, 3),
            "ordered": collections.OrderedDict(b=1, a=torch.arange(2)), "rng": torch.get_rng_state(), "bytes": b"\0\1",
            "text": "a.b"}


def test_cases_of_torchft():
    run_multi_recovery_test(unittest.TestCase(), lambda rank, world: ShardwireTransport(10 * SECOND, interface="lo"),
                            torch.device("cpu"))


def test_everything_comes_back(made):
    sent = state()
    random.seed(7)
    generator = random.getstate()
    got = received(made(), made(verify="digest"), sent)
    assert same(sent, got) and random.getstate() == generator
    assert got["user"]["default"]["model"]["0.weight"].data_ptr() != sent["user"]["default"]["model"]["0.weight"].data_ptr()


def test_what_cannot_be_sent_is_named(made):
    with pytest.raises(sw.Unsupported, match=re.escape("state['user']['lock']")):
        made().send_checkpoint([1], 1, {"user": {"lock": threading.Lock()}}, SECOND)


def test_tensors_are_overwritten_in_place(made):
    sent = state()
    weights = {"0.weight": torch.zeros(4, 3), "0.bias": torch.zeros(4, 2)[:, 1], "more": torch.ones(2)}
    mine = {"user": {"default": {"model": weights}}}
    kept = dict(weights)
    got = received(made(), made(state_dict=lambda: mine), sent)
    model = got["user"]["default"]["model"]
    assert all(model[name] is kept[name] for name in ("0.weight", "0.bias")) and "more" not in model
    assert same(model, sent["user"]["default"]["model"]) and same(kept["more"], torch.ones(2))


def test_a_tensor_with_two_names_is_overwritten_once(made):
    tied, values = torch.zeros(4), torch.arange(4.0)
    got = received(made(), made(state_dict=lambda: {"a": tied, "b": tied}), {"a": values, "b": values})
    assert got["a"] is tied and got["b"] is tied and torch.equal(tied, values)


@pytest.mark.parametrize("wrong", [torch.zeros(3, 5), torch.zeros(4, 3, dtype=torch.float64)], ids=["shape", "type"])
def test_other_tensors_are_refused_before_a_byte_is_written(made, wrong):
    other = torch.zeros(2)
    with pytest.raises(sw.LayoutMismatch, match=re.escape("['model']['w']")):
        received(made(), made(state_dict=lambda: {"model": {"other": other, "w": wrong}}),
                 {"model": {"other": torch.ones(2), "w": torch.ones(4, 3)}})
    assert not wrong.any() and not other.any()


def test_a_later_step_is_told_at_once(made):
    sender, receiver = made(), made()
    assert received(sender, receiver, {"a": 1}, step=4) == {"a": 1}
    sender.send_checkpoint([1], 5, {"a": 2}, SECOND)
    with pytest.raises(sw.StepMismatch, match="step 4"):
        receiver.recv_checkpoint(0, sender.metadata(), 4, 20 * SECOND)
    assert receiver.recv_checkpoint(0, sender.metadata(), 5, 20 * SECOND) == {"a": 2}


def test_a_receiver_waits_for_its_step_until_the_timeout(made):
    sender, receiver = made(), made()
    sender.send_checkpoint([1], 5, {"a": 2}, SECOND)
    began = time.monotonic()
    with pytest.raises(sw.TimedOut, match="timed out: step 6"):
        receiver.recv_checkpoint(0, sender.metadata(), 6, SECOND / 2)
    assert 0.4 < time.monotonic() - began < 20
    later = threading.Timer(0.3, lambda: sender.send_checkpoint([1], 6, {"a": torch.ones(3)}, SECOND))
    later.start()
    assert same(receiver.recv_checkpoint(0, sender.metadata(), 6, 20 * SECOND), {"a": torch.ones(3)})


def test_receivers_come_at_once_and_again(made):
    sender, receivers, sent = made(), [made() for _ in range(3)], {"a": torch.arange(1e5)}
    sender.send_checkpoint([1, 2, 3], 5, sent, SECOND)
    with concurrent.futures.ThreadPoolExecutor(len(receivers)) as threads:
        for _ in range(2):
            came = threads.map(lambda receiver: receiver.recv_checkpoint(0, sender.metadata(), 5, 20 * SECOND), receivers)
            assert all(same(sent, got) for got in came)


def test_a_sender_that_was_launched_alone_is_reached_from_other_hosts(monkeypatch):
    monkeypatch.delenv("SHARDWIRE_INTERFACE")
    hosts = []
    for environment in ({}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        transport = ShardwireTransport[Any]()
        [text] = json.loads(transport.metadata())["at"].values()
        hosts.append([line.split()[0] for line in text.splitlines()])
        transport.shutdown()
    assert hosts[0] == hosts[1]


def test_nothing_is_read_after_disallow(made):
    sender, receiver = made(), made()
    sender.disallow_checkpoint()
    sender.send_checkpoint([1, 2], 5, {"a": torch.ones(3)}, SECOND)
    began = time.monotonic()
    sender.disallow_checkpoint()  # the receivers never came
    sender.disallow_checkpoint()
    assert time.monotonic() - began < 20  # a sender waits 60 s for receivers
    with pytest.raises(sw.TimedOut):
        receiver.recv_checkpoint(0, sender.metadata(), 5, SECOND / 2)


def test_a_slow_receiver_gets_the_error_and_the_sender_goes_on(made, caplog):
    sender = made(0.3)
    sender.send_checkpoint([1], 5, {"a": torch.ones(1 << 22)}, SECOND)
    where = json.loads(sender.metadata())
    address, port, _, key = next(iter(where["at"].values())).split()
    with sw.Session.join(guest=True, rank=0, world_size=1, address=address, port=int(port), run_id=where["run"],
                         job_key=bytes.fromhex(key)) as session:
        wanted, mine = sw.Catalog(0, 1), np.zeros(1 << 22, np.float32)
        wanted.add("['a']", "", "f32", (1 << 22,), sw.Layout.replicated(), mine)
        restore = session.restore(wanted, name="torchft", step=5, timeout=10, ingress_bytes_per_second=1 << 20)
        while restore.progress.stage != "move":
            time.sleep(0.01)
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "shardwire.torchft"):
            sender.disallow_checkpoint()
        assert 0.2 < time.monotonic() - began < 10 and "did not finish in time" in caplog.text  # it would read for 16 s
        with pytest.raises(sw.Error) as raised:
            restore.wait()
        assert raised.value.code in ("withdrawn", "peer_lost", "timed_out")


def test_a_sender_that_is_gone_or_another(made):
    sender, receiver = made(), made()
    sender.send_checkpoint([1], 5, {"a": 1}, SECOND)
    sender.shutdown()
    with pytest.raises(sw.TimedOut, match="timed out"):
        receiver.recv_checkpoint(0, sender.metadata(), 5, SECOND / 2)
    for other in ("<n/a>", "http://host:1234/checkpoint/", "[]", '{"run": 1}'):
        with pytest.raises(sw.InvalidArgument, match="replica rank 4"):
            receiver.recv_checkpoint(4, other, 5, SECOND)


def _send_and_die(pipe: Any) -> None:
    transport = ShardwireTransport(interface="lo")
    pipe.send(transport.metadata())
    pipe.recv()
    os._exit(1)


def test_a_sender_that_dies(made):
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_send_and_die, args=(there,))
    process.start()
    metadata = here.recv()
    threading.Timer(0.3, lambda: here.send("die")).start()
    began = time.monotonic()
    with pytest.raises((sw.PeerLost, sw.TimedOut)):
        made().recv_checkpoint(0, metadata, 5, 5 * SECOND)
    assert time.monotonic() - began < 20
    process.join()


def dtensors(rank: int, world: int) -> list[Any]:
    """Local parts on the same mesh: in new memory, in place, and into another split, whose parts may have the same shape."""
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("a", "b"))
    whole, square = torch.arange(7.0 * 5).reshape(7, 5), torch.arange(64.0).reshape(8, 8)
    sent = {"w": distribute_tensor(whole, mesh, [SplitDim(0), SplitDim(1)]),
            "v": distribute_tensor(whole, mesh["b"], [SplitDim(0)]),
            "r": distribute_tensor(whole, mesh, [Replicate(), SplitDim(0)]),
            "s": distribute_tensor(square, mesh, [SplitDim(0), SplitDim(1)])}
    zeros = {"w": distribute_tensor(torch.zeros(7, 5), mesh, [SplitDim(0), SplitDim(1)])}
    wrong = [{"w": distribute_tensor(torch.zeros(7, 5), mesh, [SplitDim(0), SplitDim(0)])},
             {"s": distribute_tensor(torch.zeros(8, 8), mesh, [SplitDim(1), SplitDim(0)])}, {"s": torch.zeros(4, 4)}]
    sender = ShardwireTransport(interface="lo")
    out: list[Any] = []
    for mine in ({}, zeros, *wrong):
        receiver = ShardwireTransport(interface="lo", state_dict=lambda: mine)
        try:
            got = received(sender, receiver, sent)
            out.append(same(sent, got) and (not mine or got["w"] is mine.get("w")))
        except sw.LayoutMismatch as error:
            [[name, tensor]] = mine.items()
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            out.append("refused" if f"['{name}']" in str(error) and not local.any() else str(error))
        receiver.shutdown()
    got = received(sender, sender, sent)  # groups of the rebuilt mesh are looked up by name
    out.append(torch.equal(got["w"].full_tensor(), whole) and torch.equal(got["v"].full_tensor(), whole))
    sender.shutdown()
    return out


def test_dtensors(pool):
    assert pool(4, dtensors) == [[True, True, "refused", "refused", "refused", True]] * 4


# Groups of replicas, each of two ranks under FSDP2, with a real lighthouse and real managers.

STEPS, DIES_AT, RANKS = 6, 3, 2


def example() -> dict[str, Any]:
    """What docs/torchft.md defines."""
    text = (pathlib.Path(__file__).parents[3] / "docs" / "torchft.md").read_text()
    found: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", text, re.S).group(1), found)
    return found


def trainer(seed: int, rank: int, dies_at: int = -1) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def loss_of_step(step: int) -> torch.Tensor:
        if step == dies_at:
            os._exit(7)
        batch = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))
        return model(batch).square().mean()

    return model, optimizer, scheduler, loss_of_step


def kept(model: Any, optimizer: Any, scheduler: Any) -> Any:
    tensors = dict(model.state_dict())
    for at, states in optimizer.state_dict()["state"].items():
        tensors.update({f"{at}.{name}": value for name, value in states.items()})
    local = {name: tensor.to_local() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}
    return ({name: tensor.numpy().tobytes() for name, tensor in local.items()}, scheduler.state_dict(),
            optimizer.state_dict()["param_groups"])


def replica(group: int, rank: int, store_port: int, lighthouse: str, seed: int, dies_at: int, pipe: Any) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo", SHARDWIRE_INTERFACE="lo", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", store_port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=RANKS)
    made = trainer(seed, rank, dies_at)
    manager, losses = example()["train"](
        *made, STEPS, rank=rank, world_size=RANKS, store_addr="127.0.0.1", store_port=store_port, lighthouse_addr=lighthouse,
        replica_id=f"group_{group}", hostname="127.0.0.1", init_sync=False)
    pipe.send((losses, kept(*made[:3])))
    pipe.recv()  # the others may still need this replica
    manager.shutdown(wait=False)
    os._exit(0)


def alone(rank: int, world: int) -> Any:
    """The same training without torchft: replicas have the same batches, so their average is what each has."""
    model, optimizer, scheduler, loss_of_step = trainer(1, rank)
    losses = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of_step(step)
        loss.backward()
        losses[step] = loss.item()
        optimizer.step()
        scheduler.step()
    return losses, kept(model, optimizer, scheduler)


def run_groups() -> dict[tuple[int, int], Any]:
    """What each rank of each group has at the end. The second group dies and is started again, with other parameters."""
    context = multiprocessing.get_context("spawn")
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=200)
    address = "http://127.0.0.1:" + lighthouse.address().rsplit(":", 1)[1]
    stores, processes, pipes = [], {}, {}

    def start(group: int, seed: int, dies_at: int = -1) -> None:
        stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        for rank in range(RANKS):
            pipes[group, rank], there = context.Pipe()
            processes[group, rank] = context.Process(
                target=replica, args=(group, rank, stores[-1].port, address, seed, dies_at, there), daemon=True)
            processes[group, rank].start()

    try:
        start(0, seed=1)
        start(1, seed=1, dies_at=DIES_AT)
        for rank in range(RANKS):
            processes[1, rank].join(60)
            assert processes[1, rank].exitcode is not None
        start(1, seed=2)
        results = {}
        for key, pipe in pipes.items():
            assert pipe.poll(90), f"replica {key} does not end"
            results[key] = pipe.recv()
        for pipe in pipes.values():
            pipe.send("end")
        for process in processes.values():
            process.join(5)
        return results
    finally:
        for process in processes.values():
            process.kill()
        lighthouse.shutdown()


def test_a_group_of_replicas_recovers(pool):
    after, expected = run_groups(), pool(RANKS, alone)
    for rank in range(RANKS):
        losses, state = expected[rank]
        assert after[0, rank] == (losses, state)
        assert after[1, rank][1] == state
        # It trains along from the step after the one in which it received the state.
        assert after[1, rank][0] == {step: losses[step] for step in range(DIES_AT + 1, STEPS)}
