# The checks of this folder can fail: this test adds each breach below to a copy of the sources, and its check must report it.
# ctest: labels=long timeout=300
# shellcheck shell=bash
set -euo pipefail

copy=$(mktemp -d "${TMPDIR:-/tmp}/atoll-lint.XXXXXX")
trap 'rm -rf "$copy"' EXIT
cp -R common compress wire gpu worker coordinator cli python examples configs docs "$copy"
mkdir -p "$copy/tests/python"
cp -R tests/lint "$copy/tests"
cd "$copy"
bad=0

declare -A before=() # the output of each check for the unchanged sources
for check in layers pure banned length python keys; do before[$check]=$(bash "tests/lint/check_$check.sh" 2>&1 || true); done

# breach CHECK FILE LINE EXPECTED: CHECK prints EXPECTED if LINE is added to FILE, and not before.
breach() {
    local file=$2 line=$3 expected=$4 after
    [[ ! -e $file ]] || cp "$file" kept
    printf '%s\n' "$line" >>"$file"
    if after=$(bash "tests/lint/check_$1.sh" 2>&1); then after=''; fi
    if [[ ${before[$1]} == *"$expected"* || $after != *"$expected"* ]]; then
        printf 'check_%s.sh does not report "%s" for this line in %s: %s\n' "$1" "$expected" "$file" "${line:0:80}"
        bad=1
    fi
    rm "$file"
    [[ ! -e kept ]] || mv kept "$file"
}

breach layers common/base/rng.c '#include "common/config/config.h"' 'common/base must not include common/config/config.h'
breach layers wire/frame.c '#include "compress/codec.h"' 'wire must not include compress/codec.h'
breach layers worker/sync/sync.c '#include "worker/outer/outer_loop.h"' 'worker/sync must not include worker/outer/outer_loop.h'
breach layers coordinator/outer/publish.c '#include "coordinator/ledger/ledger.h"' 'coordinator/outer must not include coordinator/ledger/ledger.h'
breach layers coordinator/round/round.c '#include "round.h"' 'write the folder too, "coordinator/round/round.h"'
breach layers gpu/newroom.c '#include "gpu/cpu/gemm.h"' 'gpu must not include gpu/cpu/gemm.h'
breach layers coordinator/engine/engine_data.c 'void f(void) { engine_on_join(e, 0, m, err); }' \
    'calls engine_on_join of coordinator/engine/engine_join.c, which is further up'
breach layers coordinator/ledger/store_disk_base.c 'void f(void) { store_disk_sweep(d, err); }' \
    'calls store_disk_sweep of coordinator/ledger/store_disk_checkpoints.c, which is further up'
breach layers coordinator/engine/engine_other.c 'int x;' 'engine_other.c: has no line in the list of parts'
breach layers gpu/cuda/cuda_stage.c '#include "gpu/cuda/cuda_head.h"' 'includes gpu/cuda/cuda_head.h, which is further up'
mkdir cli/room
breach layers cli/room/x.c '#include "common/base/log.h"' 'cli/room has no line'
rmdir cli/room
breach pure coordinator/round/round.c '#include "common/base/log.h"' 'round.c'
breach pure coordinator/round/lease.c '#include "common/base/pool.h"' 'lease.c'
breach pure worker/sync/sync.c 'void f(void) { log_info("x"); }' 'sync.c'
breach pure worker/sync/sync_poll.c 'void f(void) { now = clock_now_us(); }' 'sync_poll.c'
breach pure coordinator/round/policy_async.c 'void f(void) { p = mem_alloc(1, 2); }' 'policy_async.c'
breach pure coordinator/round/deadline.c 'void f(void) { fd = open("x", 0); }' 'deadline.c'
breach banned wire/frame.c 'void f(void) { strcpy(a, b); }' 'wire/frame.c'
breach banned wire/frame.c 'void f(void) { p = malloc(3); }' 'common/base/mem.h'
breach length wire/frame.c "$(printf '// %0120d' 0)" 'characters, at most 120'
breach length wire/frame.c "$(printf '{\n'; printf '    ;\n%.0s' {1..71}; printf '}')" 'a function of 71 lines'
breach length wire/frame.c "$(printf '\n%.0s' {1..600}; echo '//')" 'lines, at most 600'
breach length cli/round.c '//' 'round.c: two files have this name'
breach python python/atoll/programs.py "$(printf '# %0120d' 0)" 'characters, at most 120'
breach python examples/gpt2.py 'def f(:' 'examples/gpt2.py:'
mkdir cli/many
for n in {1..30}; do echo >"cli/many/many_$n.txt"; done
breach length cli/many/more.txt 'x' 'cli/many: 31 files'
sed -i 's/, max_staleness: 4}/} # max_staleness: 4/' configs/async.yaml # a comment is no use
[[ $(bash tests/lint/check_keys.sh) == *'outer.max_staleness: in no file'* ]] ||
    { echo 'check_keys.sh does not report a key that no config uses' && bad=1; }
exit $bad
