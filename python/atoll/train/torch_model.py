"""A PyTorch module as a list of tensors: names, shapes, and the objects that the module has for them now.

shards/exchange.py moves their values. Parameters of bf16 and fp16 start a round as the rounded fp32 values of the run;
what the round changed is added to the fp32 values, so that an unchanged parameter sends zero.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import _lib
from . import peft_model, state
from .frozen import FrozenTensors
from .ranks import Ranks
from .sampled import digest
from .shards.blocks import block_of, clean, is_sharded, local
from .shards.exchange import Exchange

logger = logging.getLogger("atoll")

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_FULLY_SHARD = "shard the model with torch.distributed.fsdp.fully_shard (FSDP2), which atoll.Worker takes"


def refuse_sharded(module: Any, optimizers: list[Any]) -> None:
    """Raises InvalidError for models and optimizers whose state is sharded in a way that atoll does not take."""
    modules = list(module.modules()) if isinstance(module, torch.nn.Module) else []
    names = {base.__name__ for m in modules for base in type(m).__mro__}
    parameters = [p for m in modules[:1] for p in m.parameters()] if modules else list(module.values())
    if "FullyShardedDataParallel" in names:
        raise _lib.InvalidError(f"FullyShardedDataParallel (FSDP1) hides the tensors of the model: {_FULLY_SHARD}")
    if type(module).__name__ == "DeepSpeedEngine" or any(hasattr(p, "ds_id") for p in parameters):
        raise _lib.InvalidError(f"DeepSpeed ZeRO hides the tensors of the model or the optimizer: {_FULLY_SHARD}")
    if any(is_sharded(p) for p in parameters) and not fsdp_modules(module):
        raise _lib.InvalidError(f"DTensors without fully_shard, such as those of tensor parallelism: {_FULLY_SHARD}")
    for optimizer in optimizers:
        if any(c.__name__.startswith("DeepSpeedZero") for c in type(optimizer).__mro__):
            raise _lib.InvalidError(f"{type(optimizer).__name__} hides the tensors of the optimizer: {_FULLY_SHARD}")


def fsdp_modules(module: Any) -> list[Any]:
    """The modules that fully_shard was called for."""
    kind = getattr(getattr(torch.distributed, "fsdp", None), "FSDPModule", None) if torch.distributed.is_available() \
        else None
    return [m for m in module.modules() if isinstance(m, kind)] if kind and isinstance(module, torch.nn.Module) else []


def unwrap(module: Any) -> Any:
    """The module inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            module = module.module
        elif isinstance(module, torch.nn.Module) and "_orig_mod" in module._modules:
            module = module._modules["_orig_mod"]
        else:
            return module


