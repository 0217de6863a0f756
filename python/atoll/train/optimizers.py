"""The program's optimizers: those of torch, also inside wrappers, and hooks on their steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .._lib import InvalidError
from .hooks import undivided

_INSIDE = ("optimizer", "base_optimizer", "_optimizer")  # accelerate and Lightning; SAM and Lookahead


def innermost(optimizer: Any) -> Any:
    """The optimizer whose step() updates the parameters: wrappers call that of the one they hold."""
    torch = sys.modules.get("torch")
    while torch:
        held = (getattr(optimizer, name, None) for name in _INSIDE)
        inside = next((o for o in held if isinstance(o, torch.optim.Optimizer)), None)
        if inside is None:
            break
        optimizer = inside
    return optimizer


def of_script(given: Any) -> list[Any]:
    """`optimizer=` as a list. Raises TypeError for what is no torch optimizer."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given] if given is not None else []
    for optimizer in listed:
        inner = innermost(optimizer)
        name = type(optimizer).__name__
        if not hasattr(inner, "register_step_post_hook"):
            raise TypeError(
                f"the optimizer is of type {name}, not a torch optimizer: give it in state= instead, and call "
                "worker.step()"
            )
        if not hasattr(inner, "_optimizer_step_post_hooks") or not inner.param_groups:
            raise InvalidError(
                f"the optimizer {name} did not call torch.optim.Optimizer.__init__: call super().__init__(params, "
                "defaults) in it, or give it in state= and call worker.step()"
            )
    return listed


def named(given: list[Any]) -> list[tuple[str, Any]]:
    """(name for errors, optimizer) whose state is saved: the innermost ones, and wrappers with state of their own."""
    out = []
    for i, optimizer in enumerate(given):
        name = f"optimizer[{i}]" if len(given) > 1 else "the optimizer"
        inner = innermost(optimizer)
        out.append((name, inner))
        if optimizer is not inner and hasattr(optimizer, "_optimizer_step_post_hooks"):
            out.append((f"{name} ({type(optimizer).__name__})", optimizer))
    return out


def scalers(given: list[Any], objects: list[Any]) -> list[Any]:
    """Each GradScaler of the program: in `state`, or in a wrapper of an optimizer."""
    found = [o for o in objects if type(o).__name__.endswith("GradScaler")]
    found += [o.scaler for o in given if getattr(o, "scaler", None) is not None]
    return list({id(s): s for s in found}.values())


class OptimizerHooks:
    """Calls before(counts) and after(optimizer) around each step; `counts`: it is the last optimizer of the list."""

    def __init__(
        self, optimizers: list[Any], before: Callable[[bool], None], after: Callable[[Any], None]
    ) -> None:
        self._handles: list[Any] = []
        for optimizer in optimizers:
            last = optimizer is optimizers[-1]

            def on_begin(_o: Any, _args: Any, _kwargs: Any, last: bool = last) -> None:
                before(last)

            self._handles.append(optimizer.register_step_pre_hook(undivided(on_begin)))
        if optimizers:
            self._handles.append(
                optimizers[-1].register_step_post_hook(undivided(lambda o, _args, _kwargs: after(o)))
            )

    def remove(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
