"""async beside diloco over unequal links and devices, live: async_live.py FOLDER DATA JSON [--only TEXT] [--seeds 1,2,3]

A row is a pair of runs for each seed, with equal tokens: 22,000 parameters, int8 both ways, H = 20, each worker behind a
relay of its own. A step sleeps until its time is over, so that runs side by side hardly compute. Rates and speeds fall
evenly from the best worker to the worst.

- seconds: from the last join to the last outer step; of async the median. bytes: down, async over diloco.
- gain: seconds of diloco over those of async. most: the largest gain: with transfers that cost nothing, all train all the
  time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
import re
import resource
import shutil
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap_runs import ROOT, Rows, run

sys.path.append(str(ROOT / "tests" / "bench"))
import machine  # noqa: E402

EVERY, STEP_MS, DELAY_MS = 20, 12.5, 10.0
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}


@dataclass(frozen=True)
class Row:
    workers: int
    mbit: float  # of the fastest link
    links: float  # fastest over slowest
    speeds: float
    overlap: int

    def name(self) -> str:
        return (f"{self.workers} workers, {self.mbit / self.links:.2f} to {self.mbit:.1f} Mbit/s, {STEP_MS:.0f} to "
                f"{STEP_MS * self.speeds:.0f} ms, overlap {self.overlap}")

    def rates(self) -> list[float]:
        return between(self.workers, self.mbit, self.links)

    def steps_ms(self) -> list[float]:
        return [STEP_MS / share for share in between(self.workers, 1, self.speeds)]


def between(n: int, most: float, spread: float) -> list[float]:
    least = most / spread
    return [least + (most - least) * i / (n - 1) for i in range(n)]


ROWS = [Row(n, 4.8 if spread == 10 else 2.4, spread, 1, overlap)
        for n in (4, 6, 8, 16) for spread in (2, 3, 10) for overlap in (0, EVERY // 2)]
ROWS += [Row(n, 2.4, 1, spread, overlap) for n in (4, 8) for spread in (3, 10) for overlap in (0, EVERY // 2)]
ROWS += [Row(n, 2.4, 3, 3, 0) for n in (4, 8)]


def train_start(folder: Path, data: Path) -> None:
    """The model that all runs go on from. The loss of an untrained one depends on when it leaves its first plateau, so
    it differs by 0.1 between seeds."""
    if not (folder / "start" / "run" / "summary.json").exists():
        run(folder / "start", data, "22K", {"train.method": "diloco", "train.max_steps": 600, "train.sync_every": EVERY,
                                            "train.batch_size": 16, "train.eval_every": 0, "outer.momentum": 0.5,
                                            "inner.learning_rate": 6e-3, "inner.schedule": "constant"}, 4)


class Places:
    """Runs wait until their workers have places, in order."""

    def __init__(self, n: int) -> None:
        self.free, self.changed, self.turn = n, threading.Condition(), threading.Lock()

    def take(self, n: int) -> None:
        with self.turn, self.changed:
            self.changed.wait_for(lambda: self.free >= n)
            self.free -= n

    def give(self, n: int) -> None:
        with self.changed:
            self.free += n
            self.changed.notify_all()


def seconds_of(metrics: Path) -> float:
    joined = ended = 0.0
    for line in metrics.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "join" and not ended:
            joined = event["time"]
        if event["event"] == "round":
            ended = event["time"]
    return ended - joined


def cell(home: Path, row: Row, method: str, seed: int, options: argparse.Namespace, live: bool) -> dict[str, Any]:
    settings = {"model.init_from": options.folder / "start" / "run" / "checkpoints" / "latest", "run.seed": seed,
                "train.method": method, "train.max_steps": options.steps, "train.sync_every": EVERY,
                "train.overlap": row.overlap, "train.batch_size": options.batch, "train.eval_every": 0,
                "inner.warmup_steps": options.steps // 10, "inner.learning_rate": options.rate,
                "outer.momentum": options.momentum, "codec.up": "int8:256", "codec.down": "int8:256",
                "checkpoint.every": 0}
    settings.update(word.split("=", 1) for word in (options.set if method == "async" else []))
    summary = run(home, options.data, "22K", settings, row.workers, mbit=row.rates() if live else 0, delay_ms=DELAY_MS,
                  steps_ms=row.steps_ms() if live else None, timeout=options.timeout)
    result = {"loss": summary["final_val_loss"], "seconds": seconds_of(home / "run" / "metrics.jsonl"),
              "down": summary["bytes_down"], "tokens": summary["tokens"], "rounds": summary["rounds"],
              "restarts": summary["restarts"]}
    if not options.keep:
        shutil.rmtree(home)
    return result


def print_row(row: Row, pairs: list[tuple[dict[str, Any], ...]], options: argparse.Namespace) -> dict[str, Any]:
    differ = [b["loss"] - a["loss"] for a, b in pairs]
    n = len(pairs)
    result = {"workers": row.workers, "mbit": row.mbit, "links": row.links, "speeds": row.speeds,
              "overlap": row.overlap, "diloco_s": pairs[0][0]["seconds"],
              "async_s": statistics.median(b["seconds"] for _, b in pairs),
              "bytes": statistics.fmean(b["down"] / a["down"] for a, b in pairs), "loss": statistics.fmean(differ),
              "interval": T95.get(n, 2.5) * statistics.stdev(differ) / math.sqrt(n) if n > 1 else math.nan,
              "losses": differ, "diloco_loss": statistics.fmean(a["loss"] for a, _ in pairs)}
    gain = result["diloco_s"] / result["async_s"]
    most = result["diloco_s"] * sum(1000 / ms for ms in row.steps_ms()) / (row.workers * options.steps)
    result.update(gain=gain, most=most)
    print(f"{row.workers:3} {row.mbit / row.links:5.2f}..{row.mbit:<4.1f} {row.speeds:3.0f}..1 {row.overlap:4} | "
          f"{result['diloco_s']:6.1f} {result['async_s']:6.1f} {gain:5.2f} {most:5.2f} | "
          f"{result['bytes']:5.2f} | {result['diloco_loss']:.4f} {result['loss']:+.4f} +- {result['interval']:.4f}  "
          + " ".join(f"{d:+.3f}" for d in differ), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench async-live")
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("json", type=Path)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--places", type=int, default=32, help="workers of all runs at one time")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--set", action="append", default=[], help="SECTION.KEY=VALUE of async")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument("--label", default="", help="of the cells of async in the file of results")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    chosen = [row for row in ROWS if options.only in row.name()]
    cells = Rows(options.folder / "async-live.jsonl")
    train_start(options.folder, options.data)
    places, began, used = Places(options.places), time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)

    # With a barrier the parameters do not depend on the links: one run for the seconds, the others as fast as they go.
    def one(row: Row, method: str, seed: int) -> dict[str, Any]:
        live = method == "async" or seed == seeds[0]
        name = row.name() if live else f"{row.workers} workers, overlap {row.overlap}"
        key = {"row": name, "method": method, "seed": seed, "steps": options.steps, "batch": options.batch,
               "rate": options.rate, "momentum": options.momentum,
               "label": options.label if method == "async" else ""}
        found = cells.find(key)
        if found:
            return found
        places.take(row.workers)
        try:
            home = options.folder / re.sub("[^a-z0-9.]+", "-", f"{method} {options.label} {name} seed {seed}".lower())
            found = {**key, **cell(home, row, method, seed, options, live)}
        finally:
            places.give(row.workers)
        cells.add(found)
        return found

    print("workers  Mbit/s  speeds  overlap | diloco  async s, gain  most | bytes | loss of diloco, async less diloco")
    results = []
    shared: dict[tuple[int, int, int], concurrent.futures.Future[dict[str, Any]]] = {}
    with concurrent.futures.ThreadPoolExecutor(options.places) as pool:
        def start(row: Row, seed: int) -> list[concurrent.futures.Future[dict[str, Any]]]:
            free = pool.submit(one, row, "async", seed)
            if seed == seeds[0]:
                return [pool.submit(one, row, "diloco", seed), free]
            key = (row.workers, row.overlap, seed)
            if key not in shared:
                shared[key] = pool.submit(one, row, "diloco", seed)
            return [shared[key], free]

        jobs = [(row, [start(row, seed) for seed in seeds]) for row in chosen]
        for row, pairs in jobs:
            results.append(print_row(row, [tuple(cell.result() for cell in pair) for pair in pairs], options))
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) / took / (os.cpu_count() or 1)
    print(f"{took:.0f} s; the runs used {cpu:.0%} of the cores")
    report = {"name": "async-live", "machine": machine.describe(), "cpu": cpu, "rows": results}
    options.json.write_text(json.dumps(report, indent=2) + "\n")


main()
