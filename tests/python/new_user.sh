# What a new user types on two machines, in a Debian system without a compiler: new_user.sh WHEEL
# It prints each command with its time, then wrong uses with the line that each prints. It runs as root in a root
# that holds Debian's python3 and python3-venv (tests/e2e/test_e2e_new_user.sh makes one), and installs from PyPI.
# shellcheck shell=bash
set -euo pipefail

wheel=$1
work=$(mktemp -d)
cd "$work"
workers=()
trap 'kill "${workers[@]}" 2>/dev/null || true' EXIT
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore
for tool in gcc cc clang cmake; do
    ! command -v $tool || { echo "this root has a compiler: $tool" && exit 1; }
done

now_ms() { date +%s%3N; }
said() { # MILLISECONDS COMMAND
    printf '%7d.%d s  %s\n' $(($1 / 1000)) $(($1 % 1000 / 100)) "$2"
}
timed() { # COMMAND...
    local began
    began=$(now_ms)
    "$@" >last.log 2>&1 || { tail -n 20 last.log && echo "FAIL: $*" && exit 1; }
    said $(($(now_ms) - began)) "$*"
}

echo '--- installation'
timed python3 -m venv env
# shellcheck source=/dev/null
source env/bin/activate
timed pip install "$wheel"
du -sm env/lib/python3*/site-packages/atoll* | awk '{ sum += $1 } END { print "           the package: " sum " MB" }'
timed atoll --version
timed pip install "${wheel}[hf,data]"

echo '--- a model folder of Hugging Face with a tokenizer, and a jsonl.gz file'
cat >make_model.py <<'PY'
import gzip, json, random
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

random.seed(1)
who = ["the old lighthouse keeper", "a small grey boat", "her brother", "a patient gull"]
verbs = ["watched", "carried", "remembered", "lost", "found"]
what = ["the morning mail", "seven white stones", "the northern light", "every passing ship"]
texts = [" ".join(f"{random.choice(who)} {random.choice(verbs)} {random.choice(what)}." for _ in range(12))
         for _ in range(3000)]
with gzip.open("corpus.jsonl.gz", "wt") as file:
    file.writelines(json.dumps({"body": text}) + "\n" for text in texts)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
