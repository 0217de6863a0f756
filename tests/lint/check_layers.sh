# The layers: which room (folder or subfolder) may include which. Rules:
#   - A room includes only itself and the rooms that its line in the table allows.
#   - The table is ordered: a line allows only rooms of lines above it, so no two rooms include each other.
#   - A name that ends in .h allows that header alone: for a factory, or for a pure core that needs one rule of a room.
#   - The parts of a room may have an order: its header says "A part calls only parts further down in this list", and the
#     list names each source of the room, or each one whose name begins like all of these (order.awk).
#   - An include of the project has the form "folder/file.h", and a source includes its own header first (X.h or X_impl.h).
# shellcheck shell=bash
set -euo pipefail

table='
include:

common/base:
common/format:      common/base
common/os:          common/base
common/tensor:      common/base common/format common/os
common/config:      common/base common/os common/tensor

compress:           common/base common/config common/tensor
compress/bytes:     common/base compress
compress/lowbit:    common/base compress
compress/topk:      common/base common/tensor compress

wire:               common/base common/format common/config common/tensor
wire/zmq:           common/base common/config common/os wire

gpu:                common/base common/config common/tensor gpu/cpu/cpu.h
gpu/cpu:            common/base common/os gpu
gpu/cuda/kernels:   common/tensor gpu
gpu/cuda/rt:        common/base common/os gpu gpu/cuda/kernels
gpu/cuda/cudnn:     common/base gpu gpu/cuda/rt
gpu/cuda/comm:      common/base common/os gpu gpu/cuda/kernels gpu/cuda/rt
gpu/cuda:           common/base gpu gpu/cuda/kernels gpu/cuda/rt gpu/cuda/cudnn gpu/cuda/comm

worker/sync:        common/base common/config/config.h common/config/sync_points.h wire
worker/inner:       common/base common/config common/tensor gpu
worker/model:       common/base common/config common/tensor compress gpu worker/inner
worker/replica:     common/base common/config common/os common/tensor gpu worker/inner worker/model
worker/link:        common/base common/config common/os wire worker/sync
worker/outer:       common/base common/format common/config common/os common/tensor compress compress/topk wire gpu worker/sync worker/inner worker/replica worker/link
worker/session:     common/base common/config common/os wire worker/sync worker/link worker/outer
worker/api:         include common/base common/config common/os common/tensor wire worker/model worker/replica worker/link worker/outer worker/session
worker:             common/base common/config common/os common/tensor wire gpu worker/sync worker/inner worker/model worker/replica worker/link worker/outer worker/session

coordinator/round:  common/base common/format common/config wire
coordinator/outer:  common/base common/config common/tensor compress compress/topk wire gpu/moment_rules.h coordinator/round
coordinator/ledger/place: common/base common/config common/os common/tensor coordinator/outer
coordinator/ledger: common/base common/format common/config common/os common/tensor compress wire coordinator/round coordinator/outer coordinator/ledger/place
coordinator/ledger/history: common/base common/config common/os common/tensor compress wire coordinator/round coordinator/outer coordinator/ledger
coordinator/limits: common/base wire
coordinator/engine/state: common/base common/config common/os common/tensor compress wire coordinator/round coordinator/outer coordinator/ledger coordinator/limits
coordinator/admission: common/base common/config common/os compress wire coordinator/round coordinator/outer coordinator/ledger coordinator/limits coordinator/engine/state
coordinator/engine/model: common/base common/config common/os common/tensor wire coordinator/outer coordinator/ledger coordinator/admission coordinator/engine/state
coordinator/engine: common/base common/config common/os common/tensor compress wire coordinator/round coordinator/outer coordinator/ledger coordinator/admission coordinator/engine/state coordinator/engine/model
coordinator/report: common/base common/config common/os coordinator/engine/state/engine_event.h
coordinator:        common/base common/config common/os common/tensor compress wire coordinator/outer coordinator/ledger coordinator/admission coordinator/engine coordinator/report

