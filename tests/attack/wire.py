"""The wire protocol (docs/protocol.md) as an attacker speaks it: frames, CURVE connections, a relay that edits messages.

A Client is one connection with a key of the attacker. A Middle sits between one honest worker and the coordinator: the
worker trains, and the Middle changes what it says.
"""
import os
import random
import struct
import threading
import time

import zmq

HELLO, CONFIG, JOIN, WELCOME, REFUSE, BIND, HEARTBEAT, HEARTBEAT_ACK, ASSIGN, EVAL = range(1, 11)
EVAL_RESULT, OFFER, CREDIT, REJECT, GET, CHUNK, METRICS, LEAVE, DONE, STATUS, STATUS_REPLY = range(11, 22)
CONTROL, BULK = 0, 1
ENROL, ENROLLED = 22, 23
MAGIC = b"ATL1"


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def frame(kind, body=b""):
    """Header and body of one message (protocol §3)."""
    head = MAGIC + struct.pack("<BBHI", 2, kind, 0, len(body))
    return head + struct.pack("<I", crc32c(head + body)) + body


def kind_of(message):
    return message[5] if len(message) >= 16 and message[:4] == MAGIC else 0


def line(text):
    data = text.encode()
    return struct.pack("<H", len(data)) + data


def parse_join_line(text):
    """(endpoint, server key, secret) of tcp://HOST:PORT/SERVERKEY/SECRET, keys as bytes."""
    parts = text.strip().split("/")
    return "/".join(parts[:3]), bytes.fromhex(parts[3]), bytes.fromhex(parts[4])


def key_pair():
    """(public, secret) of a new CURVE key pair, as bytes."""
    from zmq.utils import z85

    public, secret = zmq.curve_keypair()
    return z85.decode(public), z85.decode(secret)


def public_of(secret):
    from zmq.utils import z85

    return z85.decode(zmq.curve_public(z85.encode(secret)))


def dial(context, address, lane, uuid, public, secret, server=None, **options):
    """A DEALER to the coordinator with the routing id of a worker."""
    endpoint, server_key, _ = address
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.setsockopt(zmq.ROUTING_ID, MAGIC + bytes([lane]) + uuid + os.urandom(8))
    socket.curve_serverkey = server or server_key
    socket.curve_publickey, socket.curve_secretkey = public, secret
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(endpoint)
    return socket


class Client:
    """A connection to the coordinator with the attacker's own enrolled key, control lane first."""

    def __init__(self, address, name="mallory", keys=None):
        self.context = zmq.Context()
        self.address, self.name = address, name
        self.public, self.secret = keys or key_pair()
        self.uuid = self.public[:16]
        self.session = None
        self.socket = self.dial(CONTROL)

    def dial(self, lane, **options):
        return dial(self.context, self.address, lane, self.uuid, self.public, self.secret, **options)

    def send(self, kind, body=b"", socket=None):
        try:
            (socket or self.socket).send(frame(kind, body), zmq.DONTWAIT)
            return True
        except zmq.Again:
            return False

    def receive(self, kinds, seconds=5):
        """The first message of one of these kinds, or None."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.socket.poll(max(1, int(left * 1000))):
                message = self.socket.recv()
                if kind_of(message) in kinds:
                    return message
        return None

    def hello(self, name=None, uuid=None):
        self.send(HELLO, (uuid or self.uuid) + bytes(16) + line(name or self.name) + line("attack"))

    def join(self, template, name=None, uuid=None):
        """Sends JOIN with the body of an honest worker's JOIN under another identity. True when it was welcomed."""
        self.hello(name, uuid)
        if not (config := self.receive((CONFIG, REFUSE))) or kind_of(config) == REFUSE:
            return False
        old = struct.unpack_from("<H", template, 16)[0]
        body = (uuid or self.uuid) + line(name or self.name) + template[18 + old:]
        self.send(JOIN, body)
        answer = self.receive((WELCOME, REFUSE))
        if answer and kind_of(answer) == WELCOME:
            self.session = struct.unpack_from("<Q", answer, 16)[0]
        return bool(answer) and kind_of(answer) == WELCOME

    def heartbeat(self, state=1, versions=()):
        self.send(HEARTBEAT, struct.pack("<QQQIIBdQQQI", self.session, 1, 2**64 - 1, 0, 0, state, 0.0, 0, 0, 0, len(versions)) +
                  b"".join(struct.pack("<Q", v) for v in versions) + bytes(16))

    def close(self):
        self.context.destroy(linger=0)


