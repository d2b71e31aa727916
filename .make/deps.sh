#!/usr/bin/env bash
# Installs the Debian packages that are needed to build and test choir.
#   deps.sh               with apt (root)
#   deps.sh PREFIX        unpacks the same packages below PREFIX, without root
#   deps.sh --if-missing  installs only if something is missing; silent otherwise
#   deps.sh --fuzz              Clang, for `make fuzz`, if it is missing
#   deps.sh --format            clang-format 14, with which `make style` compares the format of the sources
#   deps.sh --speech [PREFIX]  the recorded prompts that `choir prepare corpus asterisk` reads, and nothing else
#   deps.sh --long [--if-missing]  what `make test-long` needs beside: a batch system of its own (SLURM), another MPI,
#                          another compiler
set -eu
packages=(g++ make git ca-certificates curl pkg-config openmpi-bin libopenmpi-dev libhdf5-openmpi-dev
          libopenblas-openmp-dev libdnnl-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev
          libhwloc-dev libgtest-dev bible-kjv
          libsndfile1-dev libmpg123-dev libasound2-dev libsoxr-dev libarchive-dev zlib1g-dev libzstd-dev libsnappy-dev zstd libsentencepiece-dev
          libutf8proc-dev espeak-ng shellcheck gnuplot-nox)
if [ "${1:-}" = --speech ]; then
  packages=(asterisk-core-sounds-en asterisk-core-sounds-en-wav)
  shift
elif [ "${1:-}" = --fuzz ]; then
  command -v "${CLANGXX:-clang++}" >/dev/null 2>&1 && exit 0
  packages=(clang)
  shift
elif [ "${1:-}" = --format ]; then
  command -v clang-format-14 >/dev/null 2>&1 && exit 0
  packages=(clang-format-14)
  shift
elif [ "${1:-}" = --long ]; then
  packages=(slurm-wlm munge libpmix2 mpich libmpich-dev libhdf5-dev clang-16 libomp-16-dev)
  shift
fi
missing=()
if command -v dpkg-query >/dev/null 2>&1; then
  for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
elif [ "${1:-}" = --if-missing ]; then exit 0  # not Debian: the modules or the user provide the packages
else echo "make deps knows Debian's packages only. Install: MPI, HDF5, OpenBLAS, oneDNN, nlohmann-json, CLI11, spdlog, fmt, GoogleTest." >&2; exit 1
fi
[ "${#missing[@]}" -eq 0 ] && { [ "${1:-}" = --if-missing ] || echo "Every package is installed."; exit 0; }

if [ -n "${1:-}" ] && [ "$1" != --if-missing ]; then
  prefix=$(mkdir -p "$1" && cd "$1" && pwd)
  mkdir -p "$prefix/deb" && cd "$prefix/deb"
  list=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
         --no-enhances "${missing[@]}" | grep '^[a-z]' | sort -u)
  for p in $list; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || apt-get download "$p" || true
  done
  for d in *.deb; do dpkg-deb -x "$d" "$prefix"; done
  lib=$prefix/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)
  cat <<EOF
Unpacked below $prefix. To build with it:
  export PATH=$prefix/usr/bin:\$PATH LD_LIBRARY_PATH=$lib:$lib/openblas-openmp:$lib/hdf5/openmpi OPAL_PREFIX=$prefix/usr
  export CPATH=$prefix/usr/include LIBRARY_PATH=$lib PKG_CONFIG_PATH=$lib/pkgconfig:$prefix/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$prefix
  make BLAS_DIR=$lib/openblas-openmp
EOF
  exit 0
fi
echo "These Debian packages are missing and will be installed with apt-get: ${missing[*]}"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 || { echo "That needs root. Ask an administrator, or 'make deps PREFIX=\$HOME/choir-deps' and 'make'." >&2; exit 1; }
  sudo=sudo
fi
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
