#!/usr/bin/env bash
# Flags of nvcc: device code for the wanted GPUs, the host compiler of MPI, and warnings that are
# errors for developers of choir but not for users who build it with a newer compiler.
. "$(dirname "$0")/lib/common.sh"
[ -n "$(sed -n 's/^CUDA := //p' "$build/features.mk" | tail -n 1)" ] || { skip "what nvcc is asked for" "this build has no CUDA"; exit; }

# asked VARIABLE=VALUE...: the call of nvcc for one kernel.
from_root=${build#"$root"/}
asked() {
  env -u MAKEFLAGS -u WERROR -u CUDA_ARCHS make --no-print-directory -C "$root" -n -W kernels/copy/copy.cu \
    BUILD="$from_root" "$@" "$from_root/obj/kernels/copy/copy.cu.o" 2>&1 | grep 'bin/nvcc'
}
targets() { grep -oE 'sm_[0-9]+a?' <<<"$1" | sort -u | paste -sd' '; }
known=$(sed -n 's/^KNOWN_CUDA_ARCHS := //p' "$build/features.mk" | tail -n 1)

before=$(stat -c %y "$build/cuda_archs")
usual=$(asked)
check "without a wish, for the cards here or for A100 and H100" eval '[ -n "$(targets "$usual")" ]'
check "... and PTX for all others" eval '[[ $usual == *compute_80]* ]]'
check "... by the compiler behind mpicxx" eval '[[ $usual == *"-ccbin "* ]]'
check "... warnings are no errors" eval '[[ $usual != *-Werror* ]]'
check "WERROR=1 makes them errors" eval '[[ $(asked WERROR=1) == *"-Werror all-warnings"* ]]'
check "CUDA_ARCHS chooses" eval '[ "$(targets "$(asked CUDA_ARCHS=90a)")" = sm_90a ]'
check "... with PTX of sm_80 nevertheless" eval '[[ $(asked CUDA_ARCHS=90a) == *"code=[compute_80]"* ]]'
wanted=$(for arch in $known; do echo "sm_$arch"; done | sort | paste -sd' ')
check "releases are for every card that the toolkit knows" eval '[ "$(targets "$(asked CUDA_ARCHS=all)")" = "$wanted" ]'
check "... and what was built stays up to date" test "$(stat -c %y "$build/cuda_archs")" = "$before"
check "... a bundle is a release" eval 'make -C "$root" -n bundle BUILD="$build" 2>&1 | grep -q "CUDA_ARCHS=.all"'

# Features that were found for other settings announce no device code to a build without CUDA.
mkdir -p stale && cp "$build/features.mk" "$build/features.txt" stale && echo "other settings" >stale/asked
touch -d 2020-01-01 stale/features.mk
says() { env -u MAKEFLAGS make --no-print-directory -C "$root" -n BUILD="$PWD/stale" "$@" install PREFIX="$PWD/prefix" 2>&1; }
check "an old list of features says nothing" eval '! says CUDA_HOME=none | grep -q "CUDA found"'
