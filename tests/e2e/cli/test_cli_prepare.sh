# atoll prepare: its output, and refused inputs.
# shellcheck shell=bash source=tests/e2e/cli/cli.sh
source tests/e2e/cli/cli.sh || exit 1
atoll=$ATOLL_BIN/atoll
export PATH=/usr/bin:/bin # without the Python package
cd "$tmp"

tokens() { tail -c +1025 "$1" | od -An -v -tu2 | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }
field() { sed -nE "s/^ *\"$2\": \"?([^\",]*)\"?,?$/\1/p" "$1"; }

mkdir in
printf 'ab\ncd' >in/b.txt
printf '\xef\xbb\xbf\xc3\xa9' >in/mark.html # a named file is text; its byte order mark is none
printf 'z' >in/a.md
: >in/none.txt

expect_success "$atoll" prepare out in/a.md in/none.txt in/b.txt in/mark.html --val-fraction 0
expect_equal "train tokens" "$(tokens out/train_000000.bin)" "0 122 0 97 98 10 99 100 0 195 169"
expect_equal "val tokens" "$(tokens out/val_000000.bin)" ""
expect_equal documents "$(field out/meta.json documents)" 3
expect_equal bytes "$(field out/meta.json bytes)" 8
expect_equal "size of the shard" "$(stat -c %s out/train_000000.bin)" $((1024 + 2 * 11))

# The printed pattern matches the shards of a folder with any name.
expect_success "$atoll" prepare 'out [x] {a,b}*' in/b.txt
pattern=$(sed -nE 's/^train .*: (.*)$/\1/p' <<<"$out")
expect_equal "pattern" "$pattern" 'out [[]x] \{a,b\}[*]/train_*.bin'
printf 'model: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 4, vocab_size: 256}\n' >run.yaml
expect_failure 2 "atoll: data.val: no token shards match 'nowhere'*" "$atoll" launch run.yaml --workers 1 --dir run \
    --data.train="$pattern" --data.val=nowhere

# Few documents: the validation set is the tail of each document, cut after a nearby line end.
printf '0123456789\nabcdefgh\n' >one.txt
expect_success "$atoll" prepare tails one.txt --val-fraction 0.5
expect_equal "tail" "$(tokens tails/val_000000.bin)" "97 98 99 100 101 102 103 104 10"
expect_equal "held out" "$(field tails/meta.json held_out)" tails
expect_equal "train tokens" "$(field tails/meta.json train_tokens)" 12

