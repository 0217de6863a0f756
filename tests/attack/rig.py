"""A run under attack: a coordinator, honest workers, and what each attack costs them.

Environment: ATOLL_BIN is the folder of the programs. The rig works in a temporary folder and ends all its processes.
"""
import atexit
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import wire

BIN = Path(os.environ.get("ATOLL_BIN", "build/bin")).resolve()
WORK = Path(tempfile.mkdtemp(prefix="atoll-attack."))
ROOT = Path(__file__).resolve().parent
processes = []
names = iter(range(10**6))
rows = []  # (group, attack, verdict, figures)


@atexit.register
def end_all():
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(WORK, ignore_errors=True)


def interrupted(number, _):
    sys.exit(128 + number)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, interrupted)


def spawn(log, *command, limit=None, env=None):
    def lower():
        if limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    with open(WORK / log, "ab") as out:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, cwd=WORK,
                                   stdin=subprocess.DEVNULL, preexec_fn=lower, env={**os.environ, **(env or {})})
    processes.append(process)
    return process


def until(seconds, what, condition):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"timeout after {seconds} s: {what}")
        time.sleep(0.02)
    return value


def text_of(path):
    try:
        return Path(WORK, path).read_text(errors="replace")
    except FileNotFoundError:
        return ""


def size_of(path):
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def make_data():
    """data/: token shards of a text that a small model can learn."""
    who = ["the old keeper", "a small grey boat", "her brother", "a patient gull", "the tide"]
    verbs, things = ["watched", "carried", "lost", "found"], ["the mail", "seven stones", "the light", "a coil of rope"]
    x, words = 12345, []
    while sum(map(len, words)) < 60000:
        picks = []
        for choices in (who, verbs, things):
            x = x * 16807 % 2147483647
            picks.append(choices[x % len(choices)])
        words.append(" ".join(picks) + ". ")
    (WORK / "text.txt").write_text("".join(words))
    subprocess.run([BIN / "atoll", "prepare", "data", "text.txt"], cwd=WORK, check=True, capture_output=True)


CONFIG = """\
run: {{name: attack, seed: 7}}
data: {{train: "{work}/data/train_*.bin", val: "{work}/data/val_*.bin", tokenizer: bytes}}
model: {{family: gpt2, n_layer: 1, n_head: 2, n_embd: 24, block_size: 32, vocab_size: 256}}
train: {{method: diloco, max_steps: 100000000, sync_every: 40, batch_size: 4, threads: 1, eval_every: 20, eval_tokens: 1024}}
inner: {{learning_rate: 3.0e-3, warmup_steps: 5, min_lr_fraction: 0.5}}
codec: {{up: bf16, down: bf16}}
coordinator: {{listen: "tcp://127.0.0.1:*"}}
checkpoint: {{every: 50, keep: 2}}
"""


def enrol(address, public, secret, name):
    """Enrols this key with the secret of the join line."""
    _, _, join_secret = address
    context = wire.zmq.Context()
    socket = wire.dial(context, address, wire.CONTROL, os.urandom(16), wire.public_of(join_secret), join_secret)
    socket.send(wire.frame(wire.ENROL, public + wire.line(name)))
    answer = socket.recv() if socket.poll(5000) else None
    context.destroy(linger=0)
    if not answer or wire.kind_of(answer) != wire.ENROLLED:
        raise AssertionError(f"enrolment of {name}: {answer!r}")


