"""Attacks the page at a port: hostile.py PORT PID. After each attack, and during it, a viewer must be served."""
import random
import socket
import sys
import time

PORT, PID = int(sys.argv[1]), int(sys.argv[2])
MEMORY_MAX_KB = 40000
random.seed(1)


def dial():
    return socket.create_connection(("127.0.0.1", PORT), timeout=10)


def served(where):
    """A viewer gets the numbers within seconds."""
    begin = time.monotonic()
    with dial() as s:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while data := s.recv(65536):
            answer += data
    if b"atoll_rounds_total 5000" not in answer:
        sys.exit(f"{where}: the viewer got {answer[:200]!r}")
    if time.monotonic() - begin > 5:
        sys.exit(f"{where}: the viewer waited {time.monotonic() - begin:.1f} s")


def memory(where):
    with open(f"/proc/{PID}/status", encoding="utf-8") as status:
        kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    if kb > MEMORY_MAX_KB:
        sys.exit(f"{where}: the page takes {kb} kB")
    return kb


def garbage():
    """Bytes that are no request, and requests with one wrong byte."""
    good = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nCookie: a=b; c\r\nAuthorization: Bearer x\r\n\r\n"
    for i in range(400):
        data = bytearray(good if i % 2 else random.randbytes(random.randrange(1, 3000)))
        for _ in range(i % 4):
            data[random.randrange(len(data))] = random.randrange(256)
        with dial() as s:
            s.settimeout(0.2)
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except OSError:
                pass
    served("garbage")


def large_heads():
    for head in (b"GET /" + b"a" * 200000, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50000,
                 b"GET /?" + b"token=a&" * 30000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                 b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n" + b"z" * 300000,
                 b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"ffffff\r\n" * 9999):
        with dial() as s:
            try:
                s.sendall(head)
                while s.recv(65536):
                    pass
            except OSError:
                pass
    served("large heads")


def idle():
    """200 connections that say nothing, or a byte now and then; they end by themselves."""
    held = []
    for i in range(200):
        held.append(dial())
        if i % 2:
            held[-1].sendall(b"G")
        if i % 40 == 0:
            served("idle connections")
    for _ in range(5):
        time.sleep(0.3)
        for s in held[1::2]:
            try:
                s.sendall(b"E")
            except OSError:
                pass
        served("slow connections")
    end = time.monotonic() + 25
    left = held
    while left and time.monotonic() < end:
        time.sleep(0.5)
        left = [s for s in left if is_open(s)]
    if left:
        sys.exit(f"{len(left)} idle connections are open after 25 s")
    for s in held:
        s.close()


def is_open(s):
    s.setblocking(False)
    try:
        return bool(s.recv(65536))
    except BlockingIOError:
        return True
    except OSError:
        return False


def streams():
    """More streams than the page has, none of which reads."""
    held = []
    for _ in range(100):
        s = dial()
        s.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        held.append(s)
    time.sleep(2)
    served("streams")
    full = sum(b" 503 " in s.recv(64) for s in held)
    if full != 100 - 64:
        sys.exit(f"{full} of 100 streams were refused, expected 36")
    print(f"memory with 64 streams that do not read: {memory('streams')} kB")
    for s in held:
        s.close()
    time.sleep(1.5)
    with dial() as s:
        s.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if b" 200 " not in s.recv(64):
            sys.exit("no stream is free after all of them ended")


for attack in (garbage, large_heads, idle, streams):
    begin = time.monotonic()
    attack()
    print(f"{attack.__name__}: {time.monotonic() - begin:.1f} s")
    memory(attack.__name__)
print(f"memory at the end: {memory('end')} kB")
