"""Uploads of the initial model (model.family external): only the first worker's bytes count, and only as a model."""
import json
import shutil
import socket
import struct
import threading
import time

import rig
import wire

UPLOAD, INITIAL = 24, 3
PROGRAM = rig.BIN / "example_library"  # examples/library.c: 21 parameters, all 0 at the start
CONFIG = """\
run: {name: uploads}
model: {family: external}
train: {method: local-sgd, max_steps: 200, sync_every: 20, batch_size: 32, eval_every: 0}
coordinator: {listen: "tcp://127.0.0.1:*"}
"""


class External:
    """A coordinator without a model, in WORK/NAME."""

    def __init__(self, name):
        self.name, self.dir = name, rig.WORK / name
        (rig.WORK / f"{name}.yaml").write_text(CONFIG)
        log = f"{name}.log"
        self.coordinator = rig.spawn(log, rig.BIN / "atoll-coordinator", f"{name}.yaml", "--dir", self.dir)
        address = f"{name}/address"
        rig.until(10, address, lambda: (rig.WORK / address).exists() and rig.text_of(address).endswith("\n"))
        self.address = wire.parse_join_line(rig.text_of(address).splitlines()[0])

    def program(self, join):
        """A new worker: the program takes the host's name, and the folder atoll-worker-NAME in WORK."""
        for folder in rig.WORK.glob("atoll-worker-*"):
            shutil.rmtree(folder)
        return rig.spawn(f"{self.name}.program.log", PROGRAM, join)

    def attacker(self, name="mallory"):
        client = wire.Client(self.address, name)
        rig.enrol(self.address, client.public, client.secret, name)
        client.context.destroy(linger=0)
        return wire.Client(self.address, name, (client.public, client.secret))

    def check_model(self):
        """The run ends, and started from the program's model: 21 zeros, and no other file."""
        rig.until(60, "end of the run", lambda: self.coordinator.poll() is not None)
        assert self.coordinator.returncode == 0, rig.text_of(f"{self.name}.log")[-500:]
        assert sorted(p.name for p in (self.dir / "init").iterdir()) == ["model.safetensors"]
        data = (self.dir / "init" / "model.safetensors").read_bytes()
        size, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + size])
        assert set(header) - {"__metadata__"} == {"weight", "bias"} and not any(data[8 + size:]), header
        assert not (self.dir / "init.tmp").exists()


def head_of(files):
    """The head of wire/initial.h for [(name, size)]."""
    body = b"ATIN" + bytes([1, 0, 0, 0]) + struct.pack("<I", len(files))
    for name, size in files:
        body += wire.line(name) + struct.pack("<Q", size)
    return body + struct.pack("<I", wire.crc32c(body))


def chunk(key, offset, total, data):
    return struct.pack("<BIQQQII", INITIAL, 0, key, offset, total, wire.crc32c(data), len(data)) + data


def join(client, template):
    """Sends JOIN; returns the body of UPLOAD, or the kind of another answer."""
    client.hello()
    assert client.receive((wire.CONFIG,)), "no CONFIG"
    old, = struct.unpack_from("<H", template, 16)
    client.send(wire.JOIN, client.uuid + wire.line(client.name) + template[18 + old:])
    answer = client.receive((UPLOAD, wire.WELCOME, wire.REFUSE))
    return answer[16:] if answer and wire.kind_of(answer) == UPLOAD else answer and wire.kind_of(answer)


class Held:
    """A program behind a Middle that holds its CHUNKs back, so that its upload does not end before release()."""

    def __init__(self, run):
        self.open, self.key = threading.Event(), 0
        self.middle = wire.Middle(run.address, rig.enrol, edit=self.edit, name=socket.gethostname())
        self.process = run.program(self.middle.join_line)
        rig.until(10, "the first UPLOAD", lambda: self.key)

    def edit(self, kind, body, up):
        if kind == UPLOAD:
            self.key = struct.unpack_from("<Q", body)[0] or self.key
        return None if kind == wire.CHUNK and up and not self.open.is_set() else body


def second_worker():
    run = External("second")
    held = Held(run)
    evil = run.attacker()
    answer = join(evil, held.middle.joins[0])
    assert isinstance(answer, bytes) and struct.unpack_from("<Q", answer)[0] == 0, f"it may upload: {answer!r}"
    bulk = evil.dial(wire.BULK)
    poison = b"\x7f" * 400
    head = head_of([("model.safetensors", len(poison))])
    for _ in range(20):
        evil.send(wire.CHUNK, chunk(held.key, 0, len(head) + len(poison), head + poison), bulk)
    time.sleep(1)
    assert not (run.dir / "init").exists(), "bytes of the second worker became the model"
    held.open.set()
    rig.until(30, "the model", (run.dir / "init").exists)
    for _ in range(20):
        evil.send(wire.CHUNK, chunk(held.key, 0, len(head) + len(poison), head + poison), bulk)
    run.check_model()
    evil.close()
    held.middle.close()
    return "20 chunks with the true key before, 20 after; the model is the first worker's"


def first_worker():
    """The first worker sends heads with names and sizes that no model has. Then an honest one comes."""
    spy = External("spied")
    held = Held(spy)
    template = held.middle.joins[0]
    spy.coordinator.kill()
    held.process.kill()
    held.middle.close()
    run = External("first")
    most, model = 1 << 63, ("model.safetensors", 70)
    cases = [[("../../keys", 70)], [("/etc/passwd", 70)], [model, ("../init/x", 5)], [("evil.py", 70)],
             [("model.safetensors", most)], [model, ("config.json", most)], [("model.safetensors", 0)],
             [model, model], [("config.json", 70)], [(f"{n}.json", 1) for n in range(34)]]
    before = sorted(p.name for p in run.dir.iterdir())
    for n, files in enumerate(cases):
        evil = run.attacker(f"mallory{n}")
        answer = join(evil, template)
        assert isinstance(answer, bytes), f"case {n}: {answer}"
        key, = struct.unpack_from("<Q", answer)
        bulk, head = evil.dial(wire.BULK), head_of(files)
        total = min(len(head) + sum(size for _, size in files), 2**64 - 1)
        evil.send(wire.CHUNK, chunk(key, 0, total, head + b"x" * 70 if total > len(head) + 70 else head), bulk)
        refused = evil.receive((wire.REFUSE,))
        assert refused, f"case {n}, {files}: no REFUSE"
        evil.close()
    left = set(p.name for p in run.dir.iterdir()) - set(before)
    assert left <= {"init.tmp", "worker-keys", "worker-keys.lock"} and not list((run.dir / "init.tmp").glob("*")), left
    run.program(run.dir)
    run.check_model()
    return f"{len(cases)} false heads refused; then an honest worker's model"


def go():
    if not PROGRAM.exists():
        print(f"skipped: {PROGRAM} is missing", flush=True)
        return
    rig.check("uploads", "second worker", second_worker)
    rig.check("uploads", "first worker, false heads", first_worker)