class Run:
    """A coordinator and honest workers h0, h1, ... in WORK/NAME."""

    def __init__(self, name, workers=2, limit=None, **settings):
        self.name, self.dir, self.settings, self.limit = name, WORK / name, settings, limit
        (WORK / f"{name}.yaml").write_text(CONFIG.format(work=WORK))
        self.coordinator = self.start_coordinator()
        until(10, "address", lambda: (self.dir / "address").exists() and text_of(f"{name}/address").endswith("\n"))
        self.address = wire.parse_join_line(text_of(f"{name}/address").splitlines()[0])
        self.workers = {}
        for i in range(workers):
            self.start_worker(f"h{i}")

    def start_coordinator(self):
        flags = [f"--{key.replace('__', '.')}={value}" for key, value in self.settings.items()]
        return spawn(f"{self.name}.coordinator.log", BIN / "atoll-coordinator", f"{self.name}.yaml", "--dir", self.dir,
                     *flags, limit=self.limit)

    def start_worker(self, name, join=None):
        env = {"ATOLL_JOIN": join} if join else {}
        given = [] if join else ["--join", self.dir]
        process = spawn(f"{self.name}.{name}.log", BIN / "atoll-worker", *given, "--dir", f"{self.name}.{name}",
                        "--name", name, "--train.threads=1", f"--data.train={WORK}/data/train_*.bin",
                        f"--data.val={WORK}/data/val_*.bin", env=env)
        self.workers[name] = process
        return process

    def events(self, kind):
        out = []
        for text in text_of(f"{self.name}/metrics.jsonl").splitlines():
            if f'"{kind}"' in text:
                try:
                    event = json.loads(text)
                except ValueError:
                    continue
                if event["event"] == kind:
                    out.append(event)
        return out

    def rounds(self):
        """Finished rounds: the last round event, searched from the end of the file."""
        with open(self.dir / "metrics.jsonl", "rb") as file:
            size = file.seek(0, 2)
            for tail in (1 << 16, 1 << 22, size):
                file.seek(max(0, size - tail))
                found = re.findall(rb'"event": ?"round".*?"round": ?(\d+)', file.read())
                if found or tail >= size:
                    return int(found[-1]) if found else 0

    def await_rounds(self, more, seconds=20):
        first = self.rounds()
        until(seconds, f"{more} rounds after round {first}", lambda: self.rounds() >= first + more)

    def memory(self):
        """Resident bytes of the coordinator."""
        return int(text_of(f"/proc/{self.coordinator.pid}/statm").split()[1]) * 4096

    def disk(self):
        """Bytes of the run folder and of the coordinator's log."""
        return sum(size_of(f) for f in (*self.dir.rglob("*"), WORK / f"{self.name}.coordinator.log"))

    def kept(self):
        """Bytes of the files that only grow: metrics.jsonl and the coordinator's log."""
        return size_of(self.dir / "metrics.jsonl") + size_of(WORK / f"{self.name}.coordinator.log")

    def log(self):
        return text_of(f"{self.name}.coordinator.log")

    def log_lines(self):
        return self.log().count("\n")

    def status(self):
        done = subprocess.run([BIN / "atoll", "status", self.dir, "--json"], capture_output=True, text=True, timeout=20)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def summary(self, seconds=60):
        try:
            until(seconds, "end of the run", lambda: self.coordinator.poll() is not None)
        except AssertionError as error:
            raise AssertionError(f"{error}; round {self.rounds()}, waiting for {self.status().get('waiting_for')}") from None
        return json.loads((self.dir / "summary.json").read_text())

    def alive(self):
        assert self.coordinator.poll() is None, f"the coordinator ended: {self.log()[-500:]}"
        for name, process in self.workers.items():
            if name.startswith("h"):
                assert process.poll() is None, f"{name} ended: {text_of(f'{self.name}.{name}.log')[-500:]}"

    def end(self):
        for process in (*self.workers.values(), self.coordinator):
            if process.poll() is None:
                process.kill()
                process.wait()

    def revive(self):
        """Starts anew what an attack has ended, so that the next attack meets a run."""
        if self.coordinator.poll() is not None:
            self.coordinator = self.start_coordinator()
        for name, process in self.workers.items():
            if process.poll() is not None and name.startswith("h"):
                self.start_worker(name)
        self.await_rounds(2, 60)

    def anew(self):
        """Starts the run again in an empty folder, after an attack that it did not survive."""
        honest = [name for name in self.workers if name.startswith("h")]
        self.end()
        shutil.rmtree(self.dir, ignore_errors=True)
        for folder in WORK.glob(f"{self.name}.*/"):
            shutil.rmtree(folder, ignore_errors=True)
        self.__init__(self.name, len(honest), self.limit, **self.settings)
        self.await_rounds(2, 60)

    def rate(self, seconds):
        """Rounds a second over this time."""
        first, began = self.rounds(), time.monotonic()
        time.sleep(seconds)
        return (self.rounds() - first) / (time.monotonic() - began)


def attack(group, name, run, function, seconds=2.0):
    """Runs one attack and records rounds a second, memory, disk and log lines before, during and after it."""
    try:
        run.revive()
    except Exception:
        run.anew()
    before = run.rate(seconds), run.memory(), run.disk(), run.log_lines()
    began, first = time.monotonic(), run.rounds()
    verdict, failed = "", None
    try:
        verdict = function(run) or ""
        run.alive()
        took = time.monotonic() - began
        during = (run.rounds() - first) / took
        figures = run.disk() - before[2], run.log_lines() - before[3]
        after = run.rate(seconds), run.memory()
        rows.append((group, name, before[0], during, after[0], before[1], after[1], figures[0], figures[1], verdict, True))
    except Exception as error:  # an attack that cannot go on succeeded, too
        failed = f"{type(error).__name__}: {error}"
        rows.append((group, name, before[0], 0, 0, before[1], 0, 0, 0, failed, False))
    r = rows[-1]
    print(f"{'ok  ' if r[10] else 'FAIL'} {group:9} {name:34} rounds/s {r[2]:5.1f} {r[3]:5.1f} {r[4]:5.1f}  memory "
          f"{r[5] / 1e6:6.1f} {r[6] / 1e6:6.1f} MB  disk +{r[7] / 1e3:7.0f} kB  log +{r[8]:4} lines  {r[9]}", flush=True)


def check(group, name, function):
    """Runs one attack that has no run beside it; the verdict is what `function` returns."""
    began = time.monotonic()
    try:
        verdict, good = function() or "", True
    except Exception as error:
        verdict, good = f"{type(error).__name__}: {error}", False
    rows.append((group, name, 0, 0, 0, 0, 0, 0, 0, verdict, good))
    print(f"{'ok  ' if good else 'FAIL'} {group:9} {name:34} {time.monotonic() - began:5.1f} s  {verdict}", flush=True)


def finish():
    bad = [row for row in rows if not row[10]]
    print(f"{len(rows)} attacks, {len(bad)} succeeded", flush=True)
    sys.exit(1 if bad else 0)
