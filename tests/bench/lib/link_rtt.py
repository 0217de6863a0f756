"""Waits for updates over long links: link_rtt.py BIN DATA OUT.json [--before BIN] [--rounds N] [--small].

Called by `./run bench link-rtt`. Each row is a run of one worker behind a relay."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402

RTTS_MS, RATES_MBIT, GOAL = (0, 20, 100, 200, 400), (0, 100), 1.3
MODEL = {"n_layer": 2, "n_head": 4, "n_embd": 256, "block_size": 32, "vocab_size": 50257}
SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 32, "vocab_size": 500}


def events(folder: str) -> list[dict[str, Any]]:
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def measure(bin_folder: str, args: argparse.Namespace, spec: str) -> dict[str, float]:
    """Runs one worker over this link. Returns the medians of the rounds that have found their window."""
    model = SMALL if args.small else MODEL
    keys = {"train.batch_size": 1, "train.sync_every": 2, "train.max_steps": 2 * args.rounds, "train.eval_every": 0,
            "train.fragments": 8, "train.method": "diloco", "codec.up": "int8:256", "codec.down": "int8:256",
            "data.tokenizer": "none", "data.train": os.path.join(args.data, "train_*.bin"),
            "data.val": os.path.join(args.data, "val_*.bin"), "coordinator.listen": "tcp://127.0.0.1:*"}
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        config = os.path.join(folder, "config.yaml")
        with open(config, "w") as f:
            f.write("model:\n" + "".join(f"  {key}: {value}\n" for key, value in model.items()))
        words = [os.path.join(bin_folder, "atoll"), "launch", config, "--workers", "1", "--dir", run, "--link", spec]
        words += [f"--{key}={value}" for key, value in keys.items()]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench link-rtt: a run failed:\n{done.stderr[-2000:]}")
        all_events = events(run)
    waits = [e for e in all_events if e["event"] == "step" and "wait_s" in e]
    sizes: dict[int, int] = {}
    for e in all_events:
        if e["event"] == "update":
            sizes[e["round"]] = sizes.get(e["round"], 0) + e["update_bytes"]
    last = waits[len(waits) // 2:]
    return {"first_s": waits[0]["wait_s"], "wait_s": statistics.median(e["wait_s"] for e in last),
            "send_s": statistics.median(e["send_s"] for e in last), "bytes": statistics.median(sizes.values())}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("bin")
    p.add_argument("data")
    p.add_argument("out")
    p.add_argument("--before")
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--small", action="store_true")
    args = p.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'Mbit/s':>7} {'rtt ms':>7} {'bound s':>8} {'before s':>9} {'wait s':>7} {'/ bound':>8} "
          f"{'first s':>8} {'send s':>7}")
    for mbit in RATES_MBIT:
        bytes_s = 0.0
        for rtt_ms in (0, 20) if args.small else RTTS_MS:
            spec = f"{mbit}mbit,rtt={rtt_ms}ms" if mbit else f"rtt={rtt_ms}ms"
            before = measure(args.before, args, spec) if args.before else None
            row: dict[str, Any] = {"mbit": mbit, "rtt_ms": rtt_ms, **measure(args.bin, args, spec)}
            if mbit:
                bytes_s = row["bytes"] * 8e-6 / mbit
            elif not rtt_ms:
                bytes_s = row["wait_s"]
            bound_s = 1.5e-3 * rtt_ms + bytes_s
            row.update(bound_s=round(bound_s, 4), ratio=round(row["wait_s"] / bound_s, 3) if bound_s > 0 else 0.0,
                       before_s=before["wait_s"] if before else None,
                       before_send_s=before["send_s"] if before else None)
            rows.append(row)
            was = f"{before['wait_s']:9.3f}" if before else f"{'-':>9}"
            print(f"{mbit or 'none':>7} {rtt_ms:7} {bound_s:8.3f} {was} {row['wait_s']:7.3f} {row['ratio']:8.2f} "
                  f"{row['first_s']:8.3f} {row['send_s']:7.3f}", flush=True)
    above = [row for row in rows if row["ratio"] > GOAL]
    print(f"{len(rows)} rows of {rows[-1]['bytes'] * 1e-6:.1f} MB, {len(above)} above {GOAL} of the bound")
    with open(args.out, "w") as f:
        json.dump({"name": "link-rtt", "machine": machine.describe(), "rows": rows}, f, indent=1)
        f.write("\n")
    if above and not args.small:
        raise SystemExit(1)


main()
