#!/usr/bin/env bash
# tests/gpu/run: without a GPU it prints one line and exits with 77. On the emulated device every section runs, so that
# the script keeps working between runs on real GPUs. PRECISION_STEPS=N: runs the section precision alone, which
# compares N steps in bf16 with fp32.
# ctest: labels=long timeout=240
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

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
    ((status == 77)) || fail "without a GPU: exit code $status, expected 77"
    [[ $(wc -l <"$WORK/none.log") == 1 ]] || fail "without a GPU: expected one line"
fi

status=0
python3 tests/gpu/run --emulated --bin "$BIN" --out "$WORK/results.json" >"$WORK/run.log" 2>&1 || status=$?
sed 's/^/    /' "$WORK/run.log"
((status == 0)) || fail "tests/gpu/run --emulated: exit code $status"
python3 - "$WORK/results.json" <<'PY'
import json, sys
sections = json.load(open(sys.argv[1]))["sections"]
assert list(sections) == ["info", "parity", "codecs", "runs", "launch", "scripts", "ranks", "ceilings", "memory", "train", "outer", "precision", "peers"], list(sections)
assert all(s["ok"] for s in sections.values())
rows = {(r["what"], r["allowed"]) for r in sections["parity"]["table"]}
assert len(rows) > 25, len(rows)
assert all(r["off"] <= r["allowed"] for r in sections["parity"]["table"])
toy = sections["train"]["models"]["gpt2-toy"]["ours"]
assert toy["tokens_per_s"] > 0 and toy["loss"] < toy["loss_first"] + 0.5 and abs(toy["planned_mb"] - toy["taken_mb"]) < 1e-3 and toy["flops_per_token"] > 0
assert toy["step_tokens"] == 16 * 2 * 2, toy # sequence, batch, parts
assert sections["ceilings"]["gemm"][0]["tflops"] > 0 and sections["ceilings"]["attention"][0]["bwd_tflops"] > 0
assert sections["ceilings"]["attention_plain"][0]["bwd_tflops"] > 0
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

# A second call adds sections to the results of the first, unless another device made them.
again() {
    python3 tests/gpu/run --emulated --bin "$BIN" --only memory --out "$WORK/results.json" >"$WORK/again.log" 2>&1 ||
        fail "the second call failed: $(<"$WORK/again.log")"
    python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["sections"])' "$WORK/results.json"
}
sed -i 's/"planned_mb"/"first_call"/' "$WORK/results.json"
[[ $(again) == "info parity codecs runs launch scripts ranks ceilings memory train outer precision peers" ]] ||
    fail "the second call lost sections"
grep -q '"planned_mb"' "$WORK/results.json" || fail "the second call did not repeat the section"
grep -q '"first_call"' "$WORK/results.json" || fail "the second call changed another section"
sed -i 's/"device": "[^"]*"/"device": "another"/' "$WORK/results.json"
[[ $(again) == "info memory" ]] || fail "one file holds results of two devices"

# A machine with one GPU skips the section ranks.
ATOLL_EMULATED_GPUS=1 python3 tests/gpu/run --emulated --bin "$BIN" --only ranks --out "$WORK/one.json" >"$WORK/one.log" 2>&1 ||
    fail "with one GPU: $(<"$WORK/one.log")"
grep -q '"skipped": "fewer than 2 GPUs"' "$WORK/one.json" || fail "with one GPU: $(<"$WORK/one.json")"

# The reported reason is the program's error line, not an earlier warning.
status=0
ATOLL_EMULATED_NO_NCCL=1 python3 tests/gpu/run --emulated --bin "$BIN" --only ranks --out "$WORK/nccl.json" >"$WORK/nccl.log" 2>&1 ||
    status=$?
((status == 1)) || fail "without NCCL: exit code $status, expected 1"
grep -q 'cuda:0,1.*: atoll launch .*: exit 1: atoll: worker-0: NCCL: none' "$WORK/nccl.log" ||
    fail "without NCCL: $(<"$WORK/nccl.log")"

