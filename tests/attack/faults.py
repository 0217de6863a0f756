"""Faults of the path and of processes: how soon each is noticed, and that training goes on to the same parameters."""
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time

import rig


class Proxy(threading.Thread):
    """Relays TCP to the coordinator; may flip a byte every `flip` bytes, stop, or freeze."""

    def __init__(self, target, flip=None):
        super().__init__(daemon=True)
        self.target, self.flip, self.frozen, self.down, self.flips = target, flip, False, False, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs = []
        self.start()

    def run(self):
        while True:
            try:
                inner, _ = self.listener.accept()
            except OSError:
                return
            if self.down:
                inner.close()
                continue
            outer = socket.create_connection(self.target)
            self.pairs += [inner, outer]
            for a, b in ((inner, outer), (outer, inner)):
                threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    def copy(self, source, sink):
        left = random.randint(1, 2 * self.flip) if self.flip else None
        try:
            while data := source.recv(65536):
                while self.frozen:
                    time.sleep(0.01)
                if left is not None:
                    left -= len(data)
                    if left < 0:
                        data = bytearray(data)
                        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                        self.flips += 1
                        left = random.randint(1, 2 * self.flip)
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        self.down = True
        for s in self.pairs:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.pairs = []


def proxied(run, **options):
    """(proxy, join line through it) of a run."""
    host, port = run.address[0].removeprefix("tcp://").rsplit(":", 1)
    proxy = Proxy((host, int(port)), **options)
    line = rig.text_of(f"{run.name}/address").splitlines()[0]
    return proxy, line.replace(run.address[0], f"tcp://127.0.0.1:{proxy.port}")


def flipped():
    """A path that flips bytes: hundreds of broken connections, the same parameters as over a clean one."""
    hashes = []
    for flip in (None, 150000):
        run = rig.Run(f"flip{flip}", workers=1, coordinator__min_workers=2, train__max_steps=120 * 40,
                      coordinator__evict_after_s=600, train__eval_every=100)
        proxy, line = proxied(run, flip=flip)
        run.start_worker("hflip", line)
        began = time.monotonic()
        hashes.append(run.summary(400)["theta_hash"])
        run.end()
    assert hashes[0] == hashes[1], f"theta {hashes}"
    assert proxy.flips >= 20, f"only {proxy.flips} flips"
    return f"{proxy.flips} flips in {time.monotonic() - began:.0f} s, theta {hashes[1]} as over a clean path"


def outage(seconds):
    """The link of one worker is down for `seconds`; with a barrier the next round comes soon after it is back."""

    def go():
        run = rig.Run(f"outage{seconds}", workers=1, coordinator__min_workers=2, coordinator__evict_after_s=600)
        proxy, line = proxied(run)
        run.start_worker("hfar", line)
        run.await_rounds(5)
        proxy.cut()
        time.sleep(seconds)
        first, began = run.rounds(), time.monotonic()
        proxy.down = False
        rig.until(40, "a round after the outage", lambda: run.rounds() >= first + 2)
        took = time.monotonic() - began
        run.end()
        assert took < 6, f"the next round came {took:.1f} s after the link"
        return f"next round {took:.1f} s after the link was back"

    return go


def killed_worker():
    """kill -9 of a worker, which does not come back: the others wait for at most 10 s."""
    run = rig.Run("killed", workers=2, train__max_steps=10**7)
    run.await_rounds(10)
    run.workers["h1"].kill()
    began, first = time.monotonic(), run.rounds()
    rig.until(30, "rounds without the killed worker", lambda: run.rounds() >= first + 3)
    took = time.monotonic() - began
    text = next(t for t in run.log().splitlines()[::-1] if "h1" in t)
    run.end()
    assert took < 12, f"the run waited for {took:.1f} s"
    return f"the run went on after {took:.1f} s: {text[-120:]}"


