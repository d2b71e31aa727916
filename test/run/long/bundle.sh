#!/usr/bin/env bash
# `make bundle` for other processors, unpacked in another folder and run while this machine's own
# MPI, HDF5, BLAS and every other library that it contains are hidden (an empty file is mounted over
# each, in a mount namespace of its own; needs root).
. "$(dirname "$0")/../lib/common.sh"
limit=300
out=$root/build
make -C "$root" bundle BUILD="$out" >make.log 2>&1
check "make bundle" grep -qE 'choir-bundle.tar.(zst|gz), [0-9.]+ MiB' make.log || tail -n 20 make.log
archive=$(ls "$out"/choir-bundle.tar.* 2>/dev/null | head -n 1)
check "at most 60 MiB" test "$(stat -c %s "$archive" || echo 999999999)" -le $((60 << 20))
mkdir -p "elsewhere/a b" && tar -C "elsewhere/a b" -xf "$archive"
bundle="$work/elsewhere/a b/bundle"
check "the march is that of any processor since 2015" matches "$bundle/MANIFEST" '^march x86-64-v3$'

hidden() {  # hidden COMMAND...: in a namespace in which the originals of the bundle's libraries are empty files
  unshare -m bash -c '
    bundle=$1 scratch=$2; shift 2
    touch "$scratch/nothing"; mkdir -p "$scratch/nowhere"
    hide() { [ -e "$1" ] || return 0; if [ -d "$1" ]; then mount --bind "$scratch/nowhere" "$1"; else mount --bind "$scratch/nothing" "$1"; fi; }
    for library in "$bundle"/lib/*.so*; do
      name=$(basename "$library")
      for folder in /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu/openblas-openmp /usr/lib/x86_64-linux-gnu/openmpi/lib \
        /usr/lib/x86_64-linux-gnu/pmix2/lib; do
        real=$(readlink -f "$folder/$name" 2>/dev/null)
        # mount and the shell must still work.
        case $name in libselinux* | libmount* | libblkid* | libtinfo* | libpcre*) continue ;; esac
        [ ! -e "$real" ] || hide "$real"
      done
    done
    for path in /usr/lib/x86_64-linux-gnu/openmpi /usr/lib/x86_64-linux-gnu/pmix2 /usr/lib/x86_64-linux-gnu/hdf5 \
      /usr/lib/x86_64-linux-gnu/hwloc /usr/share/openmpi /etc/openmpi "$(readlink -f "$(command -v mpiexec)")" \
      "$(command -v orted)"; do hide "$path"; done
    exec "$@"' hidden "$bundle" "$work" "$@"
}
if [ "$(id -u)" != 0 ] || ! unshare -m true 2>/dev/null; then
  skip "a machine without these libraries" "hiding them needs root and mount namespaces"
  exit
fi
code=0
command="choir of this build, hidden"
hidden "$bundle" "$out/portable/choir" --version >out 2>&1 || code=$?
check "hidden means hidden: the original does not start" test "$code" -ne 0
bare() { hidden env -i PATH=/usr/bin:/bin HOME="$work" OMP_NUM_THREADS=1 "$bundle/run" "$@"; }
code=0 command="run mpiexec -n 2 choir train, hidden"
(cd "$bundle" && bare mpiexec -n 2 choir train inputs/debug.json data.train="$work/text.txt" run.dir="$work/run" train.max_steps=20 log.verbose=true) \
  >out 2>&1 || code=$?
expect "two ranks train without the libraries of this machine" 0 "rank=1/1" "summary:"
code=0 command="run choir generate, hidden"
bare choir generate "$work/run" --prompt "the king" --tokens 5 >out 2>&1 || code=$?
expect "and write" 0 "the king"
code=0 command="run choir doctor, hidden"
bare mpiexec -n 2 choir doctor --folder "$work" >out 2>&1 || code=$?
expect "and are healthy" 0 "2 processes, one world"
code=0 command="run mpiexec -n 2 test_mpi, hidden"
bare mpiexec -n 2 test_mpi >out 2>&1 || code=$?
expect "its MPI tests pass" 0 " passed, 0 failed"
