# SPDX-License-Identifier: Apache-2.0
"""Tensors and values between members."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import pathlib
import re
import textwrap
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import shardwire as sw

from conftest import on_all, until

SHAPE = (7, 6)
ROWS, COLUMNS = sw.Layout.chunk(0, 2), sw.Layout.chunk(1, 2)
WHOLE = np.arange(42, dtype=np.float32).reshape(SHAPE)


def rows_of(rank: int) -> np.ndarray:
    return np.array(np.split(WHOLE, [4])[rank])


def columns_of(rank: int) -> np.ndarray:
    return np.array(np.split(WHOLE, [3], axis=1)[rank])


def holder(rank: int, ranks: int = 2) -> sw.Catalog:
    held = sw.Catalog(rank, ranks)
    held.add("weight", "exp_avg", "f32", SHAPE, ROWS, rows_of(rank))
    held.add_value("weight", "step", 1000)
    return held


def wanting(rank: int, memory: Any) -> sw.Catalog:
    wanted = sw.Catalog(rank, 2)
    wanted.add("weight", "exp_avg", np.float32, SHAPE, COLUMNS, memory)
    wanted.add_value("weight", "step")
    return wanted


def test_rows_become_columns(job):
    members = job(2)
    publications = [session.publish(holder(rank), step=5) for rank, session in enumerate(members)]
    for rank, session in enumerate(members):
        memory = np.full((7, 3), -1, dtype=np.float32)
        restore = session.restore(wanting(rank, memory), step=5, verify="digest", timeout=20)
        report = restore.wait()
        assert np.array_equal(memory, columns_of(rank))
        assert restore.value("weight", "step") == 1000
        assert restore.values() == {("weight", "step"): 1000}
        assert report.needed_bytes == 84 == report.moved_bytes + report.local_bytes - report.overread_bytes
        assert sum(peer.bytes for peer in report.peers) == report.moved_bytes + report.local_bytes
        assert all(0 < peer.measured_seconds <= report.seconds.move for peer in report.peers)
        assert report.as_dict()["peers"][0]["measured_seconds"] == report.peers[0].measured_seconds
        assert report.as_dict()["methods"]["local"]["bytes"] == report.local_bytes
    for publication in publications:
        publication.retire()


def test_a_report_names_lost_sources(job):
    members = job(3)
    held = np.arange(1 << 22, dtype=np.float32)
    publications = []
    for rank in (1, 2):
        catalog = sw.Catalog(rank - 1, 2)
        catalog.add("weight", "exp_avg", "f32", held.shape, sw.Layout.replicated(), held.copy())
        publications.append(members[rank].publish(catalog))
    memory = np.zeros_like(held)
    wanted = sw.Catalog(0, 1)
    wanted.add("weight", "exp_avg", "f32", held.shape, sw.Layout.replicated(), memory)
    # Slow enough that a source leaves in the middle, also on a busy machine.
    restore = members[0].restore(wanted, timeout=60, ingress_bytes_per_second=4 << 20)
    # Without time for its readers: otherwise it leaves after they have read all.
    report = restore.wait(lambda now: members[1].close(0) if now.done_bytes > 0 else None, interval=0.01)
    assert np.array_equal(memory, held)
    (lost,) = report.lost
    assert lost.rank == 0 and lost.reason in ("peer_lost", "withdrawn") and lost.after_seconds > 0
    assert lost.resent_bytes == report.resent_bytes == report.as_dict()["lost"][0]["resent_bytes"]


def test_strided_destinations_leave_the_rest_alone(job):
    members = job(2)
    with members[0].publish(holder(0)), members[1].publish(holder(1)):
        memory = np.full((7, 10), -1, dtype=np.float32)
        members[0].restore(wanting(0, memory[:, 2:5]), timeout=20).wait()
        assert np.array_equal(memory[:, 2:5], columns_of(0))
        assert (memory[:, :2] == -1).all() and (memory[:, 5:] == -1).all()


def test_an_exchange_gives_all_members_their_columns(job):
    members = job(2)
    memory = [np.zeros((7, 3), dtype=np.float32) for _ in members]
    results = on_all([lambda r=r: members[r].exchange(holder(r), wanting(r, memory[r]), timeout=20) for r in range(2)])
    started = [members[r].start_exchange(holder(r), wanting(r, memory[r]), timeout=20) for r in range(2)]
    for rank in range(2):
        assert np.array_equal(memory[rank], columns_of(rank))
        assert results[rank].values == {("weight", "step"): 1000}
        assert started[rank].wait().report.needed_bytes == 84


def test_gather_and_inventory(job):
    members = job(2)
    assert on_all([lambda r=r: members[r].gather("names", b"m%d" % r, 20) for r in range(2)]) == [[b"m0", b"m1"]] * 2
    assert on_all([lambda r=r: [members[r].barrier(20) for _ in range(3)] for r in range(2)]) == [[None] * 3] * 2
    with pytest.raises(sw.TimedOut) as caught:
        members[1].barrier(0.01)
    assert caught.value.ranks == [0]
    publication = members[0].publish(holder(0), step=3, name="adam")
    assert until(lambda: members[1].inventory("adam").publishers != [])
    inventory = members[1].inventory("adam")
    assert (inventory.step, inventory.ranks, inventory.publishers, inventory.absent) == (3, 2, [(0, 0)], [1])
    assert inventory.awaited == [] and members[0].inventory("adam").awaited == [1]
    assert inventory.tensors == {("weight", "exp_avg"): ("f32", SHAPE)}
    assert inventory.values == [("weight", "step")]
    assert inventory.layout(sw.TensorKey("weight", "exp_avg"), 0) == ROWS
    rules = lambda case: [json.loads(case)[side]["rules"]["r1"] for side in ("source", "target")]
    assert json.loads(inventory.to_case())["source"]["lost"] == [1]
    assert rules(inventory.to_case()) == [{"chunk": 0, "over": 2}] * 2 == rules(holder(0).to_case())
    targets = on_all([lambda r=r: members[r].gather_layouts(wanting(r, columns_of(r)), 20) for r in range(2)])
    for target in targets:
        assert rules(inventory.to_case(target)) == [{"chunk": 0, "over": 2}, {"chunk": 1, "over": 2}]
        assert sw.plan(inventory.held, target, 1).gaps != []
    second = members[1].publish(holder(1), step=3, name="adam")
    assert members[1].await_step("adam", 3, 20).absent == []
    del publication, second


def test_an_update_replaces_the_step(job):
    members = job(1)
    memory = np.zeros(4, dtype=np.int64)
    held = sw.Catalog(0, 1)
    held.add("ids", "", "i64", (4,), sw.Layout.replicated(), np.arange(4))
    publication = members[0].publish(held, step=1)
    later = sw.Catalog(0, 1)
    later.add("ids", "", "i64", (4,), sw.Layout.replicated(), np.arange(4) * 10)
    publication.update(later, 2, snapshot="copy")
    wanted = sw.Catalog(0, 1)
    wanted.add("ids", "", "i64", (4,), sw.Layout.replicated(), memory)
    members[0].restore(wanted, step=2, timeout=20).wait()
    assert list(memory) == [0, 10, 20, 30]
    with pytest.raises(sw.StepMismatch):
        members[0].restore(wanted, step=1, timeout=20).wait()


def test_the_newest_complete_step_is_taken(job):
    members = job(4)
    publications = [members[r].publish(holder(r), step=3) for r in range(2)]
    publications.append(members[2].publish(holder(0), step=4))
    assert until(lambda: [len(members[3].inventory(step=step).publishers) for step in (3, 4)] == [2, 1])
    memory = np.zeros(SHAPE, dtype=np.float32)
    wanted = sw.Catalog(0, 1)
    wanted.add("weight", "exp_avg", "f32", SHAPE, sw.Layout.replicated(), memory)
    report = members[3].restore(wanted, step_rule="newest_complete", discovery_grace=0.05, timeout=20).wait()
    assert report.step == 3
    [newer] = report.incomplete_steps
    assert newer.step == 4 and [gap.fqn for gap in newer.gaps] == ["weight"]
    assert report.as_dict()["incomplete_steps"][0]["step"] == 4
    with pytest.raises(sw.InvalidArgument):
        members[3].restore(wanted, step_rule="oldest")
    del publications


def test_memory_that_is_not_what_was_published_is_not_restored(job):
    [session] = job(1)
    memory = np.arange(4)
    held = sw.Catalog(0, 1)
    held.add("ids", "", "i64", (4,), sw.Layout.replicated(), memory)
    publication = session.publish(held, digest=True)
    wanted = sw.Catalog(0, 1)
    wanted.add("ids", "", "i64", (4,), sw.Layout.replicated(), np.zeros(4, dtype=np.int64))
    assert session.restore(wanted, timeout=20).wait().corrupt == []
    memory[1] = 7
    restore = session.restore(wanted, timeout=20)
    with pytest.raises(sw.Corrupt) as raised:
        restore.wait()
    assert raised.value.ranks == [0]
    assert restore.report.corrupt[0] == sw.CorruptBox("ids", "", sw.Box((0,), (4,)), 0)
    del publication


def test_an_arena_is_memory_of_python(job):
    [session] = job(1)
    arena = session.allocate(1 << 16)
    assert len(arena) == 1 << 16
    memory = np.frombuffer(arena, dtype=np.float32)
    assert memory.flags.writeable and not memory.any()
    memory[:] = 1
    assert bytes(memoryview(arena)[:4]) == np.float32(1).tobytes()


VALUES = [None, True, 0, -(1 << 63), 1.5, -0.0, math.inf, "", "text", "\0\u20ac", b"", b"\0\xff", [], (), {}, [1, [2.0, ("x",)]],
          {"b": [None], "a": {"c": (1, 2)}}, sw.TensorValue("f32", (), b"\0\0\x80?"), sw.TensorValue("bf16", (2, 1), b"\1\2\3\4")]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_as_they_went(job, value):
    [session] = job(1)
    held, wanted = sw.Catalog(0, 1), sw.Catalog(0, 1)
    held.add_value("", "value", value)
    wanted.add_value("", "value")
    with session.publish(held):
        restore = session.restore(wanted, timeout=20)
        restore.wait()
        received = restore.value("", "value")
        assert received == value and type(received) is type(value)
        assert repr(received) == repr(value) or isinstance(value, dict)


@pytest.mark.parametrize("value", [1 << 63, object(), {1: 2}, {"set"}, sw.TensorValue("f32", (2,), b"1234")], ids=repr)
def test_what_is_no_value_is_refused(value):
    with pytest.raises(sw.InvalidArgument):
        sw.Catalog(0, 1).add_value("", "value", value)


def test_a_value_that_contains_itself_is_refused():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(sw.InvalidArgument, match="nested deeper"):
        sw.Catalog(0, 1).add_value("", "value", value)


def test_one_value_is_added_and_replaced_under_many_names(job):
    [session] = job(1)
    held, wanted = sw.Catalog(0, 1), sw.Catalog(0, 1)
    held.add_values(["a", "b"], "options", {"lr": 0.1})
    for name in "ab":
        wanted.add_value(name, "options")
    with session.publish(held):
        restore = session.restore(wanted, timeout=20)
        restore.wait()
        assert restore.values() == {("a", "options"): {"lr": 0.1}, ("b", "options"): {"lr": 0.1}}
    held.set_values(["a", "b"], "options", {"lr": 0.2})
    assert list(held.values().values()) == [{"lr": 0.2}] * 2
    with pytest.raises(sw.InvalidArgument, match="c:options"):
        held.set_values(["c"], "options", None)
    with pytest.raises(sw.InvalidArgument, match="b:options"):
        held.add_values(["c", "b"], "options", None)
    with pytest.raises(TypeError):
        held.add_values([1], "options", None)


def test_memory_stays_alive_until_the_publication_has_ended(job):
    members = job(1)
    held = sw.Catalog(0, 1)
    memory = np.arange(4.0)
    gone = threading.Event()
    weakref.finalize(memory, gone.set)
    held.add("t", "", "f64", (4,), sw.Layout.replicated(), memory)
    publication = members[0].publish(held)
    del memory, held
    gc.collect()
    assert not gone.is_set()
    received = np.zeros(4)
    wanted = sw.Catalog(0, 1)
    wanted.add("t", "", "f64", (4,), sw.Layout.replicated(), received)
    members[0].restore(wanted, timeout=20).wait()
    assert list(received) == [0, 1, 2, 3]
    publication.retire()
    assert gone.wait(10)


def test_types_that_numpy_lacks_come_as_unsigned_integers(job):
    [session] = job(1)
    held, wanted = sw.Catalog(0, 1), sw.Catalog(0, 1)
    received = np.zeros(3, dtype=np.uint16), np.zeros((3, 5), dtype=np.uint8)
    held.add("a", "", "bf16", (3,), sw.Layout.replicated(), np.array([1, 2, 3], dtype=np.uint16))
    held.add("b", "", "opaque5", (3,), sw.Layout.replicated(), np.arange(15, dtype=np.uint8).reshape(3, 5))
    wanted.add("a", "", "bfloat16", (3,), sw.Layout.replicated(), received[0])
    wanted.add("b", "", "opaque5", (3,), sw.Layout.replicated(), received[1])
    with session.publish(held):
        session.restore(wanted, timeout=20).wait()
    assert list(received[0]) == [1, 2, 3] and list(received[1].ravel()) == list(range(15))


def test_wrong_memory_is_refused_by_name(job):
    catalog = sw.Catalog(0, 1)
    layout = sw.Layout.replicated()
    with pytest.raises(sw.InvalidArgument, match="t:m.*f64.*f32|f32.*f64"):
        catalog.add("t", "m", "f32", (4,), layout, np.zeros(4))
    with pytest.raises(sw.LayoutMismatch, match="t:m"):
        catalog.add("t", "m", "f64", (4,), layout, np.zeros(5))
    with pytest.raises(sw.InvalidArgument, match="t:m"):
        catalog.add("t", "m", "f64", (4,), layout, "text")
    with pytest.raises(sw.InvalidArgument, match="t:m"):
        catalog.add("t", "m", "f64", (4,), layout)
    with pytest.raises(sw.InvalidArgument, match="float3"):
        catalog.add("t", "m", "float3", (4,), layout, np.zeros(4))
    [session] = job(1)
    constant = np.zeros(4)
    constant.flags.writeable = False
    catalog.add("t", "m", "f64", (4,), layout, constant)
    with session.publish(catalog), pytest.raises(sw.InvalidArgument, match="t:m"):
        session.restore(catalog, timeout=20)


def test_operations_can_be_awaited(job):
    members = job(2)
    memory = [np.zeros((7, 3), dtype=np.float32) for _ in members]

    async def main() -> None:
        late = members[0].restore(wanting(0, memory[0]), timeout=20)
        task = asyncio.ensure_future(late)
        await asyncio.sleep(0.05)
        assert not task.done()
        publications = [session.publish(holder(rank)) for rank, session in enumerate(members)]
        assert (await task).needed_bytes == 84
        other, again = await asyncio.gather(members[1].restore(wanting(1, memory[1]), timeout=20),
                                            members[0].restore(wanting(0, memory[0]), timeout=20))
        assert other.needed_bytes == again.needed_bytes == 84
        await publications[0].start_retire()
        with pytest.raises(sw.Error):
            await members[0].restore(wanting(0, memory[0]), timeout=0.2)

    asyncio.run(main())
    assert np.array_equal(memory[0], columns_of(0)) and np.array_equal(memory[1], columns_of(1))


def test_progress_is_told_on_the_waiting_thread(job):
    [session] = job(1)
    held, wanted = sw.Catalog(0, 1), sw.Catalog(0, 1)
    memory = np.zeros(1 << 20, dtype=np.uint8)
    held.add("t", "", "u8", memory.shape, sw.Layout.replicated(), np.ones_like(memory))
    wanted.add("t", "", "u8", memory.shape, sw.Layout.replicated(), memory)
    told: list[tuple[int, sw.Progress]] = []
    publications: list[sw.Publication] = []

    def publish_at_the_first(now: sw.Progress) -> None:
        told.append((threading.get_ident(), now))
        if len(told) == 1:
            publications.append(session.publish(held))

    session.restore(wanted, timeout=20).wait(progress=publish_at_the_first, interval=0.02)
    assert {thread for thread, _ in told} == {threading.get_ident()}
    assert told[0][1].stage == "plan" and told[-1][1] == ("done", 1 << 20, 1 << 20)
    with pytest.raises(ZeroDivisionError):
        session.restore(wanted, timeout=20).wait(progress=lambda now: 1 / 0)


def test_progress_of_a_restore_that_fails_ends_with_failed(job):
    [session] = job(1)
    wanted = sw.Catalog(0, 1)
    wanted.add_value("", "never")
    seen: list[sw.Progress] = []
    with pytest.raises(sw.TimedOut):
        session.restore(wanted, timeout=0.2).wait(progress=seen.append, interval=0.02)
    assert seen[-1].stage == "failed"


def test_the_readme_shows_progress_by_tqdm(job, capsys):
    readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    [recipe] = [text for text in re.findall(r"  ```python\n(.*?)  ```", readme, re.S) if "tqdm" in text]
    [session] = job(1)
    held, wanted = sw.Catalog(0, 1), sw.Catalog(0, 1)
    held.add("t", "", "u8", (1 << 20,), sw.Layout.replicated(), np.ones(1 << 20, dtype=np.uint8))
    wanted.add("t", "", "u8", (1 << 20,), sw.Layout.replicated(), np.zeros(1 << 20, dtype=np.uint8))
    with session.publish(held):
        names = {"restore": session.restore(wanted, timeout=20)}
        exec("from tqdm.auto import tqdm\n" + textwrap.dedent(recipe), names)
    assert "100%" in capsys.readouterr().err and names["bar"].n == names["bar"].total == 1 << 20


def test_cancel_and_destruction_end_a_restore(job):
    [session] = job(1)
    wanted = sw.Catalog(0, 1)
    wanted.add_value("", "never")
    restore = session.restore(wanted, timeout=60)
    assert not restore.poll() and not restore.wait_for(0.05)
    restore.cancel()
    with pytest.raises(sw.Cancelled):
        restore.wait()
    assert restore.progress.stage == "failed"
    del restore
    abandoned = session.restore(wanted, timeout=60)
    del abandoned
    session.close()
    with pytest.raises(sw.InvalidArgument):
        session.inventory()


def test_plans_need_no_session():
    held = sw.JobLayout([holder(rank) for rank in range(2)])
    wanted = sw.JobLayout([wanting(rank, np.zeros((7, 3), dtype=np.float32)) for rank in range(2)])
    plan = sw.plan(held, wanted, 1)
    assert [(piece.box, piece.holders) for piece in plan.pieces] == [(((0, 3), (4, 3)), (0,)), (((4, 3), (3, 3)), (1,))]
    totals = sw.totals(held, wanted)
    assert (totals.needed, totals.local, totals.remote, totals.gaps) == (168, 84, 84, 0)
    assert sum(flow.bytes for flow in totals.flows) == 168
    assert sw.plan(held.without([0]), wanted, 0).gaps == [("weight", "exp_avg", ((0, 0), (4, 3)), 0)]


def test_a_restore_that_timed_out_is_resumed(job):
    members = job(2)
    restored = np.zeros((7, 3), dtype=np.float32)
    restore = members[0].restore(wanting(0, restored), timeout=0.2)
    with pytest.raises(sw.TimedOut):
        restore.wait()
    restore.resume(timeout=60)
    with pytest.raises(sw.InvalidArgument):
        restore.resume(timeout=60)
    with members[0].publish(holder(0)), members[1].publish(holder(1)):
        report = restore.wait()
    assert (report.resent_bytes, report.needed_bytes) == (0, 84)
    with pytest.raises(sw.InvalidArgument):
        restore.resume(timeout=60)


def test_a_restore_stops_at_its_values(job):
    [session] = job(1)
    held, out = sw.Catalog(0, 1), np.full(8, -1.0)
    held.add("t", "", "f64", (8,), sw.Layout.replicated(), np.arange(8.0))
    held.add("t", "step", "f64", (), sw.Layout.replicated(), np.array(3.0))
    held.add_value("t", "rate", 0.5)
    wanted = sw.Catalog(0, 1)
    wanted.add("t", "", "f64", (8,), sw.Layout.replicated(), out)
    wanted.add("t", "step", "f64", (), sw.Layout.replicated(), np.array(0.0))
    wanted.add_value("t", "rate")
    with session.publish(held):
        restore = session.restore(wanted, stop_at_values=True)
        restore.wait_values()
        assert restore.values_ready() and restore.value("t", "rate") == 0.5 and restore.has_value("t", "step")
        assert not restore.has_value("t", "other") and not restore.poll() and (out == -1).all()
        restore.proceed()
        restore.wait()
        assert (out == np.arange(8.0)).all() and restore.values() == {("t", "rate"): 0.5}


def test_a_second_catalog_of_a_rank_is_a_further_holder():
    held = sw.JobLayout([holder(rank) for rank in (0, 1, 1)])
    assert (held.ranks, held.copies) == (2, [1])
    wanted = sw.JobLayout([wanting(0, np.zeros((7, 3), dtype=np.float32))])
    assert [piece.holders for piece in sw.plan(held, wanted, 0).pieces] == [(0,), (1, 2)]
    assert sw.plan(held.without([1]), wanted, 0).gaps == []
    assert len(sw.plan(held.without([1, 2]), wanted, 0).gaps) == 1


def test_layouts():
    mesh = sw.Layout.mesh((2, 2), [sw.StridedShard(0, 2), sw.Shard(0)], order="tp_first")
    assert [mesh.local_elements((8, 3), rank) for rank in range(4)] == [6] * 4
    assert mesh.boxes_of((8, 3), 1) == [(((4, 0), (2, 3)), 0, (3, 1))]
    assert sw.Layout.on_ranks(sw.Layout.chunk(0, 2), [3, 1]).boxes_of((4,), 3) == [(((0,), (2,)), 0, (1,))]
    first, second = sw.Layout.flat([sw.FlatMember((3,)), sw.FlatMember((2, 2))], 2)
    assert second.boxes_of((2, 2), 0) == [(((0, 0), (1, 1)), 3, (2, 1))]
    assert sw.Layout.packed(second).local_elements((2, 2), 0) == 1
    assert first == sw.Layout.flat([sw.FlatMember((3,)), sw.FlatMember((2, 2))], 2)[0] != second
    boxes = sw.Layout.boxes({1: [sw.Box((0,), (2,)), ((4,), (1,))]})
    assert boxes.local_elements((5,), 1) == 3 and boxes.kind == "boxes"
    assert len({sw.Layout.chunk(0, 2), sw.Layout.chunk(0, 2), sw.Layout.chunk(1, 2)}) == 2
    with pytest.raises(sw.LayoutMismatch):
        sw.Layout.chunk(3, 2).check((2, 2), 2)
    with pytest.raises(sw.InvalidArgument, match="order"):
        sw.Layout.mesh((2,), [sw.Shard(0)], order="other")  # type: ignore[arg-type]
    with pytest.raises(sw.InvalidArgument, match="placement"):
        sw.Layout.mesh((2,), [7])  # type: ignore[list-item]


def test_restores_and_exchanges_name_the_methods_that_they_may_be_asked_for(job):
    (session,) = job(1)
    nothing = sw.Catalog(0, 1)
    allowed = "mapped, read, sieved_read, zcopy, packed"
    for wrong in ("collective", "local", "carried"):
        with pytest.raises(sw.InvalidArgument, match=f"method is '{wrong}', not one of: {allowed}$"):
            session.restore(nothing, method=wrong)  # type: ignore[arg-type]
    for wrong in ("local", "carried"):
        with pytest.raises(sw.InvalidArgument, match=f"method is '{wrong}', not one of: {allowed}, collective$"):
            session.exchange(nothing, nothing, method=wrong)  # type: ignore[arg-type]
    with pytest.raises(sw.InvalidArgument, match=r"packed \(did you mean 'zcopy'\?\)$"):
        session.restore(nothing, method="zcpy")  # type: ignore[arg-type]
    for method in ("mapped", "packed"):
        session.restore(nothing, method=method, timeout=20).wait()


@pytest.mark.parametrize("given, meant", [("bf61", "bf16"), ("flaot32", "float32"), ("torch.flot32", "float32"), ("xyz", None)])
def test_an_unknown_type_of_elements_is_repeated_with_the_nearest(given, meant):
    with pytest.raises(sw.InvalidArgument) as raised:
        sw.Catalog(0, 1).add("weight", "", given, (1,), sw.Layout.replicated(), np.zeros(1))
    nearest = f" (did you mean '{meant}'?)" if meant else ""
    assert str(raised.value) == f"dtype is '{given}', which names no type of elements{nearest}"


def test_members_that_come_late_learn_that_an_exchange_was_cancelled(job):
    members = job(2)
    memory = [np.zeros((7, 3), dtype=np.float32) for _ in members]
    running = members[0].start_exchange(holder(0), wanting(0, memory[0]), timeout=60)
    assert not running.wait_for(0.1)
    running.cancel()
    began = time.monotonic()
    with pytest.raises(sw.Cancelled):
        running.wait()
    with pytest.raises(sw.Cancelled, match="member 0"):
        members[1].exchange(holder(1), wanting(1, memory[1]), timeout=60)
    assert time.monotonic() - began < 20
    assert not memory[0].any() and not memory[1].any()
