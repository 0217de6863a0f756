"""Measures `atoll relay` against its settings: link_fidelity.py ATOLL OUT.json [SECONDS [--few]]. Called by `./run bench link`.

- Rate: bytes that arrive on all connections from the first to the last arrival, while the senders never wait for more.
- Round trip: one byte there and back on an idle connection, median of 20.
- --few: two cells, and no deviation fails."""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402

RATES, CONNECTIONS, RTTS = (1.0, 10.0, 100.0), (1, 4), (0.0, 50.0)
PINGS, TARGET = 20, 0.05


class Link:
    """A relay to a listener of this process."""

    def __init__(self, atoll: str, spec: str) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        words = [atoll, "relay", spec, "--to", f"127.0.0.1:{self.server.getsockname()[1]}"]
        self.relay = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.relay.stdout
        host, port = self.relay.stdout.readline().strip().rsplit(":", 1)
        self.address = (host, int(port))

    def pair(self) -> tuple[socket.socket, socket.socket]:
        near = socket.create_connection(self.address)
        far = self.server.accept()[0]
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near, far

    def close(self) -> None:
        self.relay.terminate()
        self.relay.wait()
        self.server.close()


def goodput_mbit(senders: list[socket.socket], receivers: list[socket.socket], size: int) -> float:
    """Sends `size` bytes on each connection and returns the rate of all arrivals after the first."""
    threads = [threading.Thread(target=end.sendall, args=(bytes(size),)) for end in senders]
    for thread in threads:
        thread.start()
    first = last = 0.0
    missing, counted = size * len(receivers), 0
    while missing > 0:
        for end in select.select(receivers, [], [])[0]:
            n = len(end.recv(1 << 18))
            if not n:
                raise SystemExit("bench link: the relay closed a connection")
            last = time.monotonic()
            counted += n if first else 0
            first = first or last
            missing -= n
    for thread in threads:
        thread.join()
    return counted * 8 / (last - first) / 1e6


def round_trip_ms(near: socket.socket, far: socket.socket) -> float:
    times = []
    for _ in range(PINGS):
        start = time.monotonic()
        near.sendall(b"x")
        far.recv(1)
        far.sendall(b"y")
        near.recv(1)
        times.append((time.monotonic() - start) * 1e3)
    return statistics.median(times)


def measure(atoll: str, mbit: float, rtt: float, connections: int, direction: str, seconds: float) -> dict[str, Any]:
    link = Link(atoll, f"{mbit}mbit,rtt={rtt}ms")
    try:
        pairs = [link.pair() for _ in range(connections)]
        trip = round_trip_ms(*pairs[0])
        near, far = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        size = int(mbit * 1e6 / 8 * seconds / connections)
        measured = goodput_mbit(near, far, size) if direction == "up" else goodput_mbit(far, near, size)
        for end in near + far:
            end.close()
    finally:
        link.close()
    return {"mbit": mbit, "rtt_ms": rtt, "connections": connections, "direction": direction,
            "measured_mbit": round(measured, 4), "rate_deviation": round(measured / mbit - 1, 5),
            "measured_rtt_ms": round(trip, 4), "rtt_deviation": round(trip / rtt - 1, 5) if rtt else None}


def within(row: dict[str, Any]) -> bool:
    return abs(row["rate_deviation"]) <= TARGET and abs(row["rtt_deviation"] or 0) <= TARGET


def main() -> None:
    atoll, out = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 3.0
    few = "--few" in sys.argv
    rows = []
    print("| rate, Mbit/s | round trip, ms | connections | direction | measured rate | deviation | measured round trip "
          "| deviation |\n|---|---|---|---|---|---|---|---|")
    for mbit in RATES[1:2] if few else RATES:
        for rtt in RTTS[:1] if few else RTTS:
            for connections in CONNECTIONS[:1] if few else CONNECTIONS:
                for direction in ("up", "down"):
                    row = measure(atoll, mbit, rtt, connections, direction, seconds)
                    rows.append(row)
                    trip = f"{100 * row['rtt_deviation']:+.1f} %" if rtt else f"{row['measured_rtt_ms']:+.2f} ms"
                    print(f"| {mbit:g} | {rtt:g} | {connections} | {direction} | {row['measured_mbit']:.3f} | "
                          f"{100 * row['rate_deviation']:+.1f} % | {row['measured_rtt_ms']:.2f} ms | {trip} |",
                          flush=True)
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"machine": machine.describe(), "rows": rows}, file, indent=1)
    missed = sum(not within(row) for row in rows)
    print(f"\n{len(rows) - missed} of {len(rows)} cells are within {100 * TARGET:g} % of their setting.")
    raise SystemExit(1 if missed and not few else 0)


if __name__ == "__main__":
    main()
