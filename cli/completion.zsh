#compdef atoll atoll-coordinator atoll-worker atoll-prepare atoll-generate atoll-board atoll-compare atoll-report
# Completion for zsh: the programs list their verbs, options and settings themselves.
local -a ask found settings
local line item
ask=($words[1])
if [[ ${words[1]:t} == atoll ]] && ((CURRENT > 2)); then ask+=($words[2]); fi
if [[ $words[CURRENT] == -* || ${words[1]:t} == atoll && CURRENT -eq 2 ]]; then
    for line in ${(f)"$($ask --help=words 2>/dev/null)"}; do
        item="${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}"
        if [[ $line == *=$'\t'* ]]; then settings+=($item); else found+=($item); fi
    done
    _describe word found -- settings -S ''
else
    _files
fi
