# shellcheck shell=bash
# Sourced behind common.sh by scripts that need a build with CUDA, and a toolkit, but no GPU:
#
#   setting NAME            what the build was made with (features.mk)
#   not_checked REASON      says so and ends
#   $cuda $objects          the toolkit; an archive of the build's objects
setting() { sed -n "s/^$1 := //p" "$build/features.mk" | tail -n 1; }
not_checked() {
  pass "not checked here: $1"
  exit
}

cuda=$(setting CUDA)
[ -n "$cuda" ] || not_checked "this build has no CUDA"
has_feature() { grep -q "CHOIR_HAVE_$1 1" "$build/choir_cuda_features.hpp"; }

objects=$work/objects.a
(cd "$root" && grep -v '/app/' "$build/objects.txt" | xargs ar rcs "$objects")
# compile OUT SOURCE... : with what the build compiles with, linked with its objects.
compile() {
  local out=$1
  shift
  # shellcheck disable=SC2046
  "${MPICXX:-mpicxx}" -std=c++20 -O1 -fopenmp -Wall -Wextra -Wno-missing-field-initializers -I"$root/include" -I"$root" \
    -I"$build" $(setting FEATURE_CPPFLAGS) $(setting CUDA_CPPFLAGS) -o "$out" "$@" "$objects" $(setting GTEST_LIBS) \
    $(setting FEATURE_LIBS) -L"$cuda/lib64" -lcudart_static -ldl -lrt -lpthread
}
# count LOG: adds the last "N passed, N failed" of it; false where there is none.
count() {
  local counts
  counts=$(grep -E '[0-9]+ passed, [0-9]+ failed$' "$1" | tail -n 1 | sed -E 's/.*(^|[^0-9])([0-9]+) passed, ([0-9]+) failed$/\2 \3/')
  [ -n "$counts" ] || return 1
  passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
}
