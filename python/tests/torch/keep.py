# SPDX-License-Identifier: Apache-2.0
"""A trainer that torchrun starts and restarts: `keep.py STATE STEPS`. With a keeper (SHARDWIRE_KEEPER) every step is kept.

In the first attempt, if DIES_AT is set, rank 1 is killed once that step was published. Rank 0 writes what the model has after
STEPS steps to the file STATE.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.rendezvous import rendezvous  # noqa: E402
from training import build, reference, train  # noqa: E402

import shardwire.torch as swt  # noqa: E402


def main(state: str, steps: int) -> None:
    torch.set_num_threads(1)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # torchrun's store outlives the attempt, and gloo would find the addresses of the ranks before in it.
    store, rank, world = next(rendezvous("env://"))
    dist.init_process_group("gloo", store=dist.PrefixStore(f"attempt {attempt}", store), rank=rank, world_size=world)
    keep = 1 if "SHARDWIRE_KEEPER" in os.environ else 0
    model, optimizer = build("fsdp2", "adamw", 1 + attempt, world)
    assert model is not None and optimizer is not None
    with swt.join() as session:
        step = 0
        session.gather("joined", b"", 60)
        if session.inventory("torch").publishers:
            step = swt.restore_into(session, model, optimizer).step
        resumed = step
        session.gather("restored", b"", 60)
        publication = None
        while step < steps:
            train(model, optimizer, 1, seed=step)
            step += 1
            if publication is not None:
                publication.retire()
            publication = swt.publish(session, model, optimizer, step=step, keep=keep, snapshot="copy")
            dist.barrier()
            if attempt == 0 and rank == 1 and step == int(os.environ.get("DIES_AT", 0)):
                os.kill(os.getpid(), signal.SIGKILL)
        written = reference(model, optimizer)
    if rank == 0:
        torch.save({"state": written, "attempt": attempt, "resumed": resumed}, state + "~")
        os.rename(state + "~", state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
