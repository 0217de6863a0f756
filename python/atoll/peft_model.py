"""What Atoll needs to know about a PEFT model: the names of the adapter's tensors, and its configuration file."""

from __future__ import annotations

import copy
import os
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_peft(model: Any) -> bool:
    """True for a ``peft.PeftModel``. Does not import PEFT."""
    return hasattr(model, "peft_config") and hasattr(model, "active_adapter") and hasattr(model, "base_model")


def adapter_names(model: torch.nn.Module) -> dict[str, str]:
    """Names of the trained parameters in PEFT's adapter file, by their names in the model.

    ``...q_proj.lora_A.default.weight`` becomes ``...q_proj.lora_A.weight``. A trained parameter that PEFT does not save
    is left out.
    """
    from peft import get_peft_model_state_dict

    saved = get_peft_model_state_dict(model, adapter_name=model.active_adapter, save_embedding_layers=False)
    by_storage = {tensor.data_ptr(): name for name, tensor in saved.items()}
    trained = ((name, p.data_ptr()) for name, p in model.named_parameters() if p.requires_grad)
    return {name: by_storage[storage] for name, storage in trained if storage in by_storage}


def adapter_files(model: torch.nn.Module) -> dict[str, bytes]:
    """``adapter_config.json`` as ``PeftModel.save_pretrained`` writes it: for inference, with the name of the base."""
    config = copy.copy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = getattr(model.get_base_model(), "name_or_path", None)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        with open(os.path.join(folder, "adapter_config.json"), "rb") as file:
            return {"adapter_config.json": file.read()}
