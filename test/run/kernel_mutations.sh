#!/usr/bin/env bash
# Negative controls of the kernel tests: one barrier, one wait of each kind, one bounds check and so
# on is removed.
exec "$(dirname "$0")/../host_cuda/mutate.sh" "$1"
