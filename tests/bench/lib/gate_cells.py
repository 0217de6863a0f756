"""The cells of `./run bench gate`: short runs of honest workers. No delta is refused, and few are clipped."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODEL = ["--model.n_layer=2", "--model.n_head=4", "--model.n_embd=64", "--model.block_size=64", "--train.batch_size=4"]
TINY = ["--model.n_layer=1", "--model.n_head=2", "--model.n_embd=16", "--model.block_size=32", "--train.batch_size=8"]
COMMON = ["--train.eval_every=0", "--train.threads=1", "--checkpoint.every=0"]
MEAN = ["--outer.optimizer=sgd", "--outer.learning_rate=1", "--outer.momentum=0"]
NESTEROV = ["--outer.optimizer=nesterov", "--outer.learning_rate=0.7", "--outer.momentum=0.9"]
LONG_WARMUP = ["--inner.warmup_steps=150"]
TO_ZERO = ["--inner.min_lr_fraction=0"]
FLAT = ["--inner.schedule=constant", "--inner.warmup_steps=0"]
MUON = ["--inner.optimizer=muon"]
SGD = ["--inner.optimizer=sgd", "--inner.learning_rate=0.5"]
CODECS = [("fp32", "fp32"), ("int8:256", "int8:256"), ("int4:256+huff", "int4:256+huff"),
          ("2bit:256+huff", "2bit:256+huff"), ("1bit:256", "2bit:256+huff"), ("topk:64/4096+sign", "auto"),
          ("topk:64/4096+sign", "relay"), ("topk:256/4096+2bit", "auto")]


def cell(method, workers, every, up, down, *flags, steps=300, label="", text="fresh", tiny=False, own=(), scripts=0):
    """own: the codec of each worker, if they differ. scripts: workers that are PyTorch scripts."""
    name = f"{method}-w{workers}-h{every}-{up}-{down.split(':')[0]}{'-' + label if label else ''}"
    shape = [*(TINY if tiny else MODEL), *(flag for group in flags for flag in group)]
    return {"name": name.replace("/", "_").replace(":", ""), "method": method, "workers": workers, "H": every, "up": up,
            "down": down, "flags": shape, "steps": steps, "text": text, "own": list(own), "scripts": scripts}


def cells():
    for workers in (4, 2, 8, 1):
        for up, down in CODECS:
            yield cell("diloco", workers, 10, up, down, MEAN)
    for workers in (4, 1, 8):
        yield cell("ddp", workers, 1, "fp32", "fp32")
        yield cell("ddp", workers, 1, "topk:64/4096+sign", "fp32")
    yield cell("ddp", 4, 1, "1bit:256", "2bit:256+huff")
    for workers in (4, 2, 3):
        for up, down in [*CODECS[:2], CODECS[4], ("topk:64/4096+sign", "fp32")]:
            yield cell("async", workers, 10, up, down)
    for up, down in CODECS[:1] + CODECS[4:6]:
        for label, flags in (("nesterov", NESTEROV), ("warmup150", LONG_WARMUP), ("tozero", TO_ZERO), ("flat", FLAT),
                             ("muon", MUON), ("sgd", SGD)):
            momentum = label == "nesterov"  # updates of momentum are dense
            yield cell("diloco", 4, 10, up, "fp32" if momentum else down, [] if momentum else MEAN, flags, label=label)
        yield cell("diloco", 4, 3, up, down, MEAN)
        yield cell("diloco", 4, 70, up, down, MEAN, steps=500)  # the last round has 10 steps
        yield cell("local-sgd", 3, 10, up, down)
    yield from hard_cells()


def hard_cells():
    """Honest deltas that oppose each other or differ in length."""
    stream = "int8:256", "int8:256"
    for workers in (3, 4, 5, 8):
        for text in ("fresh", "repeated"):
            yield cell("streaming", workers, 10, *stream, steps=1500, label=f"tiny-{text}", text=text, tiny=True)
    for rate in ("1e-3", "3e-3"):
        for tau in (1, 4):
            flags = [f"--inner.learning_rate={rate}", f"--train.overlap={tau}"]
            yield cell("streaming", 4, 10, *stream, flags, steps=1500, label=f"tau{tau}-{rate}", text="repeated",
                       tiny=True)
    for workers in (3, 4):
        yield cell("streaming", workers, 10, *stream, steps=600)
    yield cell("streaming", 3, 30, *stream, ["--train.overlap=5"], steps=900, tiny=True, text="repeated")
    one = ["--train.batch_size=1"]
    yield cell("local-sgd", 4, 1, "fp32", "fp32", one, steps=4000, label="batch1", text="repeated", tiny=True)
    yield cell("local-sgd", 6, 2, "fp32", "fp32", one, steps=3000, label="batch1", text="repeated", tiny=True)
    yield cell("local-sgd", 3, 1, "fp32", "fp32", steps=1000, tiny=True)
    yield cell("ddp", 4, 1, "fp32", "fp32", one, steps=3000, label="batch1", text="repeated", tiny=True)
    up = "int8:256"
    yield cell("diloco", 3, 10, up, up, ["--codec.up_allowed=topk:64/4096+sign"], label="codecs",
               own=[up, "topk:64/4096+sign", "topk:64/4096+sign"])
    yield cell("diloco", 4, 10, up, up, ["--codec.up_allowed=topk:64/4096+sign,1bit:256,fp32"], label="codecs",
               own=[up, "topk:64/4096+sign", "1bit:256", "fp32"])
    for workers, scripts in ((3, 1), (3, 2), (5, 2)):
        yield cell("diloco", workers, 10, up, up, ["--model.n_layer=3", "--model.n_embd=160", "--model.block_size=96",
                                                   "--train.batch_size=8", "--inner.learning_rate=3e-3",
                                                   "--inner.min_lr_fraction=0.01"],
                   label=f"{scripts}-scripts", scripts=scripts)


def flags_of(row, data):
    return [f"--data.train={data}/train_*.bin", f"--data.val={data}/val_*.bin", *row["flags"], *COMMON,
            f"--train.method={row['method']}", f"--train.max_steps={row['steps']}", f"--train.sync_every={row['H']}",
            f"--codec.up={row['up']}", f"--codec.down={row['down']}", f"--coordinator.min_workers={row['workers']}"]


def launch(args, row, data, folder, *more):
    base = ROOT / "configs" / ("streaming.yaml" if row["method"] == "streaming" else "austen-1m.yaml")
    command = [args.launch, "launch", str(base), "--workers", str(row["workers"]), "--dir", f"{folder}/run",
               *flags_of(row, data), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return "" if not done.returncode else done.stdout.strip().splitlines()[-1:]


def assemble(args, row, data, folder):
    """Workers with codecs of their own, or PyTorch scripts whose learning rate is theirs (a constant)."""
    programs, logs, processes = Path(args.launch).parent, [], []

    def start(name, words, **more):
        logs.append(f"{folder}/{name}.log")
        with open(logs[-1], "wb") as file:
            processes.append(subprocess.Popen(words, cwd=folder, stdout=file, stderr=file, env={**os.environ, **more}))

    try:
        start("coordinator", [programs / "atoll-coordinator", ROOT / "configs" / "austen-1m.yaml", "--dir", "run",
                              "--coordinator.listen=tcp://127.0.0.1:*", *flags_of(row, data)])
        while not os.path.exists(f"{folder}/run/address"):
            if processes[0].poll() is not None:
                return Path(logs[0]).read_text().splitlines()[-1:]
            time.sleep(0.05)
        for i in range(row["workers"]):
            if i < row["scripts"]:
                words = [args.python, ROOT / "examples" / "gpt2.py", "--data", data, "--steps", str(row["steps"]),
                         "--out", f"model-{i}"]
                start(f"script-{i}", words, ATOLL_JOIN=f"{folder}/run", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                      ATOLL_LIB=str(programs.parent / "lib" / "libatoll.so"), PYTHONPATH=str(ROOT / "python"))
                continue
            own = [f"--codec.up={row['own'][i]}"] if row["own"] else []
            start(f"worker-{i}", [programs / "atoll-worker", "--join", "run", "--dir", f"w{i}", "--train.threads=1",
                                  f"--data.train={data}/train_*.bin", f"--data.val={data}/val_*.bin", *own])
        for process, log in zip(processes, logs):
            if process.wait(timeout=900):
                return [log, *Path(log).read_text(errors="replace").splitlines()[-1:]]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    return ""


def number_of(flags, key):
    return int([flag.split("=")[1] for flag in flags if flag.startswith(f"--{key}=")][-1])


def measure(row, folder):
    """Refusals, tokens and norms of one run, from its metrics."""
    ratios, refused = [], 0
    with open(f"{folder}/run/metrics.jsonl", encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            refused += "refused the delta" in line
            if event["event"] == "round" and event.get("norm_ratio"):
                ratios.append(event["norm_ratio"])
    with open(f"{folder}/run/summary.json", encoding="utf-8") as file:
        summary = json.load(file)
    work = row["steps"] * row["workers"]
    work *= number_of(row["flags"], "model.block_size") * number_of(row["flags"], "train.batch_size")
    return {"deltas": row["steps"] // row["H"] * row["workers"], "refused": refused, "loss": summary["final_val_loss"],
            "tokens kept": summary["tokens"] / work, "norm / median": max(ratios, default=0.0), "rounds": len(ratios),
            "clipped": sum(ratio > (4 if row["method"] == "ddp" else 1.2) for ratio in ratios)}


def execute(args, row):
    folder, data = f"{args.out}/run", f"{args.out}/{row['text']}"
    if row["scripts"] and not args.python:
        print(f"{row['name']}: skipped, no Python with PyTorch and transformers (./run python --all)", flush=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    failed = (assemble if row["own"] or row["scripts"] else launch)(args, row, data, folder)
    if failed:
        print(f"{row['name']}: failed: {failed}", flush=True)
        return
    out = measure(row, folder)
    if row["method"] in ("streaming", "local-sgd") and not row["own"]:  # what clipping costs
        shutil.rmtree(folder)
        os.makedirs(folder)
        failed = launch(args, row, data, folder, "--merge.clip=off")
        if failed:
            print(f"{row['name']}, not clipped: failed: {failed}", flush=True)
            return
        out["loss off"] = measure(row, folder)["loss"]
    row = {**row, **out, "flags": " ".join(row["flags"]), "own": " ".join(row["own"])}
    with open(f"{args.out}/{row['name']}.json", "w", encoding="utf-8") as file:
        json.dump(row, file)
    print(f"{row['name']}: {row['refused']} refused, {100 * row['tokens kept']:.1f} % of the tokens, largest norm "
          f"{row['norm / median']:.2f} medians, {row['clipped']} of {row['rounds']} rounds clipped", flush=True)
    shutil.rmtree(folder)


def table(out):
    groups = {}
    for path in sorted(Path(out).glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        kind = "native and PyTorch" if row["scripts"] else "codecs of workers" if row["own"] else f"`{row['up']}`"
        groups.setdefault((row["method"], kind), []).append(row)
    print("| method | codec up | runs | workers | H | deltas | refused | tokens kept | norm / median | rounds clipped "
          "| loss minus that without clipping |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for (method, kind), group in sorted(groups.items()):
        def span(key, group=group):
            values = [row[key] for row in group]
            return f"{min(values)} to {max(values)}" if min(values) < max(values) else str(values[0])

        total = {key: sum(row[key] for row in group) for key in ("deltas", "refused", "rounds", "clipped")}
        kept = 100 * min(row["tokens kept"] for row in group)
        norm = f"{max(row['norm / median'] for row in group):.2f}" if total["rounds"] else "-"
        clipped = f"{100 * total['clipped'] / total['rounds']:.2f} %" if total["rounds"] else "-"
        costs = [row["loss"] - row["loss off"] for row in group if "loss off" in row]
        cost = f"{statistics.fmean(costs):+.4f} ({min(costs):+.4f} to {max(costs):+.4f})" if costs else "-"
        print(f"| {method} | {kind} | {len(group)} | {span('workers')} | {span('H')} | {total['deltas']} | "
              f"{total['refused']} | {kept:.1f} % | {norm} | {clipped} | {cost} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--launch")
    parser.add_argument("--python", default="", help="an interpreter with PyTorch and transformers")
    parser.add_argument("--cells", default="*")
    parser.add_argument("--steps", type=int, default=0, help="of each run; 0: those of the cell")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    for row in [] if args.table else cells():
        if fnmatch.fnmatch(row["name"], args.cells) and not os.path.exists(f"{args.out}/{row['name']}.json"):
            execute(args, {**row, "steps": args.steps or row["steps"]})
    table(args.out)


if __name__ == "__main__":
    sys.exit(main())
