"""A NumPy worker for `./run bench gate`: a softmax over the next byte. gate_external.py TEXT LOSS_FILE FOLDER SEED"""

import os
import sys

import numpy as np

import atoll

text = np.frombuffer(open(sys.argv[1], "rb").read(), np.uint8)
train, held = text[: len(text) * 9 // 10], text[len(text) * 9 // 10:]
parameters = {"logits": np.zeros((256, 256), np.float32)}
dice = np.random.default_rng(int(sys.argv[4]))


def probabilities(x):
    logits = parameters["logits"][x]
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


with atoll.Worker(parameters, join=os.environ["ATOLL_JOIN"], dir=sys.argv[3]) as worker:
    while worker.begin():
        for _ in range(worker.assignment.steps):
            at = dice.integers(0, len(train) - 1, 256)
            x, y = train[at], train[at + 1]
            p = probabilities(x)
            loss = -np.log(p[np.arange(256), y]).mean()
            p[np.arange(256), y] -= 1
            gradient = np.zeros((256, 256), np.float32)
            np.add.at(gradient, x, p / 256)
            parameters["logits"] -= np.float32(5) * gradient
            if not worker.step(loss=float(loss), tokens=256):
                break
p = probabilities(held[:-1])
with open(sys.argv[2] + ".part", "w", encoding="utf-8") as file:
    file.write(str(-np.log(np.maximum(p[np.arange(len(held) - 1), held[1:]], 1e-30)).mean()))
os.rename(sys.argv[2] + ".part", sys.argv[2])
