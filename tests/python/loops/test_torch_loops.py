"""Training loops of the kinds that people have, each with two workers, of which one is killed once.

Lines that end with `# atoll` are those that a script does not have without the package.
"""

from __future__ import annotations

import copy
import io
import math
import unittest
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import atoll
from loop_test import LoopTest, Script

BATCH = 4
VOCABULARY, BLOCK = 16, 8


class Points(torch.utils.data.Dataset):
    """(x [8], class) that a small network can learn."""

    def __init__(self, n: int = 96) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        x = torch.randn(8, generator=torch.Generator().manual_seed(int(i)))
        return x, int(x[:4].sum() > x[4:].sum())


def tokens(seed: int = 5) -> torch.Tensor:
    """[600] tokens, each of which depends on the one before."""
    noise = torch.randint(0, 3, (600,), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(600) * 5 + noise) % VOCABULARY


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), *more, nn.ReLU(), nn.Linear(16, 2))


class Language(nn.Module):
    """nanoGPT's interface: model(x, y) is (logits, loss)."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(VOCABULARY, 16), nn.Dropout(dropout)
        self.mix, self.head = nn.Linear(16, 16), nn.Linear(16, VOCABULARY)

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
        logits = self.head(F.gelu(self.mix(self.drop(self.embed(x)))))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def accuracy(model: nn.Module) -> float:
    """Of the evaluation of an image script: top-1 on samples that no worker trains on."""
    model.eval()
    with torch.no_grad():
        x, y = zip(*(Points()[i] for i in range(200, 240)))
        found = (model(torch.stack(x)).argmax(1) == torch.tensor(y)).float().mean()
    model.train()
    return float(found)


# --- language models ------------------------------------------------------------------------------------------------


def rate_at(step: int, steps: int = 12) -> float:
    """Warmup and cosine, as a script has them."""
    return 1e-2 * (step + 1) / 3 if step < 3 else 1e-3 + 0.5 * 9e-3 * (1 + math.cos(math.pi * step / steps))


def nanogpt(script: Script, compiled: bool = False) -> nn.Module:
    """A batch is fetched before the step on the one before; accumulation, GradScaler, own schedule."""
    data, accumulation = tokens(), 2
    model = original = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    if compiled:
        model = torch.compile(model, backend="eager")
    starts = range(len(data) - BLOCK)
    worker = script.worker(model, optimizer, state=[scaler], train=starts)  # atoll

    def get_batch() -> Any:
        ix = worker.samples(BATCH)  # atoll
        return (torch.stack([data[int(i) + k : int(i) + k + BLOCK] for i in ix]) for k in (0, 1))

    with worker:  # atoll
        x, y = get_batch()
        while not worker.done:  # atoll
            iter_num = int(worker.position)  # atoll
            for group in optimizer.param_groups:
                group["lr"] = rate_at(iter_num)
            for _ in range(accumulation):
                _, loss = model(x, y)
                x, y = get_batch()
                scaler.scale(loss / accumulation).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    return original


def nanochat(script: Script) -> nn.Module:
    """AdamW and Muon, both with their own schedule; the loader fetches ahead of the step."""
    data = tokens()
    pairs = [(data[i : i + BLOCK], data[i + 1 : i + 1 + BLOCK]) for i in range(len(data) - BLOCK)]
    model = Language(dropout=0.0)
    adam = torch.optim.AdamW([*model.embed.parameters(), *model.head.parameters(), model.mix.bias], lr=1e-2)
    muon = torch.optim.Muon([model.mix.weight], lr=2e-2, momentum=0.9)
    optimizers = [adam, muon]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    with script.worker(model, optimizers) as worker:  # atoll
        loader = iter(atoll.batches(pairs, worker, batch_size=BATCH))  # atoll
        x, y = next(loader)
        while not worker.done:  # atoll
            step = int(worker.position)  # atoll
            _, loss = model(x, y)
            loss.backward()
            x, y = next(loader)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * (1 - step / 12)
            for group in muon.param_groups:
                group["momentum"] = 0.85 + 0.1 * min(step / 6, 1)
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=True)
    return model


def word_language_model(script: Script) -> nn.Module:
    """An LSTM with a hidden state, updated by hand: no optimizer. Batches are slices of a text of each worker."""
    source = tokens(script.seed).view(BATCH, -1).t()
    lstm, embed, head = nn.LSTM(16, 16), nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
    model = nn.ModuleDict({"embed": embed, "lstm": lstm, "head": head})
    with script.worker(model) as worker:  # atoll
        for _epoch in range(40):
            hidden = None
            for i in range(0, len(source) - BLOCK - 1, BLOCK):
                if worker.done:  # atoll
                    return model  # atoll
                model.zero_grad()
                out, hidden = lstm(embed(source[i : i + BLOCK]), hidden)
                hidden = tuple(h.detach() for h in hidden)
                loss = F.cross_entropy(head(out).flatten(0, 1), source[i + 1 : i + 1 + BLOCK].flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                for p in model.parameters():
                    p.data.add_(p.grad, alpha=-0.5)
                worker.step(loss=loss, tokens=BATCH * BLOCK)  # atoll
    raise AssertionError("the run is longer than the script")


# --- images ---------------------------------------------------------------------------------------------------------


def mnist(script: Script) -> nn.Module:
    """Epochs, StepLR for each of them, a test after each of them."""
    model, dataset = network(nn.Dropout(0.2)), Points(24)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    tested = 0
    with script.worker(model, optimizer, state=[scheduler]) as worker:  # atoll
        loader = atoll.batches(dataset, worker, batch_size=BATCH, per_epoch=True)  # atoll
        while not worker.done:  # atoll: was a number of epochs
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            accuracy(model)
            tested += 1
            scheduler.step()
    script.say(f"tested {tested} times, rate {optimizer.param_groups[0]['lr']:.3f}")
    return model


def imagenet(script: Script) -> nn.Module:
    """BatchNorm, momentum, MultiStepLR for each epoch, the best top-1."""
    model = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3, padding=1, bias=False), nn.BatchNorm1d(4),
                          nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))  # fmt: skip
    dataset, best = Points(24), 0.0
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    with script.worker(model, optimizer, state=[scheduler]) as worker:  # atoll
        loader = atoll.batches(dataset, worker, batch_size=BATCH, per_epoch=True)  # atoll
        while not worker.done:  # atoll
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            best = max(best, accuracy(model))
            scheduler.step()
    plain = DataLoader(dataset, batch_size=BATCH)
    torch.optim.swa_utils.update_bn(plain, model)
    model.eval()
    assert all(torch.isfinite(v).all() for v in model.state_dict().values()), "update_bn"
    return model


def dcgan(script: Script) -> nn.Module:
    """Two models and two optimizers. The module that the worker gets is never called."""
    generator, critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 1)
    optimizers = [torch.optim.Adam(critic.parameters(), 2e-3, (0.5, 0.999)),
                  torch.optim.Adam(generator.parameters(), 2e-3, (0.5, 0.999))]  # fmt: skip
    both = nn.ModuleDict({"critic": critic, "generator": generator})  # atoll
    with script.worker(both, optimizers) as worker:  # atoll
        loader = atoll.batches(Points(), worker, batch_size=BATCH)  # atoll
        for _epoch in range(20):
            for real, _ in loader:
                if worker.done:  # atoll
                    break  # atoll
                ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
                critic.zero_grad()
                fake = generator(torch.randn(len(real), 4))
                bce = F.binary_cross_entropy_with_logits
                (bce(critic(real), ones) + bce(critic(fake.detach()), zeros)).backward()
                optimizers[0].step()
                generator.zero_grad()
                bce(critic(fake), ones).backward()
                optimizers[1].step()
    return both


# --- parts of loops -------------------------------------------------------------------------------------------------


def batches_of(script: Script, model: nn.Module, optimizer: Any, inside: Any = None, **options: Any) -> nn.Module:
    """The loop of docs/python.md. inside(n, worker): after step n."""
    with script.worker(model, optimizer, **options) as worker:
        for n, (x, y) in enumerate(atoll.batches(Points(), worker, batch_size=BATCH)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if inside:
                inside(n, worker)
    return model


def skips(script: Script) -> nn.Module:
    """A step is left out if its gradient is too large."""
    model, left_out = network(), 0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with script.worker(model, optimizer) as worker:
        for x, y in atoll.batches(Points(), worker, batch_size=BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if float(x[0, 0]) > 0.5:  # in place of a norm: some of all batches
                left_out += 1
                worker.skip()  # atoll
                continue
            optimizer.step()
    script.say(f"left out {left_out}")
    return model


def copies(script: Script) -> nn.Module:
    """Files and copies of a model inside the block train and forget the worker."""
    model = network(nn.BatchNorm1d(16))
    averaged = torch.optim.swa_utils.AveragedModel(model)

    def inside(n: int, worker: atoll.Worker) -> None:
        averaged.update_parameters(model)
        if n not in (1, 3):  # in a round, and with a sync point due
            return
        for one in (copy.deepcopy(model), reloaded(model)):
            steps = worker.rounds.steps
            one(torch.zeros(2, 8)).sum().backward()  # neither joins nor exchanges nor counts
            assert worker.rounds.steps == steps
            assert all(torch.equal(a, b) for a, b in zip(one.parameters(), model.parameters()))

    return batches_of(script, model, torch.optim.SGD(model.parameters(), 0.1), inside)


def reloaded(model: nn.Module) -> nn.Module:
    """What torch.save(model) writes."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def compiles_after(script: Script) -> nn.Module:
    """torch.compile comes after atoll.Worker."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with script.worker(model, optimizer) as worker:
        compiled = torch.compile(model, backend="eager")
        for x, y in atoll.batches(Points(), worker, batch_size=BATCH):
            F.cross_entropy(compiled(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def data_parallel(script: Script) -> nn.Module:
    """Without GPUs nn.DataParallel calls its module."""
    model = nn.DataParallel(network())
    batches_of(script, model, torch.optim.AdamW(model.parameters(), 1e-2))
    return model.module


def own_steps(script: Script, max_steps: int) -> nn.Module:
    """A loop over a fixed number of steps."""
    torch.manual_seed(script.seed)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=max_steps)
    dataset = Points()
    with script.worker(model, optimizer, state=[scheduler]):  # atoll
        for _step in range(max_steps):
            x, y = zip(*(dataset[int(i)] for i in torch.randint(len(dataset), (BATCH,))))
            F.cross_entropy(model(torch.stack(x)), torch.tensor(y)).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return model


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimization: a step up, a second gradient, and the step of the base optimizer from below."""

    def __init__(self, params: Any, base: Any, **options: Any) -> None:
        super().__init__(params, options)
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.detach().clone()
            p.add_(p.grad, alpha=0.05)
            p.grad = None

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        self.zero_grad()


