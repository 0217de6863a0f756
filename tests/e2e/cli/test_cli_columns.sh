#!/usr/bin/env bash
# Round lines on terminals of several widths: no line wraps, 100 columns show the main values, the log has all values.
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
command -v script >/dev/null || exit 77

make_data
write_config run.yaml train.max_steps=60 codec.up=int8:64 codec.down=int8:64
for width in 40 80 100 200; do
    command="stty cols $width; '$BIN/atoll' launch run.yaml --workers 2 --dir run-$width ${overrides[*]}"
    env -u COLUMNS TERM=xterm script -qec "$command" typed.txt >/dev/null </dev/null ||
        fail "$width columns: atoll launch failed: $(tail -n 5 typed.txt)"
    # Lines of the terminal end with \r\n; the progress bar ends with \r alone.
    shown=shown-$width.txt
    tr '\r' '\n' <typed.txt | sed $'s/\033\\[K//g' | grep -E '^(round |\[[#.])' >"$shown"
    rounds=$(grep -c '^round ' "$shown")
    [[ $rounds == 12 ]] || fail "$width columns: $rounds rounds, expected 12"
    longest=$(awk 'length > n { n = length } END { print n }' "$shown")
    ((longest <= width)) || fail "$width columns: a line has $longest characters"
    ! grep -q '^round .* $' "$shown" || fail "$width columns: a line ends with spaces"
    echo "$width: $(grep '^round ' "$shown" | tail -n 1)"
done

log=run-40/logs/coordinator.log
whole='^round .* up .* down .* in .* eta .* computed .* waited .* slowest worker-[01]$'
[[ $(grep -c "$whole" $log) == 12 ]] || fail "a round line in the log lacks a value: $(tail -n 2 $log)"
losses() { grep -o '^round .* loss [^ ]*' "$1"; }
cmp -s <(losses $log) <(losses run-200/logs/coordinator.log) ||
    fail "the losses in the logs of 40 and 200 columns differ"
[[ $(grep -c ' slowest worker-' shown-200.txt) == 12 ]] || fail "200 columns: a round line lacks a value"
figures='^round 12/12  loss .* val .* bpb\)  workers 2/2  up .* down .* in +[0-9.]+ m?s$'
grep -qE "$figures" shown-100.txt || fail "100 columns: unexpected values: $(tail -n 1 shown-100.txt)"
# A field starts at the same column in every line.
starts=$(sed -nE 's/^(round .*  )down .*/\1/p' shown-100.txt | awk '{ print length }' | sort -u | wc -l)
[[ $starts == 1 ]] || fail "100 columns: fields are not aligned: $(<shown-100.txt)"
