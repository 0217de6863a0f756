"""What overlap costs: `./run bench overlap cost [--model 0.98M] [--steps 480] [--sync-every 20] [--seeds 1,2,3]`

Validation loss at equal tokens for tau in {0, 1, H/4, H/2, H}, with train.apply correct and mix:0.5, and of
train.method streaming, with its usual tau and with H/2. Two workers, int8:256. The trajectory does not depend on the
link, so there is none.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from overlap_runs import Rows, run

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided 95 %, by number of pairs


def arms(every: int) -> list[tuple[str, dict[str, object]]]:
    taus = sorted({1, every // 4, every // 2, every})
    found: list[tuple[str, dict[str, object]]] = [("tau 0", {})]
    for rule in ("correct", "mix:0.5"):
        found += [(f"tau {tau} {rule}", {"train.overlap": tau, "train.apply": rule}) for tau in taus]
    streaming: dict[str, object] = {"train.method": "streaming"}
    half = {**streaming, "train.overlap": every // 2}
    return [*found, ("streaming", streaming), (f"streaming tau {every // 2}", half)]


def main(folder: Path, data: Path, words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench overlap cost")
    parser.add_argument("--model", default="0.98M")
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--sync-every", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--momentum", type=float, default=0.9, help="of the outer optimizer; 0: sgd")
    parser.add_argument("--arms", default="", help="only these, separated by commas; the first one is compared with")
    parser.add_argument("--seeds", default="1,2,3")
    options = parser.parse_args(words)
    rows = Rows(folder / "cost.jsonl")
    losses: dict[str, list[float]] = {}
    for seed in map(int, options.seeds.split(",")):
        for name, settings in arms(options.sync_every):
            if options.arms and name not in options.arms.split(","):
                continue
            key = {"arm": name, "seed": seed, "model": options.model, "steps": options.steps,
                   "sync_every": options.sync_every, "batch": options.batch, "lr": options.lr,
                   "outer_lr": options.outer_lr, "momentum": options.momentum}
            row = rows.find(key)
            if not row:
                base = {"run.seed": seed, "train.method": "diloco", "train.max_steps": options.steps,
                        "train.sync_every": options.sync_every, "train.batch_size": options.batch,
                        "train.eval_every": 0, "inner.learning_rate": options.lr, "inner.warmup_steps": 50}
                if "train.method" not in settings:
                    base["outer.learning_rate"] = options.outer_lr
                    base["outer.optimizer"] = "nesterov" if options.momentum else "sgd"
                    base["outer.momentum"] = options.momentum
                summary = run(folder / "run", data, options.model, {**base, **settings}, 2)
                row = {**key, "loss": summary["final_val_loss"], "tokens": summary["tokens"],
                       "theta_hash": summary["theta_hash"], "seconds": summary["wall_s"]}
                rows.add(row)
            losses.setdefault(name, []).append(row["loss"])
    print(f"{options.model} parameters, {options.steps} steps, H {options.sync_every}, 2 workers, "
          f"seeds {options.seeds}, outer rate {options.outer_lr:g}, momentum {options.momentum:g}")
    print(f"{'arm':<18} {'val loss':>9} {'sd':>7}  difference to the first, 95 % interval")
    for name, values in losses.items():
        pairs = [a - b for a, b in zip(values, next(iter(losses.values())))]
        n = len(pairs)
        spread = T95[n] * statistics.stdev(pairs) / math.sqrt(n) if n > 1 else math.nan
        sd = statistics.stdev(values) if n > 1 else math.nan
        print(f"{name:<18} {statistics.fmean(values):>9.4f} {sd:>7.4f}  {statistics.fmean(pairs):+.4f} +- {spread:.4f}")