def model_files(module: Any) -> dict[str, bytes]:
    """The files that from_pretrained reads beside the weights: config.json, generation_config.json."""
    files = {}
    config = getattr(module, "config", None)
    if hasattr(config, "to_json_string"):
        # The architecture is noted by save_pretrained only, and loaders choose the class by it.
        fields = json.loads(config.to_json_string(use_diff=True))
        sharded = set(map(type, fsdp_modules(module)))  # fully_shard puts a class of its own before the module's
        of_model = next(c for c in type(module).__mro__ if c not in sharded and c.__name__ != "FSDPModule")
        fields.setdefault("architectures", [of_model.__name__])
        files["config.json"] = (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()
    elif hasattr(config, "to_json"):
        files["config.json"] = str(config.to_json()).encode()
    generation = getattr(module, "generation_config", None)
    if hasattr(generation, "to_json_string"):
        files["generation_config.json"] = generation.to_json_string().encode()
    return files


EXCHANGED, FROZEN, LOCAL = "exchanged", "frozen", "local"


class Found(NamedTuple):
    """A tensor of the model. frozen: a local buffer that all workers must have alike. owner: the module of a buffer."""

    tensor: torch.Tensor
    kind: str
    flags: int
    frozen: bool = False
    owner: Any = None


class Entry:
    """An exchanged tensor: the object that the model has now, and the form it joined with."""

    def __init__(self, name: str, tensor: torch.Tensor, flags: int) -> None:
        self.name, self.tensor, self.flags = name, tensor, flags
        self.shape, self.dtype, self.form = tuple(tensor.shape), tensor.dtype, _form(tensor)
        self.block = block_of(name, tensor)


def _form(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}{' in shards' if is_sharded(t) else ''}"


def _check(name: str, t: torch.Tensor) -> None:
    if t.dtype not in _FLOATS:
        raise _lib.InvalidError(f"parameter {name} is of {t.dtype}: atoll trains fp32, bf16 and fp16")
    if not is_sharded(t) and any(size > 1 and not stride for size, stride in zip(t.shape, t.stride())):
        raise _lib.InvalidError(f"parameter {name} is an expanded tensor, whose numbers share memory: give a copy")
    if t.device.type == "meta":
        raise _lib.InvalidError(f"parameter {name} is on the meta device: load the model before atoll.Worker")


class LocalBuffers:
    """Buffers that no other worker sees, as an object with state."""

    def __init__(self, model: TorchModel, names: list[str]) -> None:
        self._model, self._names = model, names

    def _tensors(self) -> dict[str, torch.Tensor]:
        return self._model.tensors_named(self._names)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._tensors()

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        buffers = self._tensors()
        if saved.keys() != buffers.keys():
            raise ValueError("the model has other buffers than when they were saved")
        with torch.no_grad():
            for name, buffer in buffers.items():
                if buffer.shape == saved[name].shape and buffer.dtype == saved[name].dtype:
                    buffer.copy_(saved[name])
                else:  # a queue that grows
                    self._model.replace_buffer(name, saved[name].to(buffer.device))


class TorchModel:
    """module: the model, or a dict of name -> tensor. names: name of a tensor -> its name in the run.

    The tensors are found anew by their names at each sync point, because programs replace the objects.
    """

    def __init__(
        self,
        module: Any,
        *,
        buffers: str = "mean",
        names: Mapping[str, str] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        if buffers not in ("mean", "local"):
            raise _lib.InvalidError(f'buffers={buffers!r}: it is "mean" or "local"')
        self.outer, self.module = module, unwrap(module)
        self._fsdp = fsdp_modules(self.module)
        self.sharded = bool(self._fsdp)
        self._ranks, self.exchange = ranks or Ranks(), None  # type: ignore[var-annotated]
        self._mean = buffers == "mean"
        self._adapter = peft_model.Adapter(self.module) if peft_model.is_peft(self.module) else None
        found = self._find()
        self._entries = [Entry(name, t.tensor, t.flags) for name, t in found.items() if t.kind == EXCHANGED]
        for e in self._entries:
            _check(e.name, e.tensor)
        if not any(not e.flags & _lib.MEAN for e in self._entries):
            raise _lib.InvalidError("the model has no trainable parameter: set requires_grad before atoll.Worker")
        self._check_ranks(found)
        if self._adapter:
            names = self._adapter.names([e.name for e in self._entries], names)
        names = names or {}
        self.tensors = [
            _lib.Tensor(names.get(e.name, e.name), e.shape, e.flags | (_lib.DECAY if len(e.shape) > 1 else 0))
            for e in self._entries
        ]
        local = [name for name, t in found.items() if t.kind == LOCAL]
        self.objects: list[tuple[str, Any]] = [("the buffers", LocalBuffers(self, local))] if local else []
        given = [(name, t.tensor) for name, t in found.items() if t.kind == FROZEN or t.kind == LOCAL and t.frozen]
        self.frozen = FrozenTensors(given, names, in_files=not self._adapter, ranks=self._ranks)
        self.files = self._adapter.files() if self._adapter else model_files(self.module)
        self._told_frozen = False
        self._optimizers: list[Any] = []
        self.trained: frozenset[int] = frozenset()  # id() of each parameter of the optimizers at the join
        cuda = sorted({e.tensor.device for e in self._entries if e.tensor.device.type == "cuda"}, key=str)
        self.is_cuda = bool(cuda)
        trained = [e for e in self._entries if not e.flags & _lib.MEAN]
        self._ends = [trained[0], trained[-1]]
        names_of_cuda = ", ".join(f"{d} {torch.cuda.get_device_name(d)}" for d in cuda)
        self.devices = names_of_cuda or str(self._entries[0].tensor.device)
        self._stages: dict[int, torch.Tensor] = {}

    # --- finding the tensors ----------------------------------------------------------------------------------------

    def _find(self) -> dict[str, Found]:
        """All tensors by name: parameters in the order of state_dict, tied ones once; then buffers."""
        for m in self._fsdp:
            m.reshard()  # a forward may have left whole parameters in the module
        if not isinstance(self.module, torch.nn.Module):
            return {name: Found(t, EXCHANGED, 0) for name, t in self.module.items()}
        found, seen = {}, set()
        for full, p in self.module.named_parameters():
            name = clean(full)
            if torch.nn.parameter.is_lazy(p):
                raise _lib.InvalidError(f"parameter '{name}' has no values yet: call the model before atoll.Worker")
            exchanged = p.requires_grad or self._adapter and name in self._adapter.held
            found[name] = Found(p, EXCHANGED if exchanged and p.numel() else FROZEN, 0)
            seen.add(id(p))
        for prefix, m in self.module.named_modules():
            for name, b in m.named_buffers(recurse=False):
                if name in m._non_persistent_buffers_set or id(b) in seen:
                    continue
                seen.add(id(b))
                mean = self._mean and b.dtype in _FLOATS and b.numel() > 0
                fixed = not b.dtype.is_floating_point and b.numel() > 1  # tables and masks, not counters
                full = clean(f"{prefix}.{name}" if prefix else name)
                found[full] = Found(b, EXCHANGED if mean else LOCAL, _lib.MEAN if mean else 0, fixed, m)
        return found

    def _check_ranks(self, found: dict[str, Found]) -> None:
        """Raises InvalidError if the processes of this worker have other models. All ranks call it."""
        own = [f"{n} ({t.kind}, {_form(t.tensor)})" for n, t in found.items() if t.kind != LOCAL or t.frozen]
        forms = self._ranks.gather("\n".join(own).encode())
        for rank, form in enumerate(forms):
            if form != forms[0]:
                mine, other = (set(row.decode().splitlines()) for row in (forms[0], form))
                raise _lib.InvalidError(
                    f"processes 0 and {rank} of torchrun have other models, and differ in {min(mine ^ other or mine)}: "
                    "make the same model on all of them, and freeze the same parameters"
                )

    def follow(self) -> None:
        """Takes the objects that the model has now. Raises InvalidError if they are not the tensors that joined."""
        found = self._find()
        known = {e.name for e in self._entries}
        for e in self._entries:
            now = found.get(e.name)
            if now is None:
                raise _lib.InvalidError(
                    f"tensor '{e.name}' of the model is gone since the join: a worker keeps the tensors it joined with"
                )
            was, text = e.form, _form(now.tensor)
            if was != text or now.tensor is not e.tensor and block_of(e.name, now.tensor) != e.block:
                raise _lib.InvalidError(
                    f"tensor '{e.name}' is {text} now, and was {was} at the join: change the model before atoll.Worker"
                )
        for name, now in found.items():
            if now.kind == EXCHANGED and name not in known:
                self._refuse_new(name, now)
        self._follow_objects(found)
        self.check_optimizers()
        self._warn_of_frozen([n for n in known if found[n].kind == FROZEN])

    def _refuse_new(self, name: str, now: Found) -> None:
        what = "buffer" if now.flags & _lib.MEAN else "parameter"
        was = "was frozen at the join and trains now" if name in self.frozen.names else "is new since the join"
        raise _lib.InvalidError(
            f"{what} '{name}' {was}, so no other worker would get it: "
            f"{'set requires_grad' if 'frozen' in was else 'add it'} before atoll.Worker"
        )

    def _follow_objects(self, found: dict[str, Found]) -> None:
        for e in self._entries:
            now = found[e.name].tensor
            if now is e.tensor:
                continue
            if self.trained and id(e.tensor) in self.trained and id(now) not in self.trained_now():
                raise _lib.InvalidError(
                    f"parameter '{e.name}' was replaced by another object, and the optimizer trains the old one: make "
                    "the optimizer after the change"
                )
            e.tensor = now
        if self.exchange:
            self.exchange.follow()

    def _warn_of_frozen(self, names: list[str]) -> None:
        if names and not self._told_frozen:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            logger.warning("parameter '%s'%s does not train any more (requires_grad): it is still exchanged",
                           sorted(names)[0], more)
            self._told_frozen = True

    def set_optimizers(self, optimizers: list[Any]) -> None:
        """The optimizers that train the tensors. Raises InvalidError if one trains a parameter of no tensor here."""
        self._optimizers = optimizers
        self.check_optimizers()
        self.trained = self.trained_now()

    def trained_now(self) -> frozenset[int]:
        """id() of each parameter of the optimizers."""
        return frozenset(id(p) for o in self._optimizers for group in o.param_groups for p in group["params"])

    def check_optimizers(self) -> None:
        """Raises InvalidError for a parameter of an optimizer that the model does not have."""
        mine = {id(t.tensor) for t in self._find().values()} | self.trained  # also those that were replaced
        if isinstance(self.module, torch.nn.Module):
            mine |= {id(p) for _, p in self.module.named_parameters(remove_duplicate=False)}
        for o in self._optimizers:
            for i, group in enumerate(o.param_groups):
                other = next((p for p in group["params"] if id(p) not in mine), None)
                if other is not None and self.sharded and not is_sharded(other):
                    raise _lib.InvalidError(
                        f"{type(o).__name__} trains whole parameters, which the model had before fully_shard: make the "
                        "optimizer after it"
                    )
                if other is not None:
                    raise _lib.InvalidError(
                        f"{type(o).__name__} trains a parameter of shape {tuple(other.shape)} (group {i}) that the "
                        "model of atoll.Worker does not have, so no other worker would get it: give a module that has "
                        "it, for example torch.nn.ModuleList([model, loss])"
                    )

    def share(self) -> None:
        """Makes the memory that the processes of this worker share. All ranks call it."""
        self.exchange = Exchange(self._entries, self._ranks)

    @property
    def memory(self) -> dict[str, Any]:
        """On rank 0: theta and change, which the library borrows."""
        segment = self.exchange.segment  # type: ignore[union-attr]
        return {"theta": segment.theta, "change": segment.change}

    def attach(self, handle: _lib.Handle) -> None:
        """On rank 0: the library has the memory."""

    def tensors_named(self, names: list[str]) -> dict[str, torch.Tensor]:
        """The tensors that the model has now under these names; those that it lost are missing."""
        found = self._find()
        return {name: found[name].tensor for name in names if name in found}

    def replace_buffer(self, name: str, value: torch.Tensor) -> None:
        """Gives the module another object for a buffer."""
        setattr(self._find()[name].owner, name.rpartition(".")[2], value)

    def digests(self) -> np.ndarray:
        """[n, 2] uint64: the block of each parameter that this rank holds, and its values. Equal for replicas."""
        trained = [e for e in self._entries if not e.flags & _lib.MEAN]
        pairs = b"".join(digest(list(e.block)) + digest(local(e.tensor)) for e in trained)
        return np.frombuffer(pairs, np.uint64).reshape(-1, 2)

    def why_replicas_differ(self, number: int) -> str:
        """What to do if parameter `number` of `digests` differs between ranks that hold the same block of it."""
        e = [e for e in self._entries if not e.flags & _lib.MEAN][number]
        if self.sharded and not is_sharded(e.tensor):
            return (f"fully_shard does not average the gradients of '{e.name}': call fully_shard for the module that "
                    "holds it, or average the gradients of ignored_params before each step")
        return (f"'{e.name}' is the first: give atoll.Worker a model in DistributedDataParallel or fully_shard, or "
                "start one worker for each process without torchrun")

    @property
    def hooked(self) -> Any:
        """The module whose forwards are watched; None: there is none."""
        return self.outer if isinstance(self.outer, torch.nn.Module) else None

    def version(self, by_value: bool) -> list[float]:
        """Differs after a change of the parameters. by_value: also after one through `p.data`; not on a GPU, whose
        values would have to be waited for."""
        if not by_value:
            return [e.tensor._version for e in self._ends]
        ends = [local(e.tensor) for e in self._ends]
        on_cpu = [t for t in ends if t.device.type == "cpu" and t.is_contiguous()]
        return [float(t.as_strided((min(64, t.numel()),), (1,)).sum()) for t in on_cpu]

    def detach(self) -> None:
        """The worker has left the run."""
        if self.exchange:
            self.exchange.close()
        self.exchange = None

    def place(self, handle: _lib.Handle | None) -> None:
        """The configuration of the run is known. All ranks call it; rank 0 has the handle."""
        if self.exchange:
            n = len(self.tensors)
            found = [handle.exchanges, *(handle.offset(i) for i in range(n))] if handle else [0] * (n + 1)
            exchanges, *offsets = self._ranks.numbers([int(x) for x in found])
            self.exchange.place(offsets, exchanges == _lib.CHANGES)

    def put(self, initial: bool = False) -> None:
        """Hands the tensors to the run. initial: they are the first ones, and not the end of a round. All ranks call
        it."""
        if self.exchange:
            self.exchange.put(initial)

    def take(self, begin: bool = False) -> None:
        """Sets the tensors to the run's parameters. begin: to those that a round starts from. All ranks call it."""
        if self.exchange:
            self.exchange.take(begin)

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
            for m in self._fsdp:
                m.reshard()  # the next forward gathers the parameters anew
            for m, mode in zip(modules, modes):
                m.training = mode
            state.set_random(randoms)
