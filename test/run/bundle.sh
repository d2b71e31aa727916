#!/usr/bin/env bash
# The folder of `make bundle`, made from the programs of this build: it is complete, and it runs
# with an empty environment. long/bundle.sh shows that it needs nothing of this machine.
. "$(dirname "$0")/lib/common.sh"
case $(basename "$(readlink -f "$(command -v mpiexec)")") in
  orterun) ;;
  *) skip "the folder of make bundle" "only Open MPI 4 can be bundled, and mpiexec is of another"; exit ;;
esac
bundle=$work/bundle
check "the folder is made" "$root/.make/bundle.sh" --folder "$build" "$work"
for file in run MANIFEST bin/choir bin/mpiexec bin/orted inputs/debug.json jobs/launch.sh bench/gpu_report.sh bench/peer_torch.py \
  test/run_all.sh test/run_shards.sh lib/libmpi.so.40 lib/openmpi/mca_btl_vader.so share/openmpi/help-orterun.txt; do
  [ -e "$bundle/$file" ] || { fail "the folder has what it takes" "$file is missing"; break; }
done
[ ! -e "$bundle/$file" ] || pass "the folder has what it takes"
check "every needed library is in it or the host's" "$root/.make/bundle.sh" --check "$bundle"
check "the manifest says where each comes from" matches "$bundle/MANIFEST" '^needs \./bin/choir lib/libmpi\.so\.40$'
check "glibc is the host's" matches "$bundle/MANIFEST" '^needs \./bin/choir host:libc\.so\.6$'

# Libraries that the loader really takes: they come from the bundle, or are glibc and the driver.
foreign() {
  env -i PATH=/usr/bin:/bin "$bundle/run" ldd "$bundle"/bin/* "$bundle"/lib/*.so* "$bundle"/lib/openmpi/*.so 2>&1 | sed -nE 's/^\s*(\S+) => (.*)/\1 \2/p' | grep -v " $bundle/lib/" |
    grep -vE '^(ld-linux[-a-z0-9]*|lib(c|m|mvec|dl|pthread|rt|resolv|util))\.so|^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvJitLink)[a-z_]*\.so'
}
foreign | sort -u >foreign.txt
check "nothing else of this machine is loaded" test ! -s foreign.txt || sed 's/^/    | /' foreign.txt

# A bundle without a needed library is detected.
mv "$bundle/lib/libhwloc.so.15" "$work/kept"
check "a missing library is named" eval '! "$root/.make/bundle.sh" --check "$bundle" >missing.txt && has missing.txt libhwloc.so.15'
mv "$work/kept" "$bundle/lib/libhwloc.so.15"

bare() { env -i PATH=/usr/bin:/bin HOME="$work" "$bundle/run" "$@"; }
command="run mpiexec -n 2 choir train" code=0
(cd "$bundle" && OMP_NUM_THREADS=1 timeout $((limit * patience)) env -i PATH=/usr/bin:/bin HOME="$work" OMP_NUM_THREADS=1 ./run mpiexec -n 2 \
  choir train inputs/debug.json data.train="$work/text.txt" run.dir="$work/bundled" train.max_steps=5 log.verbose=true) >out 2>&1 || code=$?
expect "two ranks train from the folder, with an empty environment" 0 "rank=1/1" "summary:"
command="run choir" code=0
bare choir train nowhere.json >out 2>&1 || code=$?
expect "exit codes come through" 2 "nowhere.json"
command="run" code=0
bare >out 2>&1 || code=$?
expect "without a program it says what it is for" 2 "run PROGRAM"
sed -i 's/^glibc .*/glibc 99.0/' "$bundle/MANIFEST"
code=0
bare choir --version >out 2>&1 || code=$?
expect "too old a glibc is said" 1 "built for 99.0 or newer"
