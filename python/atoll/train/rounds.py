"""The rounds of a worker: joins the run, counts steps, and exchanges parameters at sync points."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import _lib
from ..units import bytes_text, duration_text
from .notes import Tally, Told
from .phase import Phase, in_round, is_due, moved
from .ranks import Ranks
from .sampled import digest
from .samples import describe
from .schedules import Schedules
from .state import State

logger = logging.getLogger("atoll")

_SLICE_MS = 200  # a wait is cut into slices, between which Python handles Ctrl-C


class Rounds:
    """The outer loop of one worker, on each of its ranks.

    - `begin` before a step, `count` after it, `settle` where a sync point may be due, `finish` at the end.
    - At a sync point: parameters and state to the library, wait for the update, parameters to the program.
    """

    def __init__(
        self, model: Any, state: State, ranks: Ranks, tally: Tally, schedules: Schedules
    ) -> None:
        self.handle: _lib.Handle | None = None  # set by the worker on rank 0
        self._model, self._state, self._ranks = model, state, ranks
        self._tally, self._schedules = tally, schedules
        self.phase = Phase.APART
        self.round = _lib.Round(0, 0, 0, 0.0, 1.0, 0)
        self.steps = 0  # taken in this round
        self.lasting = False  # a round has begun before: the script's objects are those of the run
        self.train: Any = None
        self.val: Any = None
        self.every: int | None = None
        self.evaluate: Callable[[Any, np.ndarray], tuple[float, int]] | None = None
        self._error: BaseException | None = None  # of rank 0, raised at the sync point, where all ranks meet
        self._parts: list[tuple[int, float, float, float]] = []  # of a round: steps, loss, seconds trained, waited
        self._ranks_agree, self._placed = ranks.size == 1, False
        self._opened, self._next_line, self._waited = time.perf_counter(), 3.0, 0.0
        self._bytes = (0, 0)

    def _move(self, event: str) -> None:
        self.phase = moved(self.phase, event)

    @property
    def position(self) -> float:
        """Of the next step, in inner steps of the run."""
        return self.round.position + self.steps * self.round.position_rate

    def use(self, train: Any) -> None:
        """The training data. Raises Error after the join with other data."""
        if self.phase in (Phase.APART, Phase.CLOSED):
            self.train = train
        elif train is not self.train and (self.train is None or describe(train) != self._joined_with):
            raise _lib.Error(
                "the run was joined without a training set: make atoll.batches before the first forward and before "
                "worker.done, or give train= to atoll.Worker"
                if self.train is None
                else "the run was joined with another training set: give atoll.batches the one that it trains on"
            )

    def close_state(self) -> None:
        """Completes what this rank writes of a saved state."""
        self._state.close()

    def close(self) -> None:
        """The worker has left the run."""
        self.handle = None
        if self.phase is not Phase.DONE:
            self._move("close")

    # --- steps ------------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Joins the run, or finishes a sync point that is due. False: the run is done."""
        if self.phase is Phase.CLOSED:
            raise _lib.Error("the worker is closed: it works only inside its `with` block")
        self.settle()
        if self.phase in (Phase.APART, Phase.BETWEEN):
            self._exchange()
        return self.phase is not Phase.DONE

    def before_step(self) -> None:
        """A step is about to be taken."""
        self._schedules.before_step(self.position)

    def count(self) -> None:
        """Counts a step that was taken. Its round has begun."""
        self.steps += 1
        last = self.steps == self.round.steps
        for told in self._tally.end_step(self.round.step_samples, last):
            self._tell(told)
        if last:
            self._move("last step")
        elif self.phase is Phase.LOST and self._ranks.size == 1:
            self._move("leave round")

    def _tell(self, told: Told) -> None:
        if not self.handle or self._error or not in_round(self.phase) or self.phase is Phase.LOST:
            return
        try:
            action = self.handle.step(told.tokens, told.loss, told.lr, told.grad_norm, told.step_us)
        except _lib.Error as e:
            if self._ranks.size == 1:
                raise
            self._error = e
            return
        if action == _lib.DROPPED:
            self._move("round lost")

    # --- sync points ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finishes a sync point that is due."""
        if not is_due(self.phase):
            return
        steps, loss, round = self.steps, self._tally.round_loss, self.round.round
        trained = time.perf_counter() - self._tally.round_started
        dropped = self._exchange()
        self._parts.append((steps, loss, trained, self._waited))
        if self.handle and not dropped and (self.round.round != round or self.phase is Phase.DONE):
            self._log_round(round)  # a round may have several parts

    def finish(self) -> str:
        """The loop has ended: completes a sync point that is due. Why the worker leaves; "": the run is done."""
        self.settle()
        if self.phase is Phase.DONE:
            return ""
        if self.phase is Phase.APART:
            return "the script ended before its first step"
        done, of = self.round.round, self.round.steps
        where = f"after {self.steps} of the {of} steps of round {done + 1}" if self.steps else f"after round {done}"
        return f"the script ended before the run, {where}"

    def _exchange(self) -> bool:
        """Pushes a round that is due, and waits for the next one, or for the end. True: the round was dropped."""
        due, lost, joined = is_due(self.phase), self.phase is Phase.LOST_DUE, self.phase is not Phase.APART
        if due:
            self._schedules.note_round(self.steps)
        self._move("exchange")
        try:
            dropped = due and self._push(lost)
            began = time.perf_counter()
            if not joined:
                self._join()
                joined = True
            done = self._wait_for_round()
            self._state.share(self._ranks)
            if not done:
                self._take_round(dropped)
            self._model.follow()
            self._model.take(begin=not done)
            self._move("run done" if done else "round")
            self._waited = time.perf_counter() - began
            return dropped
        finally:
            if self.phase is Phase.EXCHANGING:
                self._move("interrupted" if joined else "not joined")

    def _push(self, lost: bool) -> bool:
        """Hands the parameters of the round to the library; True: the round was dropped."""
        self._model.follow()
        self._check_ranks()
        if self._ranks.call(lambda: self._is_wanted(lost)) == b"dropped":
            return True
        self._model.put()
        self._state.prepare(self._ranks, self.handle)
        return self._ranks.call(self._push_rank0) == b"dropped"

    def _is_wanted(self, lost: bool) -> bytes:
        error, self._error = self._error, None
        if error:
            raise error
        return b"dropped" if lost else b"wanted"

    def _push_rank0(self) -> bytes:
        try:
            self.handle.push()  # type: ignore[union-attr]
        except _lib.NonFiniteError as e:
            logger.warning("%s", e)
            return b"dropped"
        return b"pushed"

    def _check_ranks(self) -> None:
        """At the first sync point: the ranks average their gradients if their parameters are equal after some steps."""
        if self._ranks_agree:
            return
        rows = self._ranks.gather(self._model.digests().tobytes())
        differ = differing_replicas([np.frombuffer(row, np.uint64).reshape(-1, 2) for row in rows])
        if differ:
            raise _lib.Error(
                f"processes {differ[0]} and {differ[1]} of torchrun hold different parameters after {self.steps} "
                f"steps: {self._model.why_replicas_differ(differ[2])}"
            )
        self._ranks_agree = True

    def _join(self) -> None:
        self._schedules.note_initial()
        self._state.note_initial()
        self._state.open(self._ranks, self.handle)
        self._joined_with = describe(self.train)
        val = describe(self.val) if self.evaluate else _lib.Data()
        self._check_arguments(val)
        if self.handle:
            self.handle.set_data(self._joined_with, val)
        self._model.put(initial=True)

    def _check_arguments(self, val: _lib.Data) -> None:
        """All ranks evaluate, and read the same data: each does its part of both."""
        if self._ranks.size == 1:
            return
        mine = [("evaluate=", self.evaluate is not None), ("the training data", self._joined_with), ("val=", val),
                ("the number of optimizers and objects in state=", self._state.count)]
        rows = self._ranks.gather(b"".join(digest(repr(value)) for _, value in mine))
        for i, (name, _) in enumerate(mine):
            cells = [row[8 * i : 8 * i + 8] for row in rows]
            other = next((rank for rank, cell in enumerate(cells) if cell != cells[0]), 0)
            if other:
                raise _lib.InvalidError(
                    f"processes 0 and {other} of torchrun differ in {name}: give atoll.Worker and atoll.batches the "
                    "same on all of them, and each takes its part"
                )

    def _wait_for_round(self) -> bool:
        """Waits for the next round, and evaluates meanwhile. True: the run is done."""
        event = _lib.WAITING
        while event not in (_lib.TRAIN, _lib.DONE):
            event = self._wait()
            if event != _lib.WAITING and not self._placed:
                self._model.place(self.handle)
                self._placed = True
            if event == _lib.EVALUATE:
                self._run_evaluation()
        return event == _lib.DONE

    def _wait(self) -> int:
        """The next event. With several ranks, all of them meet here in each slice, so that no collective times out."""
        serve = self._model.frozen.serve if self._model.frozen else None
        event = int(self._ranks.call(lambda: b"%d" % self.handle.wait(_SLICE_MS), serve))  # type: ignore[union-attr]
        waited = time.perf_counter() - self._opened
        if event == _lib.WAITING and self.handle and waited > self._next_line:
            text = self.handle.text()
            if text.startswith(("a coordinator:", "the name service:")):  # the library logs all other waits
                logger.info("waiting for %s for %s", duration_text(waited), text)
            self._next_line = 2 * waited
        return event

    def _take_round(self, dropped: bool) -> None:
        self._state.prepare(self._ranks, self.handle)
        r = self.handle.begin() if self.handle else self.round
        whole = self._ranks.numbers([r.round, r.steps, r.step_samples, r.worker])
        real = np.frombuffer(self._ranks.bytes(np.array([r.position, r.position_rate, r.lr, r.epoch]).tobytes()))
        position, rate, lr, epoch = (float(v) for v in real)
        self.round = _lib.Round(whole[0], whole[1], whole[2], position, rate, whole[3], lr, epoch)
        self.steps = 0
        self._state.begun()
        self._tally.begin_round()
        if not self.lasting:
            self._check_every()
        self._schedules.begin_round(self.round, late=not (self.lasting or self._state.loaded), dropped=dropped)
        self.lasting = True

    def _check_every(self) -> None:
        run = int(self.setting("train.sync_every"))
        if self.every is not None and self.every != run:
            raise ValueError(
                f"every={self.every}, but the run's train.sync_every is {run}: leave `every` out, or give {run}"
            )

    def setting(self, key: str) -> str:
        """A setting of the run, on every rank. All ranks call it."""
        return self._ranks.call(lambda: self.handle.setting(key).encode()).decode()  # type: ignore[union-attr]

    def _log_round(self, round: int) -> None:
        parts, self._parts = self._parts, []
        steps, trained, waited = (sum(part[i] for part in parts) for i in (0, 2, 3))
        loss = sum(part[0] * part[1] for part in parts) / steps
        info = self.handle.info(hashed=False)  # type: ignore[union-attr]
        (up, down), self._bytes = self._bytes, (info.bytes_up, info.bytes_down)
        known = f"loss {loss:.4f}, " if math.isfinite(loss) and loss else ""
        spent = f"{steps:.0f} steps in {duration_text(trained)}, exchange {duration_text(waited)}"
        logger.info("round %d: %s%s, up %s, down %s", round + 1, known, spent, bytes_text(info.bytes_up - up),
                    bytes_text(info.bytes_down - down))

    # --- evaluation -------------------------------------------------------------------------------------------------

    def _run_evaluation(self) -> None:
        """Evaluates a piece of the validation samples, in parts that the ranks share."""
        task = self.handle.evaluation() if self.handle else _lib.Evaluation(0, 0, 1, 0)
        task = _lib.Evaluation(*self._ranks.numbers([task.start, task.count, task.part, task.n_parts]))
        self._model.follow()
        self._model.take()
        sums = np.zeros((2, task.n_parts))  # losses, tokens
        if self.evaluate:
            with self._model.evaluating() as model:
                for part, counts in shared_parts(task, self._ranks, together=self._model.sharded):
                    at = task.start + part * task.part
                    indices = np.arange(at, min(at + task.part, task.start + task.count), dtype=np.int64)
                    result = [float(x) for x in self.evaluate(model, indices)]
                    sums[:, part] += result if counts else 0
        sums = self._ranks.sums(sums.ravel()).reshape(2, -1)
        if self.handle:
            self.handle.evaluated(np.ascontiguousarray(sums[0]), sums[1].astype(np.uint64))


def shared_parts(task: _lib.Evaluation, ranks: Ranks, together: bool) -> Iterator[tuple[int, bool]]:
    """The parts of an evaluation that this rank evaluates, and whether the result counts.

    together: a forward is a collective of all ranks, so that each of them evaluates equally many parts of equal size.
    What is left over is then evaluated by all, and counts once.
    """
    rank, size, n = ranks.rank, ranks.size, task.n_parts
    if not together:
        yield from ((part, True) for part in range(rank, n, size))
        return
    whole = task.count // task.part  # parts of full size
    for first in range(0, whole, size):
        part = first + rank
        yield (part, True) if part < whole else (first, False)
    if whole < n:
        yield whole, rank == 0


def differing_replicas(rows: list[np.ndarray]) -> tuple[int, int, int] | None:
    """Two ranks whose values differ, and the number of the tensor. rows: [n, 2] of each rank: the block and a digest of
    the values of each tensor."""
    for i in range(len(rows[0])):
        seen: dict[int, tuple[int, int]] = {}
        for rank, row in enumerate(rows):
            first, value = seen.setdefault(int(row[i, 0]), (rank, int(row[i, 1])))
            if value != int(row[i, 1]):
                return first, rank, i
    return None
