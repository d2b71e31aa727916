#!/usr/bin/env bash
# 200 drills: each kind of fault at some 16 instants, on different ranks and in different phases.
"$(dirname "$0")/../../../bench/fault_drill.sh" --build "$1" --drills 200 --seed "${DRILL_SEED:-2}"
