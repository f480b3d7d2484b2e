# SPDX-License-Identifier: Apache-2.0
"""One rank of four is killed in the middle of a training, and another process takes its place.

    hsdp_node_loss.py hsdp     2 x 2 ranks: the new rank gets the lost shards from the replica
    hsdp_node_loss.py fsdp2    4 ranks, no replica: the error lists what is lost, and all ranks load a checkpoint of files

The program starts its ranks itself, since torchrun restarts all ranks when one fails. examples/README.md has the output.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardwire as sw
import shardwire.torch as swt

RANKS, STEPS, LOST_RANK, LOST_AT, FILES_AT = 4, 10, 3, 6, 4


def plain_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 10))


def build(wrapper, seed):
    model = plain_model(seed)
    if wrapper == "hsdp":
        mesh = init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train_step(model, optimizer, step, rank=0, ranks=1):
    inputs = torch.randn(16, 30, generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :10].sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def log(session, text):
    if session.rank == 0:
        print(text, flush=True)


def process_group(folder, rank, attempt):
    """A dead rank leaves a group of gloo unusable: each attempt has its own."""
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/group-{attempt}", RANKS), rank=rank, world_size=RANKS)


def save_files(model, optimizer, folder):
    parameters, states = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": states}, checkpoint_id=f"{folder}/files")


def load_files(model, optimizer, folder):
    parameters, states = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": states}, checkpoint_id=f"{folder}/files")
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=states)
    return FILES_AT


def recover(session, model, optimizer, folder):
    """The state of peers where all ranks can have it, else that of the files. Returns the step."""
    step, outcome = -1, ""
    try:
        step = swt.restore_into(session, model, optimizer, timeout=8).step
        outcome = f"restored step {step} from peers"
    except (sw.LayoutMismatch, sw.PeerLost, sw.StepMismatch, sw.TimedOut, sw.Withdrawn) as error:
        outcome = f"{type(error).__name__}: nobody holds {len(error.gaps)} of the boxes"
    outcomes = [json.loads(one) for one in session.gather("outcome", json.dumps([step, outcome]).encode(), timeout=60)]
    for number, (_, text) in enumerate(outcomes):
        log(session, f"rank {number}: {text}")
    if step >= 0 and {one for one, _ in outcomes} == {step}:
        return step
    log(session, f"all ranks load step {FILES_AT} of the files")
    return load_files(model, optimizer, folder)


def member(wrapper, folder, rank, attempt):
    torch.set_num_threads(1)
    process_group(folder, rank, attempt)
    # The session needs no process group: it stays as it is when a rank is lost.
    session = swt.join(dist.FileStore(f"{folder}/session", RANKS), rank, RANKS)
    model, optimizer = build(wrapper, seed=1 + attempt)
    step = 0
    if attempt > 0:  # in place of the lost rank
        session.barrier(timeout=60)
        step = recover(session, model, optimizer, folder)
    state = swt.State(model, optimizer)
    while step < STEPS:
        try:
            session.barrier(timeout=60)
        except sw.PeerLost as lost:
            log(session, f"rank {lost.ranks[0]} is lost after step {step}")
            dist.destroy_process_group()
            attempt += 1
            process_group(folder, rank, attempt)  # waits for the new rank
            model, optimizer = build(wrapper, seed=1 + attempt)
            session.barrier(timeout=60)
            step = recover(session, model, optimizer, folder)
            state = swt.State(model, optimizer)  # ends what the state before it has published
            continue
        loss = train_step(model, optimizer, step, rank, RANKS)
        dist.all_reduce(loss)
        step += 1
        log(session, f"step {step}: loss {loss.item() / RANKS:.4f}")
        state.publish(session, step=step, snapshot="copy")
        if step == FILES_AT and attempt == 0:
            save_files(model, optimizer, folder)
        if step == LOST_AT and attempt == 0:
            session.barrier(timeout=60)  # all have published it
            if rank == LOST_RANK:
                os.kill(os.getpid(), signal.SIGKILL)
    session.barrier(timeout=60)
    session.close()
    dist.destroy_process_group()


def launch(wrapper):
    """Starts the ranks, and once more the one that is killed."""
    with tempfile.TemporaryDirectory() as folder:

        def start(rank, attempt):
            return subprocess.Popen([sys.executable, __file__, wrapper, folder, str(rank), str(attempt)])

        ranks = [start(rank, 0) for rank in range(RANKS)]
        assert ranks[LOST_RANK].wait() == -signal.SIGKILL
        ranks[LOST_RANK] = start(LOST_RANK, 1)
        failed = [rank for rank, process in enumerate(ranks) if process.wait() != 0]
    assert not failed, f"ranks {failed} failed"
    model = plain_model(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        loss = train_step(model, optimizer, step)
    print(f"without a loss, and without shards: step {STEPS}: loss {loss.item():.4f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if len(sys.argv) == 2:
        launch(sys.argv[1])
    else:
        member(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
