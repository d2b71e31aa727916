#!/usr/bin/env bash
# Negative controls of the kernel tests: every barrier, wait and bounds check, one at a time.
exec "$(dirname "$0")/../../host_cuda/mutate.sh" "$1" --all
