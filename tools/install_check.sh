#!/usr/bin/env bash
# Check (the C unit test library): installed where that is possible; otherwise the stand-in
# tests/c/check_compat.h runs the same tests.
set -euo pipefail
if pkg-config --exists check 2>/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    if { apt-get update -qq && apt-get install -y -qq check pkg-config; } >/dev/null 2>&1; then
        echo "installed Check and pkg-config"
        exit 0
    fi
fi
echo "Check is not installed and cannot be installed here: its stand-in runs the C tests"
