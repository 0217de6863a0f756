"""The program of `./run bench many`: many.py FOLDER JSON_FOLDER [options], which tests/bench/many lists."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402

STEPS = 20  # a round
SMALL = ["--model.n_layer=2", "--model.n_head=2", "--model.n_embd=64", "--model.block_size=64", "--model.vocab_size=256"]
LARGE = ["--model.preset=llama-1b"]
CODECS = {
    "int8": ["--codec.up=int8:256", "--codec.down=int8:256"],
    "topk": ["--train.method=local-sgd", "--codec.up=topk:64/4096+sign", "--codec.down=auto"],
}
BIN = os.environ["ATOLL_BIN"]


class Watch:
    """CPU seconds of a process by kind of thread, and its memory, read 20 times a second."""

    def __init__(self, pid):
        self.pid, self.rows, self.stop = pid, [], threading.Event()
        self.peak, self.tasks = 0, {}  # tasks: (kind, CPU seconds) of each thread, also of those that have ended
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def sample(self):
        proc = Path(f"/proc/{self.pid}")
        for task in (proc / "task").iterdir():
            name = (task / "comm").read_text()
            kind = "main" if task.name == str(self.pid) else "io" if name.startswith("ZMQbg/IO") else None
            if kind:
                self.tasks[task.name] = (kind, int((task / "schedstat").read_text().split()[0]) * 1e-9)
        kinds = {kind: sum(s for of, s in self.tasks.values() if of == kind) for kind in ("main", "io")}
        ticks = (proc / "stat").read_text().rsplit(")", 1)[1].split()[11:13]  # includes threads that have ended
        kinds["all"] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        for line in (proc / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                self.peak = int(line.split()[1]) * 1024
        return kinds

    def run(self):
        while not self.stop.wait(0.05):
            try:
                self.rows.append((time.monotonic(), self.sample()))
            except (OSError, IndexError, ValueError):  # a thread or the process has ended
                continue

    def end(self):
        self.stop.set()
        self.thread.join()

    def between(self, start, end):
        """CPU seconds by kind from the first sample after `start` to the last one before `end`, and their distance."""
        rows = [row for row in self.rows if start <= row[0] <= end]
        if len(rows) < 2:
            return None
        (a, first), (b, last) = rows[0], rows[-1]
        cpu = {kind: last[kind] - first[kind] for kind in first}
        cpu["rest"] = max(0.0, cpu.pop("all") - cpu["main"] - cpu["io"])
        return b - a, cpu


def start_coordinator(folder, settings, workers, rounds):
    config = folder / "run.yaml"
    config.write_text("")
    command = [
        f"{BIN}/atoll-coordinator", str(config), "--dir", str(folder / "run"), "--train.method=diloco",
        f"--train.max_steps={STEPS * rounds}", f"--train.sync_every={STEPS}", "--train.batch_size=1", "--train.eval_every=0",
        "--inner.warmup_steps=1", "--checkpoint.worker_every=0", "--coordinator.listen=tcp://127.0.0.1:*",
        f"--coordinator.min_workers={workers}", f"--coordinator.max_workers={workers}", *settings,
    ]  # fmt: skip
    with open(folder / "coordinator.log", "wb") as log:
        p = subprocess.Popen(command, stdout=log, stderr=log)
    address = folder / "run" / "address"
    while not address.exists() or not address.read_text().strip():
        if p.poll() is not None:
            raise SystemExit(f"bench many: {(folder / 'coordinator.log').read_text()}")
        time.sleep(0.05)
    return p, address.read_text().splitlines()[-1]


def run(folder, settings, workers, rounds, step_ms, beat_ms=0):
    """Returns the stubs' report and the watch of the coordinator."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    coordinator, join = start_coordinator(folder, settings, workers, rounds)
    watch = Watch(coordinator.pid)
    report = folder / "report"
    command = [
        f"{BIN}/bench_stub_workers", f"--join={join}", f"--workers={workers}", f"--step-ms={step_ms}",
        f"--report={report}", *([f"--beat-ms={beat_ms}"] if beat_ms else []),
    ]  # fmt: skip
    try:
        with open(folder / "stubs.log", "wb") as log:
            status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        logs = (folder / "stubs.log").read_text()
        if status or logs:  # refused, rejected, lost: each is a defect
            raise SystemExit(f"bench many: {logs}\n{(folder / 'coordinator.log').read_text()}")
        coordinator.wait(120)
    finally:
        watch.end()
        if coordinator.poll() is None:
            coordinator.kill()
            coordinator.wait()
    return [json.loads(line) for line in report.read_text().splitlines()], watch


def rounds_of(report, n):
    """(first begin, last begin, first end of training, last end of training, last update) of each round, seconds."""
    times = []
    for r in range(n):
        of = [row for row in report if row.get("round") == r]
        begun, trained, applied = ([row[key] * 1e-6 for row in of] for key in ("begun", "trained", "applied"))
        times.append((min(begun), max(begun), min(trained), max(trained), max(applied), sum(row["beats"] for row in of)))
    return times


