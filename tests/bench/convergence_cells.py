"""The grid of `./run bench convergence`: its cells, their order, and the row of each finished cell.

One cell is one run. A finished cell is one JSON file: settings, final validation loss, bytes counted on the sockets,
and the validation curve."""

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import time

# `steps` counts per worker; `batch` counts sequences per step of all workers. All cells of a model train on the same
# number of tokens.
# `start`: the cells start from a model that one worker trained alone at a constant rate. They then compare training
# after the first plateau; without it, the length of the plateau decides the loss.
# `data`: folder of the shards. The large model has a smaller held-out set, because evaluation takes long.
MODELS = {
    "demo": {"steps": 480, "warmup": 48, "batch": 16, "eval_steps": 32, "eval_tokens": 16384, "checkpoint": 20,
             "data": "data", "flags": ["--inner.learning_rate=3e-3"]},
    "10m": {"steps": 320, "warmup": 16, "batch": 8, "eval_steps": 64, "eval_tokens": 8192, "checkpoint": 40,
            "data": "data-large", "start": {"steps": 256, "batch": 16, "warmup": 64},
            "flags": ["--model.n_layer=6", "--model.n_head=6", "--model.n_embd=384", "--inner.learning_rate=1e-3"]},
}


def outer_flags(optimizer, rate, momentum, *more):
    return [f"--outer.optimizer={optimizer}", f"--outer.learning_rate={rate}", f"--outer.momentum={momentum}", *more]


OUTER_STEPS = {
    "mean": outer_flags("sgd", 1, 0),
    "mean over all": outer_flags("sgd", 1, 0, "--merge.rule=mean"),  # for topk: 0 where a worker sent nothing
    "mean × 1.5": outer_flags("sgd", 1.5, 0),
    "mean × 0.7": outer_flags("sgd", 0.7, 0),
    "mean × 0.5": outer_flags("sgd", 0.5, 0),
    "muon, mean": outer_flags("sgd", 1, 0, "--inner.optimizer=muon"),  # rate and decay of AdamW
    "muon × 0.5, mean": outer_flags("sgd", 1, 0, "--inner.optimizer=muon", "--inner.learning_rate=1.5e-3"),
    "muon × 2, mean": outer_flags("sgd", 1, 0, "--inner.optimizer=muon", "--inner.learning_rate=6e-3"),
    "rate × 2, mean": outer_flags("sgd", 1, 0, "--inner.learning_rate=6e-3"),
    "muon, nesterov 0.7": outer_flags("nesterov", 0.7, 0.7, "--inner.optimizer=muon"),
    "bf16 moments, mean": outer_flags("sgd", 1, 0, "--inner.moments=bf16"),
    "beta2 0.999, mean": outer_flags("sgd", 1, 0, "--inner.beta2=0.999"),
    "bf16 moments, beta2 0.999, mean": outer_flags("sgd", 1, 0, "--inner.moments=bf16", "--inner.beta2=0.999"),
    "muon, bf16 moments, mean": outer_flags("sgd", 1, 0, "--inner.optimizer=muon", "--inner.moments=bf16"),
    "nesterov 0.3": outer_flags("nesterov", 0.7, 0.3),  # 0.7 / (1 - 0.3) = 1
    "nesterov 0.7": outer_flags("nesterov", 0.7, 0.7),
}

