"""One process of a worker whose state has so many megabytes: saves_worker.py RUN DIR MB STEP_S. Prints its rounds."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

run, folder, mb, step_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
if "RANK" in os.environ:
    import torch

    torch.distributed.init_process_group("gloo")
import atoll  # noqa: E402

rank = int(os.environ.get("RANK", "0"))
if "RANK" in os.environ:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    moments = {"m": torch.full((int(mb * 250000),), float(rank + 1))}
else:
    model = {"w": np.zeros(4096, np.float32)}
    moments = {"m": np.ones(int(mb * 250000), np.float32)}
begun: list[float] = []
with atoll.Worker(model, join=run, dir=folder, name="bench", state=[moments], max_wait=120) as worker:
    while not worker.done:
        if len(begun) <= worker.round:
            begun.append(time.perf_counter())
        time.sleep(step_s)
        worker.step(1.0)
if "RANK" in os.environ:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
if rank == 0:
    print(json.dumps([b - a for a, b in zip(begun, begun[1:])]))
