"""The runs of `./run bench rules`: rules.py FOLDER JSON [--seeds 1,2,3] [--steps 384] [--only RULE]

FOLDER/data holds the token shards. A row compares two arms with the same seeds and tokens. All arms have
four workers, configs/austen-1m.yaml with a smaller model, and the settings below; an arm of several rows runs once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "bench"))
import machine  # noqa: E402

BIN = Path(os.environ.get("ATOLL_BIN", ROOT / "build" / "bin"))
WORKERS = 4
COMMON = ["model.n_layer=2", "model.n_head=2", "model.n_embd=48", "model.block_size=64", "train.eval_every=0",
          "inner.warmup_steps=48", "checkpoint.every=0", "checkpoint.worker_every=0", "log.level=warn",
          "coordinator.listen=tcp://127.0.0.1:*", f"coordinator.min_workers={WORKERS}"]
SPARSE = "topk:64/4096+sign"
ASYNC = ["train.method=async"]
# name: (settings of the run, flags of the last worker)
ARMS: dict[str, tuple[list[str], list[str]]] = {
    "base": ([], []),
    "no clip": (["merge.clip=off"], []),
    "median": (["merge.clip=median"], []),
    "rda": (["merge.rule=rda"], []),
    "scaling": (["inner.scaling=sqrt"], []),
    "start": (["train.start_step=48"], []),
    "mixed codecs": ([f"codec.up_allowed={SPARSE}"], [f"--codec.up={SPARSE}"]),
    "grace": (ASYNC, []),
    "no grace": ([*ASYNC, "outer.grace=0"], []),
}
# rule, what is compared, arm without it, arm with it
ROWS = [
    ("merge.clip: auto", "instead of off; all workers are honest", "no clip", "base"),
    ("merge.clip: median", "instead of off; all workers are honest", "no clip", "median"),
    ("merge.rule: rda", "instead of mean", "base", "rda"),
    ("inner.scaling: sqrt", "rate 6e-3 instead of 3e-3", "base", "scaling"),
    ("train.start_step", "the first 48 steps have a round each", "base", "start"),
    ("codec.up_allowed", f"one of four workers sends {SPARSE}", "base", "mixed codecs"),
    ("outer.grace: auto", "async, instead of 0", "no grace", "grace"),
]


def start(log: Path, words: list[str], cwd: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(words, cwd=cwd, stdout=file, stderr=file)


def run(folder: Path, arm: str, seed: int, steps: int) -> dict[str, object]:
    """One run. The first process that fails ends the benchmark."""
    home = folder / "run"
    settings, own = ARMS[arm]
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    given = [f"--{word}" for word in [*COMMON, f"run.seed={seed}", f"train.max_steps={steps}", *settings]]
    config = str(ROOT / "configs" / "austen-1m.yaml")
    began = time.monotonic()
    left = {"coordinator": start(home / "c.log", [str(BIN / "atoll-coordinator"), config, "--dir", "run", *given], home)}
    try:
        while not (home / "run" / "address").exists() and left["coordinator"].poll() is None:
            time.sleep(0.05)
        for i in range(WORKERS):
            words = [str(BIN / "atoll-worker"), "--join", "run", "--dir", f"w{i}", f"--data.val={folder}/data/val_*.bin",
                     f"--data.train={folder}/data/train_*.bin"]
            left[f"w{i}"] = start(home / f"w{i}.log", words + own * (i == WORKERS - 1), home)
        while left:
            time.sleep(0.1)
            for name, process in list(left.items()):
                if process.poll() is not None and process.returncode:
                    raise SystemExit(f"bench rules: {arm}: {name} ended with code {process.returncode}: {home}")
                if process.returncode is not None:
                    del left[name]
    finally:
        for process in left.values():
            process.kill()
            process.wait()
    summary = json.loads((home / "run" / "summary.json").read_text())
    keys = ("tokens", "rounds", "final_val_loss", "bytes_up", "bytes_down")
    return {"arm": arm, "seed": seed, **{key: summary[key] for key in keys},
            "seconds": round(time.monotonic() - began, 1)}


def table(runs: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows whose arms have run. Differences are of runs with the same seed."""
    rows: list[dict[str, object]] = []
    for rule, what, without, with_rule in ROWS:
        pairs = [[r for r in runs if r["arm"] == arm] for arm in (without, with_rule)]
        if not all(pairs):
            continue
        losses = [[float(str(r["final_val_loss"])) for r in arm] for arm in pairs]
        gains = [b - a for a, b in zip(*losses)]
        row: dict[str, object] = {"rule": rule, "compared": what}
        for name, arm, loss in zip(("without", "with"), pairs, losses):
            row[f"loss_{name}"] = round(statistics.fmean(loss), 4)
            row[f"mb_up_{name}"] = round(statistics.fmean(int(str(r["bytes_up"])) for r in arm) / 1e6, 2)
        row["difference"] = round(statistics.fmean(gains), 4)
        row["from"], row["to"] = round(min(gains), 4), round(max(gains), 4)
        rows.append(row)
    return rows


def show(rows: list[dict[str, object]]) -> None:
    print(f"{'rule':<20} {'compared':<42} {'without':>8} {'with':>8} {'difference':>10} {'from':>8} {'to':>8} "
          f"{'MB up':>6} {'with':>6}")
    for r in rows:
        print(f"{r['rule']:<20} {r['compared']:<42} {r['loss_without']:>8} {r['loss_with']:>8} {r['difference']:>10} "
              f"{r['from']:>8} {r['to']:>8} {r['mb_up_without']:>6} {r['mb_up_with']:>6}")
    print("loss: nats per byte on the held-out 5 %, mean over seeds; MB up: of all workers, on their sockets")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench rules")
    parser.add_argument("folder", type=Path)
    parser.add_argument("json", type=Path)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=384)
    parser.add_argument("--only", default="", help="rows whose rule begins so")
    options = parser.parse_args()
    rows = [row for row in ROWS if row[0].startswith(options.only)]
    runs = []
    for arm in dict.fromkeys(arm for row in rows for arm in row[2:]):
        for seed in map(int, options.seeds.split(",")):
            runs.append(run(options.folder.resolve(), arm, seed, options.steps))
            print(json.dumps(runs[-1]), flush=True)
    shown = table(runs)
    show(shown)
    options.json.write_text(json.dumps({"name": "rules", "machine": machine.describe(), "rows": shown, "runs": runs},
                                       indent=1) + "\n")
    print(options.json)


main()
