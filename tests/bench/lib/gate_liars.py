"""What lying workers cost: the final validation loss of short runs with liars, beside the same run of honest workers.

    python3 gate_liars.py BIN FOLDER [--rows PATTERN] [--steps N] [--table] [--python PYTHON]

Liars stand between an enrolled worker and the coordinator, and change its messages (tests/attack). Needs python3-zmq.
Rows of external runs need PYTHON, an interpreter with NumPy that finds the package atoll.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "attack"))
EXTERNAL = """
run: {name: external}
model: {family: external}
train: {method: diloco, max_steps: 1000, sync_every: 20, batch_size: 8, eval_every: 0}
codec: {up: bf16, down: bf16}
coordinator: {listen: "tcp://127.0.0.1:*", min_workers: 4}
"""


def external(rig, wire, args, delta=None, tokens=0):
    """A run of NumPy workers, one of them behind a liar. Returns (loss of the run's parameters, refusals, log)."""
    name = f"external{next(rig.names)}"
    folder = rig.WORK / name
    folder.mkdir()
    (folder / "run.yaml").write_text(EXTERNAL)

    def edit(kind, body, up):
        if tokens and up and kind == wire.OFFER:
            steps = struct.unpack_from("<I", body, 49)[0]
            body = body[:41] + struct.pack("<Q", steps * 8 * tokens) + body[49:]
        return body

    coordinator = rig.spawn(f"{name}.log", rig.BIN / "atoll-coordinator", folder / "run.yaml", "--dir", folder / "run")
    rig.until(20, "address", lambda: (folder / "run" / "address").exists())
    middle = None
    for i in range(4):
        join = str(folder / "run")
        if i == 3 and (delta or tokens):
            address = wire.parse_join_line((folder / "run" / "address").read_text().splitlines()[0])
            middle = wire.Middle(address, rig.enrol, edit=edit, delta=delta, name=f"w{i}")
            join = middle.join_line
        rig.spawn(f"{name}.{i}.log", args.python, HERE / "gate_external.py", rig.WORK / "text.txt",
                  folder / f"loss{i}", folder / f"w{i}", str(i), limit=None,
                  env={"ATOLL_JOIN": join, "PYTHONPATH": str(HERE.parents[2] / "python"), "OMP_NUM_THREADS": "1",
                       "ATOLL_LIB": str(rig.BIN.parent / "lib" / "libatoll.so")})
    try:
        rig.until(180, f"end of {name}", lambda: coordinator.poll() is not None)
    except AssertionError as error:
        raise AssertionError(f"{error}: {rig.text_of(f'{name}.log')[-1500:]}") from None
    rig.until(20, "loss", lambda: (folder / "loss0").exists())
    if middle:
        middle.close()
    return float((folder / "loss0").read_text()), middle.rejected if middle else [], rig.text_of(f"{name}.log")


def rows(liars):
    """Yields (name, honest workers, lies, settings)."""
    streaming, short = {"train__method": "streaming"}, {"train__method": "local-sgd", "train__sync_every": 2}
    ddp, fast = {"train__method": "ddp", "codec__up": "bf16"}, {"train__method": "async", "train__sync_every": 5}
    fast.update(outer__momentum=0.5, outer__learning_rate=0.4)  # with more, honest workers overshoot in rounds of 5 steps
    one, alternating, scaled = 3, liars.alternating, liars.scaled
    for factor in (3.5, 1.19, 1000):
        yield f"alternating x {factor}", one, [alternating(factor)], {}
    for factor in (3.8, 1.19, -1, -1.19, -1000):
        yield f"constant x {factor}", one, [scaled(factor)], {}
    yield "zeros", one, [scaled(0)], {}
    for factor in (3.8, 1.19):
        yield f"one random direction x {factor}", one, [liars.direction(factor)], {}
    yield "one tensor x 1000", one, [liars.one_tensor(1000)], {}
    yield "only one tensor, random direction x 1.19", one, [liars.direction(1.19, first=-48)], {}
    yield "the first delta again and again", one, [liars.stale()], {}
    yield "two of five, alternating x 3.5", one, [alternating(3.5), alternating(3.5)], {}
    yield "two of five, alternating x 1.19", one, [alternating(1.19), alternating(1.19)], {}
    yield "two of five, constant x -1.19", one, [scaled(-1.19), scaled(-1.19)], {}
    yield "two of five, one random direction x 1.19", one, [liars.direction(1.19), liars.direction(1.19)], {}
    yield "one of three, alternating x 3.5", 2, [alternating(3.5)], {}
    yield "one of eight, alternating x 3.5", 7, [alternating(3.5)], {}
    for method, more in (("streaming", streaming), ("local-sgd, H 2", short), ("async", {"train__method": "async"}),
                         ("async, H 5", fast), ("ddp", ddp)):
        for name, lie in (("alternating x 8", alternating(8)), ("constant x 8", scaled(8)),
                          ("constant x -1.19", scaled(-1.19))):
            steps = {"rounds": 2000 // int(more.get("train__sync_every", 40))}
            yield f"{method}: {name}", one, [lie], {**more, **steps}


def external_rows(liars):
    """Yields (name, lie, tokens of a sample in OFFER)."""
    yield "external: 2^20 tokens a sample", None, 1 << 20
    yield "external: 2^20 tokens a sample, random direction x 12", liars.direction(12), 1 << 20
    yield "external: 2^20 tokens a sample, x -1", liars.scaled(-1), 1 << 20
    yield "external: alternating x 12", liars.alternating(12), 0


def table(folder):
    print("| liars | honest | loss | more than honest | refused | named |\n|---|---|---|---|---|---|")
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        print(f"| {row['liars']} | {row['honest']:.3f} | {row['loss']:.3f} | {row['loss'] - row['honest']:+.3f} | "
              f"{row['refused']} | {'yes' if row['named'] else 'no'} |")


def write(folder, number, name, honest, outcome):
    loss, refused, log = outcome
    refused = [reason for reason in refused if "older than outer.max_staleness" not in reason]
    row = {"liars": name, "honest": honest, "loss": loss, "refused": len(refused), "named": "is clipped" in log}
    (folder / f"{number:02}.json").write_text(json.dumps(row), encoding="utf-8")
    print(f"{name}: {loss:.3f}, honest {honest:.3f}, {len(refused)} refused", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", default="*")
    parser.add_argument("--steps", type=int, default=0, help="of each run of enrolled workers; 0: those of the row")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--python", default="")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.table:
        table(args.folder)
        return
    os.environ["ATOLL_BIN"] = args.bin
    import liars
    import rig
    import wire

    rig.make_data()
    number = 0
    for number, (name, honest, lies, more) in enumerate(rows(liars)):
        if not fnmatch.fnmatch(name, args.rows) or (args.folder / f"{number:02}.json").exists():
            continue
        rounds = more.pop("rounds", 50)
        if args.steps:
            rounds = args.steps // int(more.get("train__sync_every", 40)) or 2
        expected = liars.honest_loss(honest + len(lies), rounds, **more)
        outcome = liars.final_loss(honest, rounds, [liars.lie_in(0, lie) for lie in lies], **more)
        write(args.folder, number, name, expected, outcome)
    honest = None
    for name, lie, tokens in external_rows(liars):
        number += 1
        if not fnmatch.fnmatch(name, args.rows) or (args.folder / f"{number:02}.json").exists():
            continue
        if not args.python:
            print(f"{name}: skipped, no Python with NumPy (./run python)", flush=True)
            continue
        if honest is None:
            honest = external(rig, wire, args)[0]
        delta = liars.lie_in(0, lie) if lie else None
        write(args.folder, number, name, honest, external(rig, wire, args, delta, tokens))
    table(args.folder)


if __name__ == "__main__":
    main()
