"""The adapter of a PEFT model: which tensors its file holds, and under which names."""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .._lib import InvalidError
from .shards.blocks import clean, is_sharded


def is_peft(module: Any) -> bool:
    """The model has adapters of the package peft."""
    return isinstance(module, torch.nn.Module) and bool(getattr(module, "peft_config", None))


class Adapter:
    """The active adapter of a model. held: names of the model's tensors that its file holds, trained or not.

    Raises InvalidError for a method whose file holds values that are computed when it is written.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._name = _active(module)
        self._config = module.peft_config[self._name]
        self.method = str(getattr(self._config.peft_type, "value", self._config.peft_type))
        from peft import get_peft_model_state_dict  # type: ignore[import-not-found]

        values = module.state_dict()
        options = {"state_dict": values, "adapter_name": self._name, "save_embedding_layers": False}
        file = get_peft_model_state_dict(module, **options)
        if not _is_peft_model(module):
            file = {f"base_model.model.{name}": t for name, t in file.items()}
        # The file's tensors are those of state_dict. Parameters in shards have no address to compare.
        entries = {id(t): name for name, t in values.items()}
        tensors = itertools.chain(module.named_parameters(remove_duplicate=False),
                                  module.named_buffers(remove_duplicate=False))
        first: dict[int, str] = {}  # a tensor that layers share has its first name
        of_entry = {clean(name): first.setdefault(id(p), clean(name)) for name, p in tensors}
        self._names: dict[str, str] = {}  # name in the model -> name in the file
        left = {}
        for published, t in file.items():
            name = of_entry.get(entries.get(id(t), ""))
            if name is None:
                left[published] = t
            else:
                self._names.setdefault(name, published)
        for published, t in list(left.items()):  # copies, such as the prompts of a model on a GPU
            equal = [clean(n) for n, p in module.named_parameters() if p.requires_grad and clean(n) not in self._names
                     and p.shape == t.shape and not is_sharded(p) and torch.equal(p.detach().cpu(), t.cpu())]
            if len(equal) == 1:
                self._names[equal[0]] = published
                del left[published]
        other = next(iter(left), None)
        if other is not None:
            raise InvalidError(
                f"the PEFT method {self.method} writes '{other}' to its adapter, which is none of the model's "
                "parameters: checkpoints of the run could not hold it, so use another method, such as LORA"
            )
        self.held = frozenset(self._names)

    def names(self, exchanged: list[str], given: Mapping[str, str] | None) -> dict[str, str]:
        """Name of each exchanged tensor in the adapter's file. Raises InvalidError for one that it does not hold."""
        names = {**self._names, **(given or {})}
        missing = next((name for name in exchanged if name not in names), None)
        if missing is not None:
            raise InvalidError(
                f"parameter '{missing}' trains, but the adapter's file does not hold it (PEFT method {self.method}): "
                "name its module in modules_to_save of the PEFT configuration, or freeze it"
            )
        return names

    def files(self) -> dict[str, bytes]:
        """adapter_config.json as PeftModel.save_pretrained writes it."""
        config = copy.copy(self._config)
        config.inference_mode = True  # otherwise the loaded adapter is trainable
        if config.base_model_name_or_path is None:
            base = self._module.get_base_model() if _is_peft_model(self._module) else self._module
            config.base_model_name_or_path = getattr(base, "name_or_path", None)
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            return {"adapter_config.json": (Path(folder) / "adapter_config.json").read_bytes()}


def _is_peft_model(module: Any) -> bool:
    """False: a model of transformers that has got its adapter by add_adapter. Its file has the names of a PeftModel."""
    return hasattr(module, "get_base_model")


def _active(module: Any) -> str:
    """The name of the adapter that trains."""
    name = getattr(module, "active_adapter", None)
    return name if isinstance(name, str) else module.active_adapters()[0]
