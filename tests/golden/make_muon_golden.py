"""Writes tests/golden/muon_steps.bin: matrices of odd shapes, gradients, and the result of torch.optim.Muon in double
precision with adjust_lr_fn match_rms_adamw.

    python3 tests/golden/make_muon_golden.py tests/golden/muon_steps.bin

Needs torch 2.9 or later. Layout, little-endian:

- u32 magic 0x4E4F554D, u32 matrices, u32 steps, u32 elements N
- per matrix u32 rows, cols, ld, decay; ld > cols: a block of columns, the next matrix is the block to its right
- per step f32 lr, momentum, weight decay, rounds
- f32 theta[N], f32 gradient[N] per step, f32 theta[N] and f32 momentum[N] after the last step

The matrices follow each other without gaps, row-major; blocks of columns share one matrix.
"""

import struct
import sys

import torch

# rows, columns, blocks of columns, decay
SHAPES = [(1, 1, 1, 1), (1, 9, 1, 1), (9, 1, 1, 0), (5, 5, 1, 1), (24, 7, 1, 1), (7, 24, 1, 0), (13, 40, 1, 1),
          (12, 36, 3, 1)]
# learning rate, momentum, weight decay, rounds
STEPS = [(0.02, 0.95, 0.1, 5), (0.01, 0.95, 0.1, 5), (0.02, 0.9, 0.0, 2)]


def run(theta, gradients):
    """torch.optim.Muon with one parameter per block. It iterates in torch.bfloat16, replaced by float64 in main()."""
    parameters = [[torch.nn.Parameter(b.clone()) for b in t.split(t.shape[1] // blocks, dim=1)]
                  for t, (_, _, blocks, _) in zip(theta, SHAPES)]
    groups = [dict(params=p, decays=shape[3]) for p, shape in zip(parameters, SHAPES)]
    optimizer = torch.optim.Muon(groups, adjust_lr_fn="match_rms_adamw")
    for gradient, (lr, momentum, decay, rounds) in zip(gradients, STEPS):
        for p, g in zip(parameters, gradient):
            for block, part in zip(p, g.split(p[0].shape[1], dim=1)):
                block.grad = part.clone()
        for group in optimizer.param_groups:
            group.update(lr=lr, momentum=momentum, weight_decay=decay * group["decays"], ns_steps=rounds)
        optimizer.step()
    def whole(of):
        return [torch.cat([of(b) for b in p], dim=1) for p in parameters]
    return whole(lambda b: b.detach()), whole(lambda b: optimizer.state[b]["momentum_buffer"])


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors]).float().numpy().astype("<f4").tobytes()


def main(path):
    torch.manual_seed(4321)
    def random(sigma):
        return [(torch.randn(rows, cols) * sigma).double() for rows, cols, _, _ in SHAPES]
    theta, gradients = random(0.3), [random(sigma) for sigma in (0.02, 1.0, 0.1)]
    rough, _ = run([t.float() for t in theta], [[g.float() for g in gradient] for gradient in gradients])
    torch.bfloat16 = torch.float64
    end, momentum = run(theta, gradients)
    step = torch.cat([(e - t).reshape(-1) for e, t in zip(end, theta)])
    off = torch.cat([(r - e).reshape(-1) for r, e in zip(rough, end)]).norm() / step.norm()
    assert 1e-4 < off < 0.1, off  # bfloat16 is close, but not equal
    with open(path, "wb") as f:
        n = sum(t.numel() for t in theta)
        f.write(struct.pack("<4I", 0x4E4F554D, sum(s[2] for s in SHAPES), len(STEPS), n))
        for rows, cols, blocks, decay in SHAPES:
            for _ in range(blocks):
                f.write(struct.pack("<4I", rows, cols // blocks, cols, decay))
        for numbers in STEPS:
            f.write(struct.pack("<4f", *numbers))
        for tensors in (theta, *gradients, end, momentum):
            f.write(flat(tensors))
    print(f"{n} elements; bfloat16 is off by {float(off):.3f} of the step")


if __name__ == "__main__":
    main(sys.argv[1])
