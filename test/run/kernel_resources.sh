#!/usr/bin/env bash
# kernel_resources.sh BUILD [--write]: checks the resources of every kernel that ptxas reports.
# Fails on a spill or a stack frame; if a kernel needs more than one allocation step (8 registers)
# above the number in lib/kernel_registers.txt, because registers limit occupancy; and on a remark
# that products of warp groups wait. Architectures that are not in that file are only mentioned.
# --write records today's numbers as the right ones. The last line is "N passed, N failed".
set -u
build=$1
known=$(dirname "$0")/lib/kernel_registers.txt
mapfile -t logs < <(find "$build/obj/kernels" -name '*.cu.o.log' 2>/dev/null | sort)
if [ "${#logs[@]}" -eq 0 ]; then
  echo "skipped the kernels of this build: it has no nvcc"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi

# Lines "ARCHITECTURE REGISTERS STACK SPILLS KERNEL", with kernels as in the source, without their
# parameters.
measured() {
  awk '/Compiling entry function/ { name = $7; arch = $9; gsub(/\047/, "", name); gsub(/\047/, "", arch) }
       /bytes stack frame/ { stack = $1; spills = $5 + $9 }
       /Used [0-9]+ registers/ { print arch, $5, stack, spills, name }' "${logs[@]}" | c++filt |
    sed -E 's/ void / /; s/choir::(cuda::)?//g; s/\(anonymous namespace\):://g; s/\([A-Za-z ]+\)(-?[0-9]+)/\1/g; s/\(.*$//' |
    sort -u -k5 -k1,1
}

version=$(sed -n 's/.*CUDA  *\([0-9.]*\) in .*/\1/p' "$build/features.txt")
if [ "${2:-}" = --write ]; then
  # Rows of architectures that this build does not have stay.
  measured | cut -d' ' -f1,2,5- >"$known.new"
  awk 'NR == FNR { here[$1] = 1; next } FNR > 1 && !($1 in here)' "$known.new" "$known" >"$known.kept"
  { echo "nvcc $version"; sort -k3 -k1,1 "$known.new" "$known.kept"; } >"$known"
  rm "$known.new" "$known.kept"
  exit 0
fi
measured >"$build/kernel_resources.txt"
passed=0 failed=0
complain() { echo "not ok $*"; failed=$((failed + 1)); }
same_compiler=no
[ "$(head -n 1 "$known")" = "nvcc $version" ] && same_compiler=yes
declare -A usuals=() tuned=()
while read -r arch registers kernel; do usuals["$arch $kernel"]=$registers tuned[$arch]=yes; done < <(tail -n +2 "$known")
while read -r arch registers stack spills kernel; do
  before=$failed
  if [ -z "${tuned[$arch]:-}" ]; then
    [ "$spills" -eq 0 ] || echo "$kernel ($arch) spills $spills bytes: nobody has tuned it for this architecture"
    continue
  fi
  [ "$spills" -eq 0 ] || complain "$kernel ($arch) spills $spills bytes"
  [ "$stack" -eq 0 ] || complain "$kernel ($arch) has a stack frame of $stack bytes"
  if [ "$same_compiler" = yes ]; then
    usual=${usuals["$arch $kernel"]:-}
    if [ -z "$usual" ]; then complain "$kernel ($arch), $registers registers, is not in $known: look at it, then --write"
    elif [ "$registers" -gt $((usual + 8)) ]; then complain "$kernel ($arch) needs $registers registers, $usual until now"
    fi
  fi
  [ "$failed" -gt "$before" ] || passed=$((passed + 1))
done <"$build/kernel_resources.txt"
# Notes of ptxas about wgmma: products that are serialized (C7510), fences that it has to add
# (C7519), registers that are not handed over (C7508).
if notes=$(grep -h 'ptxas info *: (C75' "${logs[@]}"); then complain "ptxas on warp groups: $notes"; else passed=$((passed + 1)); fi
[ "$same_compiler" = yes ] || echo "registers not compared: $known is of $(head -n 1 "$known"), this is nvcc $version"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
