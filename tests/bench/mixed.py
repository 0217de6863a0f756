"""The runs of `./run bench mixed`: mixed.py FOLDER JSON [--seeds 1,2,3] [--steps 480] [--sync-every 16]

FOLDER/data holds the token shards. `mixed.py --script SCRIPT ARGS...` runs a training script as one worker and prints
the hash of the parameters that its worker ended with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("ATOLL_BIN", ROOT / "build" / "bin"))
# The model, batch and optimizer of examples/gpt2.py.
CONFIG = """
model: {family: gpt2, n_layer: 3, n_head: 4, n_embd: 160, block_size: 96, vocab_size: 256}
train: {method: diloco, batch_size: 8, eval_every: 0}
inner: {learning_rate: 3.0e-3, schedule: cosine, warmup_steps: 100, min_lr_fraction: 0.1}
outer: {optimizer: nesterov, learning_rate: 0.7, momentum: 0.7}
codec: {up: "int8:256", down: "int8:256"}
coordinator: {listen: "tcp://127.0.0.1:*", min_workers: 3}
"""


def run_script(words: list[str]) -> None:
    sys.argv = words
    names = runpy.run_path(words[0], run_name="__main__")
    print(f"theta_hash {names['worker'].info().theta_hash}", flush=True)


def start(log: Path, words: list[str], cwd: Path, **environment: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(words, cwd=cwd, env={**os.environ, **environment}, stdout=file, stderr=file)


def wait(processes: dict[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Waits for all processes. The first one that fails ends the benchmark."""
    left = dict(processes)
    while left:
        time.sleep(0.2)
        for name, process in list(left.items()):
            if process.poll() is None:
                continue
            del left[name]
            if process.returncode:
                tail = (folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
                raise SystemExit("\n".join([*tail, f"bench mixed: {name} ended with code {process.returncode}"]))


def run(folder: Path, data: Path, scripts: int, seed: int, steps: int, every: int) -> dict[str, object]:
    """One run with three workers, `scripts` of them PyTorch scripts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(CONFIG)
    started = time.monotonic()
    settings = [f"--run.seed={seed}", f"--train.max_steps={steps}", f"--train.sync_every={every}"]
    coordinator = [str(BIN / "atoll-coordinator"), "run.yaml", "--dir", "run", *settings]
    processes = {"coordinator": start(folder / "coordinator.log", coordinator, folder)}
    try:
        while not (folder / "run" / "address").exists() and processes["coordinator"].poll() is None:
            time.sleep(0.05)
        for i in range(3):
            name = f"worker-{i}"
            script = [sys.executable, __file__, "--script", str(ROOT / "examples" / "gpt2.py"), "--data", str(data)]
            native = [str(BIN / "atoll-worker"), "--join", str(folder / "run"), "--dir", name,
                      f"--data.train={data}/train_*.bin", f"--data.val={data}/val_*.bin", "--train.threads=1"]
            words = [*script, "--steps", str(steps), "--out", f"model-{i}"] if i < scripts else native
            processes[name] = start(folder / f"{name}.log", words, folder, ATOLL_JOIN=str(folder / "run"),
                                    OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        wait(processes, folder)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
    summary = json.loads((folder / "run" / "summary.json").read_text())
    hashes = [summary["theta_hash"]]
    for i in range(3):
        hashes += re.findall(r"theta_hash (\w+)$", (folder / f"worker-{i}.log").read_text(), re.MULTILINE)
    if len(hashes) != 4 or len(set(hashes)) != 1:
        raise SystemExit(f"bench mixed: the parameters differ: {hashes} (coordinator, then workers)")
    return {"arm": "mixed" if scripts else "native", "seed": seed, "steps": steps, "sync_every": every,
            "workers": f"{scripts} scripts, {3 - scripts} atoll-worker", "tokens": summary["tokens"],
            "final_val_loss": summary["final_val_loss"], "theta_hash": hashes[0], "same_hash": len(hashes),
            "seconds": round(time.monotonic() - started, 1)}


def table(rows: list[dict[str, object]]) -> None:
    print(f"{'seed':>4} {'arm':<7} {'workers':<26} {'tokens':>9} {'val loss':>9} {'theta_hash':>17} {'seconds':>8}")
    for r in rows:
        print(f"{r['seed']:>4} {r['arm']:<7} {r['workers']:<26} {r['tokens']:>9} {r['final_val_loss']:>9.4f} "
              f"{r['theta_hash']:>17} {r['seconds']:>8}")
    losses = {arm: [float(str(r["final_val_loss"])) for r in rows if r["arm"] == arm] for arm in ("native", "mixed")}
    for arm, values in losses.items():
        spread = f", standard deviation {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        print(f"{arm}: mean {statistics.fmean(values):.4f}{spread}")
    print("val loss: nats per token on the held-out 5 %; coordinator and workers hold the same hash")


def main() -> None:
    if sys.argv[1:2] == ["--script"]:
        run_script(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="bench mixed")
    parser.add_argument("folder", type=Path)
    parser.add_argument("json", type=Path)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--sync-every", type=int, default=16)
    options = parser.parse_args()
    rows = []
    for seed in map(int, options.seeds.split(",")):
        for scripts in (0, 2):
            folder = options.folder / f"{'mixed' if scripts else 'native'}-{seed}"
            rows.append(run(folder, options.folder / "data", scripts, seed, options.steps, options.sync_every))
            print(f"seed {seed}, {rows[-1]['arm']}: {rows[-1]['final_val_loss']:.4f} in {rows[-1]['seconds']} s",
                  file=sys.stderr)
    table(rows)
    options.json.write_text(json.dumps({"name": "mixed", "machine": machine.describe(), "rows": rows}, indent=1) + "\n")
    print(options.json)


main()
