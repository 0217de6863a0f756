#!/usr/bin/env bash
# Control bytes of a model and invisible characters of names never reach a terminal; a pipe gets the model's bytes.
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
command -v script >/dev/null || exit 77

make_data
write_config run.yaml train.max_steps=5
"$BIN/atoll" launch run.yaml --workers 1 --dir run "${overrides[@]}" >run.log 2>&1 || fail "a run: $(tail -n 3 run.log)"

# on_terminal COMMAND...: runs it on a terminal and writes what the terminal gets to typed.txt.
on_terminal() {
    printf '%q ' "$@" >command.sh # the head of typed.txt repeats the arguments of script
    LC_ALL=C.UTF-8 TERM=xterm script -qec 'bash command.sh' typed.txt >/dev/null </dev/null || fail "$*: $(tail -n 3 typed.txt)"
    sed -i -e '1{/^Script started/d}' -e '${/^Script done/d}' typed.txt
}

# shown_clean FILE: the file is UTF-8 and holds no control character but tab and line ends, and no invisible one.
shown_clean() {
    python3 - "$1" <<'PY' || fail "$1 has characters that a terminal obeys or hides"
import sys
text = open(sys.argv[1], "rb").read().replace(b"\r\n", b"\n").decode("utf-8")
hidden = [*range(0x20), *range(0x7F, 0xA0), 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF]
bad = sorted({hex(ord(c)) for c in text if ord(c) in hidden and c not in "\n\t"})
sys.exit(", ".join(bad) or 0)
PY
}

# --- a model that writes any byte (temperature 100), behind a prompt with all that is bad
prompt=$'\e]0;PWNED\a \e[2J \r\x7f\xc2\x9b\xff\xe2\x82 \u202e\u2066\u200b\ufeff \u00e9\u20ac\U1F40B\tend\n'
words=(generate run --temperature 100 --tokens 600 --prompt "$prompt")
on_terminal "$BIN/atoll" "${words[@]}"
shown_clean typed.txt
grep -aq $'\u00e9\u20ac\U1F40B\tend' typed.txt || fail "visible characters are lost: $(head -c 300 typed.txt)"
(($(grep -ao $'\ufffd' typed.txt | wc -l) > 100)) || fail "no marks in place of bytes: $(head -c 300 typed.txt)"
"$BIN/atoll" "${words[@]}" >bytes.txt 2>/dev/null || fail "generate into a file: exit code $?"
[[ $(head -c 9 bytes.txt) == $'\e]0;PWNED' ]] || fail "a file gets other bytes: $(head -c 20 bytes.txt | od -c)"
(($(tr -d '\n\t -~' <bytes.txt | wc -c) > 300)) || fail "a file gets a changed text"

# --- names
for name in $'a\u202eb' $'a\u200bb' $'\ufeffw' $'w\u2069' $'a\u200db'; do
    status=0
    "$BIN/atoll-worker" --join run --dir w --name "$name" --data.train='data/train_*.bin' >out.txt 2>&1 || status=$?
    [[ $status == 2 && $(<out.txt) == *'--name must be UTF-8 without control or invisible characters'* ]] ||
        fail "worker name: exit code $status: $(<out.txt)"
    status=0
    "$BIN/atoll-coordinator" run.yaml --dir other --run.name="$name" >out.txt 2>&1 || status=$?
    [[ $status == 2 && $(<out.txt) == *'run.name: "'*'an invisible one'* ]] || fail "run name: exit code $status: $(<out.txt)"
    shown_clean out.txt
    status=0
    "$BIN/atoll" workers run --add "$name" "$(printf '%064d' 1)" >out.txt 2>&1 || status=$?
    [[ $status == 2 && $(<out.txt) == *'invisible characters'* ]] || fail "enrolled name: exit code $status: $(<out.txt)"
done
status=0
"$BIN/atoll-worker" --join "tcp://127.0.0.1:1/$(printf '%064d' 1)" --dir $'w\u202e' --data.train='data/train_*.bin' >out.txt 2>&1 || status=$?
[[ $status == 2 && $(<out.txt) == *'not a valid worker name: give --name too'* ]] || fail "folder name: exit code $status: $(<out.txt)"
"$BIN/atoll" config print run.yaml --data.train=$'a\u200cb/train_*.bin' >out.txt 2>&1 || fail "a folder with a joiner: $(<out.txt)"

# --- texts from a file of a stranger: a finished run with a hostile summary
sed -i 's/"run": *"[^"]*"/"run": "a\\u001b[2J\\u009b1m\\u202eb"/' run/summary.json
grep -q u202e run/summary.json || fail "unexpected summary.json: $(<run/summary.json)"
for words in 'status run' 'status run --json'; do
    read -r -a command <<<"$words"
    on_terminal "$BIN/atoll" "${command[@]}"
    shown_clean typed.txt
done
echo "a terminal gets no control byte of a model or a name"
