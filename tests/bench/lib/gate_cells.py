"""The cells of `./run bench gate`: short runs of honest workers, and the distance of their deltas from the limits."""

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess

MODEL = ["--model.n_layer=2", "--model.n_head=4", "--model.n_embd=64", "--model.block_size=64",
         "--train.batch_size=4", "--train.eval_every=0", "--train.threads=1", "--checkpoint.every=0"]
MEAN = ["--outer.optimizer=sgd", "--outer.learning_rate=1", "--outer.momentum=0"]
NESTEROV = ["--outer.optimizer=nesterov", "--outer.learning_rate=0.7", "--outer.momentum=0.9"]
LONG_WARMUP = ["--inner.warmup_steps=150"]
TO_ZERO = ["--inner.min_lr_fraction=0"]
FLAT = ["--inner.schedule=constant", "--inner.warmup_steps=0"]
MUON = ["--inner.optimizer=muon"]
SGD = ["--inner.optimizer=sgd", "--inner.learning_rate=0.5"]


def run(method, workers, every, up, down, *flags, steps=300):
    name = f"{method}-w{workers}-h{every}-{up}".replace("/", "_").replace(":", "")
    return name, method, workers, every, up, down, [flag for group in flags for flag in group], steps


CODECS = [("fp32", "fp32"), ("int8:256", "int8:256"), ("int4:256+huff", "int4:256+huff"),
          ("2bit:256+huff", "2bit:256+huff"), ("1bit:256", "2bit:256+huff"), ("topk:64/4096+sign", "auto"),
          ("topk:64/4096+sign", "relay"), ("topk:256/4096+2bit", "auto")]


def cells():
    """Yields (name, method, workers, H, codec up, codec down, flags, steps)."""
    for workers in (4, 2, 8, 1):
        for up, down in CODECS:
            yield run("diloco", workers, 10, up, down, MEAN)
    for workers in (4, 1, 8):
        yield run("ddp", workers, 1, "fp32", "fp32")
        yield run("ddp", workers, 1, "topk:64/4096+sign", "fp32")
    yield run("ddp", 4, 1, "1bit:256", "2bit:256+huff")
    for workers in (4, 2, 3):
        for up, down in [*CODECS[:2], CODECS[4], ("topk:64/4096+sign", "fp32")]:
            yield run("async", workers, 10, up, down)
    for up, down in CODECS[:1] + CODECS[4:6]:
        for label, flags in (("nesterov", NESTEROV), ("warmup150", LONG_WARMUP), ("tozero", TO_ZERO), ("flat", FLAT),
                             ("muon", MUON), ("sgd", SGD)):
            momentum = label == "nesterov"  # updates of momentum are dense
            name, *rest = run("diloco", 4, 10, up, "fp32" if momentum else down, [] if momentum else MEAN, flags)
            yield f"{name}-{label}", *rest
        yield run("diloco", 4, 3, up, down, MEAN)
        yield run("diloco", 4, 70, up, down, MEAN, steps=500)  # the last round has 10 steps
        yield run("local-sgd", 3, 10, up, down)


LINE = re.compile(r"delta of (\S+), round (\d+), fragment (\d+): norm (\S+), median (\S+), limit (\S+), "
                  r"bound (\S+), cosine (\S+)")


def measure(folder):
    """The margins of one run, from the coordinator's log."""
    row = {"deltas": 0, "refused": 0, "norm / median": 0.0, "norm / limit": 0.0, "norm / bound": 0.0, "cosine": None}
    with open(f"{folder}/logs/coordinator.log", encoding="utf-8") as file:
        for line in file:
            row["refused"] += "refused the delta" in line
            found = LINE.search(line)
            if not found:
                continue
            norm, median, limit, bound, cosine = (float(value) for value in found.groups()[3:])
            row["deltas"] += 1
            if median > 0:
                row["norm / median"] = max(row["norm / median"], norm / median)
                row["norm / limit"] = max(row["norm / limit"], norm / limit)
            row["norm / bound"] = max(row["norm / bound"], norm / bound)
            if cosine == cosine:  # known: three workers or more
                row["cosine"] = min(row["cosine"] or 1.0, cosine)
    with open(f"{folder}/metrics.jsonl", encoding="utf-8") as file:
        row["refused"] = max(row["refused"], sum("refused the delta" in line for line in file))
    return row


def execute(args, cell):
    name, method, workers, every, up, down, flags, steps = cell
    folder = f"{args.out}/run"
    shutil.rmtree(folder, ignore_errors=True)
    command = [args.launch, "launch", args.config, "--workers", str(workers), "--dir", folder, "--log.level=debug",
               f"--data.train={args.out}/data/train_*.bin", f"--data.val={args.out}/data/val_*.bin", *MODEL,
               f"--train.method={method}", f"--train.max_steps={steps}", f"--train.sync_every={every}",
               f"--codec.up={up}", f"--codec.down={down}", f"--coordinator.min_workers={workers}", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(f"{name}: failed with {done.returncode}: {done.stdout.strip().splitlines()[-1:]}", flush=True)
        return
    row = {"cell": name, "method": method, "workers": workers, "H": every, "up": up, "down": down,
           "flags": " ".join(flags), **measure(folder)}
    with open(f"{args.out}/{name}-{down.split(':')[0]}.json", "w", encoding="utf-8") as file:
        json.dump(row, file)
    print(json.dumps(row), flush=True)
    shutil.rmtree(folder)


def table(out):
    rows = []
    for name in sorted(os.listdir(out)):
        if name.endswith(".json"):
            with open(f"{out}/{name}", encoding="utf-8") as file:
                rows.append(json.load(file))
    groups = {}
    for row in rows:
        groups.setdefault((row["method"], row["up"]), []).append(row)
    print("| method | codec up | runs | deltas | refused | norm / median | norm / limit | norm / bound | cosine |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (method, up), group in sorted(groups.items()):
        most = {key: max(row[key] for row in group) for key in ("norm / median", "norm / limit", "norm / bound")}
        cosines = [row["cosine"] for row in group if row["cosine"] is not None]
        cosine = f"{min(cosines):.2f}" if cosines else "-"
        print(f"| {method} | `{up}` | {len(group)} | {sum(row['deltas'] for row in group)} | "
              f"{sum(row['refused'] for row in group)} | {most['norm / median']:.2f} | {most['norm / limit']:.2f} | "
              f"{most['norm / bound']:.3f} | {cosine} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--launch")
    parser.add_argument("--config")
    parser.add_argument("--cells", default="*")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    for cell in [] if args.table else cells():
        finished = os.path.exists(f"{args.out}/{cell[0]}-{cell[5].split(':')[0]}.json")
        if fnmatch.fnmatch(cell[0], args.cells) and not finished:
            execute(args, cell)
    table(args.out)


if __name__ == "__main__":
    main()
