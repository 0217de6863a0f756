"""Checkpoints of external runs load with transformers and PEFT: tied weights, the prefix "transformer.", adapters."""

from __future__ import annotations

import unittest
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rig import RunTest

try:
    import peft
except ImportError:
    peft = None

PROGRAM = """
import sys
import torch, atoll
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
name, run, folder, base, lora = sys.argv[1:6]
model = AutoModelForCausalLM.from_pretrained(base)
torch.manual_seed(len(name))
if lora == "lora":
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
else:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
samples = torch.randint(0, 64, (40, 9), generator=torch.Generator().manual_seed(1))
with atoll.Worker(model, optimizer, join=run, dir=f"{folder}/{name}", name=name) as worker:
    for x in atoll.batches(samples, worker, batch_size=2):
        x = torch.as_tensor(x)
        model(x, labels=x).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
torch.save(model.state_dict(), f"{folder}/{name}.pt")
"""


class Transformers(RunTest):
    def train(self, kind: str) -> dict[str, torch.Tensor]:
        """Two programs train from the folder base/; returns the state dict, which both end with."""
        torch.manual_seed(7)
        sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
        GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).save_pretrained(self.folder / "base")
        train = {"method": "local-sgd", "max_steps": 4, "sync_every": 2, "batch_size": 2}
        coordinator = self.start_coordinator(train=train, coordinator={"min_workers": 2})
        arguments = (str(self.run_dir), str(self.folder), str(self.folder / "base"), kind)
        for process in [self.start_script(PROGRAM, name, *arguments) for name in ("a", "bb")] + [coordinator]:
            self.finish(process, 120)
        a, b = (torch.load(self.folder / f"{name}.pt") for name in ("a", "bb"))
        self.assertTrue(all(torch.equal(a[key], b[key]) for key in a))
        return a

    def checkpoint(self) -> Path:
        return (self.run_dir / "checkpoints" / "latest").resolve()

    def test_tied_model(self) -> None:
        trained = self.train("all")
        model = AutoModelForCausalLM.from_pretrained(self.checkpoint())
        loaded = model.state_dict()
        self.assertEqual(set(loaded), set(trained))
        for key, value in trained.items():
            self.assertTrue(torch.equal(loaded[key], value), key)
        self.assertEqual(model.lm_head.weight.data_ptr(), model.transformer.wte.weight.data_ptr())

    @unittest.skipIf(peft is None, "peft is missing")
    def test_adapter(self) -> None:
        trained = self.train("lora")
        base = AutoModelForCausalLM.from_pretrained(self.folder / "base")
        loaded = peft.PeftModel.from_pretrained(base, self.checkpoint()).state_dict()
        adapters = [key for key in trained if "lora_" in key]
        self.assertEqual(len(adapters), 4)
        for key in adapters:
            self.assertTrue(torch.equal(loaded[key], trained[key]), key)
        size = (self.run_dir / "init" / "model.safetensors").stat().st_size
        self.assertLess(size, 3000)  # the base is not uploaded
        self.assertTrue((self.run_dir / "init" / "adapter_model.safetensors").is_symlink())


if __name__ == "__main__":
    unittest.main()