special = ["<|endoftext|>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet)
tokenizer.train_from_iterator(texts, trainer)
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0], bos_token=special[0]).save_pretrained("model")
size = len(tokenizer.get_vocab())
config = GPT2Config(vocab_size=size, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
GPT2LMHeadModel(config).save_pretrained("model")
PY
timed python make_model.py
timed atoll prepare data corpus.jsonl.gz --tokenizer model --field body

echo '--- two shells'
cat >train.py <<'PY'
import sys
import atoll, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("model")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = atoll.launch("run", max_steps=60, every=20, batch_size=8, workers=2, listen="tcp://127.0.0.1:*")
dataset = atoll.Tokens("data/train_*.bin", 64)
files = AutoTokenizer.from_pretrained("model")
with atoll.Worker(model, optimizer, join=run, files=files) as worker:
    for x, y in atoll.batches(dataset, worker, batch_size=8):
        model(x, labels=y, shift_labels=y).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
PY
export OMP_NUM_THREADS=1
began=$(now_ms)
python train.py >shell-1.log 2>&1 &
workers+=($!)
until grep -q 'python -m atoll.join' shell-1.log; do
    kill -0 "${workers[0]}" || { cat shell-1.log && exit 1; }
    sleep 0.1
done
said $(($(now_ms) - began)) 'python train.py         # shell 1: until it prints the next command'
join=$(sed -n 's/.*\(python -m atoll.join .*\)/\1/p' shell-1.log)
echo "           it says: $join"
began=$(now_ms)
$join >shell-2.log 2>&1 &
workers+=($!)
until grep -q 'round 1: ' shell-2.log; do
    kill -0 "${workers[1]}" || { cat shell-2.log && exit 1; }
    sleep 0.1
done
said $(($(now_ms) - began)) "$join    # shell 2: until the first joint step is done"
sed -n 's/^/           shell 2: /; /round 1: /p' shell-2.log
for id in "${workers[@]}"; do wait "$id" || { cat shell-?.log && exit 1; }; done
workers=()
said $(($(now_ms) - began)) 'both shells are done: 3 rounds of 20 steps'

echo '--- back in Hugging Face'
cat >load.py <<'PY'
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel
import glob, torch

folder = sorted(glob.glob("run/checkpoints/round_*"))[-1]
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
before = AutoModelForCausalLM.from_pretrained("model")
assert isinstance(model, GPT2LMHeadModel)
ids = tokenizer("the old lighthouse keeper found seven white stones.", return_tensors="pt").input_ids
with torch.no_grad():
    losses = [m(ids, labels=ids).loss.item() for m in (before, model)]
assert losses[1] < losses[0] - 1, losses
print(f"{folder}: loss {losses[0]:.2f} before, {losses[1]:.2f} after")
PY
timed python load.py
sed 's/^/           /' last.log
timed atoll generate run --prompt 'the old' --tokens 12 --temperature 0
sed 's/^/           /' last.log
timed atoll status run

echo '--- wrong uses: what, then the line that the user reads'
cat >wrong.py <<'PY'
import sys
import atoll, torch
from torch.utils.data import DataLoader, TensorDataset

case, run = sys.argv[1:]
model = torch.nn.Linear(8, 4 if case == "layout" else 2)
data = TensorDataset(torch.arange(64).view(64, 1), torch.ones(64, 8) * (2 if case == "data" else 1))
if case == "frozen":
    model.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
every = {"every": 50} if case == "every" else {}
join, name = None if case == "no join" else run, case.replace(" ", "-")
with atoll.Worker(model, optimizer, join=join, name=name, **every) as worker:
    source = DataLoader(data) if case == "loader" else data
    for i, x in atoll.batches(source, worker, batch_size=3 if case == "batch" else 8):
        print("begun", flush=True)
        model(x).sum().backward()
        if case != "no step":
            optimizer.step()
PY
# wrong "WHAT" COMMAND...: the command must fail, and its last line is what the user reads.
wrong() {
    local what=$1 line code=0
    shift
    timeout 120 "$@" >wrong.log 2>&1 || code=$?
    line=$(sed '/^$/d' wrong.log | tail -n 1)
    printf '%-44s %s\n' "$what" "$line"
    ((code != 0 && code != 124)) || { echo "FAIL: exit code $code" && exit 1; }
    [[ $line =~ ^(atoll|atoll\.[A-Za-z]*Error|ValueError|TypeError):\  ]] ||
        { cat wrong.log && echo "FAIL: not one line" && exit 1; }
}
serve() { # FOLDER SETTINGS...: starts a coordinator
    local run=$1
    shift
    atoll-coordinator /dev/null --dir "$run" --model.family=external --train.max_steps=60 --train.sync_every=20 \
        --train.batch_size=8 --coordinator.listen='tcp://127.0.0.1:*' "$@" >"$run.log" 2>&1 &
    workers+=($!)
    until [[ -s $run/address ]]; do sleep 0.1; done
}
serve one
serve two --coordinator.min_workers=2
python wrong.py good two >good.log 2>&1 &
workers+=($!)
until grep -q 'good' two.log && [[ -e two/init ]]; do
    kill -0 "${workers[-1]}" || { cat good.log && exit 1; }
    sleep 0.1
done
wrong 'no join line' python wrong.py 'no join' one
wrong 'a join line without its last part' python wrong.py typo tcp://127.0.0.1:29600
wrong 'every= differs from the run' python wrong.py every one
wrong 'a batch size that does not divide the step' python wrong.py batch one
wrong 'a loop without optimizer.step()' python wrong.py 'no step' one
wrong 'a model without trainable parameters' python wrong.py frozen one
wrong 'a DataLoader instead of a data set' python wrong.py loader one
wrong 'another model than the first worker' python wrong.py layout two
wrong 'another data set than the first worker' python wrong.py data two
wrong 'the join line without the script' python -m atoll.join run
wrong 'prepare: a field that the file lacks' atoll prepare other corpus.jsonl.gz --tokenizer model --field text
wrong 'prepare: the folder exists' atoll prepare data corpus.jsonl.gz --tokenizer model --field body
wrong 'board: no such run' atoll board nowhere
