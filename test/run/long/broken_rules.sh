#!/usr/bin/env bash
# Every rule of test/mutants/rules.txt is broken in every layout that is known to detect it.
exec "$(dirname "$0")/../broken_rules.sh" "$1" --all
