"""A process of `./run bench overhead` that obeys its standard input, one word a line, and answers with one JSON line.

overhead_child.py plain|atoll|sync THREADS [RUN]
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext

BLOCK = 128


def resident_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


def answer(**values: object) -> None:
    print(json.dumps(values), flush=True)


class Clock:
    """Adds up the seconds in the functions that the package runs within a step."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def watch(self, kind: type, name: str) -> None:
        function = getattr(kind, name)

        def timed(*args: object, **keywords: object) -> object:
            if self._inside:
                return function(*args, **keywords)
            started, self._inside = time.perf_counter(), True
            try:
                return function(*args, **keywords)
            finally:
                self.seconds += time.perf_counter() - started
                self._inside = False

        setattr(kind, name, timed)


def main() -> None:
    mode, threads, *run = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import atoll
    from atoll.train.feed import Feed
    from atoll.train.script import Script

    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_positions=BLOCK))
    dataset = torch.randint(50257, (256, BLOCK))
    if mode == "sync":
        sync(model, dataset, run[0])
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    clock = Clock()
    clock.watch(Feed, "batch")
    for name in ("_before_forward", "_after_forward", "_before_step", "_after_step"):
        clock.watch(Script, name)
    with atoll.Worker(model, optimizer, join=run[0]) if run else nullcontext() as worker:
        own = (dataset[i % 256 : i % 256 + 1] for i in range(10**6))
        batches = iter(atoll.batches(dataset, worker, batch_size=1)) if run else own
        first = next(batches)
        answer(parameters=sum(p.numel() for p in model.parameters()))
        for line in sys.stdin:
            if line == "memory\n":
                answer(resident_mb=resident_mb())
                continue
            started, cpu, clock.seconds = time.perf_counter(), time.process_time(), 0.0
            x = next(batches) if first is None else first
            first = None
            model(x, labels=x).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            answer(seconds=time.perf_counter() - started, cpu_s=time.process_time() - cpu, own_s=clock.seconds)


def sync(model, dataset, run: str) -> None:
    """Sync points without training: noise changes the parameters."""
    import torch

    import atoll

    noise = torch.randn(6 << 20) * 1e-3
    with atoll.Worker(model, join=run, train=dataset) as worker:
        worker.begin()
        answer(parameters=sum(p.numel() for p in model.parameters()))
        for _ in sys.stdin:
            with torch.no_grad():
                for p in model.parameters():
                    p.view(-1)[: len(noise)] += noise[: p.numel()]
            started = time.perf_counter()
            worker.step(loss=5.0, tokens=BLOCK)
            worker.begin()  # the exchange
            seconds = time.perf_counter() - started
            info = worker.info()
            # The copies between the model and the run's parameters, measured alone.
            copies = time.perf_counter()
            worker.model.put()  # it adds nothing: the model has the parameters of the round
            worker.model.take()
            copies = time.perf_counter() - copies
            answer(seconds=seconds, compress_s=info.compress_s, apply_s=info.apply_s, copy_s=copies)


main()
