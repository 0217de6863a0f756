"""Writes tests/golden/gpt2_small.bin: a small GPT-2's parameters, tokens, logits, loss, gradients, and the losses of five
AdamW steps, computed by PyTorch in double precision from parameters that are exact in single precision.

    python3 tests/golden/make_model_golden.py tests/golden/gpt2_small.bin

Needs only torch (any 2.x). Layout, little-endian: u32 magic 0x31444C47, u32 V, C, layers, heads, T, B, steps, u64 P;
f32 theta[P] in the order of the names below; i32 tokens[B*T]; i32 targets[B*T] (-1: does not count); f32 logits[B*T*V];
f32 loss (mean over counted targets); f32 gradients[P]; f32 losses[steps], each before its step; f64 grad_norms[steps].
"""

import math
import struct
import sys

import torch
import torch.nn.functional as F

V, C, LAYERS, HEADS, T, B, STEPS = 64, 24, 2, 2, 16, 2, 5
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0


def shapes():
    yield "wte.weight", (V, C)
    yield "wpe.weight", (T, C)
    for i in range(LAYERS):
        for name, shape in [("ln_1.weight", (C,)), ("ln_1.bias", (C,)), ("attn.c_attn.weight", (C, 3 * C)),
                            ("attn.c_attn.bias", (3 * C,)), ("attn.c_proj.weight", (C, C)),
                            ("attn.c_proj.bias", (C,)), ("ln_2.weight", (C,)), ("ln_2.bias", (C,)),
                            ("mlp.c_fc.weight", (C, 4 * C)), ("mlp.c_fc.bias", (4 * C,)),
                            ("mlp.c_proj.weight", (4 * C, C)), ("mlp.c_proj.bias", (C,))]:
            yield f"h.{i}.{name}", shape
    yield "ln_f.weight", (C,)
    yield "ln_f.bias", (C,)


def make_parameters():
    """Every tensor away from its special values (unit norms, zero biases), so that no term can hide."""
    torch.manual_seed(1234)
    parameters = {}
    for name, shape in shapes():
        value = torch.randn(shape) * (0.3 if len(shape) == 2 else 0.1)
        if "ln_" in name and name.endswith("weight"):
            value = 1 + value
        parameters[name] = value.double().requires_grad_()
    return parameters


def forward(p, tokens):
    x = p["wte.weight"][tokens] + p["wpe.weight"][torch.arange(tokens.shape[1])]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    for i in range(LAYERS):
        w = lambda name: p[f"h.{i}.{name}"]
        y = F.layer_norm(x, (C,), w("ln_1.weight"), w("ln_1.bias"), 1e-5)
        qkv = y @ w("attn.c_attn.weight") + w("attn.c_attn.bias")
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in qkv.split(C, dim=2))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(C // HEADS)
        o = scores.masked_fill(~mask, -math.inf).softmax(dim=3) @ v
        o = o.transpose(1, 2).reshape(B, T, C)
        x = x + o @ w("attn.c_proj.weight") + w("attn.c_proj.bias")
        y = F.layer_norm(x, (C,), w("ln_2.weight"), w("ln_2.bias"), 1e-5)
        h = F.gelu(y @ w("mlp.c_fc.weight") + w("mlp.c_fc.bias"), approximate="tanh")
        x = x + h @ w("mlp.c_proj.weight") + w("mlp.c_proj.bias")
    x = F.layer_norm(x, (C,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
    return x @ p["wte.weight"].T


def loss_of(p, tokens, targets):
    return F.cross_entropy(forward(p, tokens).view(B * T, V), targets.view(B * T), ignore_index=-1)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).float()


def main(path):
    p = make_parameters()
    tokens = torch.randint(V, (B, T))
    targets = torch.randint(V, (B, T))
    targets[1, 5] = -1
    theta = flat(p.values())
    logits = forward(p, tokens).detach().float()
    loss = loss_of(p, tokens, targets)
    loss.backward()
    gradients = flat(t.grad for t in p.values())

    decay = [t for t in p.values() if t.dim() >= 2]
    rest = [t for t in p.values() if t.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decay), dict(params=rest, weight_decay=0.0)], **ADAMW)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step_loss = loss_of(p, tokens, targets)
        step_loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)))
        optimizer.step()
        losses.append(step_loss.item())

    with open(path, "wb") as f:
        f.write(struct.pack("<8IQ", 0x31444C47, V, C, LAYERS, HEADS, T, B, STEPS, theta.numel()))
        f.write(theta.numpy().astype("<f4").tobytes())
        f.write(tokens.numpy().astype("<i4").tobytes())
        f.write(targets.numpy().astype("<i4").tobytes())
        f.write(logits.numpy().astype("<f4").tobytes())
        f.write(struct.pack("<f", loss.item()))
        f.write(gradients.numpy().astype("<f4").tobytes())
        f.write(struct.pack(f"<{STEPS}f", *losses))
        f.write(struct.pack(f"<{STEPS}d", *norms))
    print(f"{theta.numel()} parameters, loss {loss.item():.6f}, AdamW losses {losses}, norms {norms}")


if __name__ == "__main__":
    main(sys.argv[1])
