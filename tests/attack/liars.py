"""Enrolled workers that lie. The parameters, the evaluations and the other workers stay what they were."""
import math
import random
import struct
import time

import rig
import wire

ROUNDS = 12


# A lie changes the values of a worker's delta: lie(values, round) returns the values that the liar sends.


def scaled(factor):
    return lambda values, number: [x * factor for x in values]


def alternating(factor):
    return lambda values, number: [x * (factor if number % 2 else -factor) for x in values]


def noise(scale=1):
    return lambda values, number: wire.noise(values, scale)


def direction(factor, seed=7, first=0):
    """One fixed random direction, `factor` times as long as the worker's delta, in the values from `first` on."""
    unit, dice = [], random.Random(seed)

    def lie(values, number):
        if not unit:
            start = first % len(values)
            out = [dice.gauss(0, 1) if i >= start else 0.0 for i in range(len(values))]
            unit.extend(x / math.hypot(*out) for x in out)
        length = factor * math.hypot(*values)
        return [x * length for x in unit]

    return lie


def one_tensor(factor, first=-48):
    """The last values alternate, `factor` times as large; the others are honest."""
    return lambda values, number: values[:first] + [x * (factor if number % 2 else -factor) for x in values[first:]]


def stale():
    """The first delta again and again."""
    kept = []

    def lie(values, number):
        kept.append(values)
        return kept[0]

    return lie


def lie_in(first, lie, last=10**9):
    """A `delta` for Middle: changes the values of rounds first to last (from 0)."""

    def delta(payload, offer):
        number = struct.unpack_from("<Q", offer, 8)[0]
        if first <= number <= last:
            payload = wire.bf16_payload(lie(wire.bf16_values(payload), number))
        return payload, offer

    return delta


def last_round(lie):
    """theta_hash and loss of a short run whose liar lies in the last round only, and the reasons of refusals."""
    name = f"last{next(rig.names)}"
    run = rig.Run(name, train__max_steps=ROUNDS * 40, coordinator__min_workers=3)
    middle = wire.Middle(run.address, rig.enrol, delta=lie_in(ROUNDS - 1, lie), name="liar")
    run.start_worker("liar", middle.join_line)
    summary = run.summary()
    middle.close()
    run.end()
    return summary["theta_hash"], summary["final_val_loss"], middle.rejected


def last_lies():
    """Deltas that are not finite are refused and change nothing. Any other lie counts no more than an honest delta."""
    nan, without, reasons = last_round(lambda values, number: [math.nan] * len(values))
    assert len(reasons) == 1, f"NaN was refused {len(reasons)} times"
    _, honest, _ = last_round(scaled(1))

    def refused():
        theta, _, reasons = last_round(lambda values, number: [1.9e19] * len(values))
        assert reasons, "the delta was not refused"
        assert theta == nan, f"theta {theta}, with NaN {nan}"
        return f"theta {theta} unchanged; {reasons[0][:90]}"

    rig.check("liars", "delta of 1.9e19, last round", refused)
    for name, lie in {
        "delta x 1000": scaled(1000),
        "delta x 1e6": scaled(1e6),
        "delta of 1.8e19": lambda values, number: [1.8e19] * len(values),
        "delta x -30": scaled(-30),
        "noise x 100": noise(100),
        "one value of 1e9": lambda values, number: [1e9] + values[1:],
    }.items():

        def go(lie=lie):
            _, loss, reasons = last_round(lie)
            assert not reasons, f"refused: {reasons[0]}"
            assert loss < honest + 0.25, f"loss {loss:.3f}, honest {honest:.3f}"
            return f"loss {loss:.3f}, honest {honest:.3f}, without it {without:.3f}"

        rig.check("liars", name + ", last round", go)


