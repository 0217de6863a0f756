"""`atoll plan` against real runs behind relays: `./run bench plan [--filter TEXT] [--rounds 16] [--table]`

Each cell is one run of --rounds rounds. Measured are the median time between the ends of two rounds, and the share of
compute time in it, mean over the workers. The plan gets the run's own step time: of the slowest worker of each round
with a barrier, because the others wait for it, else the mean. All other parts of a round come from the plan.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from overlap_runs import BIN, Rows, run

FP32 = {"codec.up": "fp32", "codec.down": "fp32"}
INT8 = {"codec.up": "int8:256", "codec.down": "int8:256"}
# Name, workers, model, Mbit/s, ms of the round trip, settings. The step is short, so that the link takes a large part.
CELLS: list[tuple[str, int, str, float, float, dict[str, Any]]] = [
    ("ddp", 2, "0.28M", 1000, 50, {"train.method": "ddp"}),
    ("ddp, slow link", 2, "0.28M", 100, 10, {"train.method": "ddp"}),
    ("local-sgd fp32", 2, "0.28M", 100, 50, {"train.method": "local-sgd", **FP32}),
    ("local-sgd fp32", 2, "0.28M", 10, 50, {"train.method": "local-sgd", **FP32}),
    ("diloco int8", 2, "0.28M", 10, 50, {"train.method": "diloco", **INT8}),
    ("diloco int8", 4, "0.28M", 10, 50, {"train.method": "diloco", **INT8}),
    ("diloco int8, H 8", 2, "0.28M", 1, 50, {"train.method": "diloco", "train.sync_every": 8, **INT8}),
    ("diloco int4", 2, "0.28M", 1, 50,
     {"train.method": "diloco", "codec.up": "int4:256+huff", "codec.down": "int4:256+huff"}),
    ("diloco 1 bit up, 2 bit down", 2, "0.28M", 1, 50,
     {"train.method": "diloco", "codec.up": "1bit:256", "codec.down": "2bit:256+huff"}),
    ("sparse", 2, "0.28M", 1, 50, {"train.method": "local-sgd", "codec.up": "topk:64/4096+sign", "codec.down": "auto"}),
    ("local-sgd int8, relay", 4, "0.28M", 10, 20,
     {"train.method": "local-sgd", "codec.up": "int8:256", "codec.down": "relay"}),
    ("overlap, tau H/2", 2, "0.28M", 10, 50, {"train.method": "diloco", "train.overlap": 15, **INT8}),
    ("streaming", 2, "0.28M", 10, 50, {"train.method": "streaming", **INT8}),
    ("async", 2, "0.28M", 10, 50, {"train.method": "async", **INT8}),
    ("diloco int8, 10.8M parameters", 2, "10.8M", 100, 50, {"train.method": "diloco", "train.sync_every": 8, **INT8}),
    ("diloco int8, 10.8M parameters", 2, "10.8M", 1000, 50, {"train.method": "diloco", "train.sync_every": 8, **INT8}),
]


def measure(folder: Path) -> tuple[float, float, float]:
    """(seconds of a round, utilization, seconds of a step) of a finished run."""
    rounds: list[float] = []
    compute: dict[int, dict[str, float]] = {}
    steps: dict[tuple[int, str], int] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "round":
            rounds.append(event["time"])
        if event["event"] == "step":
            key = (event["round"], event["worker"])
            steps[key] = steps.get(key, 0) + 1
            if "compute_s" in event:
                compute.setdefault(event["round"], {})[event["worker"]] = event["compute_s"]
    config = (folder / "config.yaml").read_text()
    barrier = "method: async" not in config
    lengths = [b - a for a, b in zip(rounds[1:-2], rounds[2:-1])]  # the first rounds measure the link's rate
    round_s = statistics.median(lengths)
    inner = [(number, each) for number, each in sorted(compute.items()) if 3 <= number <= len(rounds) - 2]
    used = statistics.mean(value for _, each in inner for value in each.values())
    step_s = [[value / steps[number, worker] for worker, value in each.items()] for number, each in inner]
    one = statistics.median(max(each) if barrier else statistics.mean(each) for each in step_s)
    return round_s, min(1.0, used / statistics.mean(lengths)), one


def main(folder: Path, data: Path, words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench plan")
    parser.add_argument("--filter", default="")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(words)
    rows, apart = Rows(folder / "plan.jsonl"), []
    print("| configuration | workers | Mbit/s | round trip | round, measured | planned | | utilization, measured | "
          "planned |\n|---|---|---|---|---|---|---|---|---|")
    for name, workers, model, mbit, rtt, own in CELLS:
        key = {"name": name, "workers": workers, "mbit": mbit, "rtt": rtt}
        if options.filter not in f"{name} {workers} {mbit}":
            continue
        row = rows.find(key)
        if not row and options.table:
            continue
        if not row:
            every = 1 if own["train.method"] == "ddp" else own.get("train.sync_every", 30)
            n = options.rounds * (5 if every == 1 else 1)
            settings = {"train.batch_size": 1 if model == "10.8M" else 4, "train.sync_every": every,
                        "train.max_steps": every * n, "train.eval_every": 0, "inner.warmup_steps": 10, **own}
            run(folder / "run", data, model, settings, workers, mbit=mbit, delay_ms=rtt / 2)
            round_s, utilization, step_s = measure(folder / "run" / "run")
            flags = [f"--{k}={v}" for k, v in settings.items()]
            answer = subprocess.run([str(BIN / "atoll"), "plan", str(folder / "run" / "run.yaml"), "--workers",
                                     str(workers), "--link", f"{mbit:g}mbit,rtt={rtt:g}ms", f"--step-seconds={step_s}",
                                     "--only", "--json", *flags], capture_output=True, text=True, check=True).stdout
            plan = json.loads(answer)["plan"]
            row = {**key, "round_s": round_s, "utilization": utilization, "step_s": step_s,
                   "planned_round_s": plan["round_s"], "planned_utilization": plan["utilization"]}
            rows.add(row)
        deviation = row["planned_round_s"] / row["round_s"] - 1
        apart.append(abs(deviation))
        print(f"| {name} | {workers} | {mbit:g} | {rtt:g} ms | {row['round_s']:.3f} s | {row['planned_round_s']:.3f} s | "
              f"{deviation:+.1%} | {row['utilization']:.1%} | {row['planned_utilization']:.1%} |", flush=True)
    if apart:
        print(f"\n{len(apart)} configurations: median deviation of a round {statistics.median(apart):.1%}, "
              f"largest {max(apart):.1%}")
