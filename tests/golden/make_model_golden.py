"""Writes tests/golden/gpt2_small.bin or llama_small.bin: parameters, tokens, logits, loss, gradients of a small model
and the losses of five AdamW steps. PyTorch computes them in double precision from parameters that are exact in single
precision.

    python3 tests/golden/make_model_golden.py gpt2 tests/golden/gpt2_small.bin
    python3 tests/golden/make_model_golden.py llama tests/golden/llama_small.bin

Needs only torch (any 2.x). Layout, little-endian:

- u32 magic (0x31444C47 gpt2, 0x32444C47 llama), u32 V, C, layers, heads, T, B, steps, u64 P
- llama only: u32 kv_heads, ffn, tied, f64 rope_theta, norm_eps
- f32 theta[P] in the order of shapes()
- i32 tokens[B*T], i32 targets[B*T] (-1: ignored)
- f32 logits[B*T*V], f32 loss (mean over targets that are not ignored), f32 gradients[P]
- f32 losses[steps], each before its step, f64 grad_norms[steps]
"""

import math
import struct
import sys

import torch
import torch.nn.functional as F

V, C, LAYERS, T, B, STEPS = 64, 24, 2, 16, 2, 5
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0


class GPT2:
    magic, heads = 0x31444C47, 2
    more = b""

    @staticmethod
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

    @staticmethod
    def forward(p, tokens):
        x = p["wte.weight"][tokens] + p["wpe.weight"][torch.arange(tokens.shape[1])]
        for i in range(LAYERS):
            w = lambda name: p[f"h.{i}.{name}"]
            y = F.layer_norm(x, (C,), w("ln_1.weight"), w("ln_1.bias"), 1e-5)
            qkv = y @ w("attn.c_attn.weight") + w("attn.c_attn.bias")
            q, k, v = (t.view(B, T, GPT2.heads, C // GPT2.heads).transpose(1, 2) for t in qkv.split(C, dim=2))
            x = x + attention(q, k, v) @ w("attn.c_proj.weight") + w("attn.c_proj.bias")
            y = F.layer_norm(x, (C,), w("ln_2.weight"), w("ln_2.bias"), 1e-5)
            h = F.gelu(y @ w("mlp.c_fc.weight") + w("mlp.c_fc.bias"), approximate="tanh")
            x = x + h @ w("mlp.c_proj.weight") + w("mlp.c_proj.bias")
        x = F.layer_norm(x, (C,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
        return x @ p["wte.weight"].T


class Llama:
    """Four query heads on two key/value heads, untied output layer; eps and angles that affect the result."""
    magic, heads, kv_heads, ffn, theta, eps = 0x32444C47, 4, 2, 40, 50.0, 1e-2
    hd = C // heads
    more = struct.pack("<3I2d", kv_heads, ffn, 0, theta, eps)

    @staticmethod
    def shapes():
        kv = Llama.kv_heads * Llama.hd
        yield "model.embed_tokens.weight", (V, C)
        for i in range(LAYERS):
            for name, shape in [("input_layernorm", (C,)), ("self_attn.q_proj", (C, C)), ("self_attn.k_proj", (kv, C)),
                                ("self_attn.v_proj", (kv, C)), ("self_attn.o_proj", (C, C)),
                                ("post_attention_layernorm", (C,)), ("mlp.gate_proj", (Llama.ffn, C)),
                                ("mlp.up_proj", (Llama.ffn, C)), ("mlp.down_proj", (C, Llama.ffn))]:
                yield f"model.layers.{i}.{name}.weight", shape
        yield "model.norm.weight", (C,)
        yield "lm_head.weight", (V, C)

    @staticmethod
    def norm(x, w):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + Llama.eps) * w

    @staticmethod
    def rotate(x):
        """Rotary embedding of x[B, heads, T, hd]: pairs (i, i + hd/2) as complex numbers, times exp(i angle)."""
        half = Llama.hd // 2
        steps = Llama.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(T, dtype=torch.float64)[:, None] * steps
        z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([z.real, z.imag], dim=-1)

    @staticmethod
    def forward(p, tokens):
        x = p["model.embed_tokens.weight"][tokens]
        for i in range(LAYERS):
            w = lambda name: p[f"model.layers.{i}.{name}.weight"]
            y = Llama.norm(x, w("input_layernorm"))
            q, k, v = ((y @ w(f"self_attn.{name}_proj").T).view(B, T, -1, Llama.hd).transpose(1, 2) for name in "qkv")
            k, v = (t.repeat_interleave(Llama.heads // Llama.kv_heads, dim=1) for t in (Llama.rotate(k), v))
            x = x + attention(Llama.rotate(q), k, v) @ w("self_attn.o_proj").T
            y = Llama.norm(x, w("post_attention_layernorm"))
            h = F.silu(y @ w("mlp.gate_proj").T) * (y @ w("mlp.up_proj").T)
            x = x + h @ w("mlp.down_proj").T
        return Llama.norm(x, p["model.norm.weight"]) @ p["lm_head.weight"].T


def attention(q, k, v):
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
    o = scores.masked_fill(~mask, -math.inf).softmax(dim=3) @ v
    return o.transpose(1, 2).reshape(B, T, C)


def make_parameters(model):
    """Parameters away from special values (unit norms, zero biases), so that every term affects the result."""
    torch.manual_seed(1234)
    parameters = {}
    for name, shape in model.shapes():
        value = torch.randn(shape) * (0.3 if len(shape) == 2 else 0.1)
        if len(shape) == 1 and name.endswith("weight"):
            value = 1 + value
        parameters[name] = value.double().requires_grad_()
    return parameters


def loss_of(model, p, tokens, targets):
    return F.cross_entropy(model.forward(p, tokens).view(B * T, V), targets.view(B * T), ignore_index=-1)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).float()


def main(name, path):
    model = {"gpt2": GPT2, "llama": Llama}[name]
    p = make_parameters(model)
    tokens = torch.randint(V, (B, T))
    targets = torch.randint(V, (B, T))
    targets[1, 5] = -1
    theta = flat(p.values())
    logits = model.forward(p, tokens).detach().float()
    loss = loss_of(model, p, tokens, targets)
    loss.backward()
    gradients = flat(t.grad for t in p.values())

    decay = [t for t in p.values() if t.dim() >= 2]
    rest = [t for t in p.values() if t.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decay), dict(params=rest, weight_decay=0.0)], **ADAMW)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step_loss = loss_of(model, p, tokens, targets)
        step_loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)))
        optimizer.step()
        losses.append(step_loss.item())

    with open(path, "wb") as f:
        f.write(struct.pack("<8IQ", model.magic, V, C, LAYERS, model.heads, T, B, STEPS, theta.numel()) + model.more)
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
    main(*sys.argv[1:])
