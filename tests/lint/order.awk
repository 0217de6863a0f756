# Checks the order of the parts of a room. -v list="a.c b.c ...": the parts, from top to bottom. -v header=X.h: the header
# with that list, which every part may include. Input: includes of files
# of this room, then their sources, as strip.awk prints them. A part may include only headers of parts further down, and
# call only their functions. A part that is not listed is reported.
BEGIN {
    n = split(list, parts, " ")
    for (i = 1; i <= n; i++) place[parts[i]] = i
}
{
    match($0, /^[^:]+:[0-9]+:/)
    at = substr($0, 1, RLENGTH - 1)
    code = substr($0, RLENGTH + 1)
    file = at
    sub(/:[0-9]+$/, "", file)
    if (code ~ /^#include "[^"]/) {
        split(code, quoted, "\"")
        self = file
        other = quoted[2]
        sub(/\.h$/, ".c", self)
        sub(/\.h$/, ".c", other)
        if (quoted[2] != header && self in place && other in place && place[other] < place[self]) {
            print at ": includes " quoted[2] ", which is further up in the list of parts"
            bad = 1
        }
        next
    }
    if (!(file in place)) {
        if (!(file in unknown)) print file ": has no line in the list of parts of its header"
        unknown[file] = bad = 1
        next
    }
    if (match(code, /^[a-z][a-z0-9_ *]*[ *][a-z0-9_]+\(/) && code !~ /^(static|return|else|struct [a-z_]+ \{)/ && code !~ /;/) {
        name = substr(code, 1, RLENGTH - 1)
        sub(/.*[ *]/, "", name)
        home[name] = file
        next
    }
    while (match(code, /[A-Za-z_][A-Za-z0-9_]*\(/)) {
        name = substr(code, RSTART, RLENGTH - 1)
        calls++
        caller[calls] = file
        called[calls] = name
        where[calls] = at
        code = substr(code, RSTART + RLENGTH)
    }
}
END {
    for (i = 1; i <= calls; i++) {
        if (!(called[i] in home)) continue
        if (place[home[called[i]]] < place[caller[i]])
            print where[i] ": calls " called[i] " of " home[called[i]] ", which is further up in the list of parts"
        bad = bad || place[home[called[i]]] < place[caller[i]]
    }
    exit bad
}
