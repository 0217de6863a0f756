"""An enrolled peer that sends as fast as it can. The run keeps at least 90 % of the rounds that it has beside a process
that uses as much CPU; journal, log and memory stay bounded.

A flood runs in a process of its own: `python3 floods.py KIND ADDRESS TEMPLATE KEYS NAME SECONDS`.
"""
import os
import struct
import subprocess
import sys
import time

import rig
import wire

SECONDS = 6


# --- the flooding process ---------------------------------------------------------------------------------------------


def metrics(client, count=256):
    step = struct.pack("<QIdfffQIQ", 1, 0, 1.0, 1.0, 1e-3, 1.0, 128, 1000, 0)
    return wire.METRICS, struct.pack("<QQQQfffffI", client.session, 1, 1, 1, 1, 1, 1, 1, 1, count) + step * count


def offer(client):
    return wire.OFFER, struct.pack("<QQIBQQIQIdfQ", client.session, 0, 0, 0, 0, 100, 1, 128, 1, 1.0, 1.0, 1)


def chunk(client):
    data = bytes(1 << 16)
    return wire.CHUNK, struct.pack("<BIQQQII", 0, 0, 0, 0, 1 << 20, wire.crc32c(b""), len(data)) + data


def get(client):
    return wire.GET, struct.pack("<QBIQQQ", client.session, 2, 0, 0, 0, 1 << 20)


def eval_result(client):
    return wire.EVAL_RESULT, struct.pack("<QQQQdQId", client.session, 1, 0, 1, 1.0, 32, 1, 1.0)


def heartbeat(client):
    return wire.HEARTBEAT, struct.pack("<QQQIIBdQQQI", client.session, 1, 2**64 - 1, 0, 0, 1, 0.0, 0, 0, 0, 0) + bytes(16)


def hello(client):
    return wire.HELLO, client.uuid + bytes(16) + wire.line(client.name) + wire.line("attack")


def joined_flood(make, lane=wire.CONTROL, reads=True):
    def flood(client, template, seconds):
        assert client.join(template), "not welcomed"
        socket = client.socket
        if lane == wire.BULK:
            socket = client.dial(wire.BULK)
            socket.send(wire.frame(wire.BIND, struct.pack("<Q", client.session)))
        send_all(client, socket, [wire.frame(*make(client))], seconds, reads)

    return flood


def send_all(client, socket, frames, seconds, reads=True):
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for data in frames:
            try:
                socket.send(data, wire.zmq.DONTWAIT)
                sent += 1
            except wire.zmq.Again:
                time.sleep(0.0005)
        while reads and socket.poll(0):
            socket.recv()
    print(sent)


def plain_flood(frames, reads=True):
    return lambda client, template, seconds: send_all(client, client.socket, frames(client, template), seconds, reads)


def join_body(client, template, name=None):
    old = struct.unpack_from("<H", template, 16)[0]
    return client.uuid + wire.line(name or client.name) + template[18 + old:]


