#!/usr/bin/env bash
# Every rule of test/mutants/rules.txt broken in every layout that is known to notice.
exec "$(dirname "$0")/../broken_rules.sh" "$1" --all
