"""What is saved of a program: random numbers, optimizers and other objects with state."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from .reshard import fitted, template_of, template_of_optimizer
from .values import torch_module


def get_random() -> dict[str, Any]:
    """The states of random, numpy.random and torch (CPU and CUDA)."""
    out: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    torch = torch_module()
    if torch:
        out["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            out["cuda"] = torch.cuda.get_rng_state_all()
    return out


def set_random(states: dict[str, Any]) -> None:
    """Sets what get_random returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch = torch_module()
    if torch and "torch" in states:
        torch.set_rng_state(states["torch"])
    if torch and "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])


class Object:
    """One object of the program that has state: how to read and how to set it. partition: of each process another."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where, self.partition = value, where, False
        torch = torch_module()
        if isinstance(value, random.Random):
            self.get, self.set = value.getstate, value.setstate
        elif isinstance(value, np.random.Generator):
            self.get, self.set = lambda: value.bit_generator.state, self._set_bit_generator
        elif isinstance(value, np.random.RandomState):
            self.get, self.set = value.get_state, value.set_state
        elif torch and isinstance(value, torch.Generator):
            self.get, self.set = value.get_state, value.set_state
        elif isinstance(value, (dict, np.ndarray)):
            self.get, self.set = lambda: value, self._set_in_place
        elif is_zero(value):
            self.get, self.set, self.partition = value.optim.state_dict, self._set_zero, True
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self.get, self.set = value.state_dict, value.load_state_dict
            if torch and isinstance(value, torch.optim.Optimizer):
                self.set = self._set_optimizer
        else:
            raise TypeError(
                f"{where} is of type {type(value).__name__}, which has no state_dict: atoll saves objects with "
                "state_dict and load_state_dict, random generators, dicts and arrays"
            )

    def _set_bit_generator(self, state: Any) -> None:
        self.value.bit_generator.state = state

    def _set_in_place(self, saved: Any) -> None:
        if isinstance(self.value, np.ndarray):
            _copy_array(self.value, saved, self.where)
            return
        for key, old in list(self.value.items()):
            if key not in saved:
                del self.value[key]
            elif isinstance(old, np.ndarray):
                _copy_array(old, saved[key], f"{self.where}[{key!r}]")
        for key, new in saved.items():
            if not isinstance(self.value.get(key), np.ndarray):
                self.value[key] = new

    @property
    def optimizer(self) -> Any:
        """The torch optimizer that this object is, or keeps; None: it is none."""
        torch = torch_module()
        found = self.value.optim if self.partition else self.value
        return found if torch and isinstance(found, torch.optim.Optimizer) else None

    def fitted(self, saved: Any, parameters: list[Any]) -> Any:
        """A saved value with the sharded tensors of this process. parameters: of all optimizers."""
        optimizer = self.optimizer
        template = template_of_optimizer(optimizer, saved) if optimizer else template_of(self.get(), parameters)
        return fitted(saved, template, self.where)

    def _set_zero(self, saved: Any) -> None:
        """The part of this process. ZeroRedundancyOptimizer copies its own settings to it before each step."""
        self._set_optimizer(saved)
        for part, own in zip(self.value.optim.param_groups, self.value.param_groups):
            own.update({key: value for key, value in part.items() if key != "params"})

    def _set_optimizer(self, saved: Any) -> None:
        """load_state_dict, which casts states to the type of their parameter; then those that lost bits by it again."""
        torch, optimizer = torch_module(), self.optimizer
        optimizer.load_state_dict(saved)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        ids = [i for group in saved["param_groups"] for i in group["params"]]
        for number, p in zip(ids, parameters):
            for key, value in saved["state"].get(number, {}).items():
                now = optimizer.state[p].get(key)
                if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                    optimizer.state[p][key] = value.to(now.device)


def _copy_array(to: np.ndarray, saved: Any, where: str) -> None:
    if not isinstance(saved, np.ndarray) or saved.shape != to.shape:
        raise ValueError(f"{where} has another shape than when it was saved")
    np.copyto(to, saved)


def is_zero(value: Any) -> bool:
    """torch.distributed.optim.ZeroRedundancyOptimizer: each process keeps the state of its part of the parameters."""
    return any(c.__name__ == "ZeroRedundancyOptimizer" for c in type(value).__mro__) and hasattr(value, "optim")
