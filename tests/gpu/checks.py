"""Checks of tests/gpu/run: the device against the CPU, planned against allocated memory, bf16 against fp32."""

import json
import os
import random
import re
import shutil
import tempfile
import time

import programs
import speeds
from runner import Failed, OutOfTime, Stopped

ATTENTION = ("kernels_layers test_attn ATOLL_ATTENTION=plain", "kernels_layers test_attn ATOLL_ATTENTION=exact")


def info(run, entry):
    for precision in ("fp32", "bf16"):
        entry[precision] = run.bench("info", run.device, precision)
        print(f"    {entry[precision]['device']} {entry[precision]['note']}", flush=True)
    run.forget_others(run.before, entry["bf16"]["device"])
    entry["peak_tflops"] = entry["bf16"]["peak_tflops"] or None # None: no MFU, only the share of the ceiling
    if not run.emulated and shutil.which("nvidia-smi"):
        query = "name,driver_version,power.limit,clocks.max.sm,memory.total"
        try:
            entry["nvidia_smi"] = run.call(["nvidia-smi", f"--query-gpu={query}", "--format=csv"]).splitlines()
        except Failed as error: # nvidia-smi fails in some containers
            entry["nvidia_smi"] = [str(error)]


def compare(run, entry, names):
    """Run the test programs and keep the largest error of each comparison: {what, off, allowed}."""
    log = run.out + ".cases"
    if os.path.exists(log):
        os.remove(log)
    def program(words):  # program name, its tests, environment settings
        words = words.split()
        settings = dict(word.split("=") for word in words if "=" in word)
        tests = [word for word in words[1:] if "=" not in word]
        run.call([os.path.join(run.bin, f"gpu_{words[0]}")] + tests, env={"ATOLL_CASE_LOG": log, **settings})
        return " ".join(words)

    run.each(entry, "programs", names, program)
    table = {}
    if os.path.exists(log):
        with open(log, encoding="utf-8") as file:
            for line in file:
                what, off, allowed = line.rstrip("\n").split("\t")
                key = f"{what} ({allowed})"
                if key not in table or float(off) > table[key]["off"]:
                    table[key] = {"what": what, "off": float(off), "allowed": float(allowed)}
        os.remove(log)
    entry["table"] = list(table.values())
    for row in entry["table"]:
        print(f"    {row['what']:44s} off by {row['off']:.1e}, allowed {row['allowed']:.0e}", flush=True)


def parity(run, entry):
    compare(run, entry, programs.PARITY + ATTENTION)
    if not entry["table"] and not entry.get("out_of_time"):
        raise Failed("the programs made no comparison")


def codecs(run, entry):
    compare(run, entry, programs.CODECS)


def runs(run, entry):
    """The same training on the CPU and on the device: the losses of all steps must agree."""
    shape, count = (("gpt2", 2, 4, 0, 64, 0, 64, 4, 256), 100)
    if run.emulated:
        shape = ("gpt2", 1, 2, 0, 16, 0, 16, 1, 64)
    again = 10 if run.emulated else count
    losses = {name: losses_of(run, device, "fp32", shape, [steps])[0]["losses"] for name, device, steps in
              (("cpu", "cpu", count), ("fp32", run.device, count), ("again", run.device, again))}
    entry["losses"], entry["steps"] = losses, count
    entry["fp32_off"] = max(abs(a - b) for a, b in zip(losses["cpu"], losses["fp32"]))
    print(f"    {count} steps in fp32: losses differ by at most {entry['fp32_off']:.1e}, allowed 1e-04", flush=True)
    if len(losses["fp32"]) != count or not losses["cpu"][-1] < losses["cpu"][0]:
        raise Failed("the loss does not fall")
    if losses["again"] != losses["fp32"][:again]:
        raise Failed("a second run in fp32 gives other losses")
    if not entry["fp32_off"] < 1e-4:
        raise Failed("the device's losses differ from those of the CPU")


def losses_of(run, device, precision, shape, counts):
    command = [os.path.join(run.bin, "bench_gpu"), "train", device, precision] + [str(v) for v in shape]
    out = run.call(command, input="".join(f"{count}\n" for count in counts))
    return [json.loads(line) for line in out.splitlines() if line.startswith("{\"tokens")]


