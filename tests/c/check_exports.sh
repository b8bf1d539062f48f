#!/bin/sh
# check_exports.sh LIBRARY HEADER...: the library exports what the headers declare, and nothing else.
set -eu
library=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
nm -D --defined-only "$library" | awk '{print $3}' | sort > "$folder/exported"
# A declaration begins with HY3D_API; the function's name is before its first parenthesis.
cat "$@" | tr '\n' ' ' | grep -o 'HY3D_API [^;(]*(' | grep -o 'hy3d_[a-z0-9_]*(' | tr -d '(' |
    sort > "$folder/declared"
test -s "$folder/declared"
diff "$folder/declared" "$folder/exported" || {
    echo "$library: above, < is declared and not exported, > is exported and not declared" >&2
    exit 1
}
