"""Trains a small GPT-2 on the token shards of `atoll prepare`. See examples/README.md.

    python SCRIPT --data FOLDER --steps N
"""

import argparse
import glob
import math

import atoll
import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

BLOCK, BATCH, RATE, WARMUP = 96, 8, 3e-3, 100


def load(pattern):
    """Samples of BLOCK tokens, and the tokens that follow each of them. A shard begins with 1024 bytes of header."""
    shards = [np.fromfile(path, np.uint16, offset=1024) for path in sorted(glob.glob(pattern))]
    tokens = torch.from_numpy(np.concatenate(shards).astype(np.int64))
    n = (len(tokens) - 1) // BLOCK * BLOCK
    return TensorDataset(tokens[:n].view(-1, BLOCK), tokens[1 : n + 1].view(-1, BLOCK))


def rate_at(step):
    """Linear warmup, then a cosine to a tenth of the rate."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1, (step - WARMUP) / (options.steps - WARMUP))))


def train(batches):
    for step, (x, y) in enumerate(batches):
        loss = model(x, labels=y, shift_labels=y).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)


def evaluate(dataset):
    model.eval()
    with torch.no_grad():
        sums = [len(x) * model(x, labels=y, shift_labels=y).loss.item() for x, y in DataLoader(dataset, 64)]
    return sum(sums) / len(dataset)


parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data")
parser.add_argument("--steps", type=int, default=1920)
parser.add_argument("--out", default="gpt2", help="folder for the trained model")
options = parser.parse_args()

sizes = {"vocab_size": 256, "n_positions": BLOCK, "n_embd": 160, "n_layer": 3, "n_head": 4}
others = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": None, "eos_token_id": None}
model = GPT2LMHeadModel(GPT2Config(**sizes, **others))
matrices = [p for p in model.parameters() if p.ndim >= 2]
vectors = [p for p in model.parameters() if p.ndim < 2]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)

dataset = atoll.Tokens(f"{options.data}/train_*.bin", BLOCK)
run = atoll.launch("runs/gpt2", max_steps=options.steps, every=16, batch_size=BATCH)
with atoll.Worker(model, optimizer, join=run, state=[schedule]) as worker:
    train(atoll.batches(dataset, worker, BATCH))
print(f"validation loss {evaluate(load(f'{options.data}/val_*.bin')):.4f} nats per token")
model.save_pretrained(options.out)
