# The pure cores: the state machines of coordinator/round and worker/sync take an event and the time, and return actions.
# They use no store, pool, log, JSON, clock, thread, file or socket, and allocate no memory. lease.c and member.c are the
# only exception: they allocate the round's tables.
# shellcheck shell=bash
set -euo pipefail

books='^coordinator/round/(lease|member)\.c:'
headers='[/"<](store[a-z_]*|spool|journal|pool|log|clock|thread|json_file|metrics_file|fileio|columns|temporary|mem|jansson|pthread|time|unistd|zmq|sys/[a-z]+)\.h[">]'
calls='(store|spool|journal|pool|log|json|clock|thread|file|pthread|zmq)_[a-z0-9_]+|f?open|fopen|f?write|fprintf|printf|read|time|clock_gettime|gettimeofday|usleep|nanosleep|getenv'
memory='mem_[a-z_]+|malloc|calloc|realloc|free|strdup'

bad=0
complain() { # text advice
    [[ -z $1 ]] || { printf '%s\n  -> %s\n' "$1" "$2" && bad=1; }
}
mapfile -t sources < <(find coordinator/round worker/sync -name '*.[ch]' | sort)
((${#sources[@]} > 10)) || { echo "coordinator/round and worker/sync are missing: update check_pure.sh" && exit 1; }
complain "$(grep -nE "^[[:space:]]*#[[:space:]]*include.*$headers" "${sources[@]}" | grep -vE "$books"'.*/mem\.h"' || true)" \
    'a pure core includes no header of a shell: return an action to the caller'
code=$(awk -f tests/lint/strip.awk "${sources[@]}")
complain "$(grep -E "(^|[^A-Za-z0-9_.>])($calls)[[:space:]]*\(" <<<"$code" || true)" \
    'a pure core has no side effects: return an action to the caller'
complain "$(grep -vE "$books" <<<"$code" | grep -E "(^|[^A-Za-z0-9_.>])($memory)[[:space:]]*\(" || true)" \
    'a pure core allocates no memory: size it at creation'
exit $bad