def measure(folder, settings, workers, rounds, step_ms):
    report, watch = run(folder, settings, workers, rounds + 1, step_ms)
    times = rounds_of(report, rounds + 1)[1:]
    sessions, model = [row for row in report if "joined" in row], report[-1]
    busy, idle, beats, idle_s = [], {"main": 0.0, "io": 0.0, "rest": 0.0}, 0.0, 0.0
    for begun, last_begun, trained, last_trained, applied, answered in times:
        # Training of all, without the moment after the updates.
        span = watch.between(last_begun + 0.2, trained)
        if span:
            length, cpu = span
            idle = {kind: idle[kind] + cpu[kind] for kind in idle}
            beats += answered * length / (trained - last_begun)
            idle_s += length
        exchange = watch.between(trained - 0.05, applied + 0.25)
        if exchange:
            busy.append(exchange[1])
    row = {
        "workers": workers,
        "params": model["params"],
        "delta_bytes": model["delta_bytes"],
        "joined_s": max(s["joined"] for s in sessions) * 1e-6,
        "round_s": statistics.median(t[4] - t[0] for t in times),
        "exchange_s": statistics.median(t[4] - t[2] for t in times),
        "wait_s": max(s["wait"] for s in sessions) * 1e-6,
        "peak_bytes": watch.peak,
        "beat_us": idle["main"] / beats * 1e6 if beats else None,
        "beat_io_us": idle["io"] / beats * 1e6 if beats else None,
        "idle_share": sum(idle.values()) / idle_s if idle_s else None,
    }
    for kind in idle:
        row[f"round_{kind}_s"] = statistics.median(b[kind] for b in busy) if busy else None
    shutil.rmtree(folder / "run", ignore_errors=True)
    return row


def plan_of(settings, workers, rounds, step_ms):
    """`atoll plan` for the same run. The link is fast; its CPU time for CURVE is not in a plan."""
    command = [
        f"{BIN}/atoll", "plan", f"--workers={workers}", "--link=100gbit,rtt=0ms", f"--step-seconds={step_ms / 1000}",
        "--only", "--json", "--train.method=diloco", f"--train.max_steps={STEPS * rounds}", f"--train.sync_every={STEPS}",
        "--train.batch_size=1", "--train.eval_every=0", "--checkpoint.every=0", "--checkpoint.worker_every=0", *settings,
    ]  # fmt: skip
    plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["plan"]
    return {"plan_round_s": plan["round_s"], "plan_peak_bytes": plan["memory"]["coordinator"]}


def text(value, scale=1.0, digits=3):
    return "-" if value is None else f"{value * scale:.{digits}f}"


def show(row):
    line = (
        f"{row['workers']:4} workers, {row['params']} parameters, {row['codec']}: joined {text(row['joined_s'], 1, 1)} s; "
        f"round {text(row['round_s'], 1, 2)} s, of it after training {text(row['exchange_s'], 1, 2)} s; CPU of that: main "
        f"{text(row['round_main_s'])} s, I/O {text(row['round_io_s'])} s, rest {text(row['round_rest_s'])} s; heartbeat: "
        f"main {text(row['beat_us'], 1, 1)} us, I/O {text(row['beat_io_us'], 1, 1)} us, "
        f"{text(row['idle_share'], 100, 2)} % of a core; longest wait for an answer {text(row['wait_s'], 1, 2)} s; peak "
        f"{row['peak_bytes'] / 2**20:.0f} MiB"
    )
    if "plan_round_s" in row:
        line += f"; planned: round {row['plan_round_s']:.2f} s, {row['plan_peak_bytes'] / 2**20:.0f} MiB"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./run bench many")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--codec", choices=sorted(CODECS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=int, default=500)
    given, settings = parser.parse_known_args()
    wrong = [s for s in settings if not (s.startswith("--") and "." in s and "=" in s)]
    if wrong or given.rounds < 1:
        raise SystemExit(f"bench many: unknown argument {(wrong or ['--rounds'])[0]} (see the head of tests/bench/many)")
    rows = []
    if given.large:
        cells = [(2, name, LARGE + CODECS[name]) for name in (CODECS if not given.codec else [given.codec])]
    else:
        cells = [(n, "int8", SMALL + CODECS["int8"]) for n in ([given.workers] if given.workers else [16, 64, 256])]
    for workers, codec, model in cells:
        row = {"codec": codec, **measure(given.folder, ["--checkpoint.every=0", *model, *settings], workers, given.rounds, given.step_ms)}
        if given.large:
            row |= plan_of([*model, *settings], workers, given.rounds + 1, given.step_ms)
        rows.append(row)
        show(row)
    name = "many-large" if given.large else "many"
    with open(given.out / f"{name}.json", "w", encoding="utf-8") as f:
        json.dump({"name": name, "machine": machine.describe(), "rows": rows}, f, indent=2)


if __name__ == "__main__":
    main()