# Name: codec up, codec down, outer step. Most tiers use the mean without momentum, because the residual of topk acts as
# momentum. A coordinate sent by one worker moves by that worker's whole residual, and decay shrinks the residual. The
# length of a topk step therefore differs from the mean: the tiers fp32-long and fp32-short measure that effect.
TIERS = {
    "fp32": ("fp32", "fp32", "mean"),
    "bf16": ("bf16", "bf16", "mean"),
    "int8": ("int8:256", "int8:256", "mean"),
    "int4": ("int4:256+huff", "int4:256+huff", "mean"),
    "2bit": ("2bit:256+huff", "2bit:256+huff", "mean"),
    "1bit": ("1bit:256", "2bit:256+huff", "mean"),
    "1bit1": ("1bit:256", "1bit:256", "mean"),
    "topk64-sign": ("topk:64/4096+sign", "auto", "mean"),
    "topk64-sign-all": ("topk:64/4096+sign", "auto", "mean over all"),
    "topk64-sign-both": ("topk:64/4096+sign", "topk:64/4096+sign", "mean"),
    "topk64-sign-relay": ("topk:64/4096+sign", "relay", "mean"),
    "topk64-2bit": ("topk:64/4096+2bit", "auto", "mean"),
    "topk64-int8": ("topk:64/4096+int8", "auto", "mean"),
    "topk256-2bit": ("topk:256/4096+2bit", "auto", "mean"),
    "topk256-2bit-all": ("topk:256/4096+2bit", "auto", "mean over all"),
    "topk256-2bit-half": ("topk:256/4096+2bit", "auto", "mean × 0.5"),
    "topk256-2bit-relay": ("topk:256/4096+2bit", "relay", "mean"),
    "fp32-long": ("fp32", "fp32", "mean × 1.5"),
    "fp32-short": ("fp32", "fp32", "mean × 0.7"),
    "fp32-light": ("fp32", "fp32", "nesterov 0.3"),
    "fp32-nesterov": ("fp32", "fp32", "nesterov 0.7"),
    "int4-nesterov": ("int4:256+huff", "int4:256+huff", "nesterov 0.7"),
    "1bit-nesterov": ("1bit:256", "2bit:256+huff", "nesterov 0.7"),
    "muon-fp32": ("fp32", "fp32", "muon, mean"),
    "muon-2bit": ("2bit:256+huff", "2bit:256+huff", "muon, mean"),
    "muon-1bit": ("1bit:256", "2bit:256+huff", "muon, mean"),
    "muon-topk64-sign": ("topk:64/4096+sign", "auto", "muon, mean"),
    "muon-fp32-half": ("fp32", "fp32", "muon × 0.5, mean"),
    "muon-fp32-double": ("fp32", "fp32", "muon × 2, mean"),
    "fp32-double": ("fp32", "fp32", "rate × 2, mean"),
    "fp32-moments": ("fp32", "fp32", "bf16 moments, mean"),
    "fp32-slow": ("fp32", "fp32", "beta2 0.999, mean"),
    "fp32-slow-moments": ("fp32", "fp32", "bf16 moments, beta2 0.999, mean"),
    "muon-fp32-moments": ("fp32", "fp32", "muon, bf16 moments, mean"),
    "muon-fp32-nesterov": ("fp32", "fp32", "muon, nesterov 0.7"),
}

SEEDS = [1, 2, 3]
MAIN = ["fp32", "topk64-sign", "1bit", "int4", "topk256-2bit", "int8"]
OUTER = ["fp32-long", "fp32-short", "fp32-light"]
MORE = ["topk64-sign-all", "topk256-2bit-all", "topk256-2bit-half", "topk64-sign-both", "2bit", "topk64-2bit",
        "topk64-int8", "topk64-sign-relay", "topk256-2bit-relay", "bf16", "1bit1"]
ROUNDS = ["fp32", "topk64-sign", "1bit", "topk256-2bit"]
MOMENTUM = ["fp32-nesterov", "int4-nesterov", "1bit-nesterov"]
MUON = ["muon-fp32", "muon-2bit", "muon-topk64-sign", "muon-1bit", "muon-fp32-half", "muon-fp32-double",
        "fp32-double", "muon-fp32-nesterov"]
MOMENTS = ["fp32-moments", "fp32-slow", "fp32-slow-moments", "muon-fp32-moments"]


def name_of(cell):
    return "{model}-w{workers}-h{sync_every}-{tier}-s{seed}".format(**cell)


