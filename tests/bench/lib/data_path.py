"""CPU time of the coordinator per byte: data_path.py BUILD OUT.json [--before BIN] [--rounds N] [--small].

Called by `./run bench data-path`. Each row is a run of a real coordinator with workers that send noise."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402

Row = dict[str, Any]
PHASES = ("receive", "deliver", "merge", "down")
# up, down, workers, fragments, parameters of a fragment, I/O threads (0: as the coordinator chooses)
ROWS = [("int8:256", "int8:256", 4, 4, 16 << 20, 0), ("int8:256", "int8:256", 16, 8, 2 << 20, 0),
        ("int4:256+huff", "int4:256+huff", 4, 4, 16 << 20, 0),
        ("topk:64/4096+sign", "union", 4, 4, 16 << 20, 0), ("topk:64/4096+sign", "relay", 4, 4, 16 << 20, 0)]
IO_ROWS = [("int8:256", "int8:256", 16, 8, 2 << 20, n) for n in (1, 2, 4)]
SMALL = [("int8:256", "int8:256", 2, 2, 1 << 16, 1)]


def write_config(path: str, row: tuple[Any, ...]) -> None:
    up, down, workers, fragments = row[:4]
    with open(path, "w") as f:
        f.write(f"""run: {{name: data-path, seed: 1}}
model: {{n_layer: 1, n_head: 1, n_embd: 16, block_size: 16, vocab_size: 256}}
train: {{method: {'local-sgd' if up.startswith('topk') else 'diloco'}, max_steps: 200000, sync_every: 2,
        batch_size: 1, eval_every: 0, fragments: {fragments}}}
inner: {{optimizer: sgd, grad_clip: 0}}
codec: {{up: "{up}", down: "{down}"}}
coordinator: {{listen: "tcp://127.0.0.1:*", min_workers: {workers}, threads: 2}}
checkpoint: {{every: 0}}
""")


def measure(bin_folder: str, args: argparse.Namespace, row: tuple[Any, ...]) -> Row:
    """One run; returns the numbers of bench_data_path."""
    up, down, workers, fragments, params, io_threads = row
    env = {key: value for key, value in os.environ.items() if not key.startswith("ATOLL_")}
    if io_threads:
        env["BENCH_IO_THREADS"] = str(io_threads)
        env["LD_PRELOAD"] = os.path.join(args.build, "lib", "libbench_io_threads.so")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        config, run, log = (os.path.join(folder, name) for name in ("run.yaml", "run", "log"))
        write_config(config, row)
        with open(log, "w") as output, subprocess.Popen(
                [os.path.join(bin_folder, "atoll-coordinator"), config, "--dir", run], stdout=output, stderr=output,
                env=env) as coordinator:
            try:
                address = os.path.join(run, "address")
                while coordinator.poll() is None and not (os.path.exists(address) and os.path.getsize(address)):
                    time.sleep(0.05)
                with open(address) as f:
                    join = f.read().strip()
                done = subprocess.run(
                    [os.path.join(args.build, "bin", "bench_data_path"), "--join", join, "--pid", str(coordinator.pid),
                     "--workers", str(workers), "--rounds", str(args.rounds), "--fragments", str(fragments),
                     "--params", str(params), "--up", up, *(["--relay"] if down == "relay" else [])], capture_output=True, text=True, check=False)
            finally:
                coordinator.kill()
        if done.returncode:
            with open(log) as f:
                raise SystemExit(f"bench data-path: a run failed:\n{done.stderr}\n{f.read()[-2000:]}")
    return json.loads(done.stdout)


def per_gb(row: Row, kind: str) -> dict[str, float]:
    """Seconds of CPU per GB of payload: of a phase, of uploads, of downloads."""
    up, down = row["bytes_up"] * 1e-9, row["bytes_down"] * 1e-9
    if kind == "serial":  # the pool has one thread beside the main one, and they share its work equally
        main, pool = per_gb(row, "main"), per_gb(row, "pool")
        return {p: max(main[p] - pool[p], 0.0) for p in main}
    out = {p: row[p][kind] / (down if p == "down" else up) for p in PHASES}
    out["up"] = sum(out[p] for p in PHASES[:3])
    return out


def show(name: str, row: Row) -> None:
    for kind in ("main", "serial", "pool", "io"):
        cells = per_gb(row, kind)
        print(f"{name:34} {kind:>6} " + " ".join(f"{cells[p]:8.3f}" for p in (*PHASES[:3], "up", "down")), flush=True)
        name = ""
    wall = {p: row[p]["wall"] for p in PHASES}
    wall["up"] = sum(wall[p] for p in PHASES[:3])
    print(f"{'':34} {'GB/s':>6} " + " ".join(
        f"{row['bytes_down' if p == 'down' else 'bytes_up'] * 1e-9 / wall[p]:8.3f}" for p in (*PHASES[:3], "up", "down")),
          flush=True)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("out")
    p.add_argument("--before")
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--folder", help="for the run folders")
    p.add_argument("--only", default="", help="rows whose text contains this")
    p.add_argument("--small", action="store_true")
    args = p.parse_args()
    args.folder = args.folder or os.path.dirname(args.out)
    print(f"{'seconds of CPU per GB of payload':34} {'':>6} " + " ".join(f"{n:>8}" for n in (*PHASES[:3], "up", "down")))
    rows: list[Row] = []
    for row in SMALL if args.small else ROWS + IO_ROWS:
        up, down, workers, fragments, params, io_threads = row
        text = f"{up}/{down} {workers}x{fragments}x{params >> 10}Ki" + (f" io{io_threads}" if io_threads else "")
        if args.only not in text:
            continue
        entry: Row = {"up": up, "down": down, "workers": workers, "fragments": fragments, "params": params,
                      "io_threads": io_threads}
        for name, folder in (("before", args.before), ("after", os.path.join(args.build, "bin"))):
            if folder:
                entry[name] = measure(folder, args, row)
                show(f"{text}" if name == "after" or not args.before else f"{text} before", entry[name])
        rows.append(entry)
    with open(args.out, "w") as f:
        json.dump({"name": "data-path", "machine": machine.describe(), "rows": rows}, f, indent=1)
        f.write("\n")


main()