# A script stands in for PyTorch: the results hold its eager and compiled rates beside Atoll's.
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

# A failed section is printed and recorded; the next sections still run.
mkdir "$WORK/bin"
ln -s "$BIN"/{bench_gpu,atoll_cuda_emulated.so,gpu_*} "$WORK/bin"
rm "$WORK/bin/gpu_muon"
status=0
python3 tests/gpu/run --emulated --bin "$WORK/bin" --only parity,ceilings --out "$WORK/broken.json" >"$WORK/broken.log" 2>&1 ||
    status=$?
((status == 1)) || fail "missing program: exit code $status, expected 1"
grep -q 'gpu_muon' "$WORK/broken.log" || fail "the output does not name the missing program"
grep -q 'ceilings: ok' "$WORK/broken.log" || fail "the next section did not run"

# Sections without time left are listed separately and do not fail.
python3 tests/gpu/run --emulated --bin "$BIN" --only info,codecs --minutes 0 --out "$WORK/late.json" >"$WORK/late.log" 2>&1 ||
    fail "out of time: exit code $?, expected 0: $(<"$WORK/late.log")"
grep -q 'late.json: 2 sections, 0 failed; 2 out of time: info, codecs (run again with --only info,codecs)$' "$WORK/late.log" ||
    fail "out of time: $(<"$WORK/late.log")"
python3 - "$WORK/late.json" <<'PY'
import json, sys
section = json.load(open(sys.argv[1]))["sections"]["codecs"]
assert section["ok"] is None and section["out_of_time"] is True and not section["errors"], section
assert section["no_time_for"] == ["codecs"], section
PY

