"""The program of `./run bench pause`: pause.py FOLDER JSON_FILE [--layers N] [--rounds R]."""

import argparse
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402
import many  # noqa: E402

STEP_MS, BEAT_MS = 20, 250

WORKER = """
import sys, time
import numpy as np
import atoll

join, folder, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
p = {"w%d" % i: np.zeros(part, np.float32) for i, part in enumerate([n // 8] * 7 + [n - n // 8 * 7])}
with atoll.Worker(p, join=join, dir=folder, name="w", max_wait=60) as worker:
    while worker.begin():
        for step in range(worker.assignment.steps):
            p["w0"][:8] -= 0.01
            worker.step(tokens=3)
"""


class Relay:
    """Carries connections to `port`, and keeps the times and sizes of what came back on each of them."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lanes = []  # of each connection: [(time, bytes, whether it came back), ...]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near = self.listener.accept()[0]
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the run is over
                near.close()
                continue
            for s in near, far:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.lanes.append([])
            threading.Thread(target=self.carry, args=(near, far, self.lanes[-1]), daemon=True).start()

    @staticmethod
    def carry(near, far, lane):
        select = selectors.DefaultSelector()
        for s in near, far:
            select.register(s, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in select.select():
                    data = key.fileobj.recv(1 << 20)
                    if not data:
                        return
                    lane.append((time.monotonic(), len(data), key.fileobj is far))
                    (near if key.fileobj is far else far).sendall(data)
        except OSError:
            return
        finally:
            near.close()
            far.close()

    def control(self):
        """The control lane of the session that trains: the last connection with few bytes."""
        sizes = [sum(size for _, size, _ in lane) for lane in self.lanes]
        return [lane for lane, size in zip(self.lanes, sizes) if size < max(sizes) / 4][-1]


def longest_first(lanes, control, first):
    """The longest time without an answer from the last byte of the upload until the first checkpoint was complete."""
    uploaded = max(at for lane in lanes for at, size, back in lane if not back and at < first and size > 4096)
    answers = [uploaded, *(at for at, _, back in control if back and uploaded < at < first), first]
    return max(b - a for a, b in zip(answers, answers[1:]))


def longest_checkpoint(folder, stop):
    """Follows the half-written checkpoints in the run folder. Returns when the first one was complete (the worker joins
    then), and the longest time that a later one existed."""
    longest, begun, first = 0, None, None
    while not stop.is_set():
        names = os.listdir(folder / "checkpoints") if (folder / "checkpoints").is_dir() else []
        if "round_000000" in names:
            first = first or time.monotonic()
        if first and any(".tmp" in name for name in names):
            begun = begun or time.monotonic()
            longest = max(longest, time.monotonic() - begun)
        else:
            begun = None
        time.sleep(0.01)
    return first, longest


def start_coordinator(folder, rounds):
    config = folder / "run.yaml"
    sections = {
        "model": {"family": "external"},
        "train": {"method": "diloco", "max_steps": rounds, "sync_every": 1, "batch_size": 1, "eval_every": 0},
        "codec": {"up": "int8:256", "down": "int8:256"},
        "checkpoint": {"every": 1, "keep": 1},
        "coordinator": {"listen": "tcp://127.0.0.1:*"},
    }
    config.write_text("".join(f"{name}: {json.dumps(keys)}\n" for name, keys in sections.items()))
    program = os.path.join(os.environ["ATOLL_BIN"], "atoll-coordinator")
    with open(folder / "coordinator.log", "wb") as log:
        p = subprocess.Popen([program, str(config), "--dir", str(folder / "run")], stdout=log, stderr=log)
    address = folder / "run" / "address"
    while not address.exists() or not address.read_text().strip():
        if p.poll() is not None:
            raise SystemExit(f"bench pause: {(folder / 'coordinator.log').read_text()}")
        time.sleep(0.05)
    return p, address.read_text().splitlines()[-1]


def measure_first(folder, params):
    """The first session: a worker uploads its model, and the coordinator writes the first checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    coordinator, line = start_coordinator(folder, 1)
    host, rest = line.removeprefix("tcp://").split("/", 1)
    relay = Relay(int(host.rsplit(":", 1)[1]))
    join = f"tcp://127.0.0.1:{relay.port}/{rest}"
    stop, found = threading.Event(), []
    watch = threading.Thread(target=lambda: found.append(longest_checkpoint(folder / "run", stop)))
    watch.start()
    try:
        with open(folder / "worker.log", "wb") as log:
            command = [sys.executable, "-c", WORKER, join, str(folder / "worker"), str(params)]
            worker = subprocess.run(command, stdout=log, stderr=log, check=False)
        if worker.returncode:
            raise SystemExit(f"bench pause: {(folder / 'worker.log').read_text()}")
        coordinator.wait(60)
    finally:
        stop.set()
        watch.join()
        if coordinator.poll() is None:
            coordinator.kill()
    shutil.rmtree(folder, ignore_errors=True)
    return longest_first(relay.lanes, relay.control(), found[0][0])


def measure_training(folder, layers, rounds):
    """A stub worker beats every BEAT_MS, and each round ends with a checkpoint."""
    model = ["--model.preset=gpt2", f"--model.n_layer={layers}"] if layers else many.SMALL
    settings = [*model, *many.CODECS["int8"], "--checkpoint.every=1", "--checkpoint.keep=1"]
    stop, found = threading.Event(), []
    shutil.rmtree(folder, ignore_errors=True)
    watch = threading.Thread(target=lambda: found.append(longest_checkpoint(folder / "run", stop)))
    watch.start()
    try:
        report, _ = many.run(folder, settings, 1, rounds, STEP_MS, BEAT_MS)
    finally:
        stop.set()
        watch.join()
    session = next(row for row in report if "joined" in row)
    params = report[-1]["params"]
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "params": params,
        "rounds": rounds,
        "checkpoint_bytes": 12 * params,
        "longest_gap_s": session["gap"] * 1e-6,
        "longest_wait_s": session["wait"] * 1e-6,
        "longest_checkpoint_s": found[0][1],
        "beats": session["beats"],
    }


def main():
    parser = argparse.ArgumentParser(prog="./run bench pause")
    parser.add_argument("folder", type=Path)
    parser.add_argument("json")
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    row = measure_training(given.folder, given.layers, given.rounds)
    row["longest_first_s"] = measure_first(given.folder, row["params"])
    print(
        f"{row['params']} parameters, checkpoints of {1e-9 * row['checkpoint_bytes']:.2f} GB, longest "
        f"{row['longest_checkpoint_s']:.2f} s: longest time between two answers {row['longest_gap_s']:.2f} s, from a "
        f"heartbeat to an answer {row['longest_wait_s']:.2f} s (a beat each {BEAT_MS} ms, {row['beats']} answers); between "
        f"two answers before the first session {row['longest_first_s']:.2f} s"
    )
    with open(given.json, "w", encoding="utf-8") as f:
        json.dump({"name": "pause", "machine": machine.describe(), "rows": [row]}, f, indent=2)


if __name__ == "__main__":
    main()
