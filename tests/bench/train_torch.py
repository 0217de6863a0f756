"""PyTorch's side of `./run bench train`, and its timer: one process per model and number of threads.

It measures bench_train (through its standard input), PyTorch eager and PyTorch compiled alternately, chunk by chunk, so
that noise of the machine affects all three alike. Prints one JSON object on standard output."""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2: pre-norm, learned positions, tanh GELU, head tied to the embedding, initialized with N(0, 0.02)."""

    def __init__(self, layers, heads, width, block, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, 0.0, 0.02)
        for name, p in self.named_parameters():
            if p.dim() == 1 and name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Trainer:
    def __init__(self, args, compiled):
        torch.manual_seed(1)
        self.model = Gpt(args.layers, args.heads, args.width, args.seq, args.vocab)
        decay = [p for p in self.model.parameters() if p.dim() >= 2]
        plain = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
        self.opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
        self.run = torch.compile(self.model) if compiled else self.model
        data = torch.randint(0, args.vocab, (args.batch, args.seq + 1))
        self.x, self.y = data[:, :-1].contiguous(), data[:, 1:].contiguous()

    def step(self):
        self.opt.zero_grad(set_to_none=True)
        loss = self.run(self.x, self.y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return loss.item()

    def chunk(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        return steps * self.x.numel() / (time.perf_counter() - start)


class Ours:
    """bench_train: reads one line `<steps>`, answers one line `<tokens per second>`."""

    def __init__(self, args):
        shape = [args.layers, args.heads, args.width, args.seq, args.batch, args.vocab, args.threads]
        self.proc = subprocess.Popen([args.ours] + [str(v) for v in shape], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
        self.about = json.loads(self.proc.stdout.readline())

    def chunk(self, steps):
        self.proc.stdin.write(f"{steps}\n")
        self.proc.stdin.flush()
        return float(self.proc.stdout.readline())

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "heads", "width", "seq", "batch", "vocab", "threads"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--name", default="model")
    parser.add_argument("--ours", help="path of bench_train")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one chunk")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    sides, about = {}, {}
    if args.ours:
        sides["ours"] = Ours(args)
        about = sides["ours"].about
    sides["torch_eager"] = Trainer(args, False)
    if not args.no_compile:
        sides["torch_compile"] = Trainer(args, True)
    steps, speeds = {}, {name: [] for name in sides}
    for name, side in list(sides.items()):
        try:
            side.chunk(1)
            rate = side.chunk(1)
        except Exception as error:  # torch.compile fails without a C++ compiler
            print(f"{name}: skipped: {error}", file=sys.stderr)
            del sides[name], speeds[name]
            continue
        steps[name] = max(1, math.ceil(args.seconds * rate / (args.batch * args.seq)))
    for _ in range(args.rounds):
        for name, side in sides.items():
            speeds[name].append(side.chunk(steps[name]))
    if "ours" in sides:
        sides["ours"].close()
    row = {"model": args.name, "threads": args.threads, **about}
    for name, values in speeds.items():
        row[name + "_tokens_per_s"] = round(statistics.median(values), 1)
        row[name + "_best"] = round(max(values), 1)
    row["torch"] = torch.__version__
    print(json.dumps(row))
    sys.stdout.flush()
    os._exit(0)  # a normal exit waits seconds for inductor's compile workers


main()
