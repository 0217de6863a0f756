"""atoll-board: follows the metrics of a run into TensorBoard event files, W&B or trackio.

- It reads RUN/metrics.jsonl while the run writes it, waits for the file before the run begins, and ends with the run.
- Values of the run are in the folder DIR, those of a worker in DIR/WORKER, so TensorBoard shows workers as curves of
  one plot. The x axis is the inner step for workers and the round for the run, or tokens.
- A restart continues: the event files themselves say what was written.
- After atoll rollback or atoll exclude TensorBoard drops the points that were taken back.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from ..command import DONE, Options, Problem, catch_signals, clean, run, say, warn
from ..metrics import Follower, Lines
from .points import back_in, needs, point_in
from .sinks import Logged, Sink, TensorBoard

POLL_S = 1.0


def follow(folder: str, sinks: Sequence[Sink], axis: str, once: bool) -> int:
    """Copies metrics.jsonl to the sinks until the run is complete. Returns the number of points."""
    follower, lines = Follower(os.path.join(folder, "metrics.jsonl")), Lines(needs(axis))
    try:
        return _follow(folder, follower, lines, sinks, axis, once)
    finally:
        if lines.skipped:
            warn(f"{follower.path}: {lines.told()}")


def _follow(
    folder: str, follower: Follower, lines: Lines, sinks: Sequence[Sink], axis: str, once: bool
) -> int:
    summary = os.path.join(folder, "summary.json")
    n, waiting, was_complete = 0, False, False
    while True:
        complete = os.path.exists(summary)  # the last lines may follow a moment later
        before = n
        for line in follower.lines():
            event = lines.take(line)
            if event and (back := back_in(event)):
                for sink in sinks:
                    sink.take_back(back)
            elif event and (point := point_in(event, axis)):
                n += 1
                for sink in sinks:
                    sink.put(point)
        if n > before:
            for sink in sinks:
                sink.flush()
        if once or (complete and was_complete):
            return n
        was_complete = complete
        if not n and not waiting:
            print(f"waiting for {clean(follower.path)}", file=sys.stderr)
            waiting = True
        time.sleep(POLL_S)


def body(words: Sequence[str]) -> int:
    o = Options(
        "atoll board",
        "RUN [options]",
        "Follow the metrics of a run into TensorBoard event files, W&B or trackio, until the run is complete.\n"
        "Show them with: tensorboard --logdir RUN/tensorboard",
    )
    o.add_argument("run", metavar="RUN", help="the run folder; it need not exist yet")
    o.add_argument("--tensorboard", metavar="DIR", help="folder of the event files (default RUN/tensorboard)")
    o.add_argument("--wandb", metavar="PROJECT", help="log to this project of W&B")
    o.add_argument("--trackio", metavar="PROJECT", help="log to this project of trackio")
    o.add_argument(
        "--axis",
        choices=("steps", "tokens"),
        default="steps",
        help="x axis: steps and rounds (default), or tokens of all workers",
    )
    o.add_argument("--once", action="store_true", help="copy what is there and end")
    options = o.parse(words)
    if os.path.exists(options.run) and not os.path.isdir(options.run):
        raise Problem(f"{options.run} is a file: give a run folder")
    if options.once and not os.path.isfile(os.path.join(options.run, "metrics.jsonl")):
        raise Problem(f"{options.run} has no metrics.jsonl: give the folder of a run")
    sinks: list[Sink] = []
    if options.wandb:
        sinks.append(Logged("wandb", options.wandb, options.run, options.axis))
    if options.trackio:
        sinks.append(Logged("trackio", options.trackio, options.run, options.axis))
    if options.tensorboard or not sinks:
        sinks.append(TensorBoard(options.tensorboard or os.path.join(options.run, "tensorboard"), options.axis))
    catch_signals()
    if not options.once:
        folders = [f"; tensorboard --logdir {sink.folder}" for sink in sinks if isinstance(sink, TensorBoard)]
        print(clean(f"following {options.run}{''.join(folders)}"), file=sys.stderr)
    try:
        n = follow(options.run, sinks, options.axis, options.once)
    finally:
        for sink in sinks:
            sink.close()
    say(f"wrote {n} points of {options.run}")
    return DONE


def main(words: Sequence[str] | None = None) -> int:
    """The program. Returns the exit code."""
    return run(body, words, "stopped by a signal: start it again to continue")

