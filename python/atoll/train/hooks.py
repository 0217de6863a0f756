"""Hooks on the calls of a module, which its copies and files do not have."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_FAR = 1 << 48  # numbers of hooks that PyTorch never counts up to: a file of the module may meet hooks of its reader


def undivided(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps torch.compile from looking into a hook."""
    torch = sys.modules.get("torch")
    return torch.compiler.disable(function) if torch else function


class _Hook:
    """Calls `function`. In copies and files of the module it is a call without effect, made of what PyTorch has."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = undivided(function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> Any:
        nothing = sys.modules["torch"].nn.Identity
        return functools.partial, (nothing.__init__, nothing())


class ModuleHooks:
    """Calls before(module, args, kwargs) and after(module, args, kwargs, output) around each forward of a module."""

    def __init__(self, module: Any, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        handle = sys.modules["torch"].utils.hooks.RemovableHandle
        number, handle.next_id = handle.next_id, _FAR
        try:
            self._handles = [
                # Before those of fully_shard, which gather the parameters that an exchange changes.
                module.register_forward_pre_hook(_Hook(before), prepend=True, with_kwargs=True),
                module.register_forward_hook(_Hook(after), with_kwargs=True),
            ]
        finally:
            handle.next_id = number

    def remove(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
