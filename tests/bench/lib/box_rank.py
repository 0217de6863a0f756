"""One process of the box of `./run bench box`: torchrun box_rank.py SIZE ROUNDS RUN FOLDER

A model without a forward: its shards are changed a little in each round. Prints one JSON line.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

import atoll
from box_sizes import SIZES, Size

PR_SET_PDEATHSIG = 1
COPY, COPIES = 64 << 20, 5  # bytes that memcpy copies at a time; measurements of it


class Layers(torch.nn.Module):
    """Matrices of the shapes of a transformer."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        for i, shape in enumerate(shapes):
            self.register_parameter(f"w{i}", torch.nn.Parameter(torch.empty(shape, dtype=dtype)))


class Model(torch.nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        dtype = getattr(torch, size.dtype)
        self.outer = Layers(size.outer, dtype)
        self.blocks = torch.nn.ModuleList(Layers(size.block, dtype) for _ in range(size.blocks))


def sharded(size: Size) -> torch.nn.Module:
    """Built without memory, so that no process ever holds the whole model."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.device("meta"):
        model = Model(size)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    torch.manual_seed(dist.get_rank())
    with torch.no_grad():
        for p in model.parameters():
            p.to_local().normal_(0, 0.02)
    return model


def held() -> dict[str, int]:
    """Bytes of this process: its own memory, shared and resident memory."""
    found = {}
    for path, keys in (("smaps_rollup", ("Pss_Anon",)), ("status", ("VmRSS", "VmHWM", "RssShmem"))):
        with open(f"/proc/self/{path}", encoding="ascii") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key in keys:
                    found[key] = int(value.split()[0]) * 1024
    return found


def forget_peak() -> None:
    """VmHWM is the present memory from here on."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def copy(n_bytes: int, to: np.ndarray, from_: np.ndarray) -> None:
    """memcpy of so many bytes."""
    for at in range(0, n_bytes, COPY):
        n = min(COPY, n_bytes - at)
        to[:n] = from_[:n]


def timed(function: Callable, times: list[tuple[float, float]]) -> Callable:
    """The function, which notes seconds and CPU seconds of each call."""

    def call(*args: object, **keywords: object) -> object:
        started, cpu = time.perf_counter(), time.process_time()
        try:
            return function(*args, **keywords)
        finally:
            times.append((time.perf_counter() - started, time.process_time() - cpu))

    return call


def main() -> None:
    size, rounds, run, folder = SIZES[sys.argv[1]], int(sys.argv[2]), *sys.argv[3:5]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(size)
    n = sum(p.numel() for p in model.parameters())
    copies, puts, takes, pushes = [], [], [], []
    to, from_ = np.zeros(COPY, np.uint8), np.ones(COPY, np.uint8)
    to[:] = from_  # its pages are there
    for _ in range(COPIES):
        dist.barrier()
        timed(copy, copies)(4 * n // ranks, to, from_)
    del to, from_
    forget_peak()
    before = held()
    print(json.dumps({"rank": rank, "pid": os.getpid(), "before": before}), flush=True)
    dataset = torch.zeros(1024, 4)
    with atoll.Worker(model, join=run, dir=folder, name="box", train=dataset) as worker:
        worker.model.put, worker.model.take = timed(worker.model.put, puts), timed(worker.model.take, takes)
        if rank == 0:
            handle = worker.rounds.handle
            handle.push = timed(handle.push, pushes)
        worker.begin()
        for _ in range(rounds):
            with torch.no_grad():
                for p in model.parameters():
                    p.to_local().mul_(1.01)
            worker.step(loss=5.0, tokens=4)
        info = worker.info()
        after = held()
    print(json.dumps({"rank": rank, "parameters": n, "after": after, "memcpy": copies, "put": puts[1:], "take": takes[1:],
                      "push": pushes, "apply": [(info.apply_s, None)]}), flush=True)
    dist.destroy_process_group()


main()
