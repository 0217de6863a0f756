"""What the program notes for one inner step: losses and tokens, which may still be on a GPU."""

from __future__ import annotations

import math
from typing import Any


def detached(loss: Any) -> Any:
    """A loss without its graph."""
    return loss.detach() if hasattr(loss, "detach") else loss


def on_gpu(value: Any) -> bool:
    """A tensor in GPU memory, which a program must not read in each step."""
    return bool(getattr(value, "is_cuda", False))


class StepNotes:
    """What the program noted for one step: losses (nats per token) and tokens, as numbers or as tensors on a device."""

    def __init__(self) -> None:
        self.losses: list[tuple[Any, Any]] = []  # loss, tokens of its batch
        self.tokens: Any = 0
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