# Malformed answers and hanging programs are recorded; their processes are killed.
mkdir "$WORK/odd"
printf '#!/bin/sh\necho "{\\"device\\": 5, \\"note\\": 6}"\n' >"$WORK/odd/bench_gpu"
printf '#!/bin/sh\nsleep 1000 &\necho $! >"%s"\nwait\n' "$WORK/left" >"$WORK/odd/gpu_kernels"
cp "$WORK/odd/gpu_kernels" "$WORK/odd/gpu_kernels_vectors"
chmod +x "$WORK/odd"/*
status=0
python3 tests/gpu/run --emulated --bin "$WORK/odd" --only info,parity --minutes 0.08 --out "$WORK/odd.json" \
    >"$WORK/odd.log" 2>&1 || status=$?
((status == 1)) || fail "malformed and hanging programs: exit code $status, expected 1: $(<"$WORK/odd.log")"
grep -q 'info: FAILED' "$WORK/odd.log" || fail "an answer of the wrong type passed"
grep -q 'parity: out of time' "$WORK/odd.log" || fail "a hanging program passed"
grep -q 'programs kernels_vectors; programs kernels_rows, ' "$WORK/odd.log" ||
    fail "the output does not name the programs without time"
grep -q '2 sections, 1 failed: info; 1 out of time: parity ' "$WORK/odd.log" ||
    fail "unexpected last line: $(tail -n 1 "$WORK/odd.log")"
[[ -s $WORK/left ]] || fail "the hanging program did not start"
grep -q 'gpu_kernels_vectors: out of time' "$WORK/odd.json.failed" ||
    fail "the file of failures lacks the hanging program"
child_running() {
    local state
    state=$(cut -d' ' -f3 "/proc/$(<"$WORK/left")/stat" 2>/dev/null || true) # Z: a zombie has ended
    [[ -n $state && $state != Z ]]
}
! child_running || fail "the child of the hanging program is still running"

# A machine that shows too little memory: the error names ATOLL_HOST_MEMORY, unless it is set already.
mkdir "$WORK/small"
cat >"$WORK/small/bench_gpu" <<'SH'
#!/bin/sh
echo "bench_gpu: a worker on cuda:0 needs 9.00 GiB of the host's memory, and 1.00 GiB are free" >&2
exit 1
SH
chmod +x "$WORK/small/bench_gpu"
small() {
    python3 tests/gpu/run --emulated --bin "$WORK/small" --only train --out "$WORK/small.json" >"$WORK/small.log" 2>&1 &&
        fail "a refused model passed"
    grep -c 'are free (set ATOLL_HOST_MEMORY=BYTES if the machine has more: docs/gpu.md)"' "$WORK/small.json" || true
}
[[ $(small) == 2 ]] || fail "the errors lack the hint: $(<"$WORK/small.json")" # sections info and train
[[ $(ATOLL_HOST_MEMORY=1000 small) == 0 ]] ||
    fail "the errors repeat a hint that is already followed: $(<"$WORK/small.json")"

# Relative paths refer to the caller's folder; an unwritable output is an error.
mkdir -p "$WORK/here/bin"
cat >"$WORK/here/bin/bench_gpu" <<'SH'
#!/bin/sh
echo "a line from a library" >&2
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
grep -q '"what": "sums"' "$WORK/here/results.json" || fail "called from another folder: the comparisons are missing"
status=0
python3 tests/gpu/run --emulated --bin "$WORK/here/bin" --out "$WORK/here/results.json/no" >"$WORK/write.log" 2>&1 || status=$?
((status == 1)) || fail "unwritable output: exit code $status, expected 1"
grep -q 'cannot write .*name another file with --out' "$WORK/write.log" ||
    fail "unwritable output: $(<"$WORK/write.log")"

# SIGTERM keeps the results so far and kills all children.
rm "$WORK/left"
start "$WORK/term.log" python3 tests/gpu/run --emulated --bin "$WORK/odd" --only info,parity,ceilings --out "$WORK/term.json"
until_true 20 "the hanging program" test -s "$WORK/left"
kill -TERM "$pid"
finish "$pid" 20 1 "tests/gpu/run after SIGTERM"
! child_running || fail "the child is still running after SIGTERM"
grep -q 'stopped by signal 15' "$WORK/term.json" || fail "the results do not record SIGTERM"
! grep -q ceilings "$WORK/term.json" || fail "a section ran after SIGTERM"

# SIGKILL in the middle of a section, as when a machine is reclaimed: the file holds the finished part.
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

# Missing cmake; libcublasLt from Python wheels; the content of a pack.
status=0
python=$(python3 -c 'import sys; print(sys.executable)')
mkdir "$WORK/path"
PATH=$WORK/path ATOLL_BUILD=$WORK/none "$python" tests/gpu/run --emulated >"$WORK/cmake.log" 2>&1 || status=$?
((status == 1)) || fail "without cmake: exit code $status, expected 1"
grep -q 'cmake failed (No such file or directory); see .*--pack' "$WORK/cmake.log" ||
    fail "without cmake: $(<"$WORK/cmake.log")"
mkdir -p "$WORK/venv/lib/python3.12/site-packages/nvidia/cu13/lib" "$WORK/venv/bin"
python3 - "$WORK/venv" "$BIN" <<'PY'
import argparse, os, signal, subprocess, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, "tests/gpu")
import checks, libraries, programs, runner

folder, built = sys.argv[1:]
os.environ["VIRTUAL_ENV"] = folder
wheel = folder + "/lib/python3.12/site-packages/nvidia/cu13/lib"
assert wheel in libraries.cuda_folders("bin", {}), libraries.cuda_folders("bin", {})
advice = libraries.advice(["x: libcublasLt.so.13: cannot open shared object file"], [wheel])
assert "pip install nvidia-cublas" in advice and "--with-cublas" in advice and wheel in advice, advice
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

    # A pack holds the files that its programs read: they work on a machine with nothing else.
    programs.BUILD = folder + "/packed"
    os.makedirs(programs.BUILD)
    os.symlink(built, programs.BUILD + "/bin")
    os.symlink(os.path.dirname(built) + "/lib", programs.BUILD + "/lib")
    programs.pack(False)
    carried = folder + "/elsewhere"
    os.rename(programs.BUILD + "/gpu/pack", carried)
    args = argparse.Namespace(emulated=True, bin=carried + "/bin", out=folder + "/pack.json", minutes=1, only=None)
    os.symlink(built + "/atoll_cuda_emulated.so", carried + "/bin/atoll_cuda_emulated.so")
    other = runner.Run(args)
    assert other.cwd == carried, other.cwd
    assert os.path.isfile(programs.libatoll(other.bin)), os.listdir(carried + "/lib")
    other.call([carried + "/bin/gpu_muon", "test_golden"])

# A signal while a program starts ends that program, too.
quick = runner.Run(argparse.Namespace(emulated=True, bin=built, out=folder + "/quick.json", minutes=1, only=None))
real, begun = subprocess.Popen, []
def start(*args, **more):
    begun.append(real(*args, **more))
    os.kill(os.getpid(), signal.SIGTERM)
    return begun[0]
subprocess.Popen = start
signal.signal(signal.SIGTERM, quick.stop)
try:
    quick.call(["sleep", "1000"])
    raise AssertionError("SIGTERM was lost")
except runner.Stopped:
    assert begun[0].poll() == -signal.SIGKILL, begun[0].poll()
subprocess.Popen = real

# A fault of compute-sanitizer itself is listed apart, a race that it found before its fault is an error.
class Sanitized:
    env, bin = {"CUDA_HOME": folder}, built
    until = deadline = time.monotonic() + 100
    def call(self, command, env):
        kind, test = command[2], command[-1]
        said = "Internal Sanitizer Error" if kind == "racecheck" and test in ("test_head", "test_norm") else ""
        said = "Error: Race reported between Write and Read\n" + said if test == "test_norm" and said else said
        if said:
            error = runner.Failed(said)
            error.output = said
            raise error
tool, os.environ["PATH"] = folder + "/bin/compute-sanitizer", folder + "/bin:" + os.environ["PATH"]
open(tool, "w").close()
os.chmod(tool, 0o755)
entry = {"errors": []}
checks.sanitizer(Sanitized(), entry)
assert len(entry["passed"]) == 8 and entry["tool_failed"] == ["racecheck test_head"], entry
assert len(entry["errors"]) == 1 and entry["errors"][0].startswith("racecheck test_norm: Error: Race"), entry

# A hanging item gets three times its share of the time, not all of it.
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
assert "out_of_time" not in entry, entry # the section had time left, so the item hangs
assert 99 < one.left() <= 100
one.until = time.monotonic()
one.each(entry, "items", range(3), body)
assert entry["items"] == [] and "no time for 0, 1, 2" in entry["errors"][-1] and "out_of_time" not in entry, entry
one.deadline, entry = one.until, {"errors": []}
one.each(entry, "items", range(3), body)
assert entry == {"errors": [], "items": [], "out_of_time": True, "no_time_for": ["items 0, 1, 2"]}, entry
PY
mkdir -p "$WORK/carried/bin" "$WORK/carried/lib"
[[ $(python3 tests/gpu/run --bin "$WORK/carried/bin" --libraries) == "$WORK/carried/lib"* ]] ||
    fail "--libraries: expected the folder of the pack"
# tests/gpu works as a single copied folder, from any working directory, and leaves no __pycache__.
mkdir -p "$WORK/carried/tests/gpu"
cp tests/gpu/run tests/gpu/*.py "$WORK/carried/tests/gpu"
[[ $(cd / && "$WORK/carried/tests/gpu/run" --bin "$WORK/carried/bin" --libraries) == "$WORK/carried/lib"* ]] ||
    fail "the copied folder needs other files"
for folder in tests/gpu "$WORK/carried/tests/gpu"; do
    [[ ! -e $folder/__pycache__ ]] || fail "$folder/__pycache__ exists"
done
echo ok
