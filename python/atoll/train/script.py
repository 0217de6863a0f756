"""What a training script does: forwards, losses and steps, seen by hooks on its model and its optimizers, or told."""

from __future__ import annotations

import math
import sys
from typing import Any

from .. import _lib
from .feed import Feed
from .hooks import ModuleHooks
from .notes import Tally, detached, on_gpu
from .optimizers import OptimizerHooks
from .phase import Phase, in_round
from .rounds import Rounds
from .samples import count_call
from .state import State
from .watch import StepWatch

DONE = "the run is done: leave the loop when worker.done is True"


class Script:
    """Turns what the script does into counted steps. Each forward and each step first begins the round that is due."""

    def __init__(
        self, model: Any, optimizers: list[Any], rounds: Rounds, feed: Feed, tally: Tally, state: State
    ) -> None:
        self._model, self._rounds, self._feed, self._tally, self._state = model, rounds, feed, tally, state
        self._watch = StepWatch(model, ", ".join(type(o).__name__ for o in optimizers))
        self._hooks: list[Any] = [OptimizerHooks(optimizers, self._before_step, self._after_step)]
        if model.hooked is not None:
            try:
                self._hooks.append(ModuleHooks(model.hooked, self._before_forward, self._after_forward))
            except RuntimeError as e:  # torch.jit.script
                self.remove_hooks()
                raise _lib.InvalidError(
                    f"a {type(model.hooked).__name__} takes no hooks: give atoll.Worker the module it was made of"
                ) from e
        self._call_tokens: Any = 1  # of the last forward

    def remove_hooks(self) -> None:
        """Takes all hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # --- what the script tells --------------------------------------------------------------------------------------

    def loss(self, loss: Any) -> None:
        """The loss of a batch, in nats per token."""
        self._tally.note_loss(loss, self._weight(), by_hand=True)

    def tokens(self, n: int) -> None:
        """Tokens of the present step of this process."""
        self._tally.notes.tokens, self._tally.notes.by_hand = int(n), True

    def told_step(self, loss: Any, lr: float | None, grad_norm: float | None) -> None:
        """A step without a hooked optimizer. Raises Done after the run: then the parameters are the run's again."""
        if self._rounds.phase is Phase.DONE:
            self._model.take()
            raise _lib.Done(DONE)
        if not in_round(self._rounds.phase):
            raise _lib.Error("a step came before the first batch: call worker.begin() before the loop")
        self._watch.stepped()
        self._feed.before_step()
        notes = self._tally.notes
        if loss is not None:
            notes.losses = [(detached(loss), 1)]
        notes.lr = notes.lr if lr is None else float(lr)
        notes.grad_norm = notes.grad_norm if grad_norm is None else float(detached(grad_norm))
        self.count()

    def count(self) -> None:
        """Counts a step that was taken or left out."""
        tokens = self._feed.step()
        if tokens is not None and not self._tally.notes.by_hand:
            self._tally.notes.tokens = tokens
        self._rounds.count()

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _before_step(self, counts: bool) -> None:
        rounds = self._rounds
        self._watch.stepped()
        if rounds.phase is Phase.EXCHANGING:
            return
        if not in_round(rounds.phase) and rounds.phase is not Phase.DONE:
            self._watch.stale()
        if not rounds.begin():
            raise _lib.Done(DONE)
        if counts:
            self._feed.before_step()
            rounds.before_step()

    def _after_step(self, optimizer: Any) -> None:
        lr = optimizer.param_groups[0].get("lr", math.nan)
        self._tally.notes.lr = math.nan if on_gpu(lr) else float(lr)
        self.count()
        self._watch.check_state(self._state)

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        busy = self._rounds.phase is Phase.EXCHANGING or getattr(module, "_is_replica", False)
        if busy or not sys.modules["torch"].is_grad_enabled() or not self._model.module.training:
            return
        self._watch.forward()
        going = self._rounds.begin()
        self._feed.forward()
        if going and not self._feed.batches and not self._tally.notes.by_hand:
            self._call_tokens = count_call(args, kwargs)
            self._tally.notes.tokens = self._tally.notes.tokens + self._call_tokens

    def _after_forward(self, _module: Any, _args: Any, kwargs: Any, output: Any) -> None:
        if not in_round(self._rounds.phase) or not sys.modules["torch"].is_grad_enabled():
            return
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if loss is None or getattr(loss, "ndim", None) != 0:
            return
        items, tokens = kwargs.get("num_items_in_batch"), self._weight()
        if items is not None:  # the loss is divided by the tokens of the whole step
            loss = detached(loss) * items / (tokens.clamp(min=1) if on_gpu(tokens) else max(1, tokens))
        self._tally.note_loss(loss, tokens)

    def _weight(self) -> Any:
        """Tokens of the batch whose loss is noted next."""
        if not self._feed.batches:
            return self._call_tokens
        tokens = self._feed.tokens_of(len(self._tally.notes.losses))
        return 1 if tokens is None else tokens
