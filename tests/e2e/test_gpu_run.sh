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
import argparse, os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "tests/gpu")
import libraries, programs, runner

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
