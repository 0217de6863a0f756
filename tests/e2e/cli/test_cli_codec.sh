# atoll codec: the list of codecs, measurements, and refused arguments.
# shellcheck shell=bash source=tests/e2e/cli/cli.sh
source tests/e2e/cli/cli.sh || exit 1
atoll=$ATOLL_BIN/atoll
cd "$tmp"

expect_success "$atoll" codec list
for stage in fp32 'int8[:BLOCK]' 'topk:K/CHUNK' +lz4; do
    [[ $out == *"$stage"* ]] || fail "codec list lacks $stage: $out"
done

# figure KEY: prints the value of KEY in the JSON in $out.
figure() { sed -nE "s/^ *\"$1\": \"?([^\",]*)\"?,?$/\1/p" <<<"$out"; }
# below KEY LIMIT: checks that the value of KEY is less than LIMIT.
below() {
    awk -v got="$(figure "$1")" -v limit="$2" 'BEGIN { exit !(got != "" && got + 0 < limit) }' ||
        fail "$1 is '$(figure "$1")', expected less than $2"
    checks=$((checks + 1))
}

expect_success "$atoll" codec test topk:64/4096 --params 1048576 --seconds 0.01 --json
expect_equal codec "$(figure codec)" topk:64/4096+sign
expect_equal params "$(figure params)" 1048576
below bits_per_param 0.139
below bound_bits 0.1308
below rel_error 0.95
for key in encode_gbps decode_merge_gbps; do
    awk -v got="$(figure $key)" 'BEGIN { exit !(got > 0) }' || fail "$key is '$(figure $key)', expected more than 0"
done

# Values from files and their difference: 1000 times 1.5, then 1000 times 0.
for _ in $(seq 1000); do printf '\0\0\300?'; done >values
expect_success "$atoll" codec test fp32 --file values --seconds 0 --json
expect_equal params "$(figure params)" 1000
expect_equal bytes "$(figure bytes)" 4000
expect_success "$atoll" codec test topk:64/4096+int8 --file values --minus values --seconds 0 --json
expect_equal "bytes of zeros" "$(figure bytes)" 6
expect_success "$atoll" codec test int8 --seconds 0 --params 1000
[[ $out == *bits_per_param* ]] || fail "no table: $out"

expect_failure 2 '*unknown value stage "int9"*' "$atoll" codec test int9
expect_failure 2 'atoll: --minus values needs --file*' "$atoll" codec test int8 --minus values
expect_failure 2 'atoll: --params is 0: give 1 to *' "$atoll" codec test int8 --params 0
expect_failure 2 'atoll: --seconds is -5: give 0 to *' "$atoll" codec test int8 --seconds -5
expect_failure 2 'atoll: codec foo: usage: *' "$atoll" codec foo
expect_failure 1 '*cannot open gone*' "$atoll" codec test int8 --file gone
printf abc >odd
expect_failure 1 '*odd: 3 bytes are not a multiple of 4*' "$atoll" codec test int8 --file odd
head -c 400 values >few
expect_failure 1 '*values and few have different*' "$atoll" codec test int8 --file values --minus few
printf '\0\0\300\177' >nan
expect_failure 1 '*nan: value 0 is not finite*' "$atoll" codec test int8 --file nan
expect_failure 2 '*usage: atoll codec*' "$atoll" codec tset int8
done_testing
