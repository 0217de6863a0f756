"""Measurements of tests/gpu/run: ceilings of the device, training beside PyTorch, wait of a round."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile

import libraries
import programs
from runner import Failed, OutOfTime, Stopped, Watchdog, with_hint

STEP_TOKENS = 1 << 19 # llm.c and modded-nanogpt train GPT-2 124M with this batch
# family, layers, heads, key/value heads, width, ffn, sequence, batch, vocabulary, parts.
# - The batch fits into 80 GB; `parts` batches make a step of 65536 tokens.
# - With one batch per step, AdamW and the norm would be 5 % of a step of the largest model [derived: 34 bytes per
#   parameter at 3.8 TB/s beside 16384 tokens]. Real training uses larger steps.
# - The products of the 1558m model have 1600 columns. Their tiles of 128 x 256 are 3.4 times the 132 multiprocessors
#   with 8192 rows and 6.8 times with 16384 rows [derived: 85 and 97 % of them busy].
MODELS = {
    "124m": ("gpt2", 12, 12, 0, 768, 0, 1024, 32, 50304, 2),
    "355m": ("gpt2", 24, 16, 0, 1024, 0, 1024, 16, 50304, 4),
    "1558m": ("gpt2", 48, 25, 0, 1600, 0, 1024, 16, 50304, 4),
    "llama-1.2b": ("llama", 16, 32, 8, 2048, 8192, 2048, 8, 128256, 4),
}
TOY_MODELS = {"gpt2-toy": ("gpt2", 2, 2, 0, 16, 0, 16, 2, 96, 2)}
GEMMS = [(16384, 768, 2304), (16384, 768, 3072), (16384, 3072, 768), (16384, 1600, 4800), (16384, 1600, 6400),
         (16384, 2048, 8192), (16384, 8192, 2048), (8192, 8192, 8192)]
ATTENTIONS = [(32, 1024, 12, 12, 64), (16, 1024, 25, 25, 64), (8, 2048, 32, 8, 64), (4, 4096, 32, 8, 128)]


def ceilings(run, entry):
    gemms, attentions = (GEMMS, ATTENTIONS)
    if run.emulated:
        gemms, attentions = [(16, 8, 24)], [(1, 16, 2, 2, 8)]
    half = run.seconds / 2
    run.each(entry, "gemm", gemms, lambda s: run.bench("gemm", run.device, "bf16", half, *s))
    run.each(entry, "attention", attentions, lambda s: run.bench("attn", run.device, "bf16", half, *s))
    # An odd and an even vocabulary: shows the gain of the padding in gpu/cuda/cuda_plans.c.
    heads = [(16, 16, 97), (16, 16, 104)] if run.emulated else [(16384, 768, 50257), (16384, 768, 50304)]
    run.each(entry, "head", heads, lambda s: run.bench("head", run.device, "bf16", half, *s))
    exact = {"ATOLL_ATTENTION": "exact"}
    run.each(entry, "attention_exact", attentions,
              lambda s: run.bench("attn", run.device, "bf16", half, *s, env=exact))
    run.each(entry, "attention_plain", attentions,
              lambda s: run.bench("attn", run.device, "bf16", half, *s, env={"ATOLL_ATTENTION": "plain"}))
    run.each(entry, "copy", [1 if run.emulated else 512],
              lambda mb: run.bench("copy", run.device, run.seconds, mb))
    entry["gemm_tflops"] = max((g["tflops"] for g in entry["gemm"]), default=None)
    print(f"    best matrix product {entry['gemm_tflops']} TFLOP/s", flush=True)


def answer(process):
    line = process.stdout.readline()
    if not line:
        raise OSError("ended without an answer")
    return line


def rate(process, count):
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return json.loads(answer(process))


def drive(run, command, env, tokens, few):
    """Run a trainer through its standard input. Returns its first line with the best of three rates, each over at least
    `few` steps."""
    name, timer = os.path.basename(command[0]), None
    with tempfile.TemporaryFile("w+", errors="replace") as complaints: # a pipe that is not read could fill
        try:
            with run.child(command, env=env, stdin=subprocess.PIPE, stderr=complaints) as process:
                timer = Watchdog(process, run.left())
                about = json.loads(answer(process))
                if not run.emulated:
                    rate(process, few) # untimed: compiles, chooses kernels, allocates memory
                warm = rate(process, few)["tokens_per_s"]
                count = 2 if run.emulated else max(few, int(2 * warm / tokens))
                rates = [rate(process, count) for _ in range(1 if run.emulated else 3)]
                process.stdin.close()
                process.wait(timeout=20)
        except (OSError, json.JSONDecodeError, subprocess.TimeoutExpired) as error:
            complaints.seek(0)
            output = complaints.read().strip().splitlines()
            if timer and timer.fired:
                raise OutOfTime(f"{name}: out of time") from None
            raise Failed(f"{name}: {with_hint(output[-1][:300], output[-1], env) if output else error}") from None
        finally:
            if timer:
                timer.stop()
    best = max(rates, key=lambda r: r["tokens_per_s"])
    return {**about, **best, "loss_first": rates[0]["loss"]}


def models(run):
    return TOY_MODELS if run.emulated else {name: MODELS[name] for name in run.args.models.split(",")}


def speed(run, entry, name, trainer, command, env):
    """Measure one trainer on one model. The FLOPs per token come from Atoll's own count."""
    shape = models(run)[name]
    parts = shape[9]
    row = drive(run, command + [str(v) for v in shape], env, shape[6] * shape[7] * parts, max(1, 3 // parts))
    rows = entry["models"].setdefault(name, {"shape": [str(v) for v in shape]})
    rows[trainer] = row
    sections = run.results["sections"]
    ceiling = sections.get("ceilings", {}).get("gemm_tflops")
    peak = sections.get("info", {}).get("peak_tflops")
    flops = sections.get("train", {}).get("models", {}).get(name, {}).get("ours", {}).get("flops_per_token")
    row["tflops"] = row["tokens_per_s"] * flops * 1e-12 if flops else None
    row["mfu"] = row["tflops"] / peak if flops and peak else None
    row["of_gemm_ceiling"] = row["tflops"] / ceiling if flops and ceiling else None
    text = ", ".join(f"{k} {row[k]:.3f}" for k in ("tflops", "mfu", "of_gemm_ceiling") if row[k])
    print(f"    {name} {trainer}: {row['tokens_per_s']:.0f} tokens/s, {text}", flush=True)
    return f"{name} {trainer}"


def train(run, entry):
    entry["models"] = {}
    command = [os.path.join(run.bin, "bench_gpu"), "train", run.device, "bf16"]
    run.each(entry, "sides", models(run), lambda name: speed(run, entry, name, "ours", command, run.env))


def ranks(run, entry, devices):
    """Tokens/s of one worker on each list of GPUs, the first a single GPU; the batch per GPU is the same."""
    name, shape = next(iter((TOY_MODELS if run.emulated else MODELS).items()))
    found = {}

    def one(listed):
        gpus = listed.count(",") + 1
        words = [str(v) for v in shape[:7] + (shape[7] * gpus,) + shape[8:]]
        command = [os.path.join(run.bin, "bench_gpu"), "train", listed, "bf16"]
        row = drive(run, command + words, run.env, shape[6] * shape[7] * gpus * shape[9], max(1, 3 // shape[9]))
        found[gpus] = row["tokens_per_s"]
        row.update(model=name, devices=listed, gpus=gpus, to_one=found[gpus] / found[1] if 1 in found else None)
        ratio = f", {row['to_one']:.3f} times one GPU" if row["to_one"] else ""
        print(f"    {name} on {listed}: {row['tokens_per_s']:.0f} tokens/s{ratio}", flush=True)
        return row

    run.each(entry, "speed", devices, one)


@functools.cache # two sections ask
def find_torch(run):
    named = os.environ.get("ATOLL_TORCH_PYTHON")
    found = [named] if named else [shutil.which("python3"), shutil.which("python"), sys.executable]
    if run.emulated and not named:
        return None
    for base in () if named else libraries.python_folders():
        if os.path.isdir(os.path.join(base, "torch")):
            found.append(os.path.join(base, "..", "..", "..", "bin", "python3"))
    for python in dict.fromkeys(os.path.abspath(path) for path in found if path and os.path.exists(path)):
        try:
            run.call([python, "-c", "import torch" if run.emulated else "import torch; torch.zeros(1).cuda()"],
                      env={"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")})
            return python
        except (Stopped, OutOfTime):
            raise
        except Failed as error:
            print(f"    skipped a python without PyTorch: {error}", flush=True)
    return None


def torch(run, entry):
    """A python with PyTorch for a section; None: there is none, and the section is skipped."""
    entry["torch"] = find_torch(run)
    if not entry["torch"]:
        entry["skipped"] = "no python has PyTorch with access to the GPU: set ATOLL_TORCH_PYTHON"
        print(f"    {entry['skipped']}", flush=True)
    return entry["torch"]


def peers(run, entry):
    """PyTorch: first eager for all models, then compiled, which takes one to two minutes per large model."""
    entry["models"] = {}
    python = torch(run, entry)
    if not python:
        return
    device = "cpu" if run.emulated else "cuda"

    def one(pair):
        kind, name = pair
        # No LD_LIBRARY_PATH of this script: PyTorch has its own cuDNN of the same name.
        command = [python, os.path.join(programs.HERE, "train_gpu_torch.py"), kind, device]
        return speed(run, entry, name, f"torch_{kind}", command, dict(os.environ))

    run.each(entry, "sides", [(kind, name) for kind in ("eager", "compile") for name in models(run)], one)
    ours = run.results["sections"].get("train", {}).get("models", {})
    for name, rows in entry["models"].items():
        best = max((row["tokens_per_s"] for side, row in rows.items() if side != "shape"), default=0)
        if best and "ours" in ours.get(name, {}):
            rows["ours_to_best"] = ours[name]["ours"]["tokens_per_s"] / best
            print(f"    {name}: atoll reaches {rows['ours_to_best']:.3f} of PyTorch's best", flush=True)


def tokens_of(rows):
    return int(rows["shape"][6]) * int(rows["shape"][7])


def outer(run, entry):
    sizes = [20000] if run.emulated else [124_000_000, 1_000_000_000]
    specs = ["topk:64/4096", "int8", "int4:128"]
    pairs = [(spec, n) for n in sizes for spec in specs]
    run.each(entry, "delta", pairs, lambda p: run.bench("delta", run.device, run.seconds, *p))
    models = run.results["sections"].get("train", {}).get("models", {})
    # The share of ms_round (bench_gpu_outer.c: the wait of a round without network and disk) in a round of 30 steps:
    # with the smallest step, one batch, and with steps of STEP_TOKENS, as in real training of such models.
    entry["share_at_h30"], entry["share_at_h30_of_large_steps"] = {}, {"tokens_a_step": STEP_TOKENS}
    measured = [d for d in entry["delta"] if d["codec"] == specs[0]]
    for name, rows in models.items():
        if "ours" not in rows or not measured:
            continue
        params = rows["ours"]["params"]
        near = min(measured, key=lambda d: abs(d["params"] - params)) # the rates depend on the size: caches and threads
        outer = params * near["ms_round"] / near["params"] * 1e-3
        for key, tokens in (("share_at_h30", tokens_of(rows)), ("share_at_h30_of_large_steps", STEP_TOKENS)):
            entry[key][name] = outer / (30 * tokens / rows["ours"]["tokens_per_s"] + outer)
        print(f"    {name}: a round of 30 steps waits for {outer * 1e3:.1f} ms, "
              f"{100 * entry['share_at_h30_of_large_steps'][name]:.2f} % with {STEP_TOKENS} tokens per step, "
              f"{100 * entry['share_at_h30'][name]:.2f} % with {tokens_of(rows)}", flush=True)
    for row in entry["delta"]:
        print(f"    {row['codec']} of {row['params']}: {row['gb_s']:.1f} GB/s, {row['ms']:.3f} ms; up: "
              f"{row['params'] * 4e-6:.1f} MB as floats in {row['ms_up_as_floats']:.1f} ms, "
              f"{row['numbers_mb']:.1f} MB quantized in {row['ms_up_as_numbers']:.1f} ms; with the host "
              f"{row['ms_round']:.1f} ms a round, {row['ms_save']:.1f} ms more if the state is saved", flush=True)
