#!/usr/bin/env bash
# Wrong inputs: every program prints one line (what is wrong, where, what to do) and exits with the right code. Prints a
# table of the inputs and the answers.
# ctest: timeout=300 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

rows=0
failures=0

# wrong WHAT CODE PATTERN COMMAND...: COMMAND must exit with CODE within 20 s, and its last message must match PATTERN.
wrong() {
    local what=$1 code=$2 pattern=$3 status=0 line verdict=''
    shift 3
    timeout -k 1 20 bash -c '"$@"' wrong "$@" >out.txt 2>err.txt </dev/null || status=$?
    # The message for the user has no time and no level, unlike log lines.
    line=$(grep -hoE '(^|\] )atoll: .*' err.txt out.txt | tail -n 1) || true # `atoll launch` adds a prefix
    line=${line#] }
    [[ $status =~ ^$code$ ]] || verdict+=" [exit $status]"
    [[ -n $line ]] || line="(no line: $(tail -qn 1 err.txt out.txt | tr '\n' ' '))"
    grep -qE -- "$pattern" <<<"$line" || verdict+=" [does not match: $pattern]"
    ! grep -q $'[\x01-\x08\x0b-\x1f\x7f]' err.txt out.txt || verdict+=" [a control character]"
    ! grep -qs 'restarting in' out.txt || verdict+=" [restarts after a permanent error]"
    rm -rf never*
    rows=$((rows + 1))
    if [[ -n $verdict ]]; then
        failures=$((failures + 1))
        verdict=" <-- WRONG$verdict"
    fi
    printf '%2d  %-34s %3d  %s%s\n' "$rows" "$what" "$status" "${line//$WORK\//}" "$verdict"
}

# launch in a new folder, because its run must not start.
launch() { "$BIN/atoll" launch run.yaml --workers 1 --dir "${DIR:-$(mktemp -d never.XXXXXX)}" "$@"; }
export -f launch

make_data
write_config run.yaml train.max_steps=20
ATOLL_TRAIN_MAX_STEPS=20 "$BIN/atoll" launch run.yaml --workers 1 --dir good >good.log 2>&1 ||
    fail "a good run: $(<good.log)"
[[ $(json get good/summary.json steps) == 20 ]] || fail "the run ignores ATOLL_TRAIN_MAX_STEPS: $(<good/summary.json)"
! grep -q 'belongs to the run' good.log good/logs/* || fail "a worker under launch warns about settings of the run"

"$BIN/atoll" launch run.yaml --workers 1 --dir=--odd --train.max_steps=5 >odd.log 2>&1 ||
    fail "--dir=--odd: $(<odd.log)"
[[ -e ./--odd/summary.json ]] || fail "--dir=--odd: the run folder is missing"

printf '%2s  %-34s %s\n' '#' 'wrong input' 'exit  message'
echo '--- command line'
wrong 'unknown verb' 2 "unknown verb.*launch" "$BIN/atoll" lunch
wrong 'unknown option' 2 'unknown.*--wrokers' "$BIN/atoll" launch run.yaml --wrokers 2 --dir never
wrong 'launch without a folder' 2 '--dir' "$BIN/atoll" launch run.yaml --workers 2
wrong 'no workers' 2 'workers' "$BIN/atoll" launch run.yaml --workers 0 --dir never
wrong 'worker without an address' 2 '--join' "$BIN/atoll-worker" --name w
wrong 'worker name is not UTF-8' 2 'name.*UTF-8' "$BIN/atoll-worker" --join good --name $'\xff'
wrong 'worker name with a newline' 2 'name.*control' "$BIN/atoll-worker" --join good --name $'one\ntwo'
wrong 'worker name with a slash' 2 'name a/b.*--dir' "$BIN/atoll-worker" --join good --name a/b
key=$(printf '%064d' 1) # no coordinator has it
wrong 'worker folder is not UTF-8' 2 'give --name' "$BIN/atoll-worker" --join "tcp://127.0.0.1:1/$key" --dir $'never\xff' --data.train='data/train_*.bin'
wrong 'option given twice' 2 '--dir is given twice' "$BIN/atoll" launch run.yaml --workers 1 --dir never1 --dir never2
wrong 'run folder with an escape' 1 'never.\[31m' "$BIN/atoll" status $'never\e[31m'
wrong 'model with an escape' 1 'never.\]0;x' "$BIN/atoll" generate $'never\e]0;x\a'
wrong 'shards with an escape' 2 'control character' launch --data.train=$'never\e[2J'
wrong 'unknown verb with an escape' 2 'unknown verb' "$BIN/atoll" $'\e[2J'
wrong 'join line with an escape' 2 'mistyped join line' "$BIN/atoll-worker" --join $'tcp:/\e[2J' --name w --data.train='data/train_*.bin'
wrong 'shared key given to a worker' 2 'train.max_steps belongs to the run' "$BIN/atoll-worker" --join good --train.max_steps=5
# In the environment, a shared key is a warning only: it may be meant for another program.
ATOLL_TRAIN_MAX_STEPS=5 ATOLL_TRAIN_THREADS=1 "$BIN/atoll-worker" --join good --name w --data.train='data/train_*.bin' >shared.log 2>&1 ||
    fail "a worker of a complete run: $(<shared.log)"
[[ $(grep 'belongs to the run' shared.log) == *': ATOLL_TRAIN_MAX_STEPS belongs to the run'*'at the coordinator' ]] ||
    fail "shared key in a worker's environment: $(<shared.log)"

echo '--- configuration'
wrong 'no such file' 2 'missing.yaml' "$BIN/atoll" launch missing.yaml --workers 1 --dir never
wrong 'unknown key' 2 'train.sync_evry.*train.sync_every' launch --train.sync_evry=5
printf 'train:\n  method: diloco\n  sync_evry: 3\n' >bad.yaml
wrong 'unknown key in a file' 2 'bad.yaml.*3.*sync_evry.*sync_every' "$BIN/atoll" config print bad.yaml
printf 'train: {method: diloco\nrun: [1, 2\n' >bad.yaml
wrong 'not YAML' 2 'bad.yaml' "$BIN/atoll" config print bad.yaml
wrong 'out of range' 2 'train.batch_size.*1' launch --train.batch_size=0
wrong 'not a number' 2 'train.max_steps.*many' launch --train.max_steps=many
wrong 'unknown method' 2 'train.method.*dilocco.*diloco' launch --train.method=dilocco
wrong 'unknown codec' 2 'codec.up.*int9' launch --codec.up=int9:256
wrong 'unknown codec, config print' 2 '^atoll: command line: codec.down: .*int9' "$BIN/atoll" config print run.yaml --codec.down=int9:256
wrong 'heads do not divide width' 2 'n_embd|n_head' launch --model.n_embd=20 --model.n_head=3
wrong 'start from a missing model' 2 '^atoll: model.init_from: .*nowhere' launch --model.init_from=nowhere
wrong 'start from a run' 2 '^atoll: model.init_from: good is a run folder: give one of its checkpoints, for example good/checkpoints/round_0' launch --model.init_from=good/
wrong 'start from a run, coordinator' 2 '^atoll: model.init_from: good is a run folder: .*, for example good/checkpoints/round_0' \
    "$BIN/atoll-coordinator" run.yaml --dir never.from --model.init_from=good
wrong 'start from a file' 2 '^atoll: model.init_from: run.yaml is a file: ' launch --model.init_from=run.yaml
wrong 'start from another folder' 2 '^atoll: model.init_from: data holds no model' launch --model.init_from=data
wrong 'resume and start disagree' 2 '^atoll: --model.init_from=scratch conflicts with --resume good, .* good/checkpoints/round_0' \
    launch --resume good --model.init_from=scratch
wrong 'resume and start disagree, coordinator' 2 '^atoll: --model.init_from=scratch conflicts with --resume good, ' \
    "$BIN/atoll-coordinator" run.yaml --dir never.from --resume good --model.init_from=scratch
wrong 'resume from a missing run' 2 '^atoll: --resume: .*must' launch --resume must
printf '{"tokens": {}}' >tokenizer.json
wrong 'file is not a tokenizer' 2 'data.tokenizer: tokenizer.json is not a tokenizer.json: .*"model"' launch --data.tokenizer=tokenizer.json
wrong 'tokenizer file is missing' 2 'data.tokenizer: .*nowhere.json' launch --data.tokenizer=nowhere.json
wrong 'quorum of 110 %' 2 'quorum' launch --coordinator.quorum=110%
wrong 'eviction before a heartbeat' 2 'evict_after_s: 0.5 .*at least 2' launch --coordinator.evict_after_s=0.5
wrong 'environment variable' 2 'ATOLL_TRAIN_BATCH_SIZE|train.batch_size' env ATOLL_TRAIN_BATCH_SIZE=x "$BIN/atoll" config print run.yaml
wrong 'unknown CPU level' 2 '^atoll: ATOLL_CPU=sse: want portable, avx2 or avx512' env ATOLL_CPU=sse "$BIN/atoll" generate good --tokens 2
wrong 'unknown CPU level, launch' 2 'ATOLL_CPU=sse: want' env ATOLL_CPU=sse bash -c 'launch "$@"' launch --train.devices=cpu

echo '--- data'
wrong 'no text' 2 'nothing.txt' "$BIN/atoll" prepare out nothing.txt
: >empty.txt
wrong 'empty text' 2 'empty|no (text|tokens|documents)' "$BIN/atoll" prepare out empty.txt
wrong 'jsonl without the package' 2 'lines.jsonl needs the Python package' env PATH=/usr/bin:/bin "$BIN/atoll" prepare out lines.jsonl
wrong 'no shard matches' 2 'nowhere' launch --data.train='nowhere/*.bin'
wrong 'folder instead of shards' 2 'data.train: data/ is a folder: .*data/train_\*.bin' launch --data.train=data --data.val=data
printf 'too short to hold anything out' >short.txt && "$BIN/atoll" prepare short short.txt >/dev/null
wrong 'validation set too small' 2 'short/val_\*.bin has no shard of more than .*--val-fraction' launch "--data.val=short/val_*.bin"
mkdir bad && cp data/val_*.bin bad/ && printf 'this is no shard of tokens, just some text of sufficient length' >bad/train_0.bin
wrong 'not a token shard' 1 'bad/train_0.bin' launch --data.train='bad/train_*.bin' --data.val='bad/val_*.bin'
head -c 5000 data/train_000000.bin >bad/train_0.bin
wrong 'shard cut short' 1 'bad/train_0.bin' launch --data.train='bad/train_*.bin' --data.val='bad/val_*.bin'
{ head -c 4 data/train_000000.bin && printf '\x09\0\0\0' && tail -c +9 data/train_000000.bin; } >bad/train_0.bin
wrong 'shard of another version' 1 'bad/train_0.bin.*version' launch --data.train='bad/train_*.bin' --data.val='bad/val_*.bin'
cp data/train_000000.bin bad/train_0.bin
for part in val_000000 train_0; do # the first file is read by the last evaluation, the second one by a step
    printf '\xff\xff' | dd of="bad/$part.bin" bs=1 seek=$((1024 + 2 * 100)) conv=notrunc status=none
    wrong "one token of ${part%_*} too large" 2 "data.${part%_*}: bad/$part.bin: token 65535 at position 100, .* is 256" \
        launch --data.train='bad/train_*.bin' --data.val='bad/val_*.bin'
    cp data/val_000000.bin bad/val_000000.bin
done
wrong 'token outside the vocabulary' 2 'vocab' launch --model.vocab_size=64
wrong 'text shorter than a block' 2 'block_size' launch --model.block_size=100000 --train.eval_tokens=100000

wrong 'no shard matches, worker' 2 'data.train: .*nowhere' "$BIN/atoll-worker" --join later --data.train='nowhere/*.bin'
wrong 'too little memory' 1 'needs [0-9]+ bytes on cpu .*, and nothing is free beside [0-9.]+ MiB of the coordinator' \
    env ATOLL_HOST_MEMORY=1000 bash -c 'launch "$@"' launch --train.devices=cpu
wrong 'outer rate too high' 1 'diverges to NaN or infinity: lower inner.learning_rate or outer.learning_rate$' launch --max-restarts 0 \
    --outer.learning_rate=1000 --train.max_steps=1000
wrong 'inner rate too high' 1 'diverges to NaN or infinity: lower inner.learning_rate' launch --max-restarts 0 --inner.learning_rate=1000 \
    --inner.warmup_steps=0 --train.max_steps=1000

echo '--- address'
wrong 'address without a scheme' 2 'nonsense:29600 is a mistyped join line.*tcp://' "$BIN/atoll-worker" --join nonsense:29600 --dir w --name w
wrong 'join line without a scheme' 2 'nonsense:29600.*tcp://' "$BIN/atoll-worker" --join nonsense:29600/12/34 --dir w --name w
wrong 'another scheme' 2 'http.*tcp://' "$BIN/atoll-worker" --join http://nonsense --dir w --name w
wrong 'file without a join line' 2 '--join: run.yaml: the first line is no join line' "$BIN/atoll-worker" --join run.yaml --dir w --name w
wrong 'address without a port' 2 'tcp://127.0.0.1' "$BIN/atoll-worker" --join tcp://127.0.0.1 --name w --data.train='data/train_*.bin'
wrong 'memory with a unit' 2 'ATOLL_HOST_MEMORY=1T: expected bytes' env ATOLL_HOST_MEMORY=1T "$BIN/atoll-coordinator" run.yaml --dir other
wrong 'port out of range' 2 '99999' launch --coordinator.listen=tcp://127.0.0.1:99999
wrong 'address without keys' 2 'has no keys: copy the whole join line' "$BIN/atoll-worker" --join tcp://127.0.0.1:29600 --name w --data.train='data/train_*.bin'
wrong 'network without keys' 2 'has no keys' "$BIN/atoll-worker" --join tcp://192.0.2.1:29600 --name w --data.train='data/train_*.bin'
[[ ! -e atoll-worker-w ]] || fail "a worker without a valid address leaves a folder"
start taken.log "$BIN/atoll-coordinator" run.yaml --dir taken --train.max_steps=1000000
holder=$pid
until_true 20 "the address of a coordinator" test -s taken/address
port=$(sed -nE '1s|tcp://[^/]*:([0-9]+)/.*|\1|p' taken/address)
wrong 'port in use' 1 "$port.*(in use|taken)" "$BIN/atoll-coordinator" run.yaml --dir other --coordinator.listen="tcp://127.0.0.1:$port"
[[ ! -e other ]] || fail "a coordinator without a port leaves a folder: $(ls other)"
wrong 'port in use, launch' 1 "$port.*(in use|taken)" "$BIN/atoll" launch run.yaml --workers 1 --dir other --coordinator.listen="tcp://127.0.0.1:$port"
[[ ! -e other ]] || fail "launch without a port leaves a folder: $(ls other)"
wrong 'run folder in use' 1 'serves taken' "$BIN/atoll-coordinator" run.yaml --dir taken
cp taken/address kept && echo garbage >taken/address
wrong 'garbage as address, status' 1 'taken/address holds no address: restart the coordinator' "$BIN/atoll" status taken
cp kept taken/address
kill -STOP "$holder"
wrong 'status of a stopped process' 1 'the coordinator of taken did not answer within 200 ms' "$BIN/atoll" status taken --timeout 0.2
kill -CONT "$holder"
mkdir stale # the folder of a killed coordinator; another run uses its address now
cp taken/address stale
cp good/run_id stale
wrong 'address of another run, status' 1 'stale is not running: .*now serves another run, e2e' "$BIN/atoll" status stale
wrong 'address of another run, worker' 1 'stale is not running, .*now serves another run, e2e' "$BIN/atoll-worker" --join stale \
    --dir third --name third --data.train='data/train_*.bin'
wrong 'address of another run, with a state' 1 'stale is not running' "$BIN/atoll-worker" --join stale \
    --dir good/workers/worker-0 --name worker-0 --data.train='data/train_*.bin'
mkdir loop && ln -s address loop/address # unreadable for every user, root included
wrong 'unreadable address' 1 'loop/address: Too many' "$BIN/atoll-worker" --join loop --name w --data.train='data/train_*.bin'
mkdir -p loop/checkpoints && ln -s latest loop/checkpoints/latest
wrong 'unreadable checkpoint' 1 'loop/checkpoints/latest names latest, which does not exist: give' "$BIN/atoll" generate loop
mkdir -p named/checkpoints && ln -s round_000007 named/checkpoints/latest
wrong 'checkpoint is missing' 1 'named/checkpoints/latest names round_000007, which does not exist: give' "$BIN/atoll" generate named
wrong 'folder of all checkpoints' 1 'named/checkpoints holds all checkpoints of a run: give one' "$BIN/atoll" export named/checkpoints out
for what in ../data 'two words' "$(printf 'b\x07ll')" "$(printf '%0300d' 0)"; do
    ln -sfn "$what" named/checkpoints/latest
    wrong "${what:0:3} as checkpoint" 1 'named/checkpoints/latest does not name a checkpoint: give' "$BIN/atoll" export named out
    rm named/checkpoints/latest
    echo "$what" >named/checkpoints/latest # on a file system without links
    wrong "${what:0:3} as checkpoint" 1 'named/checkpoints/latest does not name a checkpoint: give' "$BIN/atoll" export named out
done
for what in garbage tcp://127.0.0.1:1/key "$(printf '%09999d' 0)"; do
    echo "$what" >loop/garbage && ln -sf garbage loop/address
    wrong "${what:0:9} as address" 1 'loop/address holds no address: start the coordinator' "$BIN/atoll-worker" --join loop --name w \
        --data.train='data/train_*.bin'
done
wrong 'file instead of a run' 1 'run.yaml is a file' "$BIN/atoll" generate run.yaml
wrong 'status of another folder' 1 'data is not a run folder' "$BIN/atoll" status data
wrong 'status without a coordinator' 1 'refused the connection' "$BIN/atoll" status "tcp://127.0.0.1:1/$key/$key" --timeout 1

echo '--- another worker'
make_text 90000 | tr a b >other.txt
"$BIN/atoll" prepare other-data other.txt >/dev/null 2>&1
start first.log "$BIN/atoll-worker" --join taken --dir first --name first --data.train='data/train_*.bin'
first=$pid
until_true 20 "the first worker's round" grep -q round taken/metrics.jsonl
wrong 'other data' 2 'data|tokens' "$BIN/atoll-worker" --join taken --dir second --name second --data.train='other-data/train_*.bin'
wrong 'worker folder in use' 1 'first' "$BIN/atoll-worker" --join taken --dir first --name third --data.train='data/train_*.bin'
kill -TERM "$holder" "$first"
finish "$first" 20 75 "worker after SIGTERM"
finish "$holder" 20 75 "coordinator after SIGTERM"

wrong 'status of a stopped run' 1 'continue it with atoll-coordinator --dir taken' "$BIN/atoll" status taken
echo garbage >taken/address
wrong 'stopped run, garbage as address' 1 'continue it with atoll-coordinator --dir taken' "$BIN/atoll" status taken

echo '--- disk'
export DIR=text.txt/run
wrong 'run folder inside a file' 1 'text.txt' launch
unset DIR
limited() { (ulimit -f "$1" && shift && "$@"); } # programs ignore SIGXFSZ, so a write past the limit fails
export -f limited
wrong 'disk full, coordinator' 1 'write|space|large' limited 8 launch
wrong 'disk full, prepare' 1 'write|space|large' limited 8 "$BIN/atoll" prepare full-data text.txt
[[ ! -e full-data ]] || fail "prepare left $(ls full-data)"

echo '--- existing folders'
wrong 'folder holds a data set' 2 '^atoll: data contains meta.json but no run: use another --dir$' "$BIN/atoll-coordinator" run.yaml --dir data
[[ ! -e data/lock ]] || fail "a refused coordinator left a lock"
wrong 'other configuration on resume' 2 'train.sync_every' "$BIN/atoll-coordinator" run.yaml --dir good --train.max_steps=20 --train.sync_every=7
wrong 'folder holds a run' 1 'resume' "$BIN/atoll" launch run.yaml --workers 1 --dir good --resume never
wrong 'folder holds a run, coordinator' 1 '^atoll: good already holds a run and --resume is never: ' \
    "$BIN/atoll-coordinator" run.yaml --dir good --resume never
half_a_run() { # FOLDER CHECKPOINT_EVERY
    start half.log "$BIN/atoll" launch run.yaml --workers 1 --dir "$1" --train.max_steps=100000 --checkpoint.every="$2"
    until_true 20 "some rounds" grep -q '"round":20,' "$1/metrics.jsonl"
    kill -TERM "$pid"
    finish "$pid" 20 75 "atoll launch after SIGTERM"
}
half_a_run half 0
wrong 'refused by the coordinator' 1 'data|tokens' env DIR=half bash -c 'launch "$@"' launch --train.max_steps=100000 \
    --checkpoint.every=0 --data.train='other-data/train_*.bin'
segments=(half/journal/*.log)
segment=${segments[-1]}
size=$(stat -c %s "$segment")
printf '\xff\xff\xff\xff' | dd of="$segment" bs=1 seek=$((size / 3)) conv=notrunc status=none
wrong 'corrupt journal' 1 'journal|00000' "$BIN/atoll-coordinator" run.yaml --dir half --train.max_steps=100000 --checkpoint.every=0
half_a_run gone 4
cp -r gone cut
latest=$(readlink cut/checkpoints/latest)
cp -r cut only
find only/checkpoints -mindepth 1 -maxdepth 1 -name 'round_*' ! -name "$latest" -exec rm -r {} +
rm -f only/journal/00000000.log
truncate -s 3000 "only/checkpoints/$latest/model.safetensors"
wrong 'only checkpoint cut short' 1 "^atoll: checkpoint $latest: only/.*model.safetensors: .*truncated.*: restore that folder from a copy; without it, journal/00000000.log is missing" \
    "$BIN/atoll-coordinator" run.yaml --dir only --train.max_steps=100000 --checkpoint.every=4
[[ -d only/checkpoints/$latest ]] || fail "a failed recovery renamed the checkpoint: $(ls only/checkpoints)"
rm -r "cut/checkpoints/$latest"
start cut.log "$BIN/atoll-coordinator" run.yaml --dir cut --train.max_steps=100000 --checkpoint.every=4
until_true 20 "the coordinator on the previous checkpoint" grep -q '^listening' cut.log
kill -TERM "$pid"
finish "$pid" 20 75 "a coordinator on the previous checkpoint"
[[ -d cut/checkpoints/latest ]] ||
    fail "checkpoints/latest names a removed checkpoint: $(readlink cut/checkpoints/latest)"
cp -r gone bare
rm -rf bare/checkpoints bare/journal/00000000.log
wrong 'checkpoints are missing' 1 '^atoll: checkpoints/ is empty, so recovery needs the whole journal: journal/00000000.log is missing: restore' \
    "$BIN/atoll-coordinator" run.yaml --dir bare --train.max_steps=100000 --checkpoint.every=4
segments=(gone/journal/*.log)
mv "${segments[-1]}" gone/journal/99999999.log
wrong 'journal segment is missing' 1 "journal/$(basename "${segments[-1]}") is missing: restore" "$BIN/atoll-coordinator" run.yaml --dir gone --train.max_steps=100000 --checkpoint.every=4
rm gone/journal/*.log
wrong 'journal is missing' 1 'missing in journal/: restore.*newest is round_0000' "$BIN/atoll-coordinator" run.yaml --dir gone --train.max_steps=100000 --checkpoint.every=4
latest=$(readlink good/checkpoints/latest)
cp -r "good/checkpoints/$latest" model
truncate -s 3000 model/model.safetensors
wrong 'corrupt journal, launch' 1 'journal|00000' env DIR=half bash -c 'launch "$@"' launch --train.max_steps=100000 \
    --checkpoint.every=0
wrong 'model file cut short' 1 '^atoll: model/model.safetensors' "$BIN/atoll" generate model/ --tokens 5
cp -r "good/checkpoints/$latest" whole
sed -i 's/"dtype":"F32"/"dtype":"I32"/' whole/model.safetensors
wrong 'model of integers' 1 "^atoll: whole/model.safetensors: tensor .* has type I32" "$BIN/atoll" generate whole --tokens 5
wrong 'codec of integers' 1 "^atoll: whole/model.safetensors: tensor .* has type I32" "$BIN/atoll" codec test int8 --file whole/model.safetensors
ln -s elsewhere link
wrong 'export to a link' 1 "^atoll: link is a symbolic link: choose a new folder" "$BIN/atoll" export good link
wrong 'export to a long name' 1 'new/sub/0*.* File name too long' "$BIN/atoll" export good "new/sub/$(printf '%0250d' 0)"
[[ ! -e new ]] || fail "a failed export left: $(find new)"
cp -r "good/checkpoints/$latest" family
printf '{"model_type": "mamba"}' >family/config.json
wrong 'another model family' 2 'none of gpt2 and llama.*needs the Python package: ./run python, or' "$BIN/atoll" generate family --tokens 5
wrong 'folder without a model' 1 'data' "$BIN/atoll" generate data --tokens 5
wrong 'start from another size' 2 "model.init_from: .*n_embd is 16, not 32" launch --model.init_from="$WORK/good/checkpoints/$latest" --model.n_embd=32
truncate -s -4 whole/coordinator_state.bin
sed -i 's/"dtype":"I32"/"dtype":"F32"/' whole/model.safetensors
wrong 'start from a damaged checkpoint' 2 "model.init_from: .*whole: coordinator_state.bin has a wrong size" launch --model.init_from="$WORK/whole"

rm -rf -- *.log ./*/logs
echo "$rows wrong inputs, $failures answered wrongly"
((rows >= 25 && failures == 0))
