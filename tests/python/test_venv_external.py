"""Checkpoints of external runs load with transformers: tied weights, the prefix "transformer."."""

from __future__ import annotations

import unittest

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rig import RunTest

PROGRAM = """
import sys
import torch, atoll
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
name, run, folder, base = sys.argv[1:5]
model = AutoModelForCausalLM.from_pretrained(base)
torch.manual_seed(len(name))
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
    def train(self) -> dict[str, torch.Tensor]:
        """Two programs train from the folder base/; returns the state dict, which both end with."""
        torch.manual_seed(7)
        sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
        GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).save_pretrained(self.folder / "base")
        train = {"method": "local-sgd", "max_steps": 4, "sync_every": 2, "batch_size": 2}
        coordinator = self.start_coordinator(train=train, coordinator={"min_workers": 2})
        arguments = (str(self.run_dir), str(self.folder), str(self.folder / "base"))
        for process in [self.start_script(PROGRAM, name, *arguments) for name in ("a", "bb")] + [coordinator]:
            self.finish(process, 120)
        a, b = (torch.load(self.folder / f"{name}.pt") for name in ("a", "bb"))
        self.assertTrue(all(torch.equal(a[key], b[key]) for key in a))
        return a

    def test_tied_model(self) -> None:
        trained = self.train()
        model = AutoModelForCausalLM.from_pretrained(self.run_dir / "checkpoints" / "latest")
        loaded = model.state_dict()
        self.assertEqual(set(loaded), set(trained))
        for key, value in trained.items():
            self.assertTrue(torch.equal(loaded[key], value), key)
        self.assertEqual(model.lm_head.weight.data_ptr(), model.transformer.wte.weight.data_ptr())


if __name__ == "__main__":
    unittest.main()
