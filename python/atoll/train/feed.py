"""Which samples a worker takes: the leases of a round, and what has been handed out and not yet trained."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _lib
from .phase import Phase
from .ranks import Ranks
from .rounds import Rounds

logger = logging.getLogger("atoll")

PLAIN, AHEAD = "plain", "ahead"  # loops that take a step on each batch, or fetch the next one before it


class Batch(NamedTuple):
    """Samples of one batch of this rank. extra: it is not the next one of the round's list."""

    indices: list[int]
    extra: bool


class Feed:
    """Hands out the samples of a round, and tells steps that are missing from loops that look ahead.

    A loop may fetch one batch before it takes the step on the one before. The batch that it then holds at a sync point
    trains in the next round, and is saved by its sample numbers. In the first round it is the first batch, once more.
    """

    def __init__(self, rounds: Rounds, ranks: Ranks, scalers: list[Any], skip: Callable[[], None]) -> None:
        """scalers: each GradScaler of the program. skip(): counts a step that was left out."""
        self._rounds, self._ranks, self._skip = rounds, ranks, skip
        self._scalers = [_Scaler(s) for s in scalers]
        self._of: Any = None  # the round whose samples these are
        self._lease = np.zeros(0, np.int64)
        self._at = 0  # handed out of the lease
        self._out: collections.deque[list[Any]] = collections.deque()  # handed out: [samples, tokens, indices]
        self._first: np.ndarray | None = None  # the first hand-out of the run
        self._ahead: list[int] = []  # saved: what the loop held at the last sync point
        self._repeated = self._told_samples = False
        self._mode = ""
        self._forwards = [0, 0]  # since the last step: before and after the hand-out that may look ahead
        self.batches = False  # samples are handed out as batches: their number tells when a step is due
        self._size = 0  # samples of a batch, of all ranks
        self.epoch: int | None = None  # of a loop that ends with each epoch; None: it is between two of them

    # --- handing out ------------------------------------------------------------------------------------------------

    def samples(self, n: int) -> np.ndarray | None:
        """[n] int64: the next samples, for all ranks together. None: the run is done."""
        if not self._rounds.begin():
            return None
        return self._take(n)[0]

    def batch(self, batch_size: int) -> Batch | None:
        """The next batch of this rank. None: the run is done."""
        self.batches, self._size = True, batch_size * self._ranks.size
        if self._rounds.phase is Phase.DONE:
            return self._last(batch_size)
        if self._held() and self._held() >= self._rounds.round.step_samples:
            self._step_is_missing(batch_size)
        if not self._rounds.begin():
            return None
        self._check_size(batch_size)
        indices, extra = self._take(self._size)
        return Batch([int(i) for i in indices.reshape(self._ranks.size, batch_size)[self._ranks.rank]], extra)

    def _last(self, batch_size: int) -> Batch | None:
        """A loop that fetches a batch between a forward and its step goes on to that step, which ends it."""
        if self._mode != AHEAD or not any(self._forwards) or self._first is None:
            return None
        rows = self._first.reshape(self._ranks.size, batch_size)
        return Batch([int(i) for i in rows[self._ranks.rank]], True)

    def batch_lists(self, batch_size: int) -> list[list[int]]:
        """The samples of each batch of the present round for this rank."""
        self._begin_round()
        self._check_size(batch_size)
        parts = self._lease.reshape(-1, self._ranks.size, batch_size)
        return [[int(i) for i in row] for row in parts[:, self._ranks.rank]]

    def has_tokens(self, tokens: Any) -> None:
        """Tokens of the batch that was handed out last, on this rank."""
        if self._out:
            self._out[-1][1] = tokens

    def _begin_round(self) -> None:
        r = self._rounds.round
        if r is self._of:
            return
        n, handle = r.steps * r.step_samples, self._rounds.handle
        taken = self._ranks.call(lambda: handle.samples(n).astype(np.int64).tobytes())  # type: ignore[union-attr]
        self._of, self._lease, self._at = r, np.frombuffer(taken, np.int64), 0

    def _take(self, n: int) -> tuple[np.ndarray, bool]:
        """The indices, and whether they are not the next ones of the lease."""
        self._begin_round()
        r, extra = self._rounds.round, True
        ahead, self._ahead = self._ahead, []
        if len(ahead) == n:
            indices = np.asarray(ahead, np.int64)
        elif self._at + n <= len(self._lease):
            indices, extra = self._lease[self._at : self._at + n], False
            self._at += n
        elif self._at == len(self._lease) and self._rounds.steps == r.steps - 1 and self._may_repeat(n):
            indices, self._repeated = self._first, True  # type: ignore[assignment]
        else:
            raise _lib.Error(
                f"this round has {len(self._lease) - self._at} samples left, fewer than {n}: a step takes "
                f"{r.step_samples} (train.batch_size x train.grad_accum)"
            )
        if self._first is None:
            self._first = indices
        self._out.append([n, None, indices])
        return indices, extra

    def _may_repeat(self, n: int) -> bool:
        return self._mode != PLAIN and not self._repeated and self._first is not None and len(self._first) == n

    def _held(self) -> int:
        """Samples handed out for which no step was taken."""
        return sum(n for n, _, _ in self._out)

    def _check_size(self, batch_size: int) -> None:
        needed, size = self._rounds.round.step_samples, batch_size * self._ranks.size
        if needed % size:
            raise ValueError(
                f"a step of the run takes {needed} samples (train.batch_size x train.grad_accum), which "
                f"{self._sizes(batch_size, 1)} do not divide: choose another batch_size"
            )

    def _sizes(self, batch_size: int, batches: int) -> str:
        processes = f" x {self._ranks.size} processes" if self._ranks.size > 1 else ""
        return f"{batch_size * batches * self._ranks.size} samples (batch_size {batch_size} x {batches}{processes})"

    # --- steps ------------------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """A training forward."""
        self._forwards[self._held() > self._rounds.round.step_samples] += 1

    def before_step(self) -> None:
        """A step is about to be taken: raises ValueError if it does not come after its batches."""
        needed, held = self._rounds.round.step_samples, self._held()
        if not self.batches or held == needed:
            self._mode = self._mode or PLAIN if self.batches else ""
            self._check_samples(held, needed)
            return
        if held > needed and self._mode != PLAIN and not (not self._mode and all(self._forwards)):
            self._mode = AHEAD
            return
        if held > needed:
            self._raise_missing(self._size // self._ranks.size)
        raise ValueError(
            f"a step after {len(self._out)} batches: the run's step takes {needed} samples (train.batch_size x "
            f"train.grad_accum), which are {needed // self._size} batches of this size"
        )

    def _check_samples(self, held: int, needed: int) -> None:
        """Says once if worker.samples() gave other numbers of samples than steps take."""
        first = self._out[0][0] if self._out else needed
        ahead = held - needed == self._out[-1][0] if self._out else True
        if held != needed and not ahead and first % needed and not self._told_samples:
            self._told_samples = True
            logger.warning("worker.samples() gave %d samples for a step, and a step of the run takes %d "
                           "(train.batch_size x train.grad_accum): the rest is not trained", held, needed)

    def step(self) -> Any:
        """A step was taken, or left out: its batches leave. Returns their tokens on this rank; None: not known."""
        needed, tokens = self._rounds.round.step_samples, None
        while self._out and needed > 0:
            n, counted, _ = self._out.popleft()
            needed -= n
            if counted is not None:
                tokens = counted if tokens is None else tokens + counted
        self._forwards = [0, 0]
        for scaler in self._scalers:
            scaler.note()
        return tokens

    def missing_batches(self) -> int:
        """Batches that the present step still takes."""
        return (self._rounds.round.step_samples - self._held()) // self._size if self._size else 0

    def tokens_of(self, micro: int) -> Any:
        """Tokens of batch `micro` of the present step, on this rank; None: not known."""
        return self._out[min(micro, len(self._out) - 1)][1] if self._out else None

    def _step_is_missing(self, batch_size: int) -> None:
        """All samples of a step are out: the loop looks ahead by this batch, or a GradScaler skipped the step."""
        needed, held = self._rounds.round.step_samples, self._held()
        ahead = self._mode != PLAIN and held < needed + self._size
        if any(scaler.skipped() for scaler in self._scalers) or self._scalers and not ahead:
            self._skip()
        elif not ahead:
            self._raise_missing(batch_size)

    def _raise_missing(self, batch_size: int) -> None:
        raise ValueError(
            f"no optimizer.step() after {self._sizes(batch_size, len(self._out))}: it is due after "
            f"{self._rounds.round.step_samples} (the run's train.batch_size x train.grad_accum). If the loop left it "
            "out on purpose, it calls worker.skip(); if a GradScaler did, give the scaler in state=; if another "
            "optimizer took it, give that one to atoll.Worker; a loop may fetch one batch before the step, and no more"
        )

    # --- saved state ------------------------------------------------------------------------------------------------

    def get(self) -> dict[str, Any]:
        """To save: the samples that the loop holds ahead, and the epoch in which it is."""
        return {"ahead": [int(i) for _, _, indices in self._out for i in indices], "epoch": self.epoch}

    def set(self, saved: dict[str, Any]) -> None:
        """Sets what was saved, in a process that has not taken a sample yet."""
        if self._first is not None:
            return
        self.epoch = saved["epoch"]
        if saved["ahead"]:
            self._ahead, self._repeated = list(saved["ahead"]), True
            self._first = np.asarray(saved["ahead"], np.int64)


class _Scaler:
    """A GradScaler: its scale falls when it skips a step."""

    def __init__(self, scaler: Any) -> None:
        self._scaler, self._before = scaler, None  # type: ignore[var-annotated]
        self.note()

    def note(self) -> None:
        """A step was taken. It waits for no GPU."""
        scale = getattr(self._scaler, "_scale", None)
        self._before = scale.clone() if scale is not None else None

    def skipped(self) -> bool:
        """The scale has fallen since the last step."""
        scale = getattr(self._scaler, "_scale", None)
        if scale is None:
            return False
        before = float(self._before) if self._before is not None else self._scaler._init_scale
        return float(scale) < before
