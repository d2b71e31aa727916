#!/usr/bin/env bash
# kernel_occupancy.sh BUILD: the number of warps of every kernel that fit on a multiprocessor, from
# the registers and shared memory that ptxas reports and the threads in PTX. Fails if a kernel
# cannot be started at all on an architecture of the build, or if fewer warps fit than the number
# below, which still covers the latency of memory, unless lib/kernel_occupancy.txt lists the kernel
# with its number and the reason. Shared memory that a launch requests is not known here:
# test/host_cuda checks it. The last line is "N passed, N failed".
set -u
build=$1
here=$(dirname "$0")
known=$here/lib/kernel_occupancy.txt
least=16

# Lines "ARCHITECTURE WARPS THREADS REGISTERS SHARED KERNEL" from logs of ptxas, after "THREADS
# KERNEL" lines of PTX. Architectures: warps, registers, shared memory and blocks of a
# multiprocessor, shared memory of a block (CUDA C++ Programming Guide, technical specifications).
# Code that is compiled for sm_80 also runs on sm_86 and sm_89.
resident() {
  awk '
    BEGIN {
      limits["sm_80"] = "64 65536 167936 32 166912"; limits["sm_86"] = "48 65536 102400 16 101376"
      limits["sm_89"] = "48 65536 102400 24 101376"; limits["sm_90a"] = "64 65536 233472 32 232448"
      limits["sm_100"] = limits["sm_90a"]; limits["sm_120"] = "48 65536 102400 24 101376"
    }
    $1 == "threads" { threads[$3] = $2; next }
    /Compiling entry function/ { name = $7; arch = $9; gsub(/\047/, "", name); gsub(/\047/, "", arch) }
    /Used [0-9]+ registers/ {
      shared = 0
      if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
      report(arch, $5, shared)
      if (arch == "sm_80") { report("sm_86", $5, shared); report("sm_89", $5, shared) }
    }
    function up(n, unit) { return int((n + unit - 1) / unit) * unit }
    function least_of(a, b) { return a < b ? a : b }
    function report(on, registers, bytes,   l, warps, blocks) {
      if (!(on in limits)) return
      split(limits[on], l, " ")
      warps = ((name in threads) ? threads[name] : 1024) / 32
      # Warps get registers in units of 256, and blocks get shared memory in units of 128 bytes in
      # addition to 1 KB of the system.
      blocks = int(int(l[2] / up(up(registers, 8) * 32, 256)) / warps)
      blocks = least_of(blocks, int(l[1] / warps))
      blocks = least_of(blocks, int(l[3] / up(bytes + 1024, 128)))
      blocks = least_of(blocks, l[4])
      if (bytes > l[5]) blocks = 0
      print on, blocks * warps, warps * 32, registers, bytes, name
    }'
}

# The rule is tested on four kernels with known answers: registers, threads without number, shared
# memory of a block, and blocks.
taught=$(printf '%s\n' 'threads 256 fat' 'threads 128 wide' 'threads 32 thin' \
  "ptxas info    : Compiling entry function 'fat' for 'sm_90a'" 'ptxas info    : Used 168 registers, used 1 barriers' \
  "ptxas info    : Compiling entry function 'any' for 'sm_90a'" 'ptxas info    : Used 72 registers' \
  "ptxas info    : Compiling entry function 'wide' for 'sm_80'" 'ptxas info    : Used 40 registers, 110000 bytes smem' \
  "ptxas info    : Compiling entry function 'thin' for 'sm_90a'" 'ptxas info    : Used 16 registers' | resident | cut -d' ' -f1,2,6)
if [ "$taught" != $'sm_90a 8 fat\nsm_90a 0 any\nsm_80 4 wide\nsm_86 0 wide\nsm_89 0 wide\nsm_90a 32 thin' ]; then
  echo "not ok the rule counts warps: $taught"
  echo "0 passed, 1 failed"
  exit 1
fi

mapfile -t logs < <(find "$build/obj/kernels" -name '*.cu.o.log' 2>/dev/null | sort)
if [ "${#logs[@]}" -eq 0 ]; then
  echo "skipped the kernels of this build: it has no nvcc"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
threads_of() {
  sed -nE 's/^(\.visible )?\.entry ([^(]+)\(.*/\2/p; s/^\.maxntid ([0-9]+).*/threads \1/p' "${logs[@]/%.o.log/.ptx}" |
    awk '$1 == "threads" { print "threads", $2, name } { name = $1 }'
}
{ threads_of; cat "${logs[@]}"; } | resident | c++filt |
  sed -E 's/ void / /; s/choir::(cuda::)?//g; s/\(anonymous namespace\):://g; s/\([a-z ]+\)(-?[0-9]+)/\1/g; s/\(.*$//' |
  sort -u -k6 -k1,1 >"$build/kernel_occupancy.txt"
passed=0 failed=0
declare -A excused=()
while read -r warps pattern _; do excused["$pattern"]=$warps; done < <(grep -v '^#' "$known")
# The smallest allowed number of warps of the kernel: that of its line, or the general one.
floor_of() {
  local pattern
  for pattern in "${!excused[@]}"; do
    [[ $1 == "$pattern"* ]] && { echo "${excused[$pattern]}"; return; }
  done
  echo "$least"
}
while read -r arch warps threads registers shared kernel; do
  wanted=$least
  [ "$warps" -ge "$least" ] || wanted=$(floor_of "$kernel")
  if [ "$warps" -ge "$wanted" ] && [ "$warps" -gt 0 ]; then passed=$((passed + 1)); continue; fi
  echo "not ok $kernel: $warps warps on a multiprocessor of $arch, at least $wanted ($threads threads, $registers registers, $shared bytes of shared memory)"
  failed=$((failed + 1))
done <"$build/kernel_occupancy.txt"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
