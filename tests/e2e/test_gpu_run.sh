#!/usr/bin/env bash
# tests/gpu/run without a GPU: one line and 77; and its whole flow on the emulated device, so that it cannot rot.
# PRECISION_STEPS=N: only its section precision, with N steps in bf16 that end where fp32 ends.
# ctest: timeout=240
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh

command -v python3 >/dev/null || exit 77
cd "$HERE/../.."
if [[ ${PRECISION_STEPS:-} ]]; then
    python3 tests/gpu/run --emulated --bin "$BIN" --minutes 20 --only precision --precision-steps "$PRECISION_STEPS" \
        --out "$WORK/results.json"
    exit
fi
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [[ ! -e /proc/driver/nvidia/version ]]; then
    status=0
    python3 tests/gpu/run --bin "$BIN" >"$WORK/none.log" 2>&1 || status=$?
    ((status == 77)) || fail "without a GPU: ended with $status, expected 77"
    [[ $(wc -l <"$WORK/none.log") == 1 ]] || fail "without a GPU: more than one line"
fi

status=0
python3 tests/gpu/run --emulated --bin "$BIN" --out "$WORK/results.json" >"$WORK/run.log" 2>&1 || status=$?
sed 's/^/    /' "$WORK/run.log"
((status == 0)) || fail "tests/gpu/run --emulated ended with $status"
python3 - "$WORK/results.json" <<'PY'
import json, sys
sections = json.load(open(sys.argv[1]))["sections"]
assert list(sections) == ["info", "parity", "codecs", "runs", "launch", "ranks", "ceilings", "memory", "train", "outer", "precision", "peers"], list(sections)
assert all(s["ok"] for s in sections.values())
rows = {(r["what"], r["allowed"]) for r in sections["parity"]["table"]}
assert len(rows) > 25, len(rows)
assert all(r["off"] <= r["allowed"] for r in sections["parity"]["table"])
toy = sections["train"]["models"]["gpt2-toy"]["ours"]
assert toy["tokens_per_s"] > 0 and toy["loss"] < toy["loss_first"] + 0.5 and abs(toy["planned_mb"] - toy["taken_mb"]) < 1e-3 and toy["flops_per_token"] > 0
assert toy["step_tokens"] == 16 * 2 * 2, toy # sequence, batch, parts
assert sections["ceilings"]["gemm"][0]["tflops"] > 0 and sections["ceilings"]["attention"][0]["bwd_tflops"] > 0
ends = sections["ceilings"]["ends"][0]
for name in ("dgelu", "bias_grad"):
    assert ends[name]["separate_ms"] > 0 and ends[name]["fused_ms"] > 0 and ends[name]["repeats"] is True, ends
    assert ends[name]["faster"] in ("separate", "fused") and ends[name]["chosen"] in ("separate", "either"), ends
assert ends["dgelu"]["chosen"] == "separate" # the emulation times nothing, and dgelu of the sum rounds otherwise
assert [h["v"] for h in sections["ceilings"]["head"]] == [97, 104] and sections["ceilings"]["head"][0]["ms"] > 0
assert sections["runs"]["steps"] == 100 and sections["runs"]["fp32_off"] < 1e-4
assert list(sections["launch"]["losses"]) == ["cpu", "fp32", "bf16"], sections["launch"]
ranks = sections["ranks"]
assert [(r["optimizer"], r["devices"]) for r in ranks["runs"]] == [(o, d) for o in ("adamw", "muon") for d in ("cuda:0", "cuda:0,1")]
assert all(len(r["losses"]) == 4 and r.get("off", 0) < 1e-4 for r in ranks["runs"]) and ranks["gpus"] == 2, ranks
assert [(r["devices"], r["gpus"], r["step_tokens"]) for r in ranks["speed"]] == [("cuda:0", 1, 64), ("cuda:0,1", 2, 128)], ranks
assert ranks["speed"][0]["to_one"] == 1 and ranks["speed"][1]["to_one"] > 0, ranks
assert len(sections["memory"]["bf16"]) == 3 and len(sections["memory"]["fp32"]) == 1
assert all(r["ms_up_as_floats"] > 0 and r["ms_up_as_numbers"] > 0 for r in sections["outer"]["delta"])
assert len(sections["outer"]["delta"]) == 3 and 0 < sections["outer"]["share_at_h30_of_large_steps"]["gpt2-toy"] < sections["outer"]["share_at_h30"]["gpt2-toy"] < 1
PY

