"""Unequal workers and no barrier: `./run bench overlap unequal [--steps 160] [--sync-every 20] [--seeds 1,2,3]`

- Three workers run for 30 % of the time and one for 6 % (SIGSTOP and SIGCONT), so that they do not wait for cores of
  this machine: tokens per second of a plain barrier, of a barrier with train.dynamic_steps, and of async, beside the sum
  of the workers' own speeds (of each worker, its steps over the seconds that it trained).
- Four equal workers: validation loss of async beside diloco at equal tokens, and bytes in both directions.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from overlap_runs import Rows, run

BATCH, BLOCK = 4, 128  # sequences of a step, tokens of a sequence
UNEQUAL = {0: 0.3, 1: 0.3, 2: 0.3, 3: 0.06}  # shares of the time
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


def main(folder: Path, data: Path, words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench overlap unequal")
    parser.add_argument("--model", default="0.98M")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--sync-every", type=int, default=20)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--overlap", type=int, default=-1, help="of async; -1: its default")
    options = parser.parse_args(words)
    rows = Rows(folder / "unequal.jsonl")
    base = {"train.max_steps": options.steps, "train.sync_every": options.sync_every, "train.batch_size": BATCH,
            "train.eval_every": 0, "inner.warmup_steps": 50, "train.method": "diloco"}
    async_arm = {"train.method": "async"}
    if options.overlap >= 0:
        async_arm["train.overlap"] = options.overlap

    def cell(arm: str, settings: dict[str, object], seed: int, slow: dict[int, float] | None) -> dict[str, float]:
        key = {"arm": arm, "seed": seed, "slow": bool(slow), "model": options.model, "steps": options.steps,
               "sync_every": options.sync_every, "overlap": options.overlap}
        row = rows.find(key)
        if not row:
            changed = {**base, **settings, "run.seed": seed}
            if slow and not settings:
                changed["train.max_steps"] = 5 * options.sync_every  # its speed is all that counts
            summary = run(folder / "run", data, options.model, changed, 4, slow=slow)
            row = {**key, "loss": summary["final_val_loss"], "tokens": summary["tokens"], "up": summary["bytes_up"],
                   "down": summary["bytes_down"], "tokens_per_second": summary["tokens_per_second"],
                   "own": sum(summary["steps_per_second"].values()) * BATCH * BLOCK}
            rows.add(row)
        return row

    arms = {"barrier": {}, "barrier, dynamic steps": {"train.dynamic_steps": "on"},
            "the same, tau H/4": {"train.dynamic_steps": "on", "train.overlap": options.sync_every // 4},
            "async": async_arm}
    print(f"{options.model}, {options.steps} steps, H {options.sync_every}, 4 workers")
    print("one of four workers five times slower:")
    print(f"{'arm':<30} {'tokens/s':>9} {'own speeds':>11} {'share':>6} {'val loss':>9}")
    for name, settings in arms.items():
        # The plain barrier trains the same bits at any speed: its losses stand below. With overlap one seed is enough.
        for seed in map(int, options.seeds.split(",")[: None if "tau" not in name and settings else 1]):
            row = cell(name, settings, seed, UNEQUAL)
            loss = row["loss"] if settings else math.nan
            print(f"{name + ', seed ' + str(seed):<30} {row['tokens_per_second']:>9.0f} {row['own']:>11.0f} "
                  f"{row['tokens_per_second'] / row['own']:>6.1%} {loss:>9.4f}")
    print("four equal workers, equal tokens:")
    print(f"{'arm':<30} {'val loss':>9} {'MB up':>7} {'MB down':>8}")
    pairs = []
    for seed in map(int, options.seeds.split(",")):
        sync, free = cell("barrier", {}, seed, None), cell("async", async_arm, seed, None)
        pairs.append(free["loss"] - sync["loss"])
        for name, row in (("diloco", sync), ("async", free)):
            print(f"{name + ', seed ' + str(seed):<30} {row['loss']:>9.4f} {row['up'] * 1e-6:>7.1f} "
                  f"{row['down'] * 1e-6:>8.1f}")
    n = len(pairs)
    spread = T95[n] * statistics.stdev(pairs) / math.sqrt(n) if n > 1 else math.nan
    print(f"async - diloco: {statistics.fmean(pairs):+.4f} +- {spread:.4f} (95 %)")
