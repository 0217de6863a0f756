"""A PyTorch module as a list of tensors: names, shapes, and copies to and from the run's parameters.

The run's parameters are one fp32 array in host memory. Parameters of bf16 and fp16 start a round as the rounded values;
what the round changed is added to the fp32 values, so that a parameter that did not change sends zero.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import _lib
from . import state

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_SHARDED = "atoll needs whole parameters: use DistributedDataParallel, or one worker for each GPU"


def refuse_sharded(module: Any, optimizers: list[Any]) -> None:
    """Raises InvalidError for models and optimizers that shard their state over ranks."""
    modules = list(module.modules()) if isinstance(module, torch.nn.Module) else []
    names = {base.__name__ for m in modules for base in type(m).__mro__}
    parameters = [p for m in modules[:1] for p in m.parameters()]
    if names & {"FullyShardedDataParallel", "FSDPModule"}:
        raise _lib.InvalidError(f"FSDP shards the parameters over the ranks: {_SHARDED}")
    if any(type(p).__name__ == "DTensor" or hasattr(p, "device_mesh") for p in parameters):
        raise _lib.InvalidError(f"the parameters are DTensors, which are sharded over the ranks: {_SHARDED}")
    if type(module).__name__ == "DeepSpeedEngine" or any(hasattr(p, "ds_id") for p in parameters):
        raise _lib.InvalidError(f"DeepSpeed ZeRO shards parameters or optimizer over the ranks: {_SHARDED}")
    for optimizer in optimizers:
        if any(c.__name__.startswith(("ZeroRedundancy", "DeepSpeedZero")) for c in type(optimizer).__mro__):
            raise _lib.InvalidError(
                f"{type(optimizer).__name__} shards the inner optimizer over the ranks, and atoll saves it whole: "
                "use the plain optimizer"
            )


def unwrap(module: Any) -> Any:
    """The module inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


def adapter_names(module: Any) -> dict[str, str]:
    """Name of each adapter tensor in its module -> its name in a PEFT adapter file."""
    from peft import get_peft_model_state_dict  # type: ignore[import-not-found]

    adapter = get_peft_model_state_dict(module, save_embedding_layers=False)
    published = {t.data_ptr(): name for name, t in adapter.items()}
    found = {n: published.get(p.data_ptr()) for n, p in module.named_parameters() if p.requires_grad}
    return {n: name for n, name in found.items() if name}


def adapter_files(module: Any) -> dict[str, bytes]:
    """adapter_config.json as PeftModel.save_pretrained writes it."""
    config = copy.copy(module.peft_config[module.active_adapter])
    config.inference_mode = True  # otherwise the loaded adapter is trainable
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = getattr(module.get_base_model(), "name_or_path", None)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return {"adapter_config.json": (Path(folder) / "adapter_config.json").read_bytes()}


