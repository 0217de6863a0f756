"""How busy workers are: `./run bench overlap cells [--rounds 12] [--filter TEXT] [--every H]`

Utilization (seconds in training steps / wall seconds, per worker; the lowest worker is printed) without and with
overlap, for two and four workers, two model sizes, two codecs and two links. Each worker has a link of its own:
the rate in each direction, 25 ms each way. tau is H/2. `carries` says whether the link carries a round's bytes, both
ways, and two round trips within tau steps.

Workers share this machine's cores, so each gets one thread, and a step is as slow as its share of the machine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from overlap_runs import CODECS, Rows, run

BATCH = {"0.98M": 8, "10.8M": 2}
EVERY = {("0.98M", 10): 60, ("0.98M", 100): 20, ("10.8M", 10): 120, ("10.8M", 100): 40}
DELAY_MS = 25  # each way


def main(folder: Path, data: Path, words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench overlap cells")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--filter", default="")
    parser.add_argument("--every", type=int, default=0, help="steps of a round; 0: by model and rate")
    options = parser.parse_args(words)
    rows = Rows(folder / "cells.jsonl")
    print(f"{os.cpu_count()} cores; each worker 1 thread; {DELAY_MS} ms each way; tau = H/2")
    print(f"{'workers':>7} {'model':>6} {'codec':>5} {'Mbit/s':>6} {'H':>4} {'step s':>7} {'link s':>7} {'carries':>7} "
          f"{'tau 0':>6} {'overlap':>7}")
    for model in ("0.98M", "10.8M"):
        for workers in (2, 4):
            for codec in ("int8", "topk"):
                for mbit in (10, 100):
                    if options.filter not in f"{workers} {model} {codec} {mbit}":
                        continue
                    every, found = options.every or EVERY[model, mbit], []
                    for overlap in (0, every // 2):
                        key = {"workers": workers, "model": model, "codec": codec, "mbit": mbit, "every": every,
                               "overlap": overlap, "rounds": options.rounds}
                        row = rows.find(key)
                        if not row:
                            settings = {**CODECS[codec], "train.sync_every": every, "train.batch_size": BATCH[model],
                                        "train.max_steps": every * options.rounds, "train.eval_every": 0,
                                        "train.overlap": overlap, "inner.warmup_steps": 10,
                                        "train.eval_tokens": 2048}
                            summary = run(folder / "run", data, model, settings, workers, mbit=mbit, delay_ms=DELAY_MS)
                            n = options.rounds * workers
                            row = {**key, "utilization": min(summary["utilization_by_worker"].values()),
                                   "by_worker": summary["utilization_by_worker"],
                                   "up": summary["bytes_up"] / n, "down": summary["bytes_down"] / n,
                                   "round_seconds": summary["round_seconds"]}
                            rows.add(row)
                        found.append(row)
                    plain, lapped = found
                    link_s = (lapped["up"] + lapped["down"]) * 8e-6 / mbit + 4 * DELAY_MS * 1e-3
                    step_s = lapped["round_seconds"] * lapped["utilization"] / every
                    carries = "yes" if link_s <= step_s * (every // 2) else "no"
                    print(f"{workers:>7} {model:>6} {codec:>5} {mbit:>6} {every:>4} {step_s:>7.3f} {link_s:>7.2f} "
                          f"{carries:>7} {plain['utilization']:>6.1%} {lapped['utilization']:>7.1%}", flush=True)
