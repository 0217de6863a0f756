#!/usr/bin/env bash
# 2000 steps in bf16 end where fp32 ends, on the emulated device; on a true one tests/gpu/run does it with a larger model.
# ctest: labels=long timeout=1200
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh

command -v python3 >/dev/null || exit 77
cd "$HERE/../.."
python3 tests/gpu/run --emulated --bin "$BIN" --minutes 20 --only precision --precision-steps 2000 --out "$WORK/results.json"