CONFIG = """run: {{name: gpu, seed: 7}}
data: {{train: "{folder}/data/train_*.bin", val: "{folder}/data/val_*.bin", tokenizer: bytes}}
model: {{family: gpt2, n_layer: {layers}, n_head: 4, n_embd: {width}, block_size: {width}, vocab_size: 256}}
train: {{method: diloco, max_steps: {steps}, sync_every: {each}, batch_size: 8, threads: 1, eval_tokens: 4096}}
inner: {{learning_rate: 3.0e-3, warmup_steps: 5}}
codec: {{up: fp32, down: fp32}}
coordinator: {{listen: "tcp://127.0.0.1:*"}}
"""


def sentences(count):
    words = random.Random(1)
    parts = ("the keeper|a grey boat|her brother|the tide", "watched|carried|lost|found", "the mail|seven stones")
    return "".join(" ".join(words.choice(part.split("|")) for part in parts) + ".\n" for _ in range(count))


def prepare(run, folder, count, **sizes):
    """Write a configuration and data of `count` sentences for `atoll launch`."""
    with open(f"{folder}/run.yaml", "w", encoding="utf-8") as config, \
            open(f"{folder}/text.txt", "w", encoding="utf-8") as text:
        config.write(CONFIG.format(folder=folder, **sizes))
        text.write(sentences(count))
    run.call([os.path.join(run.bin, "atoll"), "prepare", f"{folder}/data", f"{folder}/text.txt"])


def launch(run, entry):
    """`atoll launch` with two workers that share the device: in fp32 beside two workers on the CPU, and in bf16 with
    deltas and updates that the device quantizes."""
    sizes = dict(layers=1, width=16, steps=4, each=2) if run.emulated else dict(layers=2, width=128, steps=60, each=10)
    runs = ("cpu --train.devices=cpu", f"fp32 --train.devices={run.device}", f"bf16 --train.devices={run.device} "
            "--train.precision=bf16 --codec.up=topk:64/4096 --codec.down=int8")
    entry["losses"] = {}
    with tempfile.TemporaryDirectory(prefix="atoll-gpu-") as folder:
        prepare(run, folder, 1000 if run.emulated else 20000, **sizes)

        def one(words):
            name, *settings = words.split()
            run.call([os.path.join(run.bin, "atoll"), "launch", f"{folder}/run.yaml", "--workers", "2", "--dir",
                      f"{folder}/{name}"] + settings)
            with open(f"{folder}/{name}/summary.json", encoding="utf-8") as file:
                entry["losses"][name] = json.load(file)["final_val_loss"]
            print(f"    {name}: final loss of two workers {entry['losses'][name]:.4f}", flush=True)
            return name

        run.each(entry, "runs", runs, one)
    losses = entry["losses"]
    if "cpu" in losses and "fp32" in losses and not abs(losses["fp32"] - losses["cpu"]) < 1e-2:
        raise Failed("the final loss on the device differs from the CPU")
    if "bf16" in losses and not losses["bf16"] < (5.6 if run.emulated else 4): # log 256 is 5.55
        raise Failed("the loss in bf16 does not fall")


SCRIPTS = ("test_torch_run.Equality", "test_torch_run.Programs.test_bf16", "test_torch_mixed",
           "test_torch_kill.Kills.test_each_process")


