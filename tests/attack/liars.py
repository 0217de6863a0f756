"""Enrolled workers that lie. The parameters, the evaluations and the other workers stay what they were."""
import math
import random
import struct
import time

import rig
import wire

ROUNDS = 12


def scaled(factor):
    return lambda values: [x * factor for x in values]


def lie_in(first, change, last=10**9):
    """A `delta` for Middle: changes the values of rounds first to last (from 0)."""

    def delta(payload, offer):
        number = struct.unpack_from("<Q", offer, 8)[0]
        if first <= number <= last:
            payload = wire.bf16_payload(change(wire.bf16_values(payload)))
        return payload, offer

    return delta


def last_round(change):
    """theta_hash of a short run whose liar lies in the last round only, and the reason of the refusal."""
    name = f"last{next(rig.names)}"
    run = rig.Run(name, train__max_steps=ROUNDS * 40, coordinator__min_workers=3)
    middle = wire.Middle(run.address, rig.enrol, delta=lie_in(ROUNDS - 1, change), name="liar")
    run.start_worker("liar", middle.join_line)
    theta = run.summary()["theta_hash"]
    middle.close()
    run.end()
    return theta, middle.rejected


def same_theta():
    """A delta of NaN was always refused: every other lie must end with the same parameters."""
    nan, reasons = last_round(lambda values: [math.nan] * len(values))
    assert len(reasons) == 1, f"NaN was refused {len(reasons)} times"
    for name, change in {
        "delta x 1000": scaled(1000),
        "delta x 1e6": scaled(1e6),
        "delta of 1.8e19": lambda values: [1.8e19] * len(values),
        "delta x 30": scaled(30),
        "noise x 100": lambda values: wire.noise(values, 100),
        "one value of 1e9": lambda values: [1e9] + values[1:],
    }.items():

        def go(change=change):
            theta, reasons = last_round(change)
            assert reasons, "the delta was not refused"
            assert theta == nan, f"theta {theta}, with NaN {nan}"
            return f"theta {theta} unchanged; {reasons[0][:90]}"

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
                at = 38 + struct.unpack_from("<H", data, 36)[0]
                at += 4 + 20 * struct.unpack_from("<I", data, at)[0]
                n = struct.unpack_from("<I", data, at)[0]
                self.update[fragment] = wire.bf16_values(data[at + 4:at + 4 + n])
                del self.chunks[fragment, version]
        return body

    def delta(self, payload, offer):
        update = self.update.get(struct.unpack_from("<I", offer, 16)[0])
        if update and len(update) * 2 == len(payload) and struct.unpack_from("<Q", offer, 8)[0] >= 6:
            payload = wire.bf16_payload([-self.factor * x for x in update])
        return payload, offer


def losses(run):
    return [event.get("val_loss", event.get("loss")) for event in run.events("eval")]


def persistent(name, delta=None, edit=None, rounds=40, aside=True, spread=0.25):
    """Three honest workers beside a liar: the validation loss ends where it would without him."""

    def go():
        run = rig.Run(f"liar{next(rig.names)}", workers=3, train__eval_every=2, coordinator__min_workers=4,
                      train__max_steps=rounds * 40)
        middle = wire.Middle(run.address, rig.enrol, edit=edit, delta=delta)
        run.start_worker("liar", middle.join_line)
        summary = run.summary()
        loss, reference = summary["final_val_loss"], honest_loss(rounds)
        run.end()
        middle.close()
        assert loss is not None and math.isfinite(loss), f"loss {loss}"
        assert loss < reference + spread, f"loss {loss:.3f}, without the liar {reference:.3f}"
        assert not aside or middle.rejected, "no delta was refused"
        assert not aside or "aside" in run.log(), "the liar was not put aside"
        return f"loss {loss:.3f}, honest {reference:.3f}; {len(middle.rejected)} refused: {(middle.rejected or [''])[0][:70]}"

    rig.check("liars", name, go)


reference = {}


def honest_loss(rounds):
    if rounds not in reference:
        run = rig.Run(f"honest{rounds}", workers=4, train__eval_every=2, coordinator__min_workers=4,
                      train__max_steps=rounds * 40)
        reference[rounds] = run.summary()["final_val_loss"]
        run.end()
    return reference[rounds]


