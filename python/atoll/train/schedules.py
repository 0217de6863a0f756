"""Learning-rate schedulers that follow the position of the run.

A scheduler that steps with each inner step stands at `moves a step` x int(position) at the start of every round, also
after a dropped or missed round, in a worker that joins late, and where the position grows by more than one a step
(async). How often it moves in a step is seen in the first round, and saved. One that moves less often (once an epoch),
ReduceLROnPlateau, and schedulers that PyTorch does not know, follow no position: they are left alone, with one line.
"""

from __future__ import annotations

import copy
import logging
import math
import sys
import warnings
from typing import Any

from .. import _lib

logger = logging.getLogger("atoll")

_SEEN = 4  # steps after which the moves in a step are known
_FAR = 0.2  # learning rates that differ by more than this part of the larger one are said to differ


def differ(a: float, b: float) -> bool:
    """Two known learning rates that are far apart."""
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) > _FAR * max(abs(a), abs(b))


def _distance(a: float, b: float) -> float:
    """Of two learning rates, as a ratio."""
    return abs(math.log((abs(a) + 1e-30) / (abs(b) + 1e-30)))


def _innermost(value: Any) -> Any:
    """The scheduler inside a wrapper (accelerate)."""
    while hasattr(value, "scheduler") and not hasattr(value, "last_epoch"):
        value = value.scheduler
    return value


def _moves_of_wrapper(value: Any) -> int:
    """accelerate moves a scheduler once for each process, unless it splits batches."""
    if type(value).__name__ != "AcceleratedScheduler" or getattr(value, "split_batches", False):
        return 1
    state = sys.modules["accelerate"].state.AcceleratorState()
    return int(state.num_processes) if getattr(value, "step_with_optimizer", True) else 1


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    """The settings of each group of parameters."""
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


def _at(scheduler: Any) -> int:
    """Steps that a scheduler has taken; those of its first part, if it is a chain."""
    while not hasattr(scheduler, "last_epoch") and getattr(scheduler, "_schedulers", None):
        scheduler = scheduler._schedulers[0]
    return int(scheduler.last_epoch)


class _Place:
    """What a scheduler holds at one position: its own state, and the settings of its optimizer."""

    def __init__(self, at: int, state: dict[str, Any], groups: list[dict[str, Any]]) -> None:
        self.at, self._state, self._groups = at, state, groups

    @classmethod
    def of(cls, scheduler: Any) -> _Place:
        """The present place."""
        return cls(_at(scheduler), copy.deepcopy(scheduler.state_dict()), copy.deepcopy(_groups(scheduler.optimizer)))

    def get(self) -> list[Any]:
        """To save."""
        return [self.at, self._state, self._groups]

    def restore(self, scheduler: Any) -> None:
        """Sets all of it."""
        torch = sys.modules["torch"]
        scheduler.load_state_dict(copy.deepcopy(self._state))
        for group, saved in zip(scheduler.optimizer.param_groups, copy.deepcopy(self._groups)):
            for key, value in saved.items():
                if isinstance(group.get(key), torch.Tensor) and isinstance(value, torch.Tensor):
                    group[key].copy_(value)  # a captured graph reads this tensor
                else:
                    group[key] = value


