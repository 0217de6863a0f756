"""Runs of one configuration on this machine, each worker behind a link of its own, and what their metrics say."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("ATOLL_BIN", ROOT / "build" / "bin"))

MODELS = {
    "22K": "{family: gpt2, n_layer: 1, n_head: 2, n_embd: 32, block_size: 32, vocab_size: 256}",
    "0.28M": "{family: gpt2, n_layer: 4, n_head: 4, n_embd: 72, block_size: 128, vocab_size: 256}",
    "0.98M": "{family: gpt2, n_layer: 4, n_head: 4, n_embd: 136, block_size: 128, vocab_size: 256}",
    "10.8M": "{family: gpt2, n_layer: 6, n_head: 6, n_embd: 384, block_size: 128, vocab_size: 256}",
}
CODECS = {
    "int8": {"train.method": "diloco", "codec.up": "int8:256", "codec.down": "int8:256"},
    "topk": {"train.method": "local-sgd", "codec.up": "topk:64/4096+sign", "codec.down": "auto"},
}


def start(folder: Path, name: str, words: list[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as file:
        return subprocess.Popen(words, cwd=folder, env=env, stdout=file, stderr=file, stdin=subprocess.DEVNULL)


def link(folder: Path, i: int, port: str, mbit: float, delay_ms: float) -> tuple[subprocess.Popen[bytes], str]:
    """A relay to the coordinator: `mbit` each way, `delay_ms` each way."""
    spec = f"{mbit:f}mbit,rtt={2 * delay_ms:f}ms"
    words = [str(BIN / "atoll"), "relay", spec, "--to", f"127.0.0.1:{port}"]
    process = start(folder, f"link-{i}", words)
    log = folder / f"link-{i}.log"
    while not log.read_text().startswith("127"):
        time.sleep(0.02)
    return process, log.read_text().splitlines()[0]


def start_worker(folder: Path, data: Path, i: int, join: str, step_ms: float) -> subprocess.Popen[bytes]:
    """step_ms: each step takes at least so long, most of it asleep; 0: as long as it computes."""
    program = "bench_timed_worker" if step_ms else "atoll-worker"
    words = [str(BIN / program), "--join", join, "--dir", f"w{i}", "--name", f"worker-{i}", "--train.threads=1",
             f"--data.train={data}/train_*.bin", f"--data.val={data}/val_*.bin"]
    return start(folder, f"worker-{i}", words, {**os.environ, "ATOLL_BENCH_STEP_MS": f"{step_ms:f}"})


def run(folder: Path, data: Path, model: str, settings: dict[str, Any], workers: int, *,
        mbit: float | list[float] = 0, delay_ms: float = 0, steps_ms: list[float] | None = None,
        slow: dict[int, float] | None = None, timeout: float = 900) -> dict[str, Any]:
    """One run. A list has a value for each worker. slow: share of the time that a worker's process runs, the rest it is
    stopped (SIGSTOP)."""
    mbits = mbit if isinstance(mbit, list) else [mbit] * workers
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    common = {"coordinator.listen": "tcp://127.0.0.1:*", "coordinator.min_workers": workers, **settings}
    (folder / "run.yaml").write_text(f"model: {MODELS[model]}\n")
    flags = [f"--{key}={value}" for key, value in common.items()]
    words = [str(BIN / "atoll-coordinator"), "run.yaml", "--dir", "run", *flags]
    processes = [start(folder, "coordinator", words)]
    try:
        address = folder / "run" / "address"
        while not (address.exists() and address.read_text().strip()):
            if processes[0].poll() is not None:
                raise SystemExit((folder / "coordinator.log").read_text())
            time.sleep(0.05)
        join = address.read_text().split()[0]
        port = join.split(":")[2].split("/")[0]
        for i in range(workers):
            mine = join
            if mbits[i]:
                relay, at = link(folder, i, port, mbits[i], delay_ms)
                processes.append(relay)
                mine = join.replace(f"127.0.0.1:{port}", at)
            worker = start_worker(folder, data, i, mine, steps_ms[i] if steps_ms else 0)
            processes.append(worker)
            if slow and i in slow:
                duty_cycle(worker, slow[i])
        began = time.monotonic()
        while processes[0].poll() is None:
            time.sleep(0.1)
            if time.monotonic() - began > timeout:
                raise SystemExit(f"bench overlap: {folder} takes longer than {timeout:.0f} s")
        if processes[0].returncode:
            raise SystemExit((folder / "coordinator.log").read_text()[-2000:])
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    summary = json.loads((folder / "run" / "summary.json").read_text())
    summary.update(read_metrics(folder / "run" / "metrics.jsonl"))
    return summary


PERIOD_S = 0.02  # short, so that a stopped process answers messages soon


def duty_cycle(process: subprocess.Popen[bytes], share: float) -> None:
    """Lets a process run for `share` of the time, until it ends."""
    def cycle() -> None:
        while process.poll() is None:
            process.send_signal(signal.SIGCONT)
            time.sleep(PERIOD_S * share)
            process.send_signal(signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - share))

    threading.Thread(target=cycle, daemon=True).start()


def read_metrics(path: Path) -> dict[str, Any]:
    """By worker: seconds between the ends of its first and its last round, and how it used them."""
    rounds: dict[str, list[dict[str, Any]]] = {}
    steps: dict[tuple[str, int], int] = {}
    times: list[tuple[float, int]] = []
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            key = (event["worker"], event["round"])
            steps[key] = steps.get(key, 0) + 1
            if "compute_s" in event:
                rounds.setdefault(event["worker"], []).append(event)
        if event["event"] == "round":
            times.append((event["time"], event["tokens"]))
    result: dict[str, Any] = {"utilization_by_worker": {}, "steps_per_second": {}}
    for worker, events in sorted(rounds.items()):
        inner = events[1:-1] or events
        compute = sum(e["compute_s"] for e in inner)
        wall = sum(e[k] for e in inner for k in ("compute_s", "compress_s", "send_s", "wait_s", "apply_s"))
        span = inner[-1]["time"] - events[0]["time"] if len(events) > 2 else wall
        result["utilization_by_worker"][worker] = compute / max(span, wall)
        result["steps_per_second"][worker] = sum(steps[worker, e["round"]] for e in inner) / compute
    if len(times) > 3:  # without the first round, whose speeds are unknown, and the last, which waits for an evaluation
        (first, had), (last, has) = times[0], times[-2]
        result["tokens_per_second"] = (has - had) / (last - first)
        result["round_seconds"] = (last - first) / (len(times) - 2)
    return result


class Rows:
    """Results in a JSON lines file: a cell that is in the file is not run again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        return next((row for row in self.rows if all(row.get(k) == v for k, v in key.items())), None)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