def grid():
    """All cells, the most important first: main tiers of both models, other rounds, other outer steps, the rest."""
    def add(model, workers, sync_every, tiers, seeds=SEEDS):
        for seed in seeds:
            for tier in tiers:
                cells.append({"model": model, "workers": workers, "sync_every": sync_every, "tier": tier, "seed": seed})
    cells = []
    for model in "demo", "10m":
        for workers in 2, 4:
            add(model, workers, 4, MAIN)
    for sync_every in 16, 8, 1:
        add("demo", 2, sync_every, ROUNDS)
    for workers in 4, 2:
        add("demo", workers, 4, OUTER)
        add("demo", workers, 4, MORE)
    for sync_every in 16, 4:
        add("demo", 2, sync_every, MOMENTUM)
    for sync_every in 4, 16:
        add("demo", 2, sync_every, MUON)
    add("demo", 2, 30, ["fp32", "muon-fp32"])
    add("demo", 2, 4, MOMENTS)
    return cells


def data_of(model):
    return [f"--data.train={model['data']}/train_*.bin", f"--data.val={model['data']}/val_*.bin"]


# Settings of logging and recovery; they do not change the loss.
KEPT = ["--checkpoint.keep=1", "--checkpoint.worker_every=0", "--journal.sync=snapshot", "--coordinator.threads=1",
        "--coordinator.evict_after_s=1e6"]


START_EVERY = 32  # steps per round of the start run


def start_of(cell):
    """Checkpoint that the cell starts from; None: the cell starts from scratch."""
    start = MODELS[cell["model"]].get("start")
    return start and os.path.join("start", cell["model"], "checkpoints", f"round_{start['steps'] // START_EVERY:06d}")


def flags_of(cell):
    model = MODELS[cell["model"]]
    up, down, outer_step = TIERS[cell["tier"]]
    start = [f"--model.init_from={start_of(cell)}"] if start_of(cell) else []
    return data_of(model) + model["flags"] + start + OUTER_STEPS[outer_step] + [
        f"--codec.up={up}", f"--codec.down={down}", f"--run.seed={cell['seed']}", f"--train.max_steps={model['steps']}",
        f"--train.sync_every={cell['sync_every']}", f"--train.batch_size={model['batch'] // cell['workers']}",
        f"--inner.warmup_steps={model['warmup']}", f"--train.eval_every={model['eval_steps'] // cell['sync_every']}",
        f"--train.eval_tokens={model['eval_tokens']}", f"--checkpoint.every={model['checkpoint']}", *KEPT]


def read_row(cell, command, folder):
    """The row of a finished run. None: a fault, an eviction or a restart disturbed the run."""
    with open(os.path.join(folder, "summary.json")) as f:
        summary = json.load(f)
    curve, ways, whole = [], {}, summary["restarts"] == 0
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        for line in f:
            event = json.loads(line)
            whole = whole and event["event"] not in ("fault", "evict", "restart")
            if event["event"] != "round":
                continue
            whole = whole and event["delivered"] == cell["workers"]
            way = event.get("codec", "")
            ways[way] = ways.get(way, 0) + 1
            if "val_loss" in event:
                curve.append({k: event[k] for k in ("round", "tokens", "loss", "val_loss", "bytes_up", "bytes_down")})
    if not whole or summary["final_val_loss"] is None:
        return None
    up, down, outer_step = TIERS[cell["tier"]]
    shared = 8 / (summary["params"] * summary["rounds"] * cell["workers"])
    row = {"name": name_of(cell), **cell, "up": up, "down": down, "outer": outer_step}
    for key in ("params", "rounds", "tokens", "final_val_loss", "val_tokens", "bytes_up", "bytes_down", "theta_hash",
                "wall_s"):
        row[key] = summary[key]
    row["bits_up"] = round(summary["bytes_up"] * shared, 4)  # per parameter, round and worker, with all headers
    row["bits_down"] = round(summary["bytes_down"] * shared, 4)
    row["down_rounds"] = ways  # number of rounds by the form that `auto` chose
    row["curve"] = curve
    row["command"] = command
    return row


