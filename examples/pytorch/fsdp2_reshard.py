# SPDX-License-Identifier: Apache-2.0
"""A job of 4 ranks (FSDP2) hands its state to another job, of 3 ranks or of 2 x 2 ranks (FSDP2 over tensor parallelism).

Both jobs live at the same time, each under its own torchrun, and join one session. The old job trains on after the hand-over, so
that the new job can compare its losses with what they would have been. examples/README.md has the commands and the output.
"""

import argparse
import json
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwire as sw
import shardwire.torch as swt

WORDS, WIDTH, SEQUENCES = 61, 50, 12  # neither 61 nor 50 rows divide by 3 or 4
CHANGE, END = 10, 20  # steps


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def build(seed, data_parallel, tensor_parallel):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.Linear(WIDTH, WORDS))
    mesh = init_device_mesh("cpu", (data_parallel, tensor_parallel), mesh_dim_names=("dp", "tp"))
    for block in model[1:3]:
        if tensor_parallel > 1:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, END), mesh["dp"]


def train(model, optimizer, scheduler, data_parallel, steps):
    """Each replica takes its part of the batch of a step. Returns the mean losses."""
    losses = []
    for step in steps:
        words = torch.randint(WORDS, (SEQUENCES, 8), generator=torch.Generator().manual_seed(step))
        mine = words.chunk(data_parallel.size())[data_parallel.get_local_rank()]
        loss = nn.functional.cross_entropy(model(mine).flatten(0, 1), (mine * 7 + 3).flatten() % WORDS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=data_parallel.get_group())
        losses.append(mean.item() / data_parallel.size())
    return losses


def meet(session, patience=240):
    """Returns when all have restored. A source that leaves earlier takes its state along, so it stays if a member is lost."""
    end = time.monotonic() + patience  # 120 s to restore, and 120 s to start a process again
    while True:
        try:
            return session.barrier(timeout=120)
        except sw.Error as error:
            print(error, file=sys.stderr)
            new_job_ended = isinstance(error, sw.PeerLost) and 0 in error.ranks  # torchrun ends all its ranks
            if new_job_ended or not error.retryable or time.monotonic() >= end:
                raise
        time.sleep(1)  # until another process has the number of the lost member, each call fails at once


def old_job(session):
    model, optimizer, scheduler, dp = build(1, dist.get_world_size(), 1)
    losses = train(model, optimizer, scheduler, dp, range(CHANGE))
    state = swt.State(model, optimizer)
    publication = state.publish(session, step=CHANGE, extra={"scheduler": scheduler.state_dict()})
    meet(session)  # the new job has restored
    publication.retire()  # from here on the model may change
    return losses + train(model, optimizer, scheduler, dp, range(CHANGE, END))


def new_job(session, tensor_parallel):
    model, optimizer, scheduler, dp = build(2, dist.get_world_size() // tensor_parallel, tensor_parallel)
    restored = swt.restore_into(session, model, optimizer, timeout=120)  # waits until the old job publishes
    scheduler.load_state_dict(restored.extra["scheduler"])
    meet(session)
    return train(model, optimizer, scheduler, dp, range(restored.step, END))


def compare(old, new, ranks):
    print(f"step  {'4 ranks':>10}  {ranks:>10}")
    for step, loss in enumerate(old):
        print(f"{step:4}  {loss:10.3f}" + (f"  {new[step - CHANGE]:10.3f}" if step >= CHANGE else ""))
    # Sums over other numbers of ranks are rounded in another order; the state itself is the same bit for bit.
    torch.testing.assert_close(new, old[CHANGE:], rtol=1e-5, atol=0)
    print("the losses are those of a training without the change")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=["old", "new"])
    parser.add_argument("--new-ranks", type=int, default=3)
    parser.add_argument("--tensor-parallel", type=int, default=1, help="of the new job")
    parser.add_argument("--address", default="127.0.0.1", help="of rank 0 of the new job, which is member 0 of the session")
    parser.add_argument("--port", type=int, default=29700, help="of the session, on that host")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first = 0 if options.job == "new" else options.new_ranks  # members of the session: the new job, then the old one
    members = options.new_ranks + 4
    with swt.join(rank=first + dist.get_rank(), world_size=members, address=options.address, port=options.port,
                  run_id="fsdp2_reshard") as session:
        losses = old_job(session) if options.job == "old" else new_job(session, options.tensor_parallel)
        gathered = session.gather("losses", json.dumps(losses).encode(), timeout=120)
        if session.rank == 0:
            old, new = json.loads(gathered[options.new_ranks]), json.loads(gathered[0])
            compare(old, new, f"{options.new_ranks} ranks" if options.tensor_parallel == 1 else "2 x TP 2")
        session.barrier(timeout=120)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
