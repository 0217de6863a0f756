"""Models and tokenizers in folders of strangers: their files are data. No code of a folder runs, and nothing asks to.

transformers and PEFT can run code that a folder holds or names: modules of `auto_map`, pickled weights, libraries in
adapter_config.json, attention kernels of the Hub. Each needs consent, which this module never gives.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from typing import Any

from ..command import Problem, clean, need, warn, wrong

# Values of adapter_config.json that make PEFT import a module or read a pickle.
_CODE_OF_ADAPTERS = ("corda_config", "lora_ga_config", "megatron_config", "tokenizer_kwargs")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation")


def read_json(path: str) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return clean(lines[0]) if lines else type(error).__name__


def transformers() -> Any:
    """The library, which then asks no question and writes no line of its own. ImportError: it is not installed."""
    import transformers
    from transformers import dynamic_module_utils

    questions: Any = dynamic_module_utils
    questions.TIME_OUT_REMOTE_CODE = 0  # "Do you wish to run the custom code? [y/N]" becomes an error
    quiet: Any = transformers.utils.logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()  # its lines hold texts of the folder as they are
    return transformers


def _auto_map(folder: str, name: str, key: str) -> bool:
    value = read_json(os.path.join(folder, name)).get("auto_map")
    return isinstance(value, dict) and any(str(kind).startswith(key) for kind in value)


# --- tokenizers -------------------------------------------------------------------------------------------------------


def load_tokenizer(folder: str) -> Any:
    """A tokenizer of transformers. ImportError; Problem: transformers cannot load it without code of the folder."""
    library = transformers()
    try:
        return library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        for name in ("tokenizer_config.json", "config.json"):
            if _auto_map(folder, name, "AutoTokenizer") or (_auto_map(folder, name, "AutoConfig")):
                raise wrong(f"the tokenizer in {folder} needs code of that folder (auto_map in {name}), and Atoll runs "
                            "none: give a tokenizer.json") from None
        raise wrong(f"{folder} has no tokenizer that transformers can load: {_first_line(error)}") from None


# --- models -----------------------------------------------------------------------------------------------------------


def _check_weights(folder: str, start: str) -> None:
    """Problem: the weights in a folder are pickles, which run code when they are read."""
    names = sorted(os.listdir(folder))
    if any(name.startswith(start) and name.endswith(".safetensors") for name in names):
        return
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        raise Problem(f"{folder} has weights only in {pickles[0]}, which can hold code that runs when it is read: "
                      "convert them to safetensors on a machine without secrets (save_pretrained writes them)")
    raise Problem(f"transformers cannot load {folder}: it has no {start}*.safetensors")


def _check_model(folder: str, library: Any) -> None:
    config = read_json(os.path.join(folder, "config.json"))
    named = (config.get(key) for key in _ATTENTION)
    kernel = next((value for value in named if isinstance(value, str) and "/" in value), None)
    if kernel:
        raise Problem(f"{folder} needs the kernel {kernel} of the Hub, which is code, and Atoll runs none of a folder: "
                      "remove it from config.json")
    family = str(config.get("model_type"))
    if family not in library.CONFIG_MAPPING and _auto_map(folder, "config.json", "Auto"):
        raise Problem(f"{folder} needs code of that folder (auto_map in config.json), and Atoll runs none: give a "
                      "model that transformers knows, or load it in a program of your own")
    if family not in library.CONFIG_MAPPING:
        raise Problem(f"transformers cannot load {folder}: it does not know the model_type {family}")
    _check_weights(folder, "model")


def _check_adapter(folder: str, library: Any) -> bool:
    """Returns whether the base model of an adapter is a folder."""
    config = read_json(os.path.join(folder, "adapter_config.json"))
    code = next((key for key in _CODE_OF_ADAPTERS if config.get(key)), None)
    mapping = config.get("auto_mapping")
    if isinstance(mapping, dict) and not re.fullmatch(r"transformers(\.\w+)*", str(mapping.get("parent_library"))):
        code = "auto_mapping"
    if code:
        raise Problem(f"{folder} names code to import ({code} in adapter_config.json), and Atoll imports none: remove "
                      "it, or load the adapter in a program of your own")
    _check_weights(folder, "adapter_model")
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise Problem(f"{folder}/adapter_config.json names no base model: set base_model_name_or_path")
    if os.path.isdir(base):
        _check_model(base, library)
    return os.path.isdir(base)


def load_model(folder: str) -> Any:
    """Loads a model, or an adapter with its base, by transformers and PEFT. Problem."""
    is_adapter = os.path.isfile(os.path.join(folder, "adapter_config.json"))
    try:
        import torch  # noqa: F401  transformers loads models by it

        library = transformers()
        loader: Any = library.AutoModelForCausalLM
        if is_adapter:
            import peft

            loader = peft.AutoPeftModelForCausalLM
    except ImportError as error:
        family = read_json(os.path.join(folder, "config.json")).get("model_type", "unknown")
        raise need(str(error.name), f"the model of {folder} (family {family})") from None
    is_local = True
    if is_adapter:
        is_local = _check_adapter(folder, library)
    else:
        _check_model(folder, library)
    more = {} if is_adapter else {"output_loading_info": True}
    with warnings.catch_warnings(record=True) as caught:
        try:
            loaded = loader.from_pretrained(folder, trust_remote_code=False, use_safetensors=True,
                                            local_files_only=is_local, **more)
        except Exception as error:
            raise Problem(f"transformers cannot load {folder}: {_first_line(error)}") from None
    for line in [str(each.message) for each in caught if each.category is UserWarning]:
        warn(line.strip().splitlines()[0])
    if is_adapter:
        return loaded
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        warn(f"{len(missing)} tensors of the model are not in {folder} and have random values: {missing[0]}, ...")
    return model