def silent_worker():
    """A worker that is stopped (a silent partition): the waiting line names it within 5 s."""
    run = rig.Run("silent", workers=2, train__max_steps=10**7)
    run.await_rounds(10)
    run.workers["h1"].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    rig.until(20, "the waiting line", lambda: any(w["name"] == "h1" and w["state"] == "silent" for w in run.status()["workers"]))
    seen = time.monotonic() - began
    rig.until(20, "the log line", lambda: re.search(r"waiting for.*h1|h1.*silent", run.log()))
    logged = time.monotonic() - began
    run.end()
    assert logged < 6, f"the log named it after {logged:.1f} s"
    return f"status names it after {seen:.1f} s, the log after {logged:.1f} s"


def coordinator_back():
    """kill -9 of the coordinator and its restart: time from the start of the new process to the next round."""
    run = rig.Run("back", workers=2, train__max_steps=10**7)
    run.await_rounds(30)
    times = []
    for _ in range(5):
        run.coordinator.kill()
        run.coordinator.wait()
        first, began = run.rounds(), time.monotonic()
        run.coordinator = run.start_coordinator()
        rig.until(30, "a round of the new coordinator", lambda: run.rounds() >= first + 2)
        times.append(time.monotonic() - began)
        run.await_rounds(5)
    run.end()
    times.sort()
    assert times[2] < 3, f"{times}"
    return f"next round after {times[0]:.2f} to {times[-1]:.2f} s, median {times[2]:.2f} s"


def wrong_line(change, code, words):
    def go():
        run = wrong_line.run
        line = change(rig.text_of(f"{run.name}/address").splitlines()[0])
        began = time.monotonic()
        done = subprocess.run([rig.BIN / "atoll-worker", "--join", "-", "--dir", f"wrong{len(rig.rows)}", "--name", "wrong",
                               f"--data.train={rig.WORK}/data/train_*.bin"], input=line + "\n", text=True,
                              capture_output=True, cwd=rig.WORK, timeout=30)
        took = time.monotonic() - began
        text = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        assert done.returncode in code, f"exit code {done.returncode}: {text}"
        assert took < 6, f"answered after {took:.1f} s: {text}"
        assert re.search(words, text), text
        assert run.address[2].hex() not in done.stderr, "the error holds the secret"
        return f"{took:.1f} s, exit {done.returncode}: {text[:120]}"

    return go


def swap_key(line, part):
    parts = line.split("/")
    parts[part] = os.urandom(32).hex()
    return "/".join(parts)


def go():
    rig.check("faults", "bytes flipped on the path", flipped)
    rig.check("faults", "outage of 10 s", outage(10))
    rig.check("faults", "outage of 40 s", outage(40))
    rig.check("faults", "worker killed", killed_worker)
    rig.check("faults", "worker silent", silent_worker)
    rig.check("faults", "coordinator killed and restarted", coordinator_back)
    run = wrong_line.run = rig.Run("wrong", workers=1)
    run.await_rounds(2)
    web = socket.create_server(("127.0.0.1", 0))
    host = run.address[0]
    for name, (change, code, words) in {
        "join: host does not resolve": (lambda t: t.replace("127.0.0.1", "no-such-host.invalid"), (1, 2), "no-such-host"),
        "join: refused": (lambda t: t.replace(host, "tcp://127.0.0.1:9"), (1, 2), "127.0.0.1:9"),
        "join: nothing answers": (lambda t: t.replace(host, f"tcp://127.0.0.1:{web.getsockname()[1]}"), (1, 2), "says nothing|answer"),
        "join: wrong server key": (lambda t: swap_key(t, 3), (1, 2), "key|join line"),
        "join: wrong secret": (lambda t: swap_key(t, 4), (1, 2), "key|join line"),
        "join: tcp:/ mistyped": (lambda t: t.replace("tcp://", "tcp:/"), (2,), "join"),
        "join: tcp;// mistyped": (lambda t: t.replace("tcp://", "tcp;//"), (2,), "join"),
        "join: half a line": (lambda t: t[:-20], (2,), "join line"),
    }.items():
        rig.check("faults", name, wrong_line(change, code, words))
    run.end()
