# Completion for bash: the programs list their verbs, options and settings themselves.
# shellcheck shell=bash
_atoll() {
    local program=$1 word=${COMP_WORDS[COMP_CWORD]} ask=("$1")
    local verbs=$([[ ${program##*/} == atoll ]] && echo 1)
    if [[ $verbs ]] && ((COMP_CWORD > 1)); then ask+=("${COMP_WORDS[1]}"); fi
    COMPREPLY=()
    [[ $word == -* || ($verbs && COMP_CWORD -eq 1) ]] || return 0 # a file
    mapfile -t COMPREPLY < <(compgen -W "$("${ask[@]}" --help=words 2>/dev/null | cut -f 1)" -- "$word")
    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace
}
complete -o default -F _atoll atoll atoll-coordinator atoll-worker atoll-prepare atoll-generate atoll-board atoll-compare atoll-report
