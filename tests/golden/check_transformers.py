"""Checks model folders against Hugging Face transformers: it loads Atoll's folder unchanged and gives the same logits,
and its saved folder holds the same tensors.

    ATOLL_HF_OUT=/tmp/atoll-hf build/bin/test_generate_text
    python3 tests/golden/check_transformers.py /tmp/atoll-hf-gpt2
    python3 tests/golden/check_transformers.py /tmp/atoll-hf-llama

Needs torch and transformers from PyPI. Writes FOLDER-saved with save_pretrained and compares its tensors."""

import struct
import sys

import numpy
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM


def main(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value and key != "missing_keys"}
    missing = [key for key in info["missing_keys"] if key != "lm_head.weight" or not model.config.tie_word_embeddings]
    assert not problems and not missing, (problems, missing)
    assert model.dtype == torch.float32, model.dtype
    assert model.config.bos_token_id == model.config.eos_token_id == 0, model.config  # byte tokenizer
    with open(f"{folder}/logits.bin", "rb") as f:
        seq, vocab = struct.unpack("<II", f.read(8))
        tokens = numpy.frombuffer(f.read(4 * seq), "<i4")
        ours = numpy.frombuffer(f.read(), "<f4").reshape(seq, vocab)
    model.eval()
    with torch.no_grad():
        theirs = model(torch.from_numpy(tokens.astype("int64"))[None]).logits[0].numpy()
    error = numpy.linalg.norm(ours - theirs) / numpy.linalg.norm(theirs)
    print(f"logits of {seq} positions x {vocab}: relative difference {error:.2e}")
    assert error < 1e-5

    model.save_pretrained(f"{folder}-saved")
    a, b = load_file(f"{folder}/model.safetensors"), load_file(f"{folder}-saved/model.safetensors")
    prefix = "" if model.config.model_type == "llama" else "transformer."
    for name, value in a.items():
        assert numpy.array_equal(value, b[prefix + name]), name
    print(f"{len(a)} tensors survive save_pretrained; extra names: {sorted(set(b) - {prefix + n for n in a})}")


if __name__ == "__main__":
    main(sys.argv[1])
