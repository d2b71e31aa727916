#!/usr/bin/env bash
# Every kind of fault once: it is detected and named, and nothing is lost.
"$(dirname "$0")/../../bench/fault_drill.sh" --build "$1" --drills 12 --seed 1
