#!/usr/bin/env bash
# run PROGRAM ARGUMENT...: a program of this bundle, or one of the host, with the bundle's libraries.
#   ./run choir doctor
#   ./run mpiexec -n 2 choir train inputs/debug.json
#   ./run --libraries        which CUDA libraries there are, and from where they would be taken
# CUDA is the host's. It is looked for in LD_LIBRARY_PATH, CUDA_HOME, /usr/local/cuda*, and among the packages of the
# python3 on the PATH (nvidia-cublas, nvidia-cudnn ...), in this order.
set -eu
bundle=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }

have=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
want=$(sed -n 's/^glibc //p' "$bundle/MANIFEST")
if [ "$(printf '%s\n%s\n' "$want" "${have:-0}" | sort -V | head -n 1)" != "$want" ]; then
  echo "run: this machine has glibc ${have:-?}; the bundle was built for $want or newer. Build it on an older system." >&2
  exit 1
fi

libraries=$bundle/lib
append() { [ ! -d "$1" ] || libraries+=":$1"; }
[ -z "${LD_LIBRARY_PATH:-}" ] || libraries+=":$LD_LIBRARY_PATH"
[ -z "${CUDA_HOME:-}" ] || append "$CUDA_HOME/lib64"
for folder in /usr/local/cuda/lib64 /usr/local/cuda-*/lib64; do append "$folder"; done
# The libraries of Python's CUDA packages: site-packages/nvidia/NAME/lib, also in a virtual environment.
if command -v python3 >/dev/null 2>&1; then
  while IFS= read -r folder; do append "$folder"; done < <(python3 -c '
import glob, os, sys
for path in sys.path:
    for folder in sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib"))):
        print(folder)' 2>/dev/null || true)
fi

export LD_LIBRARY_PATH=$libraries PATH=$bundle/bin:$PATH
export OPAL_PREFIX=$bundle OPAL_BINDIR=$bundle/bin OPAL_LIBDIR=$bundle/lib OPAL_PKGLIBDIR=$bundle/lib/openmpi
export OPAL_DATADIR=$bundle/share OPAL_PKGDATADIR=$bundle/share/openmpi OPAL_SYSCONFDIR=$bundle/etc
export PMIX_INSTALL_PREFIX=$bundle PMIX_LIBDIR=$bundle/lib PMIX_PKGLIBDIR=$bundle/lib/pmix PMIX_PKGDATADIR=$bundle/share/pmix
export OMPI_MCA_mca_base_component_path=$bundle/lib/openmpi PMIX_MCA_mca_base_component_path=$bundle/lib/pmix
export HWLOC_PLUGINS_PATH=$bundle/lib/hwloc  # the host's are for another libhwloc
# Root and more ranks than cores are allowed here; choir chooses the number of threads.
threads=${OMP_NUM_THREADS:-}
# shellcheck source=../jobs/launch.sh
. "$bundle/jobs/launch.sh"
launch_environment 1
if [ -n "$threads" ]; then export OMP_NUM_THREADS=$threads; else unset OMP_NUM_THREADS; fi

if [ "$1" = --libraries ]; then  # in the loader's order; some are opened only on demand
  IFS=: read -r -a folders <<<"$LD_LIBRARY_PATH"
  for name in libcuda libcublasLt libcudnn libnccl; do
    found=""
    for folder in "${folders[@]}"; do
      found=$(find "$folder/" -maxdepth 1 -name "$name.so.*" 2>/dev/null | sort | head -n 1)
      [ -z "$found" ] || break
    done
    [ -n "$found" ] || found=$(ldconfig -p 2>/dev/null | sed -nE "s/^\s*$name\.so\.[0-9]+ .* => //p" | head -n 1)
    printf '%-12s %s\n' "$name" "${found:-not found}"
  done
  exit 0
fi
exec "$@"