# A second go adds to what the first one wrote, but never to what another device did.
again() {
    python3 tests/gpu/run --emulated --bin "$BIN" --only memory --out "$WORK/results.json" >"$WORK/again.log" 2>&1 ||
        fail "a second go failed: $(<"$WORK/again.log")"
    python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["sections"])' "$WORK/results.json"
}
sed -i 's/"planned_mb"/"first_go"/' "$WORK/results.json"
[[ $(again) == "info parity codecs runs launch ranks ceilings memory train outer precision peers" ]] || fail "a second go lost sections"
grep -q '"planned_mb"' "$WORK/results.json" || fail "the section was not done again"
grep -q '"first_go"' "$WORK/results.json" || fail "another section was"
sed -i 's/"device": "[^"]*"/"device": "another"/' "$WORK/results.json"
[[ $(again) == "info memory" ]] || fail "figures of two devices stand in one file"

# A machine with one GPU has no ranks.
ATOLL_EMULATED_GPUS=1 python3 tests/gpu/run --emulated --bin "$BIN" --only ranks --out "$WORK/one.json" >"$WORK/one.log" 2>&1 ||
    fail "with one GPU: $(<"$WORK/one.log")"
grep -q '"skipped": "fewer than 2 GPUs"' "$WORK/one.json" || fail "with one GPU: $(<"$WORK/one.json")"

# What a program of ours ends with is the reason, not a warning before it.
status=0
ATOLL_EMULATED_NO_NCCL=1 python3 tests/gpu/run --emulated --bin "$BIN" --only ranks --out "$WORK/nccl.json" >"$WORK/nccl.log" 2>&1 ||
    status=$?
((status == 1)) || fail "without NCCL: ended with $status, expected 1"
grep -q 'cuda:0,1.*: atoll launch .*: exit 1: atoll: worker-0: NCCL: none' "$WORK/nccl.log" || fail "without NCCL: $(<"$WORK/nccl.log")"

# PyTorch's side, played by a script: its rates, eager and compiled, stand beside ours.
cat >"$WORK/torch" <<'SH'
#!/usr/bin/env bash
[[ $1 == -c ]] && exit
echo '{"device": "none"}'
while read -r _; do echo '{"tokens_per_s": 0.001, "loss": 1}'; done
SH
chmod +x "$WORK/torch"
ATOLL_TORCH_PYTHON=$WORK/torch python3 tests/gpu/run --emulated --bin "$BIN" --only train,peers --out "$WORK/torch.json" \
    >"$WORK/torch.log" 2>&1 || fail "beside PyTorch: $(<"$WORK/torch.log")"
python3 - "$WORK/torch.json" <<'PY'
import json, sys
rows = json.load(open(sys.argv[1]))["sections"]["peers"]["models"]["gpt2-toy"]
assert rows["torch_eager"]["tokens_per_s"] == rows["torch_compile"]["tokens_per_s"] == 0.001 and rows["ours_to_best"] > 1, rows
PY

# A section that fails is said and recorded, and the rest goes on.
mkdir "$WORK/bin"
ln -s "$BIN"/{bench_gpu,atoll_cuda_emulated.so,gpu_*} "$WORK/bin"
rm "$WORK/bin/gpu_muon"
status=0
python3 tests/gpu/run --emulated --bin "$WORK/bin" --only parity,ceilings --out "$WORK/broken.json" >"$WORK/broken.log" 2>&1 ||
    status=$?
((status == 1)) || fail "with a program missing: ended with $status, expected 1"
grep -q 'gpu_muon' "$WORK/broken.log" || fail "the missing program is not named"
grep -q 'ceilings: ok' "$WORK/broken.log" || fail "the section after it did not run"

