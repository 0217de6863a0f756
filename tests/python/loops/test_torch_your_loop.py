"""The blocks of docs/your-loop.md as printed: each is the script of two workers of one run."""

from __future__ import annotations

import importlib.util
import re
import unittest
from pathlib import Path

from rig import RunTest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "your-loop.md"

# What stands above a block in the script of its owner. In the tests the coordinator has a free port, few steps and
# small batches. It waits for a killed worker.
PRELUDE = """
import copy, math, os, sys, warnings
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
import atoll

warnings.simplefilter("ignore")
torch.set_num_threads(1)
torch.manual_seed(1337)
launch = atoll.launch
def short(run, *, max_steps, every, **settings):
    assert (max_steps, every) == (600, 50)
    return launch(os.environ["RUN"], max_steps=12, every=4, listen="tcp://127.0.0.1:*", codec_up="fp32",
                  codec_down="fp32", coordinator_evict_after_s=600, **settings)
atoll.launch = short

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 512
    def __getitem__(self, i):
        if i >= 512:
            raise IndexError(i)
        x = torch.randn(8, generator=torch.Generator().manual_seed(int(i)))
        return x, TARGET(x)
TARGET = lambda x: int(x.sum() > 0)
train_set = Points()
model = whole = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
"""

OF_BLOCK = {
    "A nanoGPT loop": """
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 16), nn.Linear(16, 16)
    def forward(self, x, y):
        logits = self.head(self.embed(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())
model = whole = Language()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
data, block_size, batch_size, accumulation = torch.arange(600) * 5 % 16, 8, 4, 2
get_lr = lambda step: 1e-2 * (1 - step / 12)
""",
    "Epochs": """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
def test(model):
    model.eval()
    with torch.no_grad():
        assert torch.isfinite(model(torch.stack([x for x, _ in train_set]))).all()
""",
    "A GAN": """
n_noise = 4
critic, generator = nn.Linear(8, 1), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
whole = nn.ModuleList([critic, generator])
critic_optimizer = torch.optim.Adam(critic.parameters(), 2e-3)
generator_optimizer = torch.optim.Adam(generator.parameters(), 2e-3)
critic_loss = lambda real, fake: F.softplus(-real).mean() + F.softplus(fake).mean()
generator_loss = lambda fake: F.softplus(-fake).mean()
images = [x for x, _ in train_set]
""",
    "Lightning": """
import logging, functools
import lightning as L
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.Trainer = functools.partial(L.Trainer, accelerator="cpu", logger=False, enable_checkpointing=False,
                              enable_progress_bar=False, enable_model_summary=False)
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
                              "interval": "step"}]
module = whole = Module()
""",
    "accelerate": """
import functools, accelerate
Accelerator = functools.partial(accelerate.Accelerator, cpu=True)
TARGET = lambda x: x[:1] - x[1:2]
model = whole = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 12)
""",
}
NEEDS = {"Lightning": "lightning", "accelerate": "accelerate"}

# The parameters without the statistics that update_bn computes.
END = """
import hashlib
values = torch.cat([p.detach().reshape(-1) for p in whole.parameters()])
print("parameters", hashlib.sha256(values.numpy().tobytes()).hexdigest(), flush=True)
"""


def blocks() -> dict[str, str]:
    """The Python blocks of the page, by the heading above them."""
    parts = re.split(r"^## (.+)\n", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    found = {}
    for heading, text in zip(parts[::2], parts[1::2]):
        for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S):
            assert heading not in found, f"two blocks under {heading}"
            found[heading] = block
    return found


class YourLoop(RunTest):
    def run_block(self, heading: str) -> None:
        module = NEEDS.get(heading)
        if module and not importlib.util.find_spec(module):
            self.skipTest(f"not installed: {module}")
        script = PRELUDE + OF_BLOCK[heading] + blocks()[heading] + END
        (self.folder / "train.py").write_text(script)
        first = self.start_script(script, "first", RUN=str(self.run_dir))
        self.wait_for(60, "the coordinator", (self.run_dir / "address").exists)
        second = self.start_script(script, "second", RUN=str(self.run_dir), ATOLL_JOIN=str(self.run_dir))
        for process in (first, second):
            self.finish(process, 120)
        self.assertEqual(self.rounds(), 3)
        a, b = (re.findall(r"^parameters (\w+)$", self.log(name), re.M) for name in ("first", "second"))
        self.assertEqual(len(a), 1)
        self.assertEqual(a, b)

    def test_headings(self) -> None:
        self.assertEqual(list(blocks()), list(OF_BLOCK))

    def test_lines(self) -> None:
        """A loop changes by 3 to 10 lines; those of Lightning stand around its callback of at most 10."""
        for heading, block in blocks().items():
            callback = re.search(r"^class Atoll.*?\n\n", block, flags=re.M | re.S)
            if callback:
                self.assertLessEqual(len(callback[0].splitlines()) - 1, 10)
                block = block.replace(callback[0], "")
            self.assertIn(block.count("# atoll"), range(3, 11), heading)
            self.assertLessEqual(max(map(len, block.splitlines())), 125, heading)

    def test_nanogpt(self) -> None:
        self.run_block("A nanoGPT loop")

    def test_epochs(self) -> None:
        self.run_block("Epochs")

    def test_gan(self) -> None:
        self.run_block("A GAN")

    def test_lightning(self) -> None:
        self.run_block("Lightning")

    def test_accelerate(self) -> None:
        self.run_block("accelerate")


if __name__ == "__main__":
    unittest.main()
