"""Loops of accelerate, Lightning, transformers and TRL, each with two workers, of which one is killed once."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import math
import os
import unittest
import warnings
from typing import Any

os.environ.setdefault("ACCELERATE_USE_CPU", "true")

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import atoll
from loop_test import LoopTest, Script

BATCH, VOCABULARY, LENGTH = 4, 32, 12


def needs(*modules: str) -> Any:
    """Skips a test without these modules, and imports them: forked workers then have them."""
    missing = [name for name in modules if importlib.util.find_spec(name.split(".")[0]) is None]
    for name in modules:
        if not missing:
            importlib.import_module(name)
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


def samples(n: int = 96) -> list[dict[str, Any]]:
    """Sequences that count upwards, as the tensors of a tokenized data set."""
    rows = [torch.tensor([(i * 5 + j * (1 + i % 3)) % VOCABULARY for j in range(LENGTH)]) for i in range(n)]
    return [{"input_ids": row, "labels": row} for row in rows]


def small_gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2,
                                      bos_token_id=None, eos_token_id=None))  # fmt: skip


def pairs() -> list[Any]:
    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(4))
    return [(row, row[:1] - row[1:2]) for row in x]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))


# --- accelerate -----------------------------------------------------------------------------------------------------


def accelerated(script: Script) -> Any:
    """prepare and accumulate; optimizer and scheduler are wrapped."""
    from accelerate import Accelerator

    torch.manual_seed(script.seed)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = model = network()
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 12))
    loader: Any = torch.utils.data.DataLoader(pairs(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    with script.worker(model, optimizer, state=[scheduler]) as worker:  # atoll
        while not worker.done:  # atoll
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(F.mse_loss(model(x), y))
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if worker.done:  # atoll
                    break  # atoll
    return plain


# --- Lightning ------------------------------------------------------------------------------------------------------


def lightning(script: Script) -> Any:
    """A module with its own scheduler and loader. The callback is that of docs/your-loop.md."""
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(script.seed)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return F.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 12))
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    class Atoll(L.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            self.worker = script.worker(module, trainer.optimizers, state=schedulers)
            trainer.should_stop = self.worker.done

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = self.worker.done

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.worker.close()

    model = Module()
    loader = torch.utils.data.DataLoader(pairs(), batch_size=BATCH, shuffle=True)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = L.Trainer(max_epochs=-1, accelerator="cpu", callbacks=[Atoll()], **quiet)
    trainer.fit(model, loader)
    return model


def lightning_leased(script: Script) -> Any:
    """The worker opens before fit(), so that train_dataloader() can return leased batches."""
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.optimizer = torch.optim.AdamW(self.parameters(), 1e-2)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return F.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return self.optimizer

    class Atoll(L.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = worker.done

    model = Module()
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = L.Trainer(max_epochs=-1, accelerator="cpu", callbacks=[Atoll()], **quiet)
    with script.worker(model, model.optimizer) as worker:  # atoll
        trainer.fit(model, atoll.batches(pairs(), worker, batch_size=BATCH))
    return model


# --- transformers ---------------------------------------------------------------------------------------------------


def run_clm_no_trainer(script: Script) -> Any:
    """Epochs over a loader with a length; the number of steps follows from it; tqdm."""
    from accelerate import Accelerator
    from tqdm.auto import tqdm
    from transformers import get_scheduler

    accelerator = Accelerator(cpu=True)
    plain = model = small_gpt2()
    dataset, epochs = samples(), 1
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0}]  # fmt: skip
    optimizer: Any = torch.optim.AdamW(groups, lr=1e-2)
    scheduler: Any = get_scheduler("linear", optimizer, num_warmup_steps=3, num_training_steps=12)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    with script.worker(model, optimizer, state=[scheduler]) as worker:  # atoll
        loader = atoll.batches(dataset, worker, batch_size=BATCH, per_epoch=True)  # atoll
        steps = epochs * math.ceil(len(loader) / 1)
        assert steps == 24, steps  # a data set of one worker alone
        bar = tqdm(range(steps), disable=True)
        for _epoch in itertools.count():
            model.train()
            for _step, batch in enumerate(tqdm(loader, disable=True)):
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                bar.update(1)
            if worker.done:  # atoll
                break
    return plain


def supervised(script: Script) -> Any:
    """TRL's SFTTrainer with atoll.hf.Callback."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    import atoll.hf
    from transformers import PreTrainedTokenizerFast

    warnings.simplefilter("ignore")
    rows = [{k: v.tolist() for k, v in sample.items() if k == "input_ids"} for sample in samples()]
    args = SFTConfig(str(script.folder / f"out-{script.name}"), max_steps=12, per_device_train_batch_size=BATCH,
                     learning_rate=1e-2, use_cpu=True, bf16=False, save_strategy="no", report_to="none",
                     disable_tqdm=True, gradient_checkpointing=False,
                     dataset_kwargs={"skip_prepare_dataset": True})  # fmt: skip
    model = small_gpt2()
    callback = atoll.hf.Callback(dir=script.folder / script.name, name=script.name, max_wait=60)  # atoll
    trainer = SFTTrainer(model, args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer(),
                         callbacks=[callback])  # fmt: skip
    trainer.train()
    return model


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
                                   pad_token="w0", eos_token="w1")  # fmt: skip


class VenvLoops(LoopTest):
    @needs("accelerate")
    def test_accelerate_with_its_own_loader(self) -> None:
        self.check_own(accelerated, train={"grad_accum": 2})

    @needs("lightning")
    def test_lightning_with_its_own_loader(self) -> None:
        self.check_own(lightning)
        self.assertNotIn("a gradient of the parameters before", self.log("a"))
        self.start_coordinator()  # the same script after the end of the run
        again = self.start_loop(lightning, "a")
        self.finish(again, 60)

    @needs("lightning")
    def test_lightning_with_leased_samples(self) -> None:
        self.check_leased(lightning_leased)

    @needs("accelerate", "tqdm")
    def test_run_clm_no_trainer(self) -> None:
        self.check_leased(run_clm_no_trainer)

    @needs("trl", "datasets", "tokenizers", "accelerate", "trl.trainer.sft_trainer", "atoll.hf")
    def test_supervised_fine_tuning(self) -> None:
        self.check_leased(supervised)


if __name__ == "__main__":
    unittest.main()