def sharp(script: Script) -> nn.Module:
    model = network()
    optimizer = Sharp(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    with script.worker(model, optimizer) as worker:
        for x, y in atoll.batches(Points(), worker, batch_size=BATCH):
            F.cross_entropy(model(x), y).backward()
            optimizer.first_step()
            F.cross_entropy(model(x), y).backward()
            optimizer.second_step()
    return model


class TorchLoops(LoopTest):
    def test_nanogpt(self) -> None:
        self.check_leased(nanogpt, train={"grad_accum": 2})

    def test_nanogpt_compiled(self) -> None:
        self.check_leased(lambda s: nanogpt(s, compiled=True), train={"grad_accum": 2})

    def test_nanochat(self) -> None:
        self.check_leased(nanochat)

    def test_word_language_model(self) -> None:
        self.check_own(word_language_model)

    def test_mnist(self) -> None:
        self.check_leased(mnist)
        # 24 samples are 3 steps of two workers: each round of 4 steps ends at the end of an epoch.
        self.assertIn("say: tested 3 times, rate 0.343", self.log("a"))

    def test_imagenet(self) -> None:
        self.check_leased(imagenet)

    def test_dcgan(self) -> None:
        self.check_leased(dcgan)

    def test_steps_that_are_left_out(self) -> None:
        self.check_leased(skips)
        self.assertNotIn("left out 0", self.log("a"))

    def test_copies_and_files_of_the_model(self) -> None:
        self.check_leased(copies)

    def test_compile_after_the_worker(self) -> None:
        self.check_leased(compiles_after)

    def test_data_parallel(self) -> None:
        self.check_leased(data_parallel)

    def test_own_number_of_steps(self) -> None:
        self.check_own(lambda s: own_steps(s, 12))

    def test_more_steps_than_the_run(self) -> None:
        self.check_own(lambda s: own_steps(s, 400))

    def test_wrapper_of_an_optimizer(self) -> None:
        self.check_leased(sharp)


if __name__ == "__main__":
    unittest.main()
