#!/usr/bin/env bash
# Every kind of fault once: detected, named, and nothing lost.
"$(dirname "$0")/../../bench/fault_drill.sh" --build "$1" --drills 12 --seed 1
