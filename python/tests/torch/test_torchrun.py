# SPDX-License-Identifier: Apache-2.0
"""Ranks that torchrun starts: another layout in one job, and fewer ranks in a job that starts while the old one still lives."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from keepers import keeper
from ports import free_port
from training import differences

SCRIPT = pathlib.Path(__file__).with_name("restart.py")
SECONDS = 240


def start(ranks: int, *arguments: Any, script: pathlib.Path = SCRIPT, restarts: int = 0, **more: str) -> subprocess.Popen[str]:
    """torchrun, with ranks that import what this process imports, and have `more` in their environment."""
    launcher = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in launcher}
    environment.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCH_CPP_LOG_LEVEL="ERROR")
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment.update(more)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks),
         "--max-restarts", str(restarts), str(script), *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*jobs: subprocess.Popen[str]) -> None:
    try:
        outputs = [job.communicate(timeout=SECONDS)[0] for job in jobs]
        # One job's failure is often another's "peer lost", so that what all of them said is shown.
        assert [job.returncode for job in jobs] == [0] * len(jobs), "\n".join(outputs)
    finally:
        for job in jobs:
            if job.poll() is None:
                job.terminate()  # torchrun ends its ranks
                job.wait(30)


def require_same(source: dict[str, Any], target: dict[str, Any]) -> None:
    assert differences(source["source"], target["fresh"]), "the target has the source's state before it is restored"
    assert differences(source["source"], target["target"]) == []
    # What dcp.load received of the model's state dict.
    model = {name.rpartition(":")[0]: value for name, value in source["source"].items() if name.endswith((":param", ":buffer"))}
    assert differences(model, target["loaded"]) == []
    assert len(source["source losses"]) == 12
    assert target["target losses"] == pytest.approx(source["source losses"], rel=1e-6, abs=0)


@pytest.mark.sampled(0)
def test_another_layout_in_one_job(tmp_path):
    finish(start(4, "fsdp2 x tp 2", tmp_path / "state"))
    written = torch.load(tmp_path / "state")
    require_same(written, written)


@pytest.mark.sampled(0)
def test_a_job_of_three_ranks_takes_over_from_one_of_four(tmp_path):
    port = free_port()
    finish(start(4, "fsdp2", tmp_path / "old", 3, 7, port), start(3, "fsdp2", tmp_path / "new", 0, 7, port))
    require_same(torch.load(tmp_path / "old"), torch.load(tmp_path / "new"))


@pytest.fixture
def kept_job():
    """The name of a job that has a keeper, and is attempted twice."""
    with keeper("torchrun-test") as (command, name):
        yield name
        status = subprocess.run([command, "keep", "--job", name, "--status"], capture_output=True, text=True, check=True, timeout=60)
        assert "2 attempts" in status.stdout, status.stdout


def test_a_job_whose_workers_are_all_restarted_goes_on_from_what_its_keeper_holds(tmp_path, kept_job):
    script = SCRIPT.with_name("keep.py")
    finish(start(3, tmp_path / "without", 6, script=script))
    began = time.monotonic()
    finish(start(3, tmp_path / "killed", 6, script=script, restarts=1, SHARDWIRE_KEEPER=kept_job, DIES_AT="3"))
    print(f"with a restart: {time.monotonic() - began:.1f} s")
    whole, killed = torch.load(tmp_path / "without"), torch.load(tmp_path / "killed")
    assert (killed["attempt"], killed["resumed"]) == (1, 3)
    assert (whole["attempt"], whole["resumed"]) == (0, 0)
    assert differences(whole["state"], killed["state"]) == []
