"""What saves of a worker's state cost its rounds: saves.py BUILD OUT.json [options]. Called by `./run bench saves`."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 5  # of a round


def measure(args: argparse.Namespace, root: str, build: str, every: str, ranks: int) -> dict[str, object]:
    """One run: the mean duration of its last rounds, and how often it saved in the end."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run, config = os.path.join(folder, "run"), os.path.join(folder, "run.yaml")
        with open(config, "w") as f:
            f.write("run: {name: saves}\nmodel: {family: external}\n"
                    f"checkpoint: {{every: 0, worker_every: {every}}}\n"
                    f"train: {{method: diloco, max_steps: {STEPS * args.rounds}, sync_every: {STEPS}, batch_size: 2,"
                    " eval_every: 0}\ncodec: {up: int8:256, down: int8:256}\n"
                    "coordinator: {listen: 'tcp://127.0.0.1:*'}\n")
        env = {**os.environ, "PYTHONPATH": os.path.join(root, "python"), "ATOLL_BIN": os.path.join(build, "bin"),
               "ATOLL_LIB": os.path.join(build, "lib", "libatoll.so"), "OMP_NUM_THREADS": "1"}
        slow = {"LD_PRELOAD": os.path.join(args.build, "lib", "libbench_slow_disk.so"),
                "BENCH_DISK_RATE": str(args.rate * 1e6)}
        program = os.path.join(build, "bin", "atoll-coordinator")
        with subprocess.Popen([program, config, "--dir", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=env) as coordinator:
            try:
                while not os.path.exists(os.path.join(run, "address")):
                    time.sleep(0.05)
                launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
                words = [sys.executable, *(launcher if ranks > 1 else []), os.path.join(HERE, "saves_worker.py"), run,
                         os.path.join(folder, "worker"), str(args.mb / ranks), str(args.step_s)]
                done = subprocess.run(words, env={**env, **slow}, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(f"bench saves: a run failed:\n{done.stderr[-2000:]}")
            finally:
                coordinator.kill()
    rounds = json.loads(done.stdout.splitlines()[-1])
    chosen = re.findall(r"so it saves every (\d+) rounds: a kill costs at most (\d+)", done.stderr)
    last = rounds[len(rounds) // 2 :]
    return {"mean_s": statistics.mean(last), "chosen": chosen[-1] if chosen else None}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("out")
    p.add_argument("--before", help="a clone with a build: its rows stand beside those of this one")
    p.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    p.add_argument("--rounds", type=int, default=24)
    p.add_argument("--mb", type=float, default=200)
    p.add_argument("--rate", type=float, default=100, help="MB/s of each process")
    p.add_argument("--step-s", type=float, default=0.1)
    p.add_argument("--folder", default=None)
    args = p.parse_args()
    root, rows = os.path.dirname(os.path.dirname(os.path.dirname(HERE))), []
    print(f"state {args.mb:.0f} MB, disk {args.rate:.0f} MB/s of each process, rounds of {STEPS} x {args.step_s} s")
    print(f"{'ranks':>5}  {'worker_every':<16}  {'seconds a round':>15}  {'for saves':>9}  "
          "saves every, a kill costs at most")
    for ranks in args.ranks:
        plain = None
        forms = [("0", root, args.build), ("1", root, args.build), ("auto", root, args.build)]
        if args.before:
            forms.insert(1, ("1", args.before, os.path.join(args.before, "build")))
        for every, of, build in forms:
            row = measure(args, of, build, every, ranks)
            seconds = float(str(row["mean_s"]))
            plain = seconds if plain is None else plain
            name = f"{every}{' (before)' if of == args.before else ''}"
            chosen = "{} rounds, {} rounds".format(*row["chosen"]) if row["chosen"] else ""
            print(f"{ranks:>5}  {name:<16}  {seconds:>15.2f}  {seconds - plain:>9.2f}  {chosen}", flush=True)
            rows.append({"ranks": ranks, "worker_every": name, "round_s": seconds, "for_saves_s": seconds - plain,
                         "chosen": row["chosen"]})
    with open(args.out, "w") as f:
        json.dump({"name": "saves", "machine": machine.describe(), "rows": rows}, f, indent=1)


main()