def offer_field(offset, fmt, value):
    def edit(kind, body, up):
        if up and kind == wire.OFFER and struct.unpack_from("<Q", body, 8)[0] >= 4:
            body = body[:offset] + struct.pack(fmt, value) + body[offset + struct.calcsize(fmt):]
        return body

    return edit


def eval_result(change):
    """Changes (loss_sum, tokens) of EVAL_RESULT, and the sums of its parts alike."""

    def edit(kind, body, up):
        if not up or kind != wire.EVAL_RESULT or not struct.unpack_from("<Q", body, 40)[0]:
            return body
        honest, tokens = struct.unpack_from("<dQ", body, 32)
        loss, tokens = change(honest, tokens)
        n = struct.unpack_from("<I", body, 48)[0]
        parts = [x * loss / honest for x in struct.unpack_from(f"<{n}d", body, 52)]
        return body[:32] + struct.pack(f"<dQI{n}d", loss, tokens, n, *parts)

    return edit


def forged(name, change, named=True):
    """A forged evaluation: each reported loss stays near the honest one, and the liar is named."""

    def go():
        run = rig.Run(f"eval{next(rig.names)}", workers=3, train__eval_every=1, coordinator__min_workers=4,
                      train__max_steps=16 * 40)
        middle = wire.Middle(run.address, rig.enrol, edit=eval_result(change))
        run.start_worker("liar", middle.join_line)
        final = run.summary()["final_val_loss"]
        seen = losses(run)
        run.end()
        middle.close()
        assert final is not None and 0.1 < final < 6, f"final loss {final}"
        assert seen and all(x is not None and 0.1 < x < 6 for x in seen), f"losses {seen}"
        steps = [abs(a - b) for a, b in zip(seen, seen[1:])]
        assert max(steps) < 0.6, f"losses jump by {max(steps):.2f}: {seen}"
        assert not named or "liar" in "".join(t for t in run.log().splitlines() if "eval" in t), "the liar is not named"
        return f"losses {seen[0]:.2f} ... {seen[-1]:.2f}"

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
    same_theta()
    persistent("delta x 1000, every round", lie_in(6, scaled(1000)))
    persistent("delta x 15, every round", lie_in(6, scaled(15)))
    persistent("delta x 3, every round", lie_in(6, scaled(3)), aside=False, spread=1.0)
    persistent("delta x -1, every round", lie_in(6, scaled(-1)), aside=False, spread=0.6)
    persistent("noise of the same norm", lie_in(6, wire.noise), aside=False, spread=0.6)
    persistent("zeros", lie_in(6, scaled(0)), aside=False, spread=0.6)
    persistent("NaN, every round", lie_in(6, lambda values: [math.nan] * len(values)))
    echo = Echo(3)
    persistent("last update x 3, sent back", echo.delta, echo.edit)
    persistent("x 1000 from the first round", lie_in(0, scaled(1000)))
    persistent("random bytes as payload", lambda payload, offer: (random.randbytes(len(payload)), offer), aside=False)
    persistent("tokens x 1e6 in OFFER", edit=offer_field(41, "<Q", 10**9), aside=False)
    persistent("norm of 1e30 in OFFER", edit=offer_field(61, "<f", 1e30), aside=False)
    persistent("loss of 1e300 in OFFER", edit=offer_field(53, "<d", 1e300), aside=False)
    persistent("compute time of 500,000 years", edit=offer_field(65, "<Q", 2**63), aside=False)
    forged("evaluation of -502346", lambda loss, tokens: (-502346.0, tokens))
    forged("evaluation of 0.001", lambda loss, tokens: (0.001, tokens))
    forged("evaluation of NaN", lambda loss, tokens: (math.nan, tokens))
    forged("evaluation x 3", lambda loss, tokens: (3 * loss, tokens))
    forged("evaluation x 0.8", lambda loss, tokens: (0.8 * loss, tokens))
    forged("evaluation of 10x the tokens", lambda loss, tokens: (loss, 10 * tokens))
    rig.check("liars", "a share that is never answered", stalled)
    rig.check("liars", "step time of 1e-300 s", fast_liar)
