#!/usr/bin/env bash
# Round lines on terminals of several widths: none wraps, 100 columns show a round's figures, the log has everything.
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh
command -v script >/dev/null || exit 77

make_data
write_config run.yaml train.max_steps=60 codec.up=int8:64 codec.down=int8:64
for width in 40 80 100 200; do
    command="stty cols $width; '$BIN/atoll' launch run.yaml --workers 2 --dir run-$width ${overrides[*]}"
    env -u COLUMNS TERM=xterm script -qec "$command" typed.txt >/dev/null </dev/null ||
        fail "launch on $width columns: $(tail -n 5 typed.txt)"
    # What the terminal shows: lines end with \r\n, what ends with \r alone is the bar.
    shown=shown-$width.txt
    tr '\r' '\n' <typed.txt | sed $'s/\033\\[K//g' | grep -E '^(round |\[[#.])' >"$shown"
    rounds=$(grep -c '^round ' "$shown")
    [[ $rounds == 12 ]] || fail "$width columns: not 12 rounds but $rounds"
    longest=$(awk 'length > n { n = length } END { print n }' "$shown")
    ((longest <= width)) || fail "a line of $longest on $width columns"
    ! grep -q '^round .* $' "$shown" || fail "spaces at the end of a line"
    echo "$width: $(grep '^round ' "$shown" | tail -n 1)"
done

log=run-40/logs/coordinator.log
whole='^round .* up .* down .* in .* eta .* computed .* waited .* slowest worker-[01]$'
[[ $(grep -c "$whole" $log) == 12 ]] || fail "the log lacks something: $(tail -n 2 $log)"
losses() { grep -o '^round .* loss [^ ]*' "$1"; }
cmp -s <(losses $log) <(losses run-200/logs/coordinator.log) || fail "other figures"
[[ $(grep -c ' slowest worker-' shown-200.txt) == 12 ]] || fail "200 columns show everything"
figures='^round 12/12  loss .* val .* bpb\)  workers 2/2  up .* down .* in +[0-9.]+ s$'
grep -qE "$figures" shown-100.txt || fail "100 columns: $(tail -n 1 shown-100.txt)"
# Aligned: a field begins at the same column in every line.
starts=$(sed -nE 's/^(round .*  )down .*/\1/p' shown-100.txt | awk '{ print length }' | sort -u | wc -l)
[[ $starts == 1 ]] || fail "not aligned: $(<shown-100.txt)"