# Many documents: the seed selects whole documents; every document appears exactly once.
mkdir many
for i in $(seq 100 399); do printf '%s' "$i" >"many/$i.txt"; done
expect_success "$atoll" prepare m1 many/*.txt --seed 7
expect_success "$atoll" prepare m2 many/*.txt --seed 7
expect_success "$atoll" prepare m3 many/*.txt --seed 8
cmp m1/val_000000.bin m2/val_000000.bin || fail "the same seed held out other documents"
cmp -s m1/val_000000.bin m3/val_000000.bin && fail "another seed held out the same documents"
expect_equal "held-out tokens" "$(field m1/meta.json val_tokens)" $((15 * 4))
all=$(tail -qc +1025 m1/train_000000.bin m1/val_000000.bin | tr '\0' ' ' | tr -d ' ' | fold -w 3 | sort)
expect_equal "all documents" "$all" "$(seq 100 399)"

# A folder with content needs --force. A second run into the same folder with fewer shards removes those of the first,
# keeps other files, and leaves the first set as it is until the second one is complete.
expect_success "$atoll" prepare shards many/*.txt --shard-tokens 500
expect_equal "shards" "$(find shards -name 'train_*.bin' | wc -l)" 3
touch shards/notes
expect_failure 1 'atoll: shards exists and is not empty: choose a new folder, or replace the data set in it with --force*' \
    "$atoll" prepare shards many/*.txt
printf 'a\0b' >wrong.txt
expect_failure 2 'atoll: wrong.txt is not text: byte 1 is zero*' "$atoll" prepare shards wrong.txt --force
expect_equal "shards after a failed --force" "$(cd shards && echo *)" \
    "meta.json notes train_000000.bin train_000001.bin train_000002.bin val_000000.bin"
exec 8<shards/train_000000.bin # a running worker
before=$(md5sum <shards/train_000000.bin)
expect_success "$atoll" prepare shards many/*.txt --force
expect_equal "files" "$(cd shards && echo *)" "meta.json notes train_000000.bin val_000000.bin"
expect_equal "shard of the running worker" "$(md5sum <&8)" "$before"
exec 8<&-
expect_success "$atoll" prepare shards many/*.txt --force

# A text too short for a validation set, and inputs that are no files.
expect_success "$atoll" prepare short in/a.md --val-fraction 0.01
[[ $errors == *'no validation text: --val-fraction 0.01 of this text is 0 tokens, and a run needs some: add text, or raise it'* ]] ||
    fail "no warning: $errors"
ln -s itself itself
expect_failure 2 'atoll: cannot read the input itself: *' "$atoll" prepare no itself
mkfifo pipe
expect_failure 2 'atoll: the input pipe is no file*' "$atoll" prepare no pipe
: >empty.txt
expect_failure 2 'atoll: too few arguments*' "$atoll" prepare out
expect_failure 2 'atoll: cannot read the input nowhere.txt*' "$atoll" prepare no nowhere.txt
expect_failure 2 'atoll: *empty.txt is empty' "$atoll" prepare no empty.txt
expect_failure 2 'atoll: *is not text: byte**' "$atoll" prepare no in/b.txt out/train_000000.bin
expect_failure 2 'atoll: --val-fraction is 0.7*' "$atoll" prepare no in/b.txt --val-fraction 0.7
expect_failure 2 'atoll: --shard-tokens is 1: give 256 to*' "$atoll" prepare no in/b.txt --shard-tokens 1
# The number of shards is limited, because a worker opens all of them.
awk 'BEGIN { for (i = 0; i < 968750; i++) print "sixteen letters" }' >long.txt
expect_failure 2 'atoll: --shard-tokens is 256: 15500001 tokens give more than 60000 shards; give 259 or more' \
    "$atoll" prepare no long.txt --shard-tokens 256
expect_failure 2 'atoll: unknown option --sed: did you mean --seed?*' "$atoll" prepare no in/b.txt --sed 3
expect_failure 1 'atoll: *in/b.txt*' "$atoll" prepare in/b.txt/below in/a.md
[[ ! -e no ]] || fail "a refused input left a folder"
mkdir here
expect_failure 1 'atoll: cannot make folder here/new/*: File name too long' "$atoll" prepare "here/new/sub/$(printf '%0300d' 0)/" in/b.txt
expect_equal "folders after a failed prepare" "$(find here)" here

# - A folder has one writer at a time.
# - A signal ends prepare with one line and removes its files.
# - The next run removes the files of a killed prepare.
# The input is long enough that each signal arrives in the middle.
awk 'BEGIN { for (i = 0; i < 1000000; i++) print "all work and no play" }' >work.txt
read -ra long <<<"$(printf 'work.txt %.0s' {1..200})"
writing() { compgen -G 'deep/alone/set.tmp-*/*.bin.tmp-*' >/dev/null; }
"$atoll" prepare deep/alone "${long[@]}" 2>stopped.err &
pid=$!
wait_until 60 writing
kill -STOP $pid
expect_failure 1 'atoll: another program is writing to deep/alone: wait for it*' "$atoll" prepare deep/alone one.txt --force
kill -TERM $pid
kill -CONT $pid
code=0
wait $pid || code=$?
expect_equal "exit code of a stopped prepare" "$code" 75
[[ $(tail -n 1 stopped.err) == 'atoll: stopped by a signal; the unfinished output is removed: '* ]] ||
    fail "unexpected error of a stopped prepare: $(<stopped.err)"
[[ ! -e deep ]] || fail "a stopped prepare left: $(find deep)"
"$atoll" prepare deep/alone "${long[@]}" &
pid=$!
wait_until 60 writing
kill -KILL $pid
wait $pid 2>/dev/null || true
# A long input shows bytes, rate and time left on a terminal; a short one shows nothing.
if command -v script >/dev/null; then
    TERM=xterm script -qec "'$atoll' prepare deep/shown ${long[*]}" typed </dev/null >/dev/null 2>&1 &
    shows() { tr '\r' '\n' <typed | grep -qE '(checked|wrote) [0-9.]+ [kMG]B of 4\.[0-9]+ GB, [0-9.]+ [MG]B/s, [0-9].* left'; }
    wait_until 60 shows
    kill $! # script ends prepare, too
    wait $! || true
    TERM=xterm script -qec "'$atoll' prepare brief one.txt" typed </dev/null >/dev/null
    ! grep -q left typed || fail "a short prepare shows its progress: $(<typed)"
fi
writing || fail "the killed prepare left no temporary files: the next check is void"
expect_success "$atoll" prepare deep/alone one.txt
expect_equal "files in the folder" "$(cd deep/alone && echo *)" "meta.json train_000000.bin val_000000.bin"
done_testing