class _Schedule:
    """One scheduler of `state`. guess: moves in a step, until they have been seen."""

    def __init__(self, scheduler: Any, where: str, guess: int) -> None:
        self._scheduler, self._where, self._guess = scheduler, f"{where}, a {type(scheduler).__name__},", guess
        self.moves: int | None = None  # in a step; 0: it follows no position; None: not seen yet
        self._seen_steps = self._seen_moves = 0
        self._first = self._begin = _Place.of(scheduler)  # of the run; of the round
        self._origin = self._first.at  # its place at position 0

    def note_initial(self) -> None:
        """It stands where a new run begins."""
        self._first = self._begin = _Place.of(self._scheduler)
        self._origin = self._first.at
        if type(self._scheduler).__name__ == "ReduceLROnPlateau":
            self.moves = 0
            logger.info("%s follows measurements, not the position of the run: it is left alone", self._where)

    @property
    def _lr(self) -> float:
        lr = self._scheduler.optimizer.param_groups[0].get("lr", math.nan)
        return math.nan if getattr(lr, "is_cuda", False) else float(lr)

    def note_round(self, steps: int) -> None:
        """After `steps` steps of a round: how often it moved in each."""
        self._seen_steps += steps
        self._seen_moves += _at(self._scheduler) - self._begin.at
        if self.moves is not None or self._seen_steps < _SEEN:
            return
        moved, moves = self._seen_moves, round(self._seen_moves / self._seen_steps)
        self.moves = moves if moves >= 1 and abs(moved - moves * self._seen_steps) <= max(moves, 0.2 * moved) else 0
        if not self.moves:
            logger.info("%s moved %d times in %d steps, so it does not count steps: it is left alone", self._where,
                        moved, self._seen_steps)

    def begin_round(self, round: _lib.Round, late: bool, dropped: bool) -> None:
        """As Schedules.begin_round."""
        position = round.position
        if dropped:
            self._begin.restore(self._scheduler)
        if self.moves is None and late and position >= 1:
            self._join_late(int(position), round.steps, round.lr)
        elif self.moves or self.moves is None and dropped and self._seen_steps < _SEEN:
            self._go(position)
        self._begin = _Place.of(self._scheduler)

    def _join_late(self, position: int, steps: int, lr: float) -> None:
        """It moves with each step, or stays at its start, if that is nearer to the run's rate.

        lr: mean over the round before, of `steps` steps; NaN: not known. A script that has loaded the scheduler from a
        file of its own has it at the place of that file.
        """
        start, rates = self._lr, []
        self._origin = 0 if self._first.at else self._origin
        try:
            for at in range(max(0, position - steps), position + 1):
                self._move_to(max(self._first.at, self._origin + self._guess * at))
                rates.append(self._lr)
        except _lib.InvalidError:  # it ends before the position, so it does not count steps
            self._first.restore(self._scheduler)
            return
        mean = sum(rates[:-1]) / len(rates[:-1])
        if differ(mean, lr) and _distance(start, lr) < _distance(mean, lr):
            self._first.restore(self._scheduler)

    def _go(self, position: float) -> None:
        """Moves it to a position, unless it stands there or one step beside it: scripts step it early or late."""
        moves = self._guess if self.moves is None else self.moves
        target = self._origin + moves * int(position)
        if abs(_at(self._scheduler) - target) > moves:
            self._move_to(target)

    def follow(self, position: float) -> None:
        """Moves it to a position exactly."""
        if self.moves:
            self._move_to(self._origin + self.moves * int(position))

    def get(self) -> dict[str, Any]:
        """To save: the moves in a step, and the place at which the run began."""
        return {"moves": self.moves, "origin": self._origin, "first": self._first.get()}

    def set(self, saved: dict[str, Any]) -> None:
        """Sets what was saved: a script may have loaded the scheduler from a file of its own, at another place."""
        self.moves, self._origin, self._first = saved["moves"], saved["origin"], _Place(*saved["first"])

    def _move_to(self, target: int) -> None:
        scheduler = self._scheduler
        if _at(scheduler) > target:
            (self._begin if self._begin.at <= target else self._first).restore(scheduler)
        if type(scheduler).__name__ == "LambdaLR" and scheduler.last_epoch < target:
            scheduler.last_epoch = target - 1  # its rate depends on the number alone
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "scheduler.step() before optimizer.step()"
            for _ in range(_at(scheduler), target):
                try:
                    scheduler.step()
                except Exception as e:
                    raise _lib.InvalidError(f"{self._where} cannot follow the run to step {target}: {e}") from e


class Schedules:
    """The schedulers among the objects of `state`."""

    def __init__(self, objects: list[Any]) -> None:
        self._all: list[_Schedule] = []
        self._rate = 1.0
        torch = sys.modules.get("torch")
        for i, value in enumerate(objects):
            inner = _innermost(value)
            if torch and isinstance(inner, torch.optim.lr_scheduler.LRScheduler):
                self._all.append(_Schedule(inner, f"state[{i}]", _moves_of_wrapper(value)))
            elif hasattr(inner, "step") and "sched" in type(inner).__name__.lower():
                logger.info("state[%d], a %s, is no scheduler of torch: it is saved, and left alone otherwise", i,
                            type(inner).__name__)

    def note_initial(self) -> None:
        """The schedulers stand where a new run begins."""
        for schedule in self._all:
            schedule.note_initial()

    def note_round(self, steps: int) -> None:
        """`steps` steps of a round were taken."""
        for schedule in self._all:
            schedule.note_round(steps)

    def begin_round(self, round: _lib.Round, late: bool, dropped: bool) -> None:
        """late: this worker has neither trained in this run nor a saved state of it."""
        self._rate = round.position_rate
        for schedule in self._all:
            schedule.begin_round(round, late, dropped)

    def before_step(self, position: float) -> None:
        """Before a step, where the position does not grow by one in each."""
        if self._rate != 1.0:
            for schedule in self._all:
                schedule.follow(position)

    def __len__(self) -> int:
        return len(self._all)

    def get(self) -> list[dict[str, Any]]:
        """To save: what is known of each."""
        return [schedule.get() for schedule in self._all]

    def set(self, saved: list[dict[str, Any]]) -> None:
        """Sets what was saved."""
        for schedule, one in zip(self._all, saved):
            schedule.set(one)