def launch(args, name, command):
    os.makedirs(os.path.join(args.out, "runs"), exist_ok=True)
    with open(os.path.join(args.out, "runs", name + ".log"), "w") as log:
        status = subprocess.run([args.launch, "launch", args.config, *command], cwd=args.out, stdout=log,
                                stderr=subprocess.STDOUT, check=False).returncode
    if status:
        sys.exit(f"bench convergence: {name} ended with code {status}: see {log.name}")
    return log.name


def shown(command):
    return " ".join(["atoll launch configs/austen-1m.yaml", *command])


def make_start(cell, args):
    """Train the start model of a cell, once per model. A second call continues an interrupted run."""
    folder, model = os.path.join("start", cell["model"]), MODELS[cell["model"]]
    if start_of(cell) is None or os.path.exists(os.path.join(args.out, folder, "command")):
        return
    start = model["start"]
    command = ["--workers", "1", "--dir", folder, "--quiet", *data_of(model), *model["flags"], *OUTER_STEPS["mean"],
               "--train.method=local-sgd", "--codec.up=fp32", "--codec.down=fp32", "--run.seed=100",
               "--inner.schedule=constant", f"--inner.warmup_steps={start['warmup']}",
               f"--train.max_steps={start['steps']}", f"--train.sync_every={START_EVERY}",
               f"--train.batch_size={start['batch']}",
               "--train.eval_every=4", f"--train.eval_tokens={model['eval_tokens']}", "--checkpoint.every=8",
               "--checkpoint.keep=1", "--coordinator.evict_after_s=1e6"]
    os.makedirs(os.path.dirname(os.path.join(args.out, folder)), exist_ok=True)
    print(f"{folder}: training the start model for {start['steps']} steps with 1 worker", flush=True)
    os.unlink(launch(args, f"start-{cell['model']}", command))
    with open(os.path.join(args.out, folder, "command"), "w") as f:
        f.write(shown(command) + "\n")


def start_loss(cell, args):
    with open(os.path.join(args.out, "start", cell["model"], "summary.json")) as f:
        return json.load(f)["final_val_loss"]


def run_cell(cell, args):
    name = name_of(cell)
    folder = os.path.join(args.out, "runs", name)
    shutil.rmtree(folder, ignore_errors=True)  # a continued run counts only new bytes
    make_start(cell, args)
    command = ["--workers", str(cell["workers"]), "--dir", os.path.join("runs", name), "--quiet", *flags_of(cell)]
    started = time.monotonic()
    log = launch(args, name, command)
    row = read_row(cell, shown(command), folder)
    if row is None:
        sys.exit(f"bench convergence: {name} had a fault, a restart or an evicted worker: see {folder}, run it again")
    if start_of(cell):
        row["start_val_loss"] = start_loss(cell, args)
    path = os.path.join(args.out, name + ".json")
    with open(path + ".part", "w") as f:
        json.dump(row, f, indent=1)
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".part", path)
    shutil.rmtree(folder)
    os.unlink(log)
    print(f"{name:<32} val {row['final_val_loss']:.4f}  bits up {row['bits_up']:.3f} down {row['bits_down']:.3f}  "
          f"{row['rounds']} rounds  {time.monotonic() - started:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--cells", default="*")
    parser.add_argument("--minutes", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--launch")
    parser.add_argument("--config")
    args = parser.parse_args()
    patterns = args.cells.split(",")
    wanted = [c for c in grid() if any(fnmatch.fnmatchcase(name_of(c), p) for p in patterns)]
    if not wanted:
        sys.exit(f"bench convergence: no cell matches {args.cells}: --list prints the names")
    started = time.monotonic()
    for cell in wanted:
        done = os.path.exists(os.path.join(args.out, name_of(cell) + ".json"))
        if args.list:
            print(f"{name_of(cell):<32} {'done' if done else '-'}")
        elif not done:
            if args.minutes and time.monotonic() - started >= 60 * args.minutes:
                break
            run_cell(cell, args)


main()
