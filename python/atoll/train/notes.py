"""What the program notes for one inner step: losses and tokens, which may still be on a GPU."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ranks import Ranks
from .schedules import differ

logger = logging.getLogger("atoll")


def detached(value: Any) -> Any:
    """A loss or a norm without its graph. Of a DTensor, such as a norm of sharded gradients, the whole: all ranks call
    it."""
    value = value.detach() if hasattr(value, "detach") else value
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def on_gpu(value: Any) -> bool:
    """A tensor in GPU memory, which a program must not read in each step."""
    return bool(getattr(value, "is_cuda", False))


class StepNotes:
    """What the program noted for one step: losses (nats per token) and tokens, as numbers or as tensors on a device."""

    def __init__(self) -> None:
        self.losses: list[tuple[Any, Any]] = []  # loss, tokens of its batch
        self.tokens: Any = 0
        self.by_hand = False  # the program told the tokens
        self.step_us, self.lr, self.grad_norm = 0, math.nan, math.nan
        self._host: Any = None
        self._event: Any = None

    def send(self) -> None:
        """Starts to copy what is on a GPU to host memory. It does not wait for the GPU."""
        tensors = [v for pair in self.losses for v in pair] + [self.tokens]
        device = next((v.device for v in tensors if on_gpu(v)), None)
        if device is None:
            return
        import torch

        with torch.cuda.device(device):
            sums = torch.zeros(3, dtype=torch.float64, device=device)
            for i, value in enumerate((*self._total(), self.tokens)):
                sums[i] += value  # a number becomes an argument of the kernel
            self._host = torch.empty(3, dtype=torch.float64, pin_memory=True)
            self._host.copy_(sums, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def _total(self) -> tuple[Any, Any]:
        loss_sum: Any = 0.0
        tokens: Any = 0
        for loss, weight in self.losses:
            value = loss if on_gpu(loss) else float(loss)
            loss_sum, tokens = loss_sum + value * weight, tokens + weight
        return loss_sum, tokens

    def read(self) -> tuple[int, float]:
        """Tokens, and the loss (NaN: not known)."""
        if self._event is not None:
            self._event.synchronize()
            loss_sum, weight, tokens = self._host.tolist()
        else:
            (loss_sum, weight), tokens = self._total(), self.tokens
        loss = float(loss_sum) / float(weight) if self.losses and weight else math.nan
        return int(tokens), loss if math.isfinite(loss) else math.nan

    @property
    def on_device(self) -> bool:
        return self._event is not None


@dataclass
class Told:
    """One inner step as the coordinator gets it: tokens and loss are those of all ranks."""

    tokens: int
    loss: float
    lr: float
    grad_norm: float
    step_us: int


class Tally:
    """Tokens, losses and times of the steps of a round."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.notes = StepNotes()
        self._lr = self._restored_lr = math.nan  # of the newest step whose rate is known; of the one before a restart
        self._by_hand = False
        self.begin_round()

    def begin_round(self) -> None:
        """Forgets what was noted for a step that was not taken."""
        self.notes, self._late = StepNotes(), None  # type: ignore[var-annotated]
        self._tokens, self._loss, self._told_tokens = 0, 0.0, 0
        self._started = self.round_started = time.perf_counter()

    def note_loss(self, loss: Any, weight: Any, by_hand: bool = False) -> None:
        """Notes the loss of a batch (nats per token, mean) of `weight` tokens. The program's own notes count alone."""
        if by_hand and not self._by_hand:
            self._by_hand, self.notes.losses = True, []
        if by_hand == self._by_hand:
            self.notes.losses.append((detached(loss), weight))

    def end_step(self, samples: int, last: bool) -> list[Told]:
        """The steps to tell now: losses on a GPU are read later. samples: of a step, if no token was counted."""
        now = time.perf_counter()
        notes, self.notes = self.notes, StepNotes()
        notes.step_us = max(1, int((now - self._started) * 1e6))
        if isinstance(notes.tokens, int) and not notes.tokens:
            notes.tokens = samples
        notes.send()
        self._started = now
        self._note_lr(notes.lr)
        ready, self._late = [self._late] if self._late else [], None
        if notes.on_device and not last:
            self._late = notes
        else:
            ready.append(notes)
        return [self._told(n, last and n is notes) for n in ready]

    def _note_lr(self, lr: float) -> None:
        if math.isnan(lr):
            return
        self._lr, before = lr, self._restored_lr
        self._restored_lr = math.nan
        if differ(lr, before):
            logger.warning("learning rate %.4g in the first step after the restart, %.4g in the last one before it: if "
                           "the script counts its steps, let its counter start at int(worker.position)", lr, before)

    def get(self) -> float | None:
        """To save: the newest learning rate."""
        return None if math.isnan(self._lr) else self._lr

    def set(self, saved: float | None) -> None:
        """Sets what was saved, in a process that has not taken a step yet."""
        if saved is not None and math.isnan(self._lr):
            self._restored_lr = saved

    def _told(self, notes: StepNotes, last: bool) -> Told:
        tokens, loss = notes.read()
        self._tokens += tokens
        self._loss += 0.0 if math.isnan(loss) else loss * tokens
        told = tokens * self._ranks.size
        if last and self._ranks.size > 1:  # until now rank 0 took its own number for that of each rank
            sums = self._ranks.sums(np.array([self._tokens, self._loss]))
            told = max(0, int(sums[0]) - self._told_tokens)
            self._loss = float(sums[1]) * self._tokens / sums[0] if sums[0] else math.nan
        self._told_tokens += told
        return Told(told, loss, notes.lr, notes.grad_norm, notes.step_us)

    @property
    def round_loss(self) -> float:
        """Mean over the tokens of the round so far; NaN: there are none."""
        return self._loss / self._tokens if self._tokens else math.nan
