#!/usr/bin/env bash
# kernel_instructions.sh BUILD [--write]: checks the instructions that nvcc chose for accesses to
# global memory, in the PTX that the build keeps. Fails if a kernel stores 16 consecutive bytes by
# four instructions of 4, which needs four times the transactions and is invisible to tests of
# numbers; and if a kernel has more instructions of one element than lib/kernel_accesses.txt allows,
# for example because a loop loads a constant again. --write records today's numbers as the right
# ones. The last line is "N passed, N failed".
set -u
build=$1
known=$(dirname "$0")/lib/kernel_accesses.txt

# Lines "SPLIT_STORES LOADS WIDE_LOADS STORES WIDE_STORES KERNEL" of PTX on standard input; wide
# ones move 16 bytes. Four adjacent stores of one register, 4 bytes apart, are one store that was
# split.
counted() {
  awk '
    function end() { if (name != "") print split_of + 0, n["ld"] + 0, wide["ld"] + 0, n["st"] + 0, wide["st"] + 0, name }
    /^(\.visible )?\.entry/ {
      end(); name = $0; sub(/.*\.entry +/, "", name); sub(/\(.*/, "", name)
      split_of = 0; delete n; delete wide; delete first; delete run
    }
    /^\$L|^[ \t]*(@|bra|bar)/ { delete first; delete run }
    /(st|ld)\.global/ {
      kind = /st\.global/ ? "st" : "ld"
      if (/\.v4\./) { wide[kind]++; next }
      n[kind]++
      if (kind == "ld" || !/\.(u32|b32|f32|s32)[ \t]/ || /\.v2\./) next
      base = $0; sub(/.*\[/, "", base); sub(/\].*/, "", base)
      offset = 0
      if (base ~ /\+/) { offset = base; sub(/.*\+/, "", offset); sub(/\+.*/, "", base) }
      if (base in first && offset == first[base] + 4 * run[base]) {
        if (++run[base] == 4) { split_of++; delete first[base]; delete run[base] }
      } else { first[base] = offset; run[base] = 1 }
    }
    END { end() }'
}

# The rule is tested on two kernels with known answers.
taught=$(printf '%s\n' '.visible .entry split(' 'st.global.u32 [%rd1], %r1;' 'st.global.u32 [%rd1+4], %r2;' \
  'st.global.u32 [%rd1+8], %r3;' 'st.global.u32 [%rd1+12], %r4;' '.visible .entry whole(' \
  'ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];' 'st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};' \
  'st.global.f32 [%rd1+16], %f1;' | counted)
if [ "$taught" != $'1 0 0 4 0 split\n0 0 1 1 1 whole' ]; then
  echo "not ok the rule finds a split store: $taught"
  echo "0 passed, 1 failed"
  exit 1
fi

mapfile -t files < <(find "$build/obj/kernels" -name '*.cu.ptx' 2>/dev/null | sort)
if [ "${#files[@]}" -eq 0 ]; then
  echo "skipped the kernels of this build: it has no nvcc"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
measured=$(cat "${files[@]}" | counted | c++filt -p | sed -E 's/choir::(cuda::)?//g; s/\(anonymous namespace\):://g; s/\([a-z ]+\)(-?[0-9]+)/\1/g' |
  sort -k6)
version=$(sed -n 's/.*CUDA  *\([0-9.]*\) in .*/\1/p' "$build/features.txt")
if [ "${2:-}" = --write ]; then
  { echo "nvcc $version"; cut -d' ' -f2- <<<"$measured"; } >"$known"
  exit 0
fi
passed=0 failed=0
complain() { echo "not ok $*"; failed=$((failed + 1)); }
same_compiler=no
[ "$(head -n 1 "$known")" = "nvcc $version" ] && same_compiler=yes
declare -A usuals=()
while read -r loads _ stores _ kernel; do usuals["$kernel"]=$((loads + stores)); done < <(tail -n +2 "$known")
while read -r split_stores loads wide_loads stores wide_stores kernel; do
  before=$failed
  [ "$split_stores" -eq 0 ] || complain "$kernel stores 16 bytes in four pieces, $split_stores times ($wide_stores whole)"
  if [ "$same_compiler" = yes ]; then
    usual=${usuals["$kernel"]:-}
    if [ -z "$usual" ]; then complain "$kernel is not in $known: look at it, then --write"
    elif [ $((loads + stores)) -gt "$usual" ]; then
      complain "$kernel has $loads loads and $stores stores of one element (beside $wide_loads and $wide_stores wide), $usual until now"
    fi
  fi
  [ "$failed" -gt "$before" ] || passed=$((passed + 1))
done <<<"$measured"
[ "$same_compiler" = yes ] || echo "accesses not compared: $known is of $(head -n 1 "$known"), this is nvcc $version"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
