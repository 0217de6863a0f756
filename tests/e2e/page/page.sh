# The page in end-to-end tests: source after lib.sh.
# shellcheck shell=bash disable=SC2154 # pid is lib.sh's
port=''

# serve LOG [ARGS...]: starts `atoll page ARGS` at a free port; sets $page, its process, and $port.
serve() {
    local log=$1
    shift
    : >"$log"
    start "$log" "$BIN/atoll" page --listen "${listen:-127.0.0.1}:0" "$@"
    page=$pid
    until_true 20 "the page's address in $log" grep -q 'serving http' "$log"
    port=$(sed -nE 's|.*serving http://[^/]*:([0-9]+)/.*|\1|p' "$log" | tail -n 1)
}

# request LINE [HEADER...]: prints the whole answer of the page.
request() {
    local header
    exec 9<>"/dev/tcp/127.0.0.1/$port"
    {
        printf '%s\r\n' "$1"
        for header in "${@:2}"; do printf '%s\r\n' "$header"; done
        printf '\r\n'
    } >&9
    timeout 30 cat <&9 || true
    exec 9>&-
}

# get PATH [HEADER...]: prints the answer to a GET of a program of this machine.
get() { request "GET $1 HTTP/1.1" 'Host: localhost' "${@:2}"; }

# code PATH [HEADER...]: prints its number.
code() { get "$@" | sed -nE '1s|^HTTP/1.1 ([0-9]+).*|\1|p'; }

code_is() { [[ $(code "$1") == "$2" ]]; } # PATH NUMBER

body() { get "$@" | sed '1,/^\r$/d'; } # PATH [HEADER...]
# metric NAME: prints its value.
metric() { body /metrics | awk -v name="$1" '$1 == name { print $2 }'; }
metric_is() { [[ $(metric "$1") == "$2" ]]; }               # NAME VALUE
metric_reaches() { (($(metric "$1") >= $2)); }              # NAME COUNT
