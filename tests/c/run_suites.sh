#!/bin/sh
# Runs C suites beside each other, each under a tool that may report, and sums up.
#
#   run_suites.sh TOOL PROGRAM SUITE[:SHARES[:MOST]]... [-- WRAPPER...]
#
# SHARES cuts a long suite into as many programs (HY3D_TEST_SHARE), of which the first MOST are run;
# what is left out is said. JOBS programs run at a time (every processor unless told). The texts lie
# in TOOL's folder beside PROGRAM. The last line counts; the exit status is 1 after any failed test,
# and after any report.
set -u
tool=$1
program=$2
shift 2
logs=$(dirname "$program")/$tool-logs
rm -rf "$logs"
mkdir -p "$logs"
export logs program

suites=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    suites="$suites $1"
    shift
done
[ $# -gt 0 ] && shift
wrapper="$*"
export wrapper

list() {
    for suite in $suites; do
        name=${suite%%:*}
        rest=${suite#"$name"}
        rest=${rest#:}
        shares=${rest%%:*}
        most=${rest#"$shares"}
        most=${most#:}
        share=0
        while [ "$share" -lt "${most:-${shares:-1}}" ]; do
            echo "$name $share ${shares:-1}"
            share=$((share + 1))
        done
    done
}

left_out=''
for suite in $suites; do
    case $suite in
    *:*:*) left_out="$left_out $(echo "$suite" | sed 's|\(.*\):\(.*\):\(.*\)|\1 \3/\2|')" ;;
    esac
done

began=$(date +%s)
# shellcheck disable=SC2016
list | xargs -P "${JOBS:-$(nproc)}" -L 1 sh -c '
    log=$logs/$1.$2
    HY3D_TEST_SHARE=$2/$3 $wrapper "$program" "$1" >"$log" 2>&1
    status=$?
    [ $status -eq 0 ] || echo "$status" >"$log.failed"
    printf "  %-18s %s\n" "$1 $2/$3" "$(grep "Checks:" "$log" || echo "ended with status $status")"
' run
took=$(($(date +%s) - began))

# One line a report: what the sanitizers print first ("failed to allocate" is an answer to a test that
# asks for too much), and valgrind and its tools.
patterns='(WARNING|ERROR): [A-Za-z]*Sanitizer:|runtime error:'
patterns="$patterns|^==[0-9]*== (Conditional jump|Use of uninit|Invalid |Syscall param|Mismatched free"
patterns="$patterns|Source and dest|Possible data race|Conflicting|Thread #.*(unlocked|exiting|lock)"
patterns="$patterns|.*definitely lost)"
reports=$(cat "$logs"/*.[0-9]* | grep -cE "$patterns")
checks=$(cat "$logs"/*.[0-9]* | sed -n 's/.*Checks: \([0-9]*\),.*/\1/p' |
    awk '{ sum += $1 } END { print sum + 0 }')
failed=$(find "$logs" -name '*.failed' | wc -l)
for failure in "$logs"/*.failed; do
    [ -e "$failure" ] && echo "== ${failure%.failed}" && head -40 "${failure%.failed}"
done
grep -h '^skipped:' "$logs"/*.[0-9]* | sort | uniq -c | sed 's/^ *\([0-9]*\) /  \1 times /'
[ -z "$left_out" ] || echo "$tool: only a share of the tests of:$left_out"
echo "$tool: $(list | wc -l) programs, $checks tests, $failed programs failed, $reports reports, $took s"
[ "$failed" -eq 0 ] && [ "$reports" -eq 0 ] && [ "$checks" -gt 0 ]