class Echo:
    """Sends the last update back, `factor` times as large."""

    def __init__(self, factor):
        self.factor, self.update, self.chunks = factor, {}, {}

    def edit(self, kind, body, up):
        if not up and kind == wire.CHUNK and body[0] == 1:
            _, fragment, version, offset, total, _, size = struct.unpack_from("<BIQQQII", body)
            data = self.chunks.get((fragment, version), b"")
            if offset == len(data):
                data += body[37:37 + size]
            self.chunks[fragment, version] = data
            if len(data) == total:
                at = 46 + struct.unpack_from("<H", data, 44)[0]  # docs/protocol.md, update object
                at += 4 + 20 * struct.unpack_from("<I", data, at)[0]
                n = struct.unpack_from("<Q", data, at)[0]
                self.update[fragment] = wire.bf16_values(data[at + 8:at + 8 + n])
                del self.chunks[fragment, version]
        return body

    def delta(self, payload, offer):
        update = self.update.get(struct.unpack_from("<I", offer, 16)[0])
        if update and len(update) * 2 == len(payload) and struct.unpack_from("<Q", offer, 8)[0] >= 6:
            payload = wire.bf16_payload([-self.factor * x for x in update])
        return payload, offer


def losses(run):
    return [event.get("val_loss", event.get("loss")) for event in run.events("eval")]


reference = {}


def final_loss(workers, rounds, lies=(), edit=None, **settings):
    """Final validation loss, refusals and log of a run of `workers` honest workers and one liar per lie."""
    every = int(settings.get("train__sync_every", 40))
    run = rig.Run(f"liar{next(rig.names)}", workers=workers, train__eval_every=0, train__max_steps=rounds * every,
                  coordinator__min_workers=workers + len(lies), **settings)
    middles = []
    for i, delta in enumerate(lies):
        middles.append(wire.Middle(run.address, rig.enrol, edit=edit, delta=delta, name=f"liar{i}"))
        run.start_worker(f"liar{i}", middles[-1].join_line)
    loss = run.summary(600)["final_val_loss"]
    run.end()
    for middle in middles:
        middle.close()
    return loss, [reason for middle in middles for reason in middle.rejected], run.log()


def honest_loss(workers, rounds, **settings):
    key = workers, rounds, tuple(sorted(settings.items()))
    if key not in reference:
        reference[key] = final_loss(workers, rounds, **settings)[0]
    return reference[key]


def persistent(name, *lies, honest=3, edit=None, rounds=40, refused=False, named=False, spread=0.05, **settings):
    """Honest workers beside liars: the final validation loss is that of as many honest workers, within `spread`.

    refused: whether deltas are refused; None: that does not matter.
    """

    def go():
        expected = honest_loss(honest + len(lies), rounds, **settings)
        loss, reasons, log = final_loss(honest, rounds, lies, edit, **settings)
        assert loss is not None and math.isfinite(loss), f"loss {loss}"
        assert loss < expected + spread, f"loss {loss:.3f}, with honest workers {expected:.3f}"
        assert not refused or ("aside" in log and reasons), "the liar was not put aside"
        assert refused is None or refused or not reasons, f"refused: {reasons[0]}"
        assert not named or "its delta is clipped" in log, "the liar is not named"
        return f"loss {loss:.3f}, honest {expected:.3f}; {len(reasons)} refused: {(reasons or [''])[0][:60]}"

    rig.check("liars", name, go)


def offer_field(offset, fmt, value):
    def edit(kind, body, up):
        if up and kind == wire.OFFER and struct.unpack_from("<Q", body, 8)[0] >= 4:
            body = body[:offset] + struct.pack(fmt, value) + body[offset + struct.calcsize(fmt):]
        return body

    return edit


