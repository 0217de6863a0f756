"""Notices scripts whose steps Worker does not see as they are."""

from __future__ import annotations

import logging
from typing import Any

from .._lib import Error

logger = logging.getLogger("atoll")

_MOVES = 20  # forwards between which the parameters changed, without a step


class StepWatch:
    """Watches the parameters between the forwards of a model. names: of the optimizers whose steps are hooked."""

    def __init__(self, model: Any, names: str) -> None:
        self._model, self._names = model, names
        self._version: list[float] | None = None
        self._moves = 0
        self._told_stale = self._checked = False

    def forward(self) -> None:
        """A training forward. Raises Error if the parameters keep changing and no step is seen."""
        version = self._model.version(by_value=not self._names)
        self._moves += self._version is not None and version != self._version
        self._version = version
        if self._moves >= _MOVES:
            what = f"the optimizer of atoll.Worker ({self._names}) took no step" if self._names else (
                "worker.step() was not called")
            raise Error(
                f"the parameters changed between {_MOVES} forwards, and {what}: give atoll.Worker the optimizer whose "
                "step() runs, or None and call worker.step() after each step"
            )

    def stepped(self) -> None:
        """A step was seen."""
        self._version, self._moves = None, 0

    def stale(self) -> None:
        """A step whose gradient is from before an exchange, because no forward of the model was seen."""
        if not self._told_stale:
            logger.warning("a step comes right after an exchange, with a gradient of the parameters before it: read "
                           "worker.done at the top of the loop")
            self._told_stale = True

    def check_state(self, state: Any) -> None:
        """After the first step. Raises TypeError for an optimizer whose state cannot be saved."""
        if not self._checked:
            self._checked = True
            state.check_optimizers()
