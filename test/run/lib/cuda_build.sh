# shellcheck shell=bash
# Sourced behind common.sh by scripts that need a build with CUDA, and a toolkit, but no GPU:
#
#   setting NAME            what the build was made with (features.mk)
#   not_checked REASON      says so and ends
#   $cuda $objects          the toolkit; an archive of the build's objects
setting() { sed -n "s/^$1 := //p" "$build/features.mk" | tail -n 1; }
not_checked() {
  skip "$(basename "$0" .sh)" "$1"
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
# shellcheck source=outcomes.sh
. "$(dirname "${BASH_SOURCE[0]}")/outcomes.sh"
# count LOG: adds what passed and failed in a log, and what the program wrote to $CHOIR_TEST_OUTCOMES of tests that it
# skipped; false where the log does not say.
export CHOIR_TEST_OUTCOMES=$work/outcomes
count() {
  local counts good bad name reason
  counts=$(counts_of "$1")
  [ -n "$counts" ] || return 1
  read -r good bad _ <<<"$counts"
  passed=$((passed + good)) failed=$((failed + bad))
  [ -e "$CHOIR_TEST_OUTCOMES" ] || return 0
  while IFS=$'\t' read -r name reason; do skip "$name" "$reason"; done < <(skips_of_tests <"$CHOIR_TEST_OUTCOMES")
  rm "$CHOIR_TEST_OUTCOMES"
}
