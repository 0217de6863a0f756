"""Strangers: connections without an admitted key. No round is lost, memory and descriptors stay bounded."""
import os
import resource
import socket
import struct
import time

import rig
import wire
import zmq


def target(run):
    host, port = run.address[0].removeprefix("tcp://").rsplit(":", 1)
    return host, int(port)


def connect(run):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(target(run))
    return s


def silent(count):
    def go(run):
        sockets = []
        for n in range(count):
            try:
                sockets.append(connect(run))
            except OSError:  # out of local ports or descriptors: reuse the oldest
                sockets.pop(0).close()
            if n % 500 == 0:
                time.sleep(0.01)
        run.await_rounds(3)
        files = len(os.listdir(f"/proc/{run.coordinator.pid}/fd"))
        for s in sockets:
            s.close()
        run.await_rounds(3)
        return f"{count} connections; the coordinator held {files} descriptors"

    return go


def talking(count, data):
    """`count` connections that send these bytes and read the answer."""

    def go(run):
        answers = 0
        for _ in range(count):
            with socket.create_connection(target(run), timeout=3) as s:
                s.sendall(data)
                s.settimeout(0.05)
                try:
                    answers += len(s.recv(4096)) > 64
                except OSError:
                    pass
        run.await_rounds(3)
        assert not answers, f"{answers} of {count} connections got more than the greeting"
        return f"{count} connections, no answer beyond the greeting"

    return go


def slow_greeting(run):
    """100 connections that send the ZMTP greeting one byte at a time."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    sockets = [socket.create_connection(target(run)) for _ in range(100)]
    for byte in greeting[:40]:
        for s in sockets:
            try:
                s.send(bytes([byte]))
            except OSError:
                pass
        time.sleep(0.1)
    closed = 0
    for s in sockets:
        s.setblocking(False)
        try:
            s.send(b"x")
            s.send(b"x")
        except OSError:
            closed += 1
        s.close()
    run.await_rounds(3)
    assert closed >= 90, f"{closed} of 100 slow connections were closed after 4 s"
    return f"{closed} of 100 closed within 4 s"


def reset(run):
    """2,000 connections that are reset at once (SO_LINGER 0)."""
    for _ in range(2000):
        s = socket.create_connection(target(run))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    run.await_rounds(3)


def zmq_client(count, configure, seconds=2):
    """ZeroMQ clients whose key is not admitted; none may get a message."""

    def go(run):
        context, sockets = zmq.Context(), []
        context.set(zmq.MAX_SOCKETS, 4096)
        for _ in range(count):
            s = context.socket(zmq.DEALER)
            s.linger = 0
            s.setsockopt(zmq.ROUTING_ID, wire.MAGIC + b"\0" + os.urandom(24))
            configure(s, run)
            s.connect(run.address[0])
            s.send(wire.frame(wire.STATUS), zmq.DONTWAIT)
            sockets.append(s)
        end = time.monotonic() + seconds
        answers = 0
        while time.monotonic() < end:
            for s in sockets:
                answers += bool(s.poll(0))
            time.sleep(0.05)
        context.destroy(linger=0)
        run.await_rounds(3)
        assert not answers, f"{answers} answers to a client without an admitted key"
        return f"{count} clients, no answer"

    return go


def curve(server_key=None):
    def configure(s, run):
        s.curve_serverkey = server_key or run.address[1]
        s.curve_publickey, s.curve_secretkey = wire.key_pair()

    return configure


def plain(s, run):
    s.plain_username, s.plain_password = b"root", b"root"


def stale_secret(run):
    """A key that was never enrolled is named once a minute in the log, with its address."""
    lines = [text for text in run.log().splitlines() if "key" in text and "127.0.0.1" in text]
    assert lines, "the log does not name the address of the refused keys"
    assert len(lines) <= 4, f"{len(lines)} lines about refused keys"
    return lines[-1][:110]


def secrets_in_logs(run):
    """The enrolment secret stands in no log and in no file of the run but keys and address."""
    secret = run.address[2].hex()
    found = [str(f.relative_to(rig.WORK)) for f in rig.WORK.rglob("*")
             if f.is_file() and f.name not in ("keys", "address") and secret.encode() in f.read_bytes()]
    assert not found, f"the secret stands in {found}"
    modes = {f.name: oct(f.stat().st_mode & 0o777) for f in (run.dir / "keys", run.dir / "address")}
    assert set(modes.values()) == {"0o600"}, f"modes {modes}"
    return "keys and address have mode 0600"


def go(full=True):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    run = rig.Run("strangers", limit=4096)
    run.await_rounds(5)
    for name, function in {
        "silent TCP, 6,000": silent(6000),
        "silent TCP, 20,000": silent(20000),
        "reset TCP, 2,000": reset,
        "slow greeting": slow_greeting,
        "HTTP": talking(50, b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"),
        "SSH banner": talking(50, b"SSH-2.0-OpenSSH_9.2p1\r\n"),
        "TLS hello": talking(50, bytes.fromhex("1603010200010001fc0303") + os.urandom(500)),
        "random bytes": talking(50, os.urandom(2000)),
        "ZMTP greeting of NULL": talking(50, b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)),
        "NULL mechanism": zmq_client(50, lambda s, run: None),
        "PLAIN mechanism": zmq_client(50, plain),
        "CURVE, unknown key": zmq_client(200, curve()),
        "CURVE, wrong server key": zmq_client(200, curve(wire.key_pair()[0])),
        "refused keys are logged": stale_secret,
        "secrets in files": secrets_in_logs,
    }.items():
        rig.attack("strangers", name, run, function)
    run.end()