def eval_result(change):
    """Changes the parts [loss, tokens] of EVAL_RESULT. `whole`: the parts are those of a share, not a sample."""
    samples = {}

    def edit(kind, body, up):
        if not up and kind == wire.EVAL:
            number, _, count, part, wanted = struct.unpack_from("<5Q", body)
            samples[number] = bin(wanted).count("1") < -(-count // part)
        if not up or kind != wire.EVAL_RESULT or not struct.unpack_from("<Q", body, 40)[0]:
            return body
        n = struct.unpack_from("<I", body, 48)[0]
        values = struct.unpack_from("<" + "dQ" * n, body, 52)
        parts = [list(part) for part in zip(values[::2], values[1::2])]
        change(parts, not samples[struct.unpack_from("<Q", body, 8)[0]])
        loss, tokens = sum(part[0] for part in parts), sum(part[1] for part in parts)
        return body[:32] + struct.pack("<dQI", loss, tokens, n) + b"".join(struct.pack("<dQ", *part) for part in parts)

    return edit


def each(change):
    """A lie in all parts, also of samples."""

    def lie(parts, whole):
        for part in parts:
            part[:] = change(*part)

    return lie


def hidden(pick, nats=10.9):
    """Puts the whole lie into the parts that `pick` chooses: the share's mean becomes `nats`, below 2 ln 256."""

    def lie(parts, whole):
        if whole:
            chosen = pick(parts)
            more = max(0.0, nats * sum(part[1] for part in parts) - sum(part[0] for part in parts))
            for part in chosen:
                part[0] += more / len(chosen)

    return lie


def one_too_low(parts, whole):
    if whole:
        random.choice(parts)[0] = 0.0


def forged(name, change, named=True, **settings):
    """A forged evaluation: each reported loss stays near the honest one, and the liar is named. async: the last one."""

    def go():
        run = rig.Run(f"eval{next(rig.names)}", workers=3, **{
            "train__eval_every": 1, "coordinator__min_workers": 4, "train__max_steps": 16 * 40, **settings})
        middle = wire.Middle(run.address, rig.enrol, edit=eval_result(change))
        run.start_worker("liar", middle.join_line)
        final = run.summary()["final_val_loss"]
        events = [e for e in run.events("eval") if not e.get("val_by_one_worker")]
        seen = [e["val_loss"] for e in events]
        run.end()
        middle.close()
        assert final is not None and 0.1 < final < 6, f"final loss {final}"
        assert seen and all(x is not None and 0.1 < x < 6 for x in seen), f"losses {seen}"
        steps = [abs(a - b) for a, b in zip(seen, seen[1:])]
        assert max(steps, default=0) < 0.6, f"losses jump by {max(steps):.2f}: {seen}"
        alone = [e for e in run.events("eval") if e not in events]
        assert bool(alone) == (settings.get("train__method") == "async"), f"{len(alone)} evaluations by one worker"
        lines = "".join(t for t in run.log().splitlines() if "eval" in t)
        assert not named or "liar" in lines, "the liar is not named"
        return f"losses {seen[0]:.2f} ... {seen[-1]:.2f}, {len(alone)} by one worker"

    rig.check("liars", name, go)


def held_share(kind, body, up):
    return None if up and kind == wire.EVAL_RESULT else body


def stalled():
    """A holder of a share that only sends heartbeats."""
    run = rig.Run("stalled", workers=2, train__eval_every=1, coordinator__min_workers=3, coordinator__quorum=1,
                  train__max_steps=8 * 40)
    middle = wire.Middle(run.address, rig.enrol, edit=held_share)
    run.start_worker("liar", middle.join_line)
    began = time.monotonic()
    run.summary(90)
    run.end()
    middle.close()
    return f"8 rounds with 8 evaluations in {time.monotonic() - began:.1f} s"


def fast_liar():
    """step_s of 1e-300 in an async run: the honest workers keep their H."""
    run = rig.Run("fast", workers=2, train__method="async", train__dynamic_steps="on", train__max_steps=30 * 40,
                  coordinator__min_workers=3)

    def edit(kind, body, up):
        if up and kind == wire.HEARTBEAT:
            body = body[:33] + struct.pack("<d", 1e-300) + body[41:]
        return body

    middle = wire.Middle(run.address, rig.enrol, edit=edit)
    run.start_worker("liar", middle.join_line)
    run.summary()
    run.end()
    middle.close()
    steps = {}
    for event in run.events("step"):
        key = event["worker"], event["round"]
        steps[key] = steps.get(key, 0) + 1
    honest = sorted(n for (worker, number), n in steps.items() if worker.startswith("h") and number > 3)
    assert honest and honest[len(honest) // 2] >= 20, f"honest workers take {honest[len(honest) // 2]} steps a round"
    return f"honest workers take {honest[len(honest) // 2]} steps a round"


def go():
    last_lies()
    persistent("delta x 1000, every round", lie_in(6, scaled(1000)), named=True)
    persistent("delta x 15, every round", lie_in(6, scaled(15)), named=True)
    persistent("delta x 3, every round", lie_in(6, scaled(3)), named=True)
    persistent("delta x -1, every round", lie_in(6, scaled(-1)), spread=0.1)
    persistent("delta x -1.19, every round", lie_in(0, scaled(-1.19)), spread=0.1)
    persistent("alternating x 3.5 from the first round", lie_in(0, alternating(3.5)), named=True)
    persistent("alternating x 1.19", lie_in(0, alternating(1.19)))
    persistent("two of five, alternating x 3.5", lie_in(0, alternating(3.5)), lie_in(0, alternating(3.5)), named=True)
    persistent("two of five, one random direction", lie_in(0, direction(1.19)), lie_in(0, direction(1.19)), spread=0.15)
    persistent("one random direction x 3.8", lie_in(0, direction(3.8)), named=True)
    persistent("one tensor x 1000", lie_in(0, one_tensor(1000)), named=True)
    persistent("the first delta again and again", lie_in(0, stale()), spread=0.2)
    persistent("noise of the same norm", lie_in(6, noise()))
    persistent("zeros", lie_in(6, scaled(0)))
    persistent("NaN, every round", lie_in(6, lambda values, number: [math.nan] * len(values)), refused=True)
    echo = Echo(3)
    persistent("last update x 3, sent back", echo.delta, edit=echo.edit, spread=0.2)
    persistent("x 1000 from the first round", lie_in(0, scaled(1000)), named=True)
    persistent("streaming, alternating x 3.5", lie_in(0, alternating(3.5)), train__method="streaming", named=True)
    persistent("local-sgd, H 2, alternating x 3.5", lie_in(0, alternating(3.5)), train__method="local-sgd",
               train__sync_every=2, rounds=400, named=True, spread=0.3)  # early in the training
    persistent("async, x 8 in rounds of 5 steps", lie_in(0, scaled(8)), train__method="async", train__sync_every=5,
               rounds=160, spread=0.3)
    persistent("async, alternating x 8", lie_in(0, alternating(8)), train__method="async", spread=0.3)
    persistent("random bytes as payload", lambda payload, offer: (random.randbytes(len(payload)), offer), refused=None)
    persistent("tokens x 1e6 in OFFER", None, edit=offer_field(41, "<Q", 10**9), refused=None)
    persistent("norm of 1e30 in OFFER", None, edit=offer_field(61, "<f", 1e30))
    persistent("loss of 1e300 in OFFER", None, edit=offer_field(53, "<d", 1e300))
    persistent("compute time of 500,000 years", None, edit=offer_field(65, "<Q", 2**63))
    forged("evaluation of -502346", each(lambda loss, tokens: (-502346.0, tokens)))
    forged("evaluation of 0.001", each(lambda loss, tokens: (0.001, tokens)))
    forged("evaluation of NaN", each(lambda loss, tokens: (math.nan, tokens)))
    forged("evaluation x 3", each(lambda loss, tokens: (3 * loss, tokens)))
    forged("evaluation x 0.8", each(lambda loss, tokens: (0.8 * loss, tokens)))
    forged("evaluation of 10x the tokens", each(lambda loss, tokens: (loss, 10 * tokens)))
    places = {"first": lambda parts: parts[:1], "last": lambda parts: parts[-1:],
              "random": lambda parts: [random.choice(parts)], "first and last": lambda parts: [parts[0], parts[-1]]}
    for place, pick in places.items():
        forged(f"the whole lie in the {place} part", hidden(pick))
    forged("one part of 0", one_too_low)
    first = hidden(places["first"])
    forged("the first part, last evaluation", first, train__eval_every=0)
    forged("the first part, async", first, train__method="async", train__eval_every=4)
    rig.check("liars", "a share that is never answered", stalled)
    rig.check("liars", "step time of 1e-300 s", fast_liar)
