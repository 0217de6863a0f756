#!/usr/bin/env bash
# tests/gpu/run without a GPU: one line and 77; and its whole flow on the emulated device, so that it cannot rot.
# ctest: timeout=170
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh

command -v python3 >/dev/null || exit 77
cd "$HERE/../.."
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
assert list(sections) == ["info", "parity", "codecs", "runs", "precision", "memory", "ceilings", "train", "outer"], list(sections)
assert all(s["ok"] for s in sections.values())
rows = {(r["what"], r["allowed"]) for r in sections["parity"]["table"]}
assert len(rows) > 25, len(rows)
assert all(r["off"] <= r["allowed"] for r in sections["parity"]["table"])
toy = sections["train"]["models"]["gpt2-toy"]["ours"]
assert toy["tokens_per_s"] > 0 and toy["loss"] < toy["loss_first"] + 0.5 and abs(toy["planned_mb"] - toy["taken_mb"]) < 1e-3 and toy["flops_per_token"] > 0
assert sections["ceilings"]["gemm"][0]["tflops"] > 0 and sections["ceilings"]["attention"][0]["bwd_tflops"] > 0
assert sections["runs"]["steps"] == 100 and sections["runs"]["fp32_off"] < 1e-4
assert len(sections["memory"]["bf16"]) == 3 and len(sections["memory"]["fp32"]) == 1
assert len(sections["outer"]["delta"]) == 3 and 0 < sections["outer"]["share_at_h30"]["gpt2-toy"] < 1
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
echo ok