# What a go had no time for is no failure, and is named apart.
python3 tests/gpu/run --emulated --bin "$BIN" --only info,codecs --minutes 0 --out "$WORK/late.json" >"$WORK/late.log" 2>&1 ||
    fail "out of time: ended with $?, expected 0: $(<"$WORK/late.log")"
grep -q 'late.json: 2 sections, 0 failed; 2 out of time: info, codecs (a second go: --only info,codecs)$' "$WORK/late.log" ||
    fail "out of time: $(<"$WORK/late.log")"
python3 - "$WORK/late.json" <<'PY'
import json, sys
section = json.load(open(sys.argv[1]))["sections"]["codecs"]
assert section["ok"] is None and section["out_of_time"] is True and not section["errors"], section
assert section["no_time_for"] == ["codecs"], section
PY

# Whatever a program answers, or does not in time, is recorded too, and nothing of it stays behind.
mkdir "$WORK/odd"
printf '#!/bin/sh\necho "{\\"device\\": 5, \\"note\\": 6}"\n' >"$WORK/odd/bench_gpu"
printf '#!/bin/sh\nsleep 1000 &\necho $! >"%s"\nwait\n' "$WORK/left" >"$WORK/odd/gpu_kernels"
cp "$WORK/odd/gpu_kernels" "$WORK/odd/gpu_kernels_vectors"
chmod +x "$WORK/odd"/*
status=0
python3 tests/gpu/run --emulated --bin "$WORK/odd" --only info,parity --minutes 0.08 --out "$WORK/odd.json" \
    >"$WORK/odd.log" 2>&1 || status=$?
((status == 1)) || fail "with odd programs: ended with $status, expected 1: $(<"$WORK/odd.log")"
grep -q 'info: FAILED' "$WORK/odd.log" || fail "an answer of the wrong kind passed"
grep -q 'parity: out of time' "$WORK/odd.log" || fail "a program that does not end passed"
grep -q 'programs kernels_vectors; programs kernels_rows, ' "$WORK/odd.log" || fail "what there was no time for is not named"
grep -q '2 sections, 1 failed: info; 1 out of time: parity ' "$WORK/odd.log" || fail "$(tail -n 1 "$WORK/odd.log")"
[[ -s $WORK/left ]] || fail "the program that does not end did not begin"
grep -q 'gpu_kernels_vectors: out of time' "$WORK/odd.json.failed" || fail "nobody can read what failed"
left_behind() {
    local state
    state=$(cut -d' ' -f3 "/proc/$(<"$WORK/left")/stat" 2>/dev/null || true) # Z: ended, its parent has not looked yet
    [[ -n $state && $state != Z ]]
}
! left_behind || fail "what it started is left"

# A machine that shows less memory than it has: what is refused for it says what helps, unless that is done already.
mkdir "$WORK/small"
cat >"$WORK/small/bench_gpu" <<'SH'
#!/bin/sh
echo "bench_gpu: a worker on cuda:0 needs 9.00 GiB of the host's memory, and 1.00 GiB are free" >&2
exit 1
SH
chmod +x "$WORK/small/bench_gpu"
small() {
    python3 tests/gpu/run --emulated --bin "$WORK/small" --only train --out "$WORK/small.json" >"$WORK/small.log" 2>&1 &&
        fail "a model that was refused passed"
    grep -c 'are free (set ATOLL_HOST_MEMORY=BYTES where the machine has more than it shows: docs/gpu.md)"' "$WORK/small.json" || true
}
[[ $(small) == 2 ]] || fail "what helps is not said: $(<"$WORK/small.json")" # info and train
[[ $(ATOLL_HOST_MEMORY=1000 small) == 0 ]] || fail "what was done already is said: $(<"$WORK/small.json")"

# Called from another folder, with names as they are there; and where nothing can be written.
mkdir -p "$WORK/here/bin"
cat >"$WORK/here/bin/bench_gpu" <<'SH'
#!/bin/sh
echo "a library has something to say" >&2
echo '{"device": "none", "note": "", "peak_tflops": 0, "recompute": "none", "planned_mb": 10, "taken_mb": 10}'
SH
cat >"$WORK/here/bin/gpu_one" <<'SH'
#!/bin/sh
printf 'sums\t1e-7\t1e-6\n' >>"$ATOLL_CASE_LOG"
SH
for name in kernels_vectors kernels_rows kernels_layers muon recompute; do
    cp "$WORK/here/bin/gpu_one" "$WORK/here/bin/gpu_$name"
done
chmod +x "$WORK/here/bin"/*
root=$PWD
(cd "$WORK/here" && python3 "$root/tests/gpu/run" --emulated --bin bin --only parity,memory --out results.json) >"$WORK/here.log" 2>&1 ||
    fail "called from another folder: $(<"$WORK/here.log")"
grep -q '"what": "sums"' "$WORK/here/results.json" || fail "called from another folder: comparisons are lost"
status=0
python3 tests/gpu/run --emulated --bin "$WORK/here/bin" --out "$WORK/here/results.json/no" >"$WORK/write.log" 2>&1 || status=$?
((status == 1)) || fail "nowhere to write: ended with $status, expected 1"
grep -q 'cannot write .*name another file with --out' "$WORK/write.log" || fail "nowhere to write: $(<"$WORK/write.log")"

# Who stops it has what was done so far, and nothing is left.
rm "$WORK/left"
start "$WORK/term.log" python3 tests/gpu/run --emulated --bin "$WORK/odd" --only info,parity,ceilings --out "$WORK/term.json"
until_true 20 "the program that does not end" test -s "$WORK/left"
kill -TERM "$pid"
finish "$pid" 20 1 "tests/gpu/run after SIGTERM"
! left_behind || fail "what it started is left after SIGTERM"
grep -q 'stopped by signal 15' "$WORK/term.json" || fail "it was stopped, and its results do not say so"
! grep -q ceilings "$WORK/term.json" || fail "it went on after SIGTERM"

# Killed in the middle of a section, as where a machine is taken back: what that has done so far is in the file.
cp "$WORK/here/bin/gpu_one" "$WORK/odd/gpu_kernels_vectors"
cp "$WORK/here/bin/bench_gpu" "$WORK/odd/bench_gpu"
printf '#!/bin/sh\necho $$ >"%s"\nexec sleep 1000\n' "$WORK/hangs" >"$WORK/odd/gpu_kernels_rows"
start "$WORK/kill.log" python3 tests/gpu/run --emulated --bin "$WORK/odd" --only info,parity --out "$WORK/kill.json"
until_true 20 "the second program" test -s "$WORK/hangs"
kill -KILL "$pid" "$(<"$WORK/hangs")"
finish "$pid" 20 137 "tests/gpu/run after SIGKILL"
python3 - "$WORK/kill.json" <<'PY'
import json, sys
section = json.load(open(sys.argv[1]))["sections"]["parity"]
assert section["programs"] == ["kernels_vectors"] and not section["ok"], section
PY

# What a machine can lack: cmake; libcublasLt, which is looked for in wheels, too; and what a pack takes along.
status=0
python=$(python3 -c 'import sys; print(sys.executable)')
mkdir "$WORK/path"
PATH=$WORK/path ATOLL_BUILD=$WORK/none "$python" tests/gpu/run --emulated >"$WORK/cmake.log" 2>&1 || status=$?
((status == 1)) || fail "without cmake: ended with $status, expected 1"
grep -q 'cmake failed (No such file or directory); see .*--pack' "$WORK/cmake.log" || fail "without cmake: $(<"$WORK/cmake.log")"
mkdir -p "$WORK/venv/lib/python3.12/site-packages/nvidia/cu13/lib" "$WORK/venv/bin"
python3 - "$WORK/venv" "$BIN" <<'PY'
import argparse, os, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, "tests/gpu")
import libraries, programs, runner

folder, built = sys.argv[1:]
os.environ["VIRTUAL_ENV"] = folder
wheel = folder + "/lib/python3.12/site-packages/nvidia/cu13/lib"
assert wheel in libraries.cuda_folders("bin", {}), libraries.cuda_folders("bin", {})
said = libraries.advice(["x: libcublasLt.so.13: cannot open shared object file"], [wheel])
assert "pip install nvidia-cublas" in said and "--with-cublas" in said and wheel in said, said
assert "pip install nvidia-cublas-cu12" in libraries.advice(["x: libcublasLt.so.12: cannot open"], [])
assert not libraries.advice(["CUDA: no NVIDIA driver on this machine"], [wheel])

headers = folder + "/lib/python3.12/site-packages/nvidia/cudnn"
os.makedirs(headers + "/include")
open(headers + "/include/cudnn_backend.h", "w").close()
assert libraries.cudnn_home() == {"CUDNN_HOME": headers}, libraries.cudnn_home()
wants = libraries.linked(built + "/atoll-worker", False)
assert "libzmq.so.5" in wants and not [name for name in wants if name.startswith(("libc.", "libstdc++", "libresolv"))], wants

plugin = built + "/atoll_cuda.so"
if os.path.exists(plugin):
    assert not [name for name in libraries.linked(plugin, False) if "cublas" in name]
    assert [name for name in libraries.linked(plugin, True) if name.startswith("libcublasLt.so.")]

    # A pack has all that its programs read, too: carried to a machine with nothing else, they compare.
    programs.BUILD = folder + "/packed"
    os.makedirs(programs.BUILD)
    os.symlink(built, programs.BUILD + "/bin")
    programs.pack(False)
    carried = folder + "/elsewhere"
    os.rename(programs.BUILD + "/gpu/pack", carried)
    args = argparse.Namespace(emulated=True, bin=carried + "/bin", out=folder + "/pack.json", minutes=1, only=None)
    os.symlink(built + "/atoll_cuda_emulated.so", carried + "/bin/atoll_cuda_emulated.so")
    other = runner.Run(args)
    assert other.cwd == carried, other.cwd
    other.call([carried + "/bin/gpu_muon", "test_golden"])

# One that hangs has three times its share, not all the time there is.
one = runner.Run.__new__(runner.Run)
one.save, one.stopped = lambda: None, False
one.until = one.deadline = one.item_until = time.monotonic() + 100
entry, lefts = {"errors": []}, []
def body(item):
    lefts.append(one.left())
    if item == 0:
        raise runner.OutOfTime("hangs")
    return item
one.each(entry, "items", range(10), body)
assert 29 < lefts[0] < 31 and entry["items"] == list(range(1, 10)) and len(entry["errors"]) == 1, (lefts, entry)
assert "out_of_time" not in entry, entry # there was time: it hangs
assert 99 < one.left() <= 100
one.until = time.monotonic()
one.each(entry, "items", range(3), body)
assert entry["items"] == [] and "no time for 0, 1, 2" in entry["errors"][-1] and "out_of_time" not in entry, entry
one.deadline, entry = one.until, {"errors": []}
one.each(entry, "items", range(3), body)
assert entry == {"errors": [], "items": [], "out_of_time": True, "no_time_for": ["items 0, 1, 2"]}, entry
PY
mkdir -p "$WORK/carried/bin" "$WORK/carried/lib"
[[ $(python3 tests/gpu/run --bin "$WORK/carried/bin" --libraries) == "$WORK/carried/lib"* ]] || fail "--libraries: not of the pack"
# As its pack is carried: this folder alone, called from anywhere. Nothing of Python's is left beside it.
mkdir -p "$WORK/carried/tests/gpu"
cp tests/gpu/run tests/gpu/*.py "$WORK/carried/tests/gpu"
[[ $(cd / && "$WORK/carried/tests/gpu/run" --bin "$WORK/carried/bin" --libraries) == "$WORK/carried/lib"* ]] ||
    fail "carried: it wants more than its folder"
for folder in tests/gpu "$WORK/carried/tests/gpu"; do
    [[ ! -e $folder/__pycache__ ]] || fail "$folder/__pycache__ is left"
done
echo ok
