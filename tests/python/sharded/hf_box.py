"""A worker whose processes shard a Hugging Face model by accelerate's FSDP2: torchrun hf_box.py NAME OPTIONS

OPTIONS is JSON, with the defaults below. Accelerate enables FSDP on GPUs alone; `fsdp_on_cpu` lifts this one condition,
so that its own code prepares model and optimizer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, DistributedType
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import atoll.hf
from rig import end_process

DEFAULTS = {
    "run": "",
    "dir": "",
    "steps": 20,
    "pause": 0.0,
    "loop": "trainer",  # of transformers; accelerate: a loop with prepare; early: atoll.Worker before prepare
    "lora": False,
    "base": "float32",  # type of the frozen base
    "tied": True,
    "arguments": {},  # of TrainingArguments
    "fsdp": {},  # of fsdp_config
}
VOCABULARY, LENGTH = 64, 16


def fsdp_on_cpu() -> None:
    """Lets accelerate use its FSDP plugin with MULTI_CPU."""
    init = AcceleratorState.__init__

    def patched(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        init(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = patched


def samples(n: int = 96) -> list[dict[str, list[int]]]:
    """Sequences that count upwards from different numbers in different steps."""
    rows = [[(i * 5 + j * (1 + i % 3)) % VOCABULARY for j in range(LENGTH)] for i in range(n)]
    return [{"input_ids": row, "labels": row} for row in rows]


def make_model(o: dict[str, Any]) -> Any:
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=o["tied"],
                         attention_dropout=0.1, use_cache=False)
    model = LlamaForCausalLM(config)
    if not o["lora"]:
        return model
    model = model.to(getattr(torch, o["base"]))
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", lora_dropout=0.1))


class Pause(TrainerCallback):
    """Sleeps before each step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(self._seconds)


def train_by_trainer(name: str, o: dict[str, Any]) -> tuple[Any, Any]:
    """Returns the model and the worker."""
    usual = dict(max_steps=o["steps"], per_device_train_batch_size=2, learning_rate=1e-2, warmup_steps=4, use_cpu=True,
                 save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=1, fsdp=True,
                 fsdp_config={"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], **o["fsdp"]})
    callback = atoll.hf.Callback(o["run"], name=name, dir=o["dir"] or None)
    trainer = Trainer(model=make_model(o), args=TrainingArguments("unused", **{**usual, **o["arguments"]}),
                      train_dataset=samples(), callbacks=[callback, Pause(o["pause"])])
    trainer.train()
    return trainer.model, callback.worker


def train_by_accelerate(name: str, o: dict[str, Any]) -> tuple[Any, Any]:
    """The optimizer is made before prepare, and accelerate wraps it."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
                                            transformer_cls_names_to_wrap=["LlamaDecoderLayer"], **o["fsdp"])
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=2, **o["arguments"])
    model = make_model(o)
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    early = atoll.Worker(model, optimizer, join=o["run"], name=name) if o["loop"] == "early" else None
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    open_ = dict(join=o["run"], name=name, dir=o["dir"] or None, state=[scheduler])
    with early or atoll.Worker(model, optimizer, **open_) as worker:
        for batch in atoll.batches(samples(), worker, batch_size=1, collate_fn=transformers.default_data_collator):
            time.sleep(o["pause"])
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    print("norm", type(norm).__name__, flush=True)
    return model, worker


def main(name: str, given: dict[str, Any]) -> None:
    o = {**DEFAULTS, **given}
    torch.set_num_threads(1)
    fsdp_on_cpu()
    model, worker = (train_by_trainer if o["loop"] == "trainer" else train_by_accelerate)(name, o)
    kinds = [type(p).__name__ for p in model.parameters()]
    rank = os.environ["RANK"]
    print(f"rank {rank} sharded {kinds.count('DTensor')} of {len(kinds)} hash {worker.info().theta_hash}", flush=True)
    end_process()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
