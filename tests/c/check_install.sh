#!/bin/sh
# check_install.sh VERSION: what `make install` leaves is complete, exports the public names alone,
# and examples/c builds with it, through pkg-config where there is one, and says true things.
# MAKE, CC, PKG_CONFIG; FLAGS: of the compiler.
set -eu
version=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
library=$folder/lib/libhy3d_core.so
soname=libhy3d_core.so.${version%.*}

fail() {
    echo "check_install: $*" >&2
    exit 1
}
run_make() {
    "$MAKE" -s --no-print-directory "$@" > "$folder/out.txt" 2>&1 || fail "$(cat "$folder/out.txt")"
}
# "peak: BYTES of BUDGET bytes", in out.txt.
within_its_budget() {
    awk '/^peak: / { right = $2 > 0 && $2 <= $4 } END { exit !right }' "$folder/out.txt" ||
        fail "$(cat "$folder/out.txt")"
}
# ends CODE COMMAND...: runs it, with what it prints in out.txt.
ends() {
    wanted=$1
    shift
    code=0
    "$@" > "$folder/out.txt" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || fail "$* ended with $code, not $wanted: $(cat "$folder/out.txt")"
}

run_make install DESTDIR= PREFIX="$folder"
diff -r include/hy3d "$folder/include/hy3d" || fail "other headers are installed"
[ "$(readlink "$library")" = "$soname" ] || fail "libhy3d_core.so does not lead to $soname"
[ "$(readlink "$folder/lib/$soname")" = "libhy3d_core.so.$version" ] ||
    fail "$soname leads elsewhere"
readelf -d "$library" | grep -q "SONAME.*\[$soname\]" || fail "the library's name is not $soname"
tests/c/check_exports.sh "$library" "$folder"/include/hy3d/*.h
! nm -D --defined-only "$library" | awk '{print $3}' | grep -v '^hy3d_[a-z0-9]' ||
    fail "these names are not public"
[ -s "$folder/lib/libhy3d_core.a" ] || fail "there is no static library"

# With DESTDIR only the place changes, and what was installed goes again.
run_make install DESTDIR="$folder/stage" PREFIX=/opt/hy3d
grep -qx 'prefix=/opt/hy3d' "$folder/stage/opt/hy3d/lib/pkgconfig/hy3d_core.pc" ||
    fail "DESTDIR stands in hy3d_core.pc"
run_make uninstall DESTDIR="$folder/stage" PREFIX=/opt/hy3d
[ -z "$(find "$folder/stage" ! -type d)" ] || fail "left: $(find "$folder/stage" ! -type d)"

export PKG_CONFIG_PATH="$folder/lib/pkgconfig" LD_LIBRARY_PATH="$folder/lib"
if command -v "$PKG_CONFIG" > "$folder/out.txt"; then
    [ "$("$PKG_CONFIG" --modversion hy3d_core)" = "$version" ] || fail "another version"
    compile=$("$PKG_CONFIG" --cflags hy3d_core)
    link=$("$PKG_CONFIG" --libs hy3d_core)
    private=$("$PKG_CONFIG" --static --libs hy3d_core)
else
    echo "check_install: $PKG_CONFIG is not here: hy3d_core.pc is not read"
    compile="-I$folder/include"
    link="-L$folder/lib -lhy3d_core"
    private="$link -pthread -ldl -lm"
fi
for source in examples/c/*.c; do
    program=$folder/$(basename "$source" .c)
    # shellcheck disable=SC2086 # several options each
    $CC $FLAGS $compile -o "$program" "$source" $link
done
# Static: the archive in the library's place, and what pkg-config adds for it.
# shellcheck disable=SC2086
$CC $FLAGS $compile -o "$folder/static" examples/c/plan_decode.c \
    $(echo "$private" | sed "s|-lhy3d_core|$folder/lib/libhy3d_core.a|")

# The peak is within the budget; what is said to be enough is, and one byte less is not.
plan=$folder/plan_decode
ends 0 "$plan"
within_its_budget
grep -q '^chosen: .* steps$' "$folder/out.txt" || fail "$(cat "$folder/out.txt")"
grep -q '^   0  enter ' "$folder/out.txt" || fail "the first step does not enter the input"
cp "$folder/out.txt" "$folder/shared.txt"
ends 0 env LD_LIBRARY_PATH= "$folder/static"
diff "$folder/shared.txt" "$folder/out.txt" || fail "linked statically it says something else"
ends 1 "$plan" 1
enough=$(sed -n 's/^enough: \([0-9]*\) bytes$/\1/p' "$folder/out.txt")
ends 1 "$plan" $((enough - 1))
ends 0 "$plan" "$enough"
within_its_budget
ends 2 "$plan" much

# By their own reference the values are right (0); 3: no BLAS library here. The times are positive.
for sizes in '' '3 5 1 2 9' '70 33 3 17 20'; do
    code=0
    # shellcheck disable=SC2086
    "$folder/time_conv3d" $sizes > "$folder/out.txt" 2>&1 || code=$?
    if [ "$code" = 3 ]; then
        echo "check_install: no BLAS library: time_conv3d $sizes is skipped"
        continue
    fi
    [ "$code" = 0 ] || fail "time_conv3d $sizes ended with $code: $(cat "$folder/out.txt")"
    awk '/^(exact|fast) / && $2 != "" && $3 >= 1 && $5 > 0 && $6 > 0 { right++ }
         END { exit right != 2 }' "$folder/out.txt" || fail "$(cat "$folder/out.txt")"
done
ends 2 "$folder/time_conv3d" 0 1 1 1 1
echo "check_install: hy3d_core $version is complete, both examples are right"