cli:                common/base common/config common/os common/tensor compress wire worker worker/model worker/replica worker/session coordinator coordinator/outer coordinator/ledger coordinator/admission
cli/ledger:         common/base common/config common/os coordinator coordinator/ledger coordinator/ledger/history coordinator/admission cli
cli/status:         common/base common/config common/os wire worker/session cli coordinator/run_folder.h
cli/page:           common/base common/config common/os wire worker/session cli cli/status coordinator/run_folder.h
cli/export:         common/base common/config common/os common/tensor compress worker worker/model coordinator/run_folder.h cli
cli/alert:          common/base common/config common/os wire worker/session cli cli/status
cli/follow:         common/base common/config common/os common/tensor compress wire coordinator/run_folder.h coordinator/ledger cli
cli/link:           common/base common/config common/os wire coordinator/run_folder.h cli
cli/plan:           common/base common/config common/os common/tensor compress wire wire/zmq gpu worker worker/outer worker/replica worker/sync coordinator coordinator/outer coordinator/round cli
cli/init:           common/base common/config common/os common/tensor compress coordinator/run_folder.h cli cli/link cli/plan
cli/region:         common/base common/config common/os common/tensor wire worker/link worker/outer worker/session coordinator coordinator/ledger coordinator/engine cli
cli/launch:         common/base common/config common/os common/tensor wire wire/zmq worker worker/model worker/replica worker/session coordinator coordinator/outer coordinator/round cli
'

bad=0
{
    printf '%s\n' "$table"
    echo '== includes'
    grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' common compress wire gpu worker coordinator cli --include='*.[ch]' --include='*.cu' || true
} | awk '
    function complain(text) { print text; bad = 1 }
    function room_of(path) { sub(/\/[^\/]*$/, "", path); return path }
    /^== includes/ { includes = 1; next }
    !includes && /:/ {
        room = $1
        sub(/:$/, "", room)
        rooms[room] = 1
        allowed[room, room] = 1
        for (i = 2; i <= NF; i++) {
            if ($i !~ /\.h$/ && !($i in rooms)) complain("check_layers.sh: " room " allows " $i ", which has no line above it")
            allowed[room, $i] = 1
        }
    }
    includes {
        match($0, /^[^:]+:[0-9]+/)
        place = substr($0, 1, RLENGTH)
        file = place
        sub(/:[0-9]+$/, "", file)
        split($0, part, "\"")
        included = part[2]
        room = room_of(file)
        if (!(room in rooms)) complain(place ": " room " has no line in the table of tests/lint/check_layers.sh")
        else if (included !~ /\//) complain(place ": \"" included "\": write the folder too, \"" room "/" included "\"")
        else if (!((room, room_of(included)) in allowed) && !((room, included) in allowed)) complain(place ": " room " must not include " included)
    }
    END { exit bad }' || bad=1

while read -r source; do
    [[ -e ${source%.c}.h ]] || continue
    first=$(grep -m 1 -oE '^#include [<"][^>"]+' "$source" | sed 's/.*[<"]//')
    [[ $first == "${source%.c}.h" || $first == "${source%.c}_impl.h" ]] || {
        echo "$source: the first include must be its own header, but is $first"
        bad=1
    }
done < <(find common compress wire gpu worker coordinator cli -name '*.c' | sort)

while read -r header; do
    folder=${header%/*}
    mapfile -t parts < <(sed -n '/calls only parts further down/,/\*\//s/^ \*     \([a-z_0-9]*\.c\) .*/\1/p' "$header" | sed "s|^|$folder/|")
    begin=$(printf '%s\n' "${parts[@]##*/}" | sed 's/\.c$//' |
        awk 'NR == 1 { p = $0 } { while (index($0, p) != 1) p = substr(p, 1, length(p) - 1) } END { print p }')
    ((${#parts[@]} > 1)) || { echo "$header: its list of parts is missing" && bad=1 && continue; }
    {
        grep -HnE "^#include \"$folder/[^/]*\"" "$folder/$begin"*.[ch] || true
        awk -f tests/lint/strip.awk "$folder/$begin"*.c
    } | awk -v list="${parts[*]}" -v header="$header" -f tests/lint/order.awk || bad=1
done < <(grep -rl 'calls only parts further down' common compress wire gpu worker coordinator cli --include='*.h' | sort)
exit $bad