class Middle(threading.Thread):
    """Relays one worker's messages and changes them.

    - `edit(kind, body, up)` returns the body to send, or None to drop the message.
    - `delta(payload, offer)` returns the payload and the OFFER body to send instead. The Middle takes the whole payload
      from the worker before it offers, because OFFER holds the checksum.
    - The coordinator sees the Middle's own key and uuid. `join_line` is what the worker gets. `joins` holds the bodies
      of the JOIN messages that passed, `rejected` the reasons of refused deltas, `refused` those of REFUSE.
    """

    def __init__(self, address, enrol, edit=None, delta=None, name="liar"):
        super().__init__(daemon=True)
        self.address, self.delta = address, delta
        self.edit = edit or (lambda kind, body, up: body)
        self.public, self.secret = key_pair()
        self.uuid = self.public[:16]
        enrol(address, self.public, self.secret, name)
        self.context = zmq.Context()
        server_public, server_secret = key_pair()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.router.curve_server = True
        self.router.curve_secretkey, self.router.curve_publickey = server_secret, server_public
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.join_line = f"tcp://127.0.0.1:{port}/{server_public.hex()}/{key_pair()[1].hex()}"
        self.lanes, self.joins, self.rejected, self.refused = {}, [], [], []
        self.stopping = self.muted = False
        self.taken = {}  # (round, fragment): [offer, payload so far, changed payload or None, bytes sent]
        self.start()

    def upstream(self, peer):
        if peer not in self.lanes:
            self.lanes[peer] = dial(self.context, self.address, peer[4], self.uuid, self.public, self.secret)
        return self.lanes[peer]

    def peer_of(self, lane):
        return next((p for p in reversed(self.lanes) if p[4] == lane), None)

    def to_worker(self, lane, kind, body):
        peer = self.peer_of(lane)
        if peer:
            self.router.send_multipart([peer, frame(kind, body)])

    def to_coordinator(self, lane, kind, body):
        peer = self.peer_of(lane)
        if peer:
            self.lanes[peer].send(frame(kind, body))

    def offer(self, body):
        """OFFER of the worker: takes the payload first, then offers what `delta` made of it."""
        number, fragment = struct.unpack_from("<QI", body, 8)
        entry = self.taken.setdefault((number, fragment), [body, b"", None])
        if entry[2] is not None:
            self.to_coordinator(CONTROL, OFFER, entry[0])
            return
        size = struct.unpack_from("<Q", body, 29)[0]
        self.to_worker(CONTROL, CREDIT, struct.pack("<QIQQ", number, fragment, len(entry[1]), size))

    def take(self, body):
        """CHUNK of a delta of the worker."""
        _, fragment, number, offset, total, _, size = struct.unpack_from("<BIQQQII", body)
        entry = self.taken.get((number, fragment))
        if not entry or offset != len(entry[1]):
            return
        entry[1] += body[37:37 + size]
        if len(entry[1]) == total:
            payload, offer = self.delta(entry[1], entry[0])
            offer = offer[:29] + struct.pack("<QI", len(payload), crc32c(payload)) + offer[41:]
            entry[0], entry[2] = offer, payload
            self.to_coordinator(CONTROL, OFFER, offer)

    def credit(self, body):
        """CREDIT of the coordinator: sends the changed payload; tells the worker when it has all of it."""
        number, fragment, have, upto = struct.unpack_from("<QIQQ", body)
        entry = self.taken.get((number, fragment))
        if not entry or entry[2] is None:
            return
        payload = entry[2]
        if have >= len(payload):
            size = len(entry[1])
            self.to_worker(CONTROL, CREDIT, struct.pack("<QIQQ", number, fragment, size, size))
        while have < min(upto, len(payload)):
            data = payload[have:min(upto, have + (1 << 20))]
            head = struct.pack("<BIQQQII", 0, fragment, number, have, len(payload), crc32c(data), len(data))
            self.to_coordinator(BULK, CHUNK, head + data)
            have += len(data)

    def from_worker(self, peer, message):
        kind, body = kind_of(message), message[16:]
        if kind == ENROL:  # the Middle is enrolled already
            self.router.send_multipart([peer, frame(ENROLLED, body[:32])])
            return
        if kind in (HELLO, JOIN):
            body = self.uuid + body[16:]
        if kind == JOIN:
            self.joins.append(body)
        body = self.edit(kind, body, True)
        up = self.upstream(peer)
        if body is None:
            return
        if self.delta and kind == OFFER:
            self.offer(body)
        elif self.delta and kind == CHUNK:
            self.take(body)
        else:
            up.send(frame(kind, body))

    def from_coordinator(self, peer, message):
        kind, body = kind_of(message), message[16:]
        if kind in (REJECT, REFUSE):
            at = 14 if kind == REJECT else 2
            size = struct.unpack_from("<H", body, at)[0]
            (self.rejected if kind == REJECT else self.refused).append(body[at + 2:at + 2 + size].decode())
        body = self.edit(kind, body, False)
        if body is None:
            return
        if self.delta and kind == CREDIT:
            self.credit(body)
        else:
            self.router.send_multipart([peer, frame(kind, body)])

    def run(self):
        while not self.stopping:
            poller = zmq.Poller()
            for socket in (self.router, *self.lanes.values()):
                poller.register(socket, zmq.POLLIN)
            for socket, _ in poller.poll(50):
                parts = socket.recv_multipart()
                if self.muted:
                    continue
                if socket is self.router:
                    self.from_worker(*parts)
                else:
                    self.from_coordinator(next(p for p, s in self.lanes.items() if s is socket), parts[0])

    def close(self):
        self.stopping = True
        threading.Thread.join(self)
        self.context.destroy(linger=0)


def bf16_values(payload):
    return [struct.unpack("<f", struct.pack("<I", v << 16))[0] for v in struct.unpack(f"<{len(payload) // 2}H", payload)]


def bf16_payload(values):
    out = []
    for x in values:
        x = max(-3.3e38, min(3.3e38, x))
        out.append(struct.unpack("<I", struct.pack("<f", x))[0] >> 16)
    return struct.pack(f"<{len(out)}H", *out)


def noise(values, scale=1.0):
    """Random values with the norm of `values` times `scale`."""
    norm = sum(x * x for x in values) ** 0.5
    out = [random.gauss(0, 1) for _ in values]
    own = sum(x * x for x in out) ** 0.5
    return [x * norm * scale / own for x in out]
