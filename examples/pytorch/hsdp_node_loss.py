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


def take_over(session, state):
    """The new rank has all that it lacks from peers, or refuses. Returns the step, or -1, and what to print."""
    try:
        restored = state.restore(session, timeout=10)
    except (sw.LayoutMismatch, sw.PeerLost, sw.StepMismatch, sw.TimedOut, sw.Withdrawn) as error:
        return -1, f"{type(error).__name__}: " + "\n  ".join(str(error).split("; "))
    state.publish(session, step=restored.step, snapshot="copy", extra=restored.extra)  # now all ranks publish this step
    sources = ", ".join(f"{peer.bytes} bytes from rank {peer.rank}" for peer in restored.report.peers)
    return restored.step, f"restored step {restored.step} from peers: {sources}"


def recover(session, state, lost, model, optimizer, folder):
    """All ranks go on from the step of the peers if the new rank could have it, else from that of the files. Returns the step."""
    step, outcome = take_over(session, state) if session.rank == lost else (-1, "")
    outcomes = session.gather("outcome", json.dumps([step, outcome]).encode(), timeout=60)
    step, outcome = json.loads(outcomes[lost])
    log(session, f"rank {lost}: {outcome}")
    if step < 0:
        log(session, f"all ranks load step {FILES_AT} of the files")
        return load_files(model, optimizer, folder)
    if session.rank != lost:
        state.restore(session, step=step)  # into the new model, from what this rank has published itself
    session.barrier(timeout=60)  # no rank reads any more: each may end what it has published
    return step


def begin(wrapper, seed):
    dist.barrier()  # all ranks have joined the session
    model, optimizer = build(wrapper, seed)
    return model, optimizer, swt.State(model, optimizer)


def member(wrapper, folder, rank, attempt):
    torch.set_num_threads(1)
    process_group(folder, rank, attempt)
    # The session needs no process group: it stays as it is when a rank is lost.
    session = swt.join(dist.FileStore(f"{folder}/session", RANKS), rank, RANKS)
    model, optimizer, state = begin(wrapper, seed=1 + attempt)
    step, losses = 0, {}
    if attempt > 0:  # in place of the lost rank
        step = recover(session, state, rank, model, optimizer, folder)
    while step < STEPS:
        try:
            session.barrier(timeout=60)
        except sw.PeerLost as error:
            lost = error.ranks[0]
            log(session, f"rank {lost} is lost after step {step}")
            dist.destroy_process_group()
            attempt += 1
            process_group(folder, rank, attempt)  # waits for the new rank
            model, optimizer, new_state = begin(wrapper, seed=1 + attempt)  # the old model has the old group
            step = recover(session, new_state, lost, model, optimizer, folder)
            state = new_state  # ends what the state before it has published
            continue
        loss = train_step(model, optimizer, step, rank, RANKS)
        dist.all_reduce(loss)
        losses[step] = loss.item() / RANKS
        step += 1
        log(session, f"step {step}: loss {losses[step - 1]:.3f}")
        state.publish(session, step=step, snapshot="copy")
        if step == FILES_AT and attempt == 0:
            save_files(model, optimizer, folder)
        if step == LOST_AT and attempt == 0:
            session.barrier(timeout=60)  # all have published it
            if rank == LOST_RANK:
                os.kill(os.getpid(), signal.SIGKILL)
    session.barrier(timeout=60)
    if rank == 0:
        compare([losses[step] for step in range(STEPS)])
    session.close()
    dist.destroy_process_group()


def compare(losses):
    """With a training by one process, without shards."""
    model = plain_model(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    undisturbed = [train_step(model, optimizer, step).item() for step in range(STEPS)]
    torch.testing.assert_close(losses, undisturbed, rtol=1e-4, atol=0)
    print("the losses are those of a training in which no rank was lost", flush=True)


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


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if len(sys.argv) == 2:
        launch(sys.argv[1])
    else:
        member(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
