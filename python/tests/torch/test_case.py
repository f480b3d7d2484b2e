# SPDX-License-Identifier: Apache-2.0
"""The case file that a job of FSDP2 writes of its own layouts, and what the command says and does with it."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from typing import Any

import pytest
import torch.distributed as dist
from training import build, train

import shardwire.torch as swt

RANKS = 4


def reshard(rank: int, world: int, wrapper: str, folder: str) -> dict[str, Any]:
    """FSDP2 becomes what `wrapper` names. Rank 0 writes the case file before the restore, as a trainer would."""
    store = dist.FileStore(f"{folder}/store", world)
    model, optimizer = build("fsdp2", "adamw", 1, world)
    train(model, optimizer, 2)
    other, its_optimizer = build(wrapper, "adamw", 2, world)
    train(other, its_optimizer, 1)
    with swt.join(store, rank, world) as session:
        publication = swt.publish(session, model, optimizer, step=7, snapshot="copy")
        wanted = session.gather_layouts(swt.catalog_of(other, its_optimizer), 60)  # all have published
        if rank == 0:
            pathlib.Path(folder, "case.json").write_text(session.inventory("torch").to_case(wanted))
            pathlib.Path(folder, "held.json").write_text(swt.catalog_of(model, optimizer).to_case())
        report = swt.restore_into(session, other, its_optimizer, timeout=60).report
        session.gather("restored", b"", 60)
        del publication
    remote = report.moved_bytes - report.overread_bytes
    return {"needed": report.needed_bytes, "remote": remote, "local": report.local_bytes}


@pytest.fixture
def command():
    """Runs the command, and returns what it prints."""
    path = shutil.which("shardwire")
    if path is None:
        pytest.skip("there is no shardwire command in PATH")

    def run(*words: Any) -> str:
        ended = subprocess.run([path, *map(str, words)], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


# Under FSDP2 x TP each rank has some parameters in layouts that name a part of the ranks.
@pytest.mark.parametrize("wrapper", ["hsdp", "fsdp2 x tp 2"])
def test_the_case_of_a_job_moves_what_its_restore_moved(pool, tmp_path, command, wrapper):
    reports = pool(RANKS, reshard, wrapper, str(tmp_path))
    moved = {name: sum(report[name] for report in reports) for name in reports[0]}
    assert moved["remote"] > 0 and moved["local"] > 0
    case = tmp_path / "case.json"
    # Tensors of one element travel by value, which no total counts.
    totals = json.loads(command("plan", case, "--totals", "--json", "--replicas", "first"))["totals"]
    assert {name: totals[name] for name in moved} == moved
    assert moved["needed"] == moved["remote"] + moved["local"]
    # Of two buffers and a frozen parameter, 48 bytes, each rank has a replica. restore_into() reads those of rank 0.
    spread = json.loads(command("plan", case, "--totals", "--json"))["totals"]
    assert spread["local"] - moved["local"] == (RANKS - 1) * 48 == moved["remote"] - spread["remote"]
    assert f"The source has {RANKS} ranks. " in command("case", "check", case)
    report = tmp_path / "report.json"
    command("run", case, "--transport", "loopback", "--replicas", "first", "--report", report)  # checks every element
    replayed = json.loads(report.read_text())["bytes"]
    assert {"needed": replayed["needed"], "remote": replayed["moved"] - replayed["extra"], "local": replayed["local"]} == moved
    both = json.loads(command("plan", tmp_path / "held.json", "--totals", "--json"))["totals"]
    assert both["remote"] == 0 and both["local"] == both["needed"] > 0
