"""page.py BIN FOLDER OUT.json: the coordinator's rounds a second and CPU time, without and with a page that ten clients
watch (tests/bench/page)."""
import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402

CONFIG = """
run: {name: bench, seed: 7}
data: {train: "%s/data/train_*.bin", val: "%s/data/val_*.bin", tokenizer: bytes}
model: {family: gpt2, n_layer: 1, n_head: 2, n_embd: 16, block_size: 32, vocab_size: 256}
train: {method: diloco, max_steps: 100000000, sync_every: 5, batch_size: 4, threads: 1, eval_every: 100, eval_tokens: 1024}
inner: {learning_rate: 1.0e-3}
codec: {up: fp32, down: fp32}
coordinator: {listen: "tcp://127.0.0.1:*", min_workers: 2}
checkpoint: {every: 200, keep: 2, worker_every: 200}
"""
SETTLE_S = 3.0  # after the page and its viewers started


def cpu_s(pid):
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1e3


class Viewer(threading.Thread):
    """An open page: reads the events until the page ends."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.bytes = 0
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.start()

    def run(self):
        while data := self.socket.recv(65536):
            self.bytes += len(data)
        self.socket.close()


class Run:
    def __init__(self, programs, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = "".join(f"The keeper of light {i % 37} counted {i % 91} ships. " for i in range(2000))
        (folder / "text.txt").write_text(text)
        (folder / "run.yaml").write_text(CONFIG % (folder, folder))
        self.programs, self.folder, self.children = programs, folder, []
        subprocess.run([programs / "atoll", "prepare", folder / "data", folder / "text.txt"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.coordinator = self.start("coordinator", "atoll-coordinator", folder / "run.yaml", "--dir", folder / "run")
        while not (folder / "run/address").exists():
            time.sleep(0.05)
        for i in range(2):
            self.start(f"worker-{i}", "atoll-worker", "--join", folder / "run", "--dir", folder / f"worker-{i}",
                       f"--data.train={folder}/data/train_*.bin", f"--data.val={folder}/data/val_*.bin")
        self.metrics = (folder / "run/metrics.jsonl").open("rb")
        self.rounds = 0

    def start(self, name, program, *arguments):
        log = (self.folder / f"{name}.log").open("wb")
        child = subprocess.Popen([self.programs / program, *arguments], stdout=log, stderr=log)
        self.children.append(child)
        return child

    def count(self):
        """Rounds so far."""
        self.rounds += self.metrics.read().count(b'"event":"round"')
        return self.rounds

    def window(self, seconds):
        """(rounds a second, CPU seconds of the coordinator a round)"""
        begin, rounds, cpu = time.monotonic(), self.count(), cpu_s(self.coordinator.pid)
        time.sleep(seconds)
        done = self.count() - rounds
        return done / (time.monotonic() - begin), (cpu_s(self.coordinator.pid) - cpu) / max(done, 1)

    def page(self, arguments):
        """(its process, its port)"""
        child = self.start("page", "atoll", "page", self.folder / "run", "--listen", "127.0.0.1:0", *arguments)
        log = self.folder / "page.log"
        while not (found := re.search(r"serving http://127.0.0.1:(\d+)", log.read_text())):
            time.sleep(0.05)
        return child, int(found[1])

    def end(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()  # also a stopped one
                child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def measure(run, options):
    """Pairs of windows: the page works, the page is stopped (SIGSTOP). The order changes, so that drift cancels."""
    rows, page_cpu, seen = [], [], []
    arguments = ["--interval", str(options.interval)] if options.interval else []
    while run.count() < 200:
        time.sleep(0.1)
    page, port = run.page(arguments)
    viewers = [Viewer(port) for _ in range(options.viewers)]
    time.sleep(SETTLE_S)
    for i in range(options.windows):
        pair = {}
        for watched in (True, False) if i % 2 else (False, True):
            page.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)
            cpu, before = cpu_s(page.pid), sum(viewer.bytes for viewer in viewers)
            pair[watched] = run.window(options.seconds)
            if watched:
                page_cpu.append((cpu_s(page.pid) - cpu) / options.seconds)
                seen.append(sum(viewer.bytes for viewer in viewers) - before)
        base, with_page = pair[False], pair[True]
        rows.append((with_page[0] / base[0], with_page[1] / base[1], base[0], with_page[0], base[1], with_page[1]))
    page_mb = memory_mb(page.pid)
    if not all(seen) and options.viewers:
        sys.exit("page.py: a viewer saw nothing")
    median = [statistics.median(column) for column in zip(*rows)]
    return {"viewers": options.viewers, "windows": options.windows, "rounds_per_s": median[2],
            "rounds_per_s_watched": median[3], "ratio": median[0], "ratio_least": min(row[0] for row in rows),
            "coordinator_cpu_ms_per_round": 1e3 * median[4], "coordinator_cpu_ms_per_round_watched": 1e3 * median[5],
            "cpu_ratio": median[1], "page_cpu_share": statistics.median(page_cpu), "page_mb": page_mb}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--interval", type=float)
    options = parser.parse_args()
    run = Run(options.programs, options.folder)
    try:
        row = measure(run, options)
    finally:
        run.end()
    print(f"rounds a second        {row['rounds_per_s']:.1f} alone, {row['rounds_per_s_watched']:.1f} with "
          f"{row['viewers']} viewers: {row['ratio']:.3f} times (median of {row['windows']}, least "
          f"{row['ratio_least']:.3f})")
    print(f"coordinator's CPU      {row['coordinator_cpu_ms_per_round']:.2f} ms a round alone, "
          f"{row['coordinator_cpu_ms_per_round_watched']:.2f} ms watched: {row['cpu_ratio']:.3f} times")
    print(f"the page itself        {100 * row['page_cpu_share']:.1f} % of a core, {row['page_mb']:.1f} MB")
    options.out.write_text(json.dumps({"name": "page", "machine": machine.describe(), "rows": [row]}, indent=1) + "\n")


main()