def scripts(run, entry):
    """PyTorch scripts as workers, with their models on the device: the tests of tests/python that compare a run with the
    rules of the papers, mix scripts with native workers, and kill processes."""
    python = speeds.torch(run, entry)
    if not python:
        return
    sources = [os.path.join(programs.ROOT, name) for name in ("python", os.path.join("tests", "python"))]
    library = programs.libatoll(run.bin)
    env = {"PYTHONPATH": ":".join(sources), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
           "ATOLL_BIN": run.bin, "ATOLL_LIB": library, "ATOLL_TEST_KILLS": "1",
           "ATOLL_TEST_DEVICE": "cpu" if run.emulated else "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
           # Not the folders of CUDA: PyTorch has its own cuDNN of the same name.
           "LD_LIBRARY_PATH": ":".join([os.path.dirname(library), os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")}
    run.each(entry, "tests", SCRIPTS, lambda name: run.call([python, "-m", "unittest", name], env=env) and name)


def ranks(run, entry):
    """One worker on two GPUs and on all GPUs: the losses of every step equal those of one GPU with the same batch. Then
    tokens/s beside one GPU, with one batch per GPU."""
    entry["gpus"] = gpus = run.results["sections"].get("info", {}).get("fp32", {}).get("gpus", 0)
    if gpus < 2:
        entry["skipped"] = "fewer than 2 GPUs"
        print(f"    {entry['skipped']}", flush=True)
        return
    devices = ["cuda:" + ",".join(str(gpu) for gpu in range(count)) for count in sorted({1, 2, gpus})]
    entry["losses"] = {}
    with tempfile.TemporaryDirectory(prefix="atoll-gpu-") as folder:
        sizes = dict(layers=1, width=16, steps=4, each=2) if run.emulated else \
            dict(layers=2, width=128, steps=20, each=10)
        prepare(run, folder, 1000 if run.emulated else 20000, **sizes)
        run.each(entry, "runs", [(optimizer, name) for optimizer in ("adamw", "muon") for name in devices],
                 lambda pair: same_losses(run, entry, folder, sizes["steps"], *pair))
    speeds.ranks(run, entry, devices)


def same_losses(run, entry, folder, steps, optimizer, devices):
    gpus, place = devices.count(",") + 1, f"{folder}/{optimizer}-{devices}"
    run.call([os.path.join(run.bin, "atoll"), "launch", f"{folder}/run.yaml", "--workers", "1", "--dir", place,
              f"--train.devices={devices}", f"--train.batch_size={4 * entry['gpus']}", # divisible by 2 and by all GPUs
              f"--inner.optimizer={optimizer}", "--inner.learning_rate=1e-3"])
    with open(f"{place}/logs/worker-0.log", encoding="utf-8", errors="replace") as file:
        if f"{devices} " not in file.read():
            raise Failed(f"the worker's log does not name {devices}")
    losses = {}
    with open(f"{place}/metrics.jsonl", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["event"] == "step":
                losses[row["step"]] = row["loss"]
    if len(losses) != steps:
        raise Failed(f"metrics.jsonl has {len(losses)} steps, expected {steps}")
    losses = [losses[step] for step in sorted(losses)]
    row = {"optimizer": optimizer, "devices": devices, "gpus": gpus, "losses": losses}
    if gpus == 1:
        entry["losses"][optimizer] = losses
        return row
    if optimizer not in entry["losses"]:
        raise Failed("the run on one GPU failed: no losses to compare with")
    row["off"] = max(abs(a / b - 1) for a, b in zip(losses, entry["losses"][optimizer]))
    print(f"    {optimizer}, {steps} steps on {devices}: largest relative difference to one GPU "
          f"{row['off']:.1e}, allowed 1e-04", flush=True)
    if not row["off"] < 1e-4:
        raise Failed(f"the losses differ from one GPU by {row['off']:.1e}, allowed 1e-04")
    return row


def memory(run, entry):
    """Planned memory beside the memory that the device reports as allocated after a step."""
    small = ("gpt2", 12, 12, 0, 768, 0, 1024)
    llama = ("llama", 16, 32, 8, 2048, 8192, 2048)
    wanted = [small + (32, 50304, "none"), small + (32, 50304, "act"), small + (32, 50304, "norm"),
              small + (32, 50304, "block"), small + (8, 50257, "none"),
              ("gpt2", 24, 16, 0, 1024, 0, 1024, 16, 50304, "none"), llama + (4, 128256, "none"),
              llama + (4, 128256, "block")]
    if run.emulated:
        wanted = [("gpt2", 2, 2, 0, 16, 0, 16, 2, 96, "none"), ("gpt2", 2, 2, 0, 16, 0, 16, 2, 96, "block"),
                  ("llama", 2, 2, 1, 16, 24, 16, 2, 96, "norm")]

    def one(shape, precision="bf16"):
        command = [os.path.join(run.bin, "bench_gpu"), "train", run.device, precision] + [str(v) for v in shape]
        output = json.loads([line for line in run.call(command, input="").splitlines() if line.startswith("{")][0])
        row = {"shape": shape, "precision": precision, "recompute": output["recompute"],
               "planned_mb": output["planned_mb"], "taken_mb": output["taken_mb"]}
        row["off"] = row["planned_mb"] / row["taken_mb"] - 1
        print(f"    {shape[0]} {shape[1]} x {shape[4]}, batch {shape[7]}, {precision}, recompute {row['recompute']}: "
              f"planned {row['planned_mb']:.1f} MB, allocated {row['taken_mb']:.1f} MB, {100 * row['off']:+.1f} %",
              flush=True)
        if not abs(row["off"]) < 0.05:
            raise Failed(f"planned {row['planned_mb']:.1f} MB, allocated {row['taken_mb']:.1f} MB: more than 5 % apart")
        return row

    run.each(entry, "bf16", wanted, one)
    run.each(entry, "fp32", wanted[:1], lambda shape: one(shape, "fp32"))


def precision(run, entry):
    """bf16 beside fp32 over a run: mean losses of each hundredth and of the last tenth."""
    shape, parts, count = (("gpt2", 4, 4, 0, 256, 0, 256, 16, 1024), 100, 20)
    if run.emulated:
        shape, parts, count = (("gpt2", 1, 2, 0, 16, 0, 16, 2, 32), 20, run.args.precision_steps // 20 or 1)
    entry["steps"] = parts * count
    entry["losses"] = {name: [part["loss"] for part in losses_of(run, run.device, name, shape, [count] * parts)]
                       for name in ("fp32", "bf16")}
    last = {name: sum(losses[-parts // 10:]) / (parts // 10) for name, losses in entry["losses"].items()}
    entry["bf16_off"] = last["bf16"] / last["fp32"] - 1
    print(f"    {parts * count} steps: fp32 {entry['losses']['fp32'][0]:.4f} to {last['fp32']:.4f}, bf16 to "
          f"{last['bf16']:.4f}, {100 * entry['bf16_off']:+.2f} %, allowed 0.5 %", flush=True)
    if not last["fp32"] < entry["losses"]["fp32"][0]:
        raise Failed("the loss does not fall")
    if not abs(entry["bf16_off"]) < 5e-3:
        raise Failed("the final loss in bf16 differs from fp32 by more than 0.5 %")


def sanitizer(run, entry):
    home = run.env.get("CUDA_HOME", "/usr/local/cuda")
    tool = shutil.which("compute-sanitizer") or os.path.join(home, "bin", "compute-sanitizer")
    entry["tool"] = tool if os.path.exists(tool) else None
    if not entry["tool"]:
        entry["skipped"] = "compute-sanitizer is not installed"
        print(f"    {entry['skipped']}", flush=True)
        return
    checks = [(kind, test, f"gpu_kernels_{part}") for kind in ("memcheck", "racecheck")
              for test, part in (("test_norm", "rows"), ("test_embed", "rows"), ("test_head", "layers"),
                                 ("test_attn", "layers"), ("test_adamw", "vectors"))]
    options = ["--error-exitcode", "9", "--report-api-errors", "no", "--kernel-name", "kns=cuda_"] # own kernels only
    entry["passed"], entry["no_time_for"] = [], []
    for i, (kind, test, program) in enumerate(checks):
        check = f"{kind} {test}"
        try:
            run.call([tool, "--tool", kind] + options + [os.path.join(run.bin, program), test],
                     env={"ATOLL_ATTENTION": "plain"})
            entry["passed"].append(check)
        except OutOfTime:
            entry["no_time_for"].append(check)
        except Stopped:
            raise
        except Failed as error:
            if "Device not supported" in error.output: # sandboxes that hide the GPU's debug interface
                entry["skipped"] = f"compute-sanitizer is not supported on this machine: {error}"
                print(f"    {entry['skipped']}", flush=True)
                return
            if "Internal Sanitizer Error" in error.output and not re.search("Race reported|Invalid __", error.output):
                entry.setdefault("tool_failed", []).append(check)
                print(f"    {check}: compute-sanitizer itself failed: an internal error", flush=True)
            else:
                entry["errors"].append(f"{check}: {error}")
        if min(run.until, run.deadline) - time.monotonic() < 2:
            entry["no_time_for"] += [f"{kind} {test}" for kind, test, _ in checks[i + 1:]]
            break
    if entry["no_time_for"] and run.deadline <= run.until:
        entry["out_of_time"] = True
    elif not entry["passed"]:
        raise Failed(f"no check passed; no time for {', '.join(entry['no_time_for'])}")