def join_leave(client, template, seconds):
    """JOIN and LEAVE in turn, as fast as the answers come."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += 1
        client.hello()
        client.send(wire.JOIN, join_body(client, template))
        answer = client.receive((wire.WELCOME,), 0.2)
        if answer:
            client.send(wire.LEAVE, struct.pack("<Q?", struct.unpack_from("<Q", answer, 16)[0], False) + wire.line("bye"))
    print(count)


def burn(client, template, seconds):
    """The control: the CPU time of a flood, without a message."""
    frames, end = wire.frame(wire.STATUS), time.monotonic() + seconds
    while time.monotonic() < end:
        bytes(frames)


FLOODS = {
    "burn": burn,
    "METRICS": joined_flood(metrics),
    "OFFER": joined_flood(offer),
    "CHUNK": joined_flood(chunk, wire.BULK),
    "GET": joined_flood(get),
    "EVAL_RESULT": joined_flood(eval_result),
    "HEARTBEAT": joined_flood(heartbeat),
    "STATUS": plain_flood(lambda client, template: [wire.frame(wire.STATUS)]),
    "STATUS without reading": plain_flood(lambda client, template: [wire.frame(wire.STATUS)], reads=False),
    "HELLO": plain_flood(lambda client, template: [wire.frame(*hello(client))]),
    "JOIN": plain_flood(lambda client, template: [wire.frame(wire.JOIN, join_body(client, template))]),
    "JOIN and LEAVE": join_leave,
    "malformed": plain_flood(lambda client, template: [wire.frame(wire.OFFER, b"short"), os.urandom(64)]),
    "bodies of 4 MiB": plain_flood(lambda client, template: [wire.frame(wire.HELLO, bytes(1 << 22))]),
}


# --- the group --------------------------------------------------------------------------------------------------------


def send_from_outside(kind, run, template, seconds):
    """Runs one flood in a process of its own; rounds a second meanwhile, growth of files and log a round, of memory, its output."""
    public, secret = wire.key_pair()
    name = f"mallory-{len(rig.rows)}-{kind[:6]}".replace(" ", "-")
    rig.enrol(run.address, public, secret, name)
    (rig.WORK / "template").write_bytes(template)
    before = run.kept(), run.log_lines(), run.memory()
    first, began = run.rounds(), time.monotonic()
    process = subprocess.Popen([sys.executable, __file__, kind, rig.text_of(f"{run.name}/address").splitlines()[0],
                                str(rig.WORK / "template"), public.hex() + secret.hex(), name, str(seconds)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rig.processes.append(process)
    out, err = process.communicate(timeout=seconds + 30)
    rounds = run.rounds() - first
    rate = rounds / (time.monotonic() - began)
    after = run.kept(), run.log_lines(), run.memory()
    return rate, [(b - a) / max(1, rounds) for a, b in zip(before[:2], after[:2])], after[2] - before[2], out.strip(), err


def flooded(kind, template):
    """Each flood is measured beside a process that only burns CPU time: before it and after it."""

    def go(run):
        controls = [send_from_outside("burn", run, template, SECONDS / 2)]
        rate, growth, memory, out, err = send_from_outside(kind, run, template, SECONDS)
        assert "Traceback" not in err, err[-200:]
        controls.append(send_from_outside("burn", run, template, SECONDS / 2))
        control = sum(c[0] for c in controls) / 2
        usual = [max(c[1][i] for c in controls) for i in range(2)]
        assert growth[0] < 1.5 * usual[0] + 2e3, f"{growth[0] / 1e3:.0f} kB a round, usually {usual[0] / 1e3:.0f}"
        assert run.disk() - run.kept() < 40e6, f"journal and checkpoints hold {run.disk() / 1e6:.0f} MB"
        assert growth[1] < 1.5 * usual[1] + 1, f"{growth[1]:.1f} log lines a round, usually {usual[1]:.1f}"
        assert memory < 64e6, f"the coordinator grew by {memory / 1e6:.1f} MB"
        share = rate / control
        text = f"{out or 0} messages; {100 * share:.0f} % of the rounds beside a busy process"
        assert share >= 0.9, text
        return text

    return go


def names(run):
    """1,000 keys enrol, join once and leave: status stays as small as before."""
    before = len(str(run.status()))
    for number in range(200):
        keys = wire.key_pair()
        rig.enrol(run.address, *keys, f"passer-{number}")
        client = wire.Client(run.address, f"passer-{number}", keys)
        if client.join(names.template):
            client.send(wire.LEAVE, struct.pack("<Q?", client.session, False) + wire.line("bye"))
            time.sleep(0.01)
        client.close()
    run.await_rounds(2)
    after = len(str(run.status()))
    assert after < before + 4000, f"status grew from {before} to {after} bytes"
    return f"status: {before} bytes before, {after} after"


def pings(run):
    """60 connections with a ZMTP ping every ms that fill the queues and hang up (zeromq/libzmq issue 4841)."""
    sent, data = 0, wire.frame(wire.HELLO, bytes(1 << 16))
    for number in range(60):
        keys = wire.key_pair()
        rig.enrol(run.address, *keys, f"ping-{number}")
        client = wire.Client(run.address, f"ping-{number}", keys)
        socket = client.dial(wire.CONTROL, heartbeat_ivl=1, heartbeat_timeout=60000, heartbeat_ttl=100, sndhwm=0)
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            for _ in range(20):
                socket.send(data, wire.zmq.DONTWAIT)
            sent += 20
        client.close()
    run.await_rounds(3)
    return f"{sent} messages of 64 KiB"


def crowded():
    """All places taken by workers that only send heartbeats: an honest worker gets a place after the eviction time."""
    run = rig.Run("crowd", workers=1, coordinator__max_workers=4, coordinator__quorum=1)
    run.await_rounds(10)
    middle = wire.Middle(run.address, rig.enrol, name="template")
    run.start_worker("template", middle.join_line)
    rig.until(10, "a JOIN", lambda: middle.joins)
    template = middle.joins[0]
    run.workers["template"].terminate()
    run.workers["template"].wait()
    middle.close()
    idle = []
    for number in range(3):
        keys = wire.key_pair()
        rig.enrol(run.address, *keys, f"idle-{number}")
        client = wire.Client(run.address, f"idle-{number}", keys)
        assert client.join(template), f"idle-{number} was not welcomed"
        idle.append(client)

    def beat():
        time.sleep(1)
        for client in idle:
            client.heartbeat(state=2)
        return any(e.get("worker") == "late" for e in run.events("step"))

    began = time.monotonic()
    run.start_worker("late")
    rig.until(60, "a step of the late honest worker", beat)
    for client in idle:
        client.close()
    run.end()
    return f"the honest worker trained after {time.monotonic() - began:.1f} s"


def go():
    run = rig.Run("floods", workers=2, limit=4096)
    run.await_rounds(5)
    middle = wire.Middle(run.address, rig.enrol, name="template")
    run.start_worker("template", middle.join_line)
    rig.until(20, "a JOIN", lambda: middle.joins)
    template = names.template = middle.joins[0]
    run.workers["template"].terminate()
    run.workers["template"].wait()
    middle.close()
    run.await_rounds(5)
    for kind in FLOODS:
        if kind != "burn":
            rig.attack("floods", kind, run, flooded(kind, template))
    rig.attack("floods", "200 names join and leave", run, names)
    rig.attack("floods", "pings and hang-ups", run, pings)
    run.end()
    rig.check("floods", "places of idle members", crowded)


if __name__ == "__main__":
    kind, line, template, keys, name, seconds = sys.argv[1:]
    attacker = wire.Client(wire.parse_join_line(line), name,
                           (bytes.fromhex(keys[:64]), bytes.fromhex(keys[64:])))
    with open(template, "rb") as file:
        FLOODS[kind](attacker, file.read(), float(seconds))
    attacker.context.destroy(linger=0)