def model_files(module: Any) -> dict[str, bytes]:
    """The files that from_pretrained reads beside the weights: config.json, generation_config.json."""
    if hasattr(module, "peft_config"):
        return adapter_files(module)
    files = {}
    config = getattr(module, "config", None)
    if hasattr(config, "to_json_string"):
        # The architecture is noted by save_pretrained only, and loaders choose the class by it.
        fields = json.loads(config.to_json_string(use_diff=True))
        fields.setdefault("architectures", [type(module).__name__])
        files["config.json"] = (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()
    elif hasattr(config, "to_json"):
        files["config.json"] = str(config.to_json()).encode()
    generation = getattr(module, "generation_config", None)
    if hasattr(generation, "to_json_string"):
        files["generation_config.json"] = generation.to_json_string().encode()
    return files


class LocalBuffers:
    """Buffers that no other worker sees, as an object with state."""

    def __init__(self, buffers: dict[str, torch.Tensor]) -> None:
        self._buffers = buffers

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._buffers

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        if saved.keys() != self._buffers.keys():
            raise ValueError("the model has other buffers than when they were saved")
        with torch.no_grad():
            for name, buffer in self._buffers.items():
                buffer.copy_(saved[name])


class TorchModel:
    """module: the model, or a dict of name -> tensor. names: name of a tensor -> its name in the run."""

    def __init__(self, module: Any, *, buffers: str = "mean", names: Mapping[str, str] | None = None) -> None:
        if buffers not in ("mean", "local"):
            raise _lib.InvalidError(f'buffers={buffers!r}: it is "mean" or "local"')
        self.outer, self.module = module, unwrap(module)
        self._entries: list[tuple[str, torch.Tensor, int]] = []
        local: dict[str, torch.Tensor] = {}
        if isinstance(self.module, torch.nn.Module):
            if names is None and hasattr(self.module, "peft_config"):
                names = adapter_names(self.module)
            self._collect(self.module, buffers == "mean", local)
        else:
            self._entries = [(name, t, 0) for name, t in self.module.items()]
        self.objects: list[tuple[str, Any]] = [("the buffers", LocalBuffers(local))] if local else []
        for name, t, _ in self._entries:
            self._check(name, t)
        if not any(not flags & _lib.MEAN for _, _, flags in self._entries):
            raise _lib.InvalidError("the model has no trainable parameter: set requires_grad before atoll.Worker")
        self.tensors = [
            _lib.Tensor((names or {}).get(name, name), tuple(t.shape), flags | (_lib.DECAY if t.ndim > 1 else 0))
            for name, t, flags in self._entries
        ]
        self.files = model_files(self.module)
        cuda = sorted({t.device for _, t, _ in self._entries if t.device.type == "cuda"}, key=str)
        self.is_cuda = bool(cuda)
        names_of_cuda = ", ".join(f"{d} {torch.cuda.get_device_name(d)}" for d in cuda)
        self.devices = names_of_cuda or str(self._entries[0][1].device)
        self._streams = {d: torch.cuda.Stream(d) for d in cuda}
        self._slices: list[torch.Tensor] = []
        self._registered: int | None = None
        self._stages: dict[int, torch.Tensor] = {}

    def _collect(self, module: torch.nn.Module, mean: bool, local: dict[str, torch.Tensor]) -> None:
        """Trained parameters in the order of state_dict, tied ones once; then float buffers."""
        for name, p in module.named_parameters():
            if p.requires_grad:
                self._entries.append((name, p, 0))
        for prefix, m in module.named_modules():
            for name, b in m.named_buffers(recurse=False):
                if name in m._non_persistent_buffers_set or any(b is t for _, t, _ in self._entries):
                    continue
                full = f"{prefix}.{name}" if prefix else name
                if mean and b.dtype in _FLOATS:
                    self._entries.append((full, b, _lib.MEAN))
                else:
                    local[full] = b

    @staticmethod
    def _check(name: str, t: torch.Tensor) -> None:
        if t.dtype not in _FLOATS:
            raise _lib.InvalidError(f"parameter {name} is of {t.dtype}: atoll trains fp32, bf16 and fp16")
        if t.device.type == "meta":
            raise _lib.InvalidError(f"parameter {name} is on the meta device: load the model before atoll.Worker")

    def attach(self, flat: np.ndarray) -> None:
        """flat: [n_params] float32, the run's parameters; it stays valid until detach."""
        whole, at = torch.from_numpy(flat), 0
        for _, t, _ in self._entries:
            self._slices.append(whole[at : at + t.numel()].view(t.shape))
            at += t.numel()
        if self.is_cuda:  # pinned, so that copies run beside the program; without it they only take longer
            result = torch.cuda.cudart().cudaHostRegister(flat.ctypes.data, flat.nbytes, 0)
            self._registered = flat.ctypes.data if int(result) == 0 else None

    def detach(self) -> None:
        if self._registered is not None:
            torch.cuda.cudart().cudaHostUnregister(self._registered)
        self._slices, self._registered = [], None

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Copies of this block run on a side stream, after the work so far; they are finished at its end."""
        with ExitStack() as streams:
            for device, side in self._streams.items():
                side.wait_stream(torch.cuda.current_stream(device))
                streams.enter_context(torch.cuda.stream(side))
            with torch.no_grad():
                yield
            for side in self._streams.values():
                side.synchronize()

    def read(self, *, initial: bool = False) -> None:
        """Copies the tensors to the run's parameters. initial: they are the first ones, and not the end of a round."""
        with self._copying():
            for (_, t, _), part in zip(self._entries, self._slices):
                if initial or t.dtype in (torch.float32, torch.float64):
                    part.copy_(t, non_blocking=True)
                    continue
                theta = part.to(t.device, copy=True, non_blocking=True)
                theta += t.float() - theta.to(t.dtype).float()
                part.copy_(theta, non_blocking=True)

    def write(self) -> None:
        """Copies the run's parameters to the tensors, rounded to their type."""
        with self._copying():
            for (_, t, _), part in zip(self._entries, self._slices):
                t.copy_(part.to(t.device, non_blocking=True))

    def broadcast(self, ranks: Any) -> None:
        """Sends the tensors of rank 0 to all ranks."""
        with torch.no_grad():
            for _, t, _ in self._entries:
                ranks.tensor(t)

    def stage(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of a device in pinned host memory, which the next save uses again."""
        host = self._stages.get(number)
        if host is None or host.shape != tensor.shape or host.dtype != tensor.dtype:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
            self._stages[number] = host
        return host.copy_(tensor)

    @contextmanager
    def evaluating(self) -> Iterator[Any]:
        """The model in evaluation mode, without gradients; its modes and the random states come back afterwards."""
        modules = list(self.module.modules()) if isinstance(self.module, torch.nn.Module) else []
        modes, randoms = [m.training for m in modules], state.get_random()
        for m in modules:
            m.training = False
        try:
            with torch.no_grad():
                yield self.module
        finally:
            for m, mode in zip(modules, modes):
                m.training = mode
            state.set_random(randoms)
