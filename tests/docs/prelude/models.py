"""Called by sessions: makes a small tokenizer with a chat template, and inputs.

- The tokenizer: models/llama, models/llama-chat, tokenizer.json, and MODEL, a model folder if transformers is there.
- Inputs: corpus.jsonl.gz, dump.gz, talks.jsonl, TEXT.jsonl, data.jsonl.
"""

import gzip
import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}" + END + "{% endfor %}"

lines = Path("text/novel.txt").read_text(encoding="utf-8").splitlines()[:400]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet)
tokenizer.train_from_iterator(lines, trainer)
tokenizer.save("tokenizer.json")
config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": TEMPLATE}
for folder in (Path("models/llama"), Path("models/llama-chat"), Path("MODEL")):
    folder.mkdir(parents=True)
    shutil.copy("tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

texts = [" ".join(lines[i:i + 4]) for i in range(0, len(lines), 4)]
with gzip.open("corpus.jsonl.gz", "wt") as corpus, gzip.open("dump.gz", "wt") as dump, open("TEXT.jsonl", "w") as plain:
    for text in texts:
        print(json.dumps({"text": text}), file=corpus)
        print(json.dumps({"body": text}), file=dump)
        print(json.dumps({"text": text}), file=plain)
shutil.copy("TEXT.jsonl", "data.jsonl")
with open("talks.jsonl", "w") as talks:
    for text in texts:
        talk = [{"role": "user", "content": "And then?"}, {"role": "assistant", "content": text}]
        print(json.dumps({"messages": talk}), file=talks)

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    LlamaForCausalLM = None
if LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=300, max_position_embeddings=256, **sizes)).save_pretrained("MODEL")
