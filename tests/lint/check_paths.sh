# ARCHITECTURE.md names files and functions in back quotes, "file: function": each file exists and has the function.
# shellcheck shell=bash
set -euo pipefail

bad=0
# shellcheck disable=SC2016 # back quotes of Markdown
names=$(grep -oE '`(include|python|examples|common|wire|compress|gpu|worker|coordinator|cli|configs|tests|docs)/[^`*{]*`' ARCHITECTURE.md | tr -d '`' | sort -u)
while IFS= read -r name; do
    file=${name%%:*} function=${name#*: }
    if [[ ! -e $file ]]; then
        echo "ARCHITECTURE.md: $file does not exist"
        bad=1
    elif [[ $name == *': '* ]] && ! grep -qE "^[a-z].*\b$function\(" "$file"; then
        echo "ARCHITECTURE.md: $file has no function $function"
        bad=1
    fi
done <<<"$names"
exit $bad
