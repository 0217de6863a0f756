"""PyTorch's side of `./run bench codec`: each codec as a training script would write it, on one thread, same values.

Usage: codec_torch.py VALUES.f32 OUT.json [seconds]

- Speed: GB (1e9 bytes) of fp32 values per second, best of the repetitions.
- encode: block absmax quantization, or the K largest values of each chunk.
- decode_merge: dequantize the values of one worker and add them to an accumulator (index_add for top-k).
- The output is tensors, not bytes: packing positions and codes would cost more time."""

import json
import sys
import time

import torch


def blocks(x, size):
    return x[: x.numel() // size * size].view(-1, size)


def quantize(x, size, levels):
    b = blocks(x, size)
    scale = b.abs().amax(dim=1, keepdim=True) / levels
    codes = (b / torch.where(scale > 0, scale, 1.0)).round_().clamp_(-levels, levels).to(torch.int8)
    return codes, scale


def pack4(x, size):
    codes, scale = quantize(x, size, 7)
    flat = codes.view(-1, 2) & 15
    return flat[:, 0] | flat[:, 1] << 4, scale


def unpack4(packed, scale, size):
    low, high = (packed << 4) >> 4, packed >> 4
    return torch.stack((low, high), dim=1).view(-1, size) * scale


def sign(x, size):
    b = blocks(x, size)
    return b < 0, b.abs().mean(dim=1, keepdim=True)


def chosen(x, k, chunk):
    b = blocks(x, chunk)
    places = torch.topk(b.abs(), k, dim=1, sorted=False).indices
    values = b.gather(1, places)
    return places, values < 0, values.abs().mean(dim=1, keepdim=True)


def add_chosen(acc, places, negative, scale, chunk):
    start = torch.arange(places.shape[0], device=acc.device).unsqueeze(1) * chunk
    values = torch.where(negative, -scale, scale)
    acc.index_add_(0, (places + start).view(-1), values.view(-1), alpha=0.25)


def cases(x, acc):
    def add(values):
        acc[: values.numel()].add_(values.view(-1), alpha=0.25)

    yield "bf16", lambda: (x.to(torch.bfloat16),), lambda h: add(h.float())
    yield "fp16", lambda: (x.to(torch.float16),), lambda h: add(h.float())
    yield "int8:256", lambda: quantize(x, 256, 127), lambda codes, scale: add(codes * scale)
    yield "int4:256", lambda: pack4(x, 256), lambda packed, scale: add(unpack4(packed, scale, 256))
    yield "1bit:256", lambda: sign(x, 256), lambda negative, scale: add(torch.where(negative, -scale, scale))
    for k in (32, 64, 128, 256, 1024):
        values = "2bit" if k == 1024 else "sign"
        yield (f"topk:{k}/4096+{values}", lambda k=k: chosen(x, k, 4096),
               lambda places, negative, scale: add_chosen(acc, places, negative, scale, 4096))


def best(run, seconds):
    run()
    least, spent, n = float("inf"), 0.0, 0
    while n < 3 or spent < seconds:
        start = time.process_time()
        run()
        took = time.process_time() - start
        least, spent, n = min(least, took), spent + took, n + 1
    return least


def main():
    torch.set_num_threads(1)
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.3
    with open(sys.argv[1], "rb") as f:
        x = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
    acc, out = torch.zeros_like(x), {"torch": torch.__version__}
    for name, encode, merge in cases(x, acc):
        made = encode()
        out[name] = {"encode_gbps": round(4e-9 * x.numel() / best(encode, seconds), 3),
                     "decode_merge_gbps": round(4e-9 * x.numel() / best(lambda: merge(*made), seconds), 3)}
    with open(sys.argv[2], "w") as f:
        json.dump(out, f, indent=1)


main()
