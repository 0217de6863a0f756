"""PyTorch's side of tests/gpu/run: the same models with PyTorch's fastest attention, fused AdamW and clipping.

Usage: train_gpu_torch.py eager|compile cuda|cpu FAMILY LAYERS HEADS KV WIDTH FFN SEQ BATCH VOCAB PARTS

- Precision: bf16 autocast over fp32 parameters; activations and norms in bf16.
- A step has PARTS batches; if memory runs out, the step is split into more parts.
- Protocol of bench_gpu train: one JSON line about itself, then one line with tokens per second and loss for each step
  count on standard input."""

import json
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Norm(nn.Module):
    """bf16 with sums in fp32, like Atoll's norm. Autocast would run the norm in fp32 and move twice the bytes."""

    def __init__(self, width, rms):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = None if rms else nn.Parameter(torch.zeros(width))

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            if self.bias is None:
                return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)
            return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), self.bias.to(x.dtype), 1e-5)


class Gpt2Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.heads
        self.ln_1 = Norm(s.width, False)
        self.attn = nn.Linear(s.width, 3 * s.width)
        self.proj = nn.Linear(s.width, s.width)
        self.ln_2 = Norm(s.width, False)
        self.fc = nn.Linear(s.width, 4 * s.width)
        self.out = nn.Linear(4 * s.width, s.width)

    def forward(self, x, rope):
        b, t, c = x.shape
        q, k, v = self.attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(attend(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


def rotate(x, rope):
    cos, sin = rope
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.kv, self.hd = s.heads, s.kv, s.width // s.heads
        self.norm_1 = Norm(s.width, True)
        self.qkv = nn.Linear(s.width, (s.heads + 2 * s.kv) * self.hd, bias=False)
        self.proj = nn.Linear(s.width, s.width, bias=False)
        self.norm_2 = Norm(s.width, True)
        self.gate_up = nn.Linear(s.width, 2 * s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.width, bias=False)

    def forward(self, x, rope):
        b, t, c = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, t, self.heads + 2 * self.kv, self.hd).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv, self.kv), 1)
        y = attend(rotate(q, rope), rotate(k, rope), v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gpt2 = s.family == "gpt2"
        self.wte = nn.Embedding(s.vocab, s.width)
        self.wpe = nn.Embedding(s.seq, s.width) if self.gpt2 else None
        self.blocks = nn.ModuleList((Gpt2Block if self.gpt2 else LlamaBlock)(s) for _ in range(s.layers))
        self.norm = Norm(s.width, not self.gpt2)
        angles = torch.outer(torch.arange(s.seq), 10000 ** (-torch.arange(0, s.width // s.heads, 2) / (s.width // s.heads)))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        if self.gpt2:
            x = x + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = x.to(torch.bfloat16)  # like Atoll: autocast keeps the residual stream in fp32, which is slower
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def attention_of(device):
    """PyTorch's fastest attention. By default it prefers FlashAttention 2 on all GPUs; cuDNN is about twice as fast on
    Hopper, but not elsewhere (huggingface/transformers pull request 48163)."""
    if device != "cuda":
        return lambda: sdpa_kernel([SDPBackend.MATH])
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    if torch.cuda.get_device_capability()[0] == 9:
        order.reverse()
    try:
        sdpa_kernel(order, set_priority=True)
    except TypeError:  # before 2.6
        return lambda: sdpa_kernel(order[:1])
    return lambda: sdpa_kernel(order, set_priority=True)


class Side:
    """One training step in `parts` micro-batches; settle() doubles them until they fit into memory."""

    def __init__(self, model, compiled, opt, x, y, parts, device):
        self.model, self.compiled, self.opt, self.x, self.y, self.device = model, compiled, opt, x, y, device
        self.attention, self.used, self.parts, self.forward = attention_of(device), "by priority", parts, compiled()

    def step(self):
        self.opt.zero_grad(set_to_none=True)
        total = 0
        for x, y in zip(self.x.chunk(self.parts), self.y.chunk(self.parts)):
            with torch.autocast(self.device, torch.bfloat16), self.attention():
                loss = self.forward(x, y) / self.parts
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return total

    def attempt(self):
        """Try one step. Returns "", or the reason of the failure: "memory" or "attention"."""
        try:
            self.step()
        except torch.cuda.OutOfMemoryError:
            return "memory"
        except RuntimeError:
            if self.device != "cuda" or self.used != "by priority":
                raise
            return "attention"
        return ""

    def settle(self):
        while why := self.attempt():
            if why == "attention":
                self.used, self.attention = "flash alone", lambda: sdpa_kernel([SDPBackend.FLASH_ATTENTION])
            elif self.parts < len(self.x):
                self.parts *= 2
            else:
                raise SystemExit("out of memory with one sequence per micro-batch")
            self.opt.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            if self.forward is not self.model:
                torch._dynamo.reset()
                self.forward = self.compiled()


class Shape:
    def __init__(self, words):
        self.family = words[0]
        names = ("layers", "heads", "kv", "width", "ffn", "seq", "batch", "vocab", "parts")
        for name, word in zip(names, words[1:]):
            setattr(self, name, int(word))


def main():
    kind, device, shape = sys.argv[1], sys.argv[2], Shape(sys.argv[3:])
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):  # on the device: a CPU takes half a minute to initialize the largest
        model = Model(shape)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    compiled = (lambda: torch.compile(model, dynamic=False)) if kind == "compile" else lambda: model
    data = torch.randint(0, shape.vocab, (shape.batch * shape.parts, shape.seq + 1), device=device)
    x, y = data[:, :-1].contiguous(), data[:, 1:].contiguous()
    side = Side(model, compiled, opt, x, y, shape.parts, device)
    side.settle()
    about = {"torch": torch.__version__, "attention": side.used, "micro_steps": side.parts,
             "params": sum(p.numel() for p in model.parameters())}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        count, start, loss = int(line), time.perf_counter(), None
        for _ in range(count):
            loss = side.step()
        value = loss.item()  # waits for the device
        rate = count * x.numel() / (time.perf_counter() - start)
        print(json.dumps({"tokens_per_s": rate, "loss": value}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a normal exit waits seconds for inductor's compile workers


main()
