"""The measurements of `./run bench overhead`: overhead.py FOLDER JSON [--steps 30] [--rounds 8] [--threads 2]"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ["ATOLL_BIN"])
# The learning rate is the coordinator's bound for a delta: the noise of the sync points must pass it.
STEPS_RUN = """
model: {preset: gpt2, block_size: 128}
inner: {learning_rate: 1.0, warmup_steps: 0}
train: {method: diloco, max_steps: 1000000, sync_every: 100000, batch_size: 1, eval_every: 0}
codec: {up: "int8:256", down: "int8:256"}
coordinator: {listen: "tcp://127.0.0.1:*"}
checkpoint: {every: 0, worker_every: 0}
"""
SYNC_RUN = STEPS_RUN.replace("sync_every: 100000", "sync_every: 1")


class Child:
    """A process that answers each line with one JSON object."""

    def __init__(self, log: Path, *words: str) -> None:
        with log.open("wb") as file:
            command = [sys.executable, str(HERE / "lib" / "overhead_child.py"), *words]
            self.process = subprocess.Popen(command, cwd=log.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=file, text=True)
        self.log = log
        self.parameters = self._answer()["parameters"]

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench overhead: a process ended:\n{self.log.read_text()[-2000:]}")
        return json.loads(line)

    def tell(self, word: str) -> dict:
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def coordinator(folder: Path, name: str, text: str) -> tuple[subprocess.Popen, Path]:
    (folder / f"{name}.yaml").write_text(text)
    run = folder / name
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([str(BIN / "atoll-coordinator"), str(folder / f"{name}.yaml"), "--dir", str(run)],
                                   stdout=log, stderr=log)
    while not (run / "address").exists():
        if process.poll() is not None:
            raise SystemExit(f"bench overhead: the coordinator ended: {(folder / f'{name}.log').read_text()[-500:]}")
        time.sleep(0.05)
    return process, run


def steps(folder: Path, pairs: int, threads: str) -> list[dict]:
    """Step times and memory of a process with Atoll and one without, in turn."""
    process, run = coordinator(folder, "steps", STEPS_RUN)
    children = {}
    try:
        children = {"plain": Child(folder / "plain.log", "plain", threads),
                    "atoll": Child(folder / "atoll.log", "atoll", threads, str(run))}
        times: dict[str, list[dict]] = {"plain": [], "atoll": []}
        for pair in range(pairs + 2):
            for name in ("plain", "atoll") if pair % 2 else ("atoll", "plain"):
                times[name].append(children[name].tell("step"))
        memory = {name: child.tell("memory")["resident_mb"] for name, child in children.items()}
    finally:
        for child in children.values():
            child.end()
        process.kill()
        process.wait()
    row = {"what": "step", "parameters": children["plain"].parameters, "pairs": pairs}
    for key in ("seconds", "cpu_s"):
        kept = {name: [step[key] for step in values[2:]] for name, values in times.items()}
        for name, values in kept.items():
            row[f"{name}_{key}"] = statistics.median(values)
        row[f"overhead_{key}"] = statistics.median(a / p - 1 for a, p in zip(kept["atoll"], kept["plain"]))
    row["own_s"] = statistics.median(step["own_s"] for step in times["atoll"][2:])
    plan = re.search(r"memory of the outer loop in MiB: (.*?total (\d+))", (folder / "atoll.log").read_text())
    return [row,
            {"what": "memory", "parameters": children["plain"].parameters, "plain_mib": memory["plain"],
             "atoll_mib": memory["atoll"], "more_mib": memory["atoll"] - memory["plain"],
             "plan_mib": int(plan.group(2)) if plan else None, "plan": plan.group(1) if plan else None}]


def sync_row(worker: str, parameters: int, rounds: list[dict]) -> dict:
    row = {"what": "sync", "worker": worker, "parameters": parameters, "rounds": len(rounds)}
    for key in ("seconds", "compress_s", "apply_s", "copy_s"):
        row[key] = statistics.median(r[key] for r in rounds)
    row["gb_per_s"] = 4e-9 * parameters / row["seconds"]
    row["worker_gb_per_s"] = 4e-9 * parameters / (row["compress_s"] + row["apply_s"] + row["copy_s"])
    return row


def sync_script(folder: Path, rounds: int, threads: str) -> dict:
    process, run = coordinator(folder, "sync-script", SYNC_RUN)
    try:
        child = Child(folder / "sync.log", "sync", threads, str(run))
        times = [child.tell("sync") for _ in range(rounds + 2)][2:]
        child.end()
    finally:
        process.kill()
        process.wait()
    return sync_row("PyTorch script", child.parameters, times)


def sync_native(folder: Path, rounds: int) -> dict:
    process, run = coordinator(folder, "sync-native", SYNC_RUN)
    (folder / "barrier").touch()
    try:
        line = (run / "address").read_text().splitlines()[-1]
        subprocess.run([str(BIN / "bench_outer_worker"), "--join", line, "--barrier", "barrier", "--workers", "1",
                        "--index", "0", "--rounds", str(rounds + 2), "--report", "report", "--device", "lo"],
                       cwd=folder, check=True)
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(text) for text in (folder / "report").read_text().splitlines()][2:]
    times = [{"seconds": (r["placed"] - r["ready"]) / 1e6, "compress_s": r["compress_s"], "apply_s": r["apply_s"],
              "copy_s": (r["placed"] - r["applied"]) / 1e6} for r in lines]
    return sync_row("atoll-worker", lines[0]["params"], times)


def table(rows: list[dict]) -> None:
    for r in rows:
        if r["what"] == "step":
            for key, name in (("seconds", "step, wall"), ("cpu_s", "step, CPU")):
                plain, atoll = r["plain_" + key] * 1e3, r["atoll_" + key] * 1e3
                print(f"{name:<13} without Atoll {plain:8.1f} ms   with {atoll:8.1f} ms   {r['overhead_' + key]:+.2%}, "
                      f"median of {r['pairs']} pairs")
            share = r["own_s"] / r["plain_seconds"]
            print(f"{'':<13} the package's functions take {r['own_s'] * 1e3:.2f} ms of it, {share:.3%}")
        elif r["what"] == "memory":
            print(f"memory        without Atoll {r['plain_mib']:8.0f} MiB  with {r['atoll_mib']:8.0f} MiB  "
                  f"{r['more_mib']:+.0f} MiB; the plan: {r['plan']}")
        else:
            print(f"sync point    {r['worker']:<15} {r['seconds']:6.3f} s  {r['gb_per_s']:5.2f} GB/s; the worker's "
                  f"part {r['worker_gb_per_s']:5.2f} GB/s (encode {r['compress_s']:.3f} s, apply {r['apply_s']:.3f} s, "
                  f"copies {r['copy_s']:.3f} s)")
    print("CPU: time of all threads of the process, also of Atoll's; other programs change it least")
    print("GB/s: fp32 parameters per second, once; a sync point includes the coordinator on this machine")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench overhead")
    parser.add_argument("folder", type=Path)
    parser.add_argument("json", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", default="2")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    rows = steps(options.folder, options.steps, options.threads)
    rows += [sync_native(options.folder, options.rounds), sync_script(options.folder, options.rounds, options.threads)]
    table(rows)
    about = {**machine.describe(), "threads": int(options.threads)}
    options.json.write_text(json.dumps({"name": "overhead", "machine": about, "rows": rows}, indent=1) + "\n")
    print(options.json)


main()
