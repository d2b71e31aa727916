#!/usr/bin/env bash
# Finds the libraries, prints a tick or a cross with the version and the consequence of a cross, and
# writes BUILD/features.mk (flags), BUILD/choir_features.hpp, BUILD/choir_cuda_features.hpp and
# BUILD/choir_codec_features.hpp (macros) and BUILD/features.txt (the printed text). Most sources that
# need a library need none of CUDA's and none that decompresses, and are not compiled again if only
# those change.
set -u
build=$1
mk=$build/features.mk.new text=$build/features.txt
header=$build/choir_features.hpp.new cuda_header=$build/choir_cuda_features.hpp.new
codec_header=$build/choir_codec_features.hpp.new
: >"$mk"; : >"$text"; printf '#pragma once\n// Written by make.\n' | tee "$cuda_header" "$codec_header" >"$header"
cppflags="" libs="" missing=""

say()  { printf '%s\n' "$*" | tee -a "$text"; }
yes()  { say "$(printf '  \342\234\223 %-10s %s' "$1" "$2")"; }
no()   { say "$(printf '  \342\234\227 %-10s %s' "$1" "$2")"; }
have() { echo "#define CHOIR_HAVE_$1 1" >>"${2:-$header}"; }
pc()   { pkg-config --exists "$1" 2>/dev/null; }
probe() {  # probe FLAGS... : does the program on standard input compile and link?
  $MPICXX -std=c++20 -x c++ - -o "$build/probe" "$@" >"$build/probe.log" 2>&1
}

echo "Small programs are compiled to find the libraries; this takes up to a minute."
say "choir: what this machine offers"
if version=$($MPICXX --version 2>/dev/null); then yes "C++" "$(head -n1 <<<"$version")"
else no "MPI" "no $MPICXX: set MPICXX (Cray: MPICXX=CC), or 'make deps'"; exit 1; fi
if printf '#include <mpi.h>\nint main(){return MPI_VERSION>=3?0:1;}' | probe; then
  yes MPI "$(mpiexec --version 2>/dev/null | head -n1)"
else no MPI "mpi.h does not compile with $MPICXX"; missing+=" MPI"; fi

# HDF5: one rank writes the layout of the file, and all write the data by MPI-IO. Thus a serial one
# works with any MPI; a parallel one must be built with the same MPI.
case $($MPICXX -show 2>/dev/null) in *mpich*) own=hdf5-mpich ;; *) own=hdf5-openmpi ;; esac
h5c="" h5l="-lhdf5"
if [ -n "${HDF5:-}" ]; then h5c="-I$HDF5/include"; h5l="-L$HDF5/lib -Wl,-rpath,$HDF5/lib -lhdf5"
else
  for name in hdf5-serial $own hdf5; do
    if pc "$name"; then h5c=$(pkg-config --cflags "$name"); h5l=$(pkg-config --libs "$name"); break; fi
  done
fi
if printf '#include <hdf5.h>\nint main(){unsigned a,b,c;return H5get_libversion(&a,&b,&c);}' | probe $h5c $h5l; then
  v=$(printf '#include <hdf5.h>\nVERSION H5_VERS_INFO\n' | $MPICXX -E -x c++ - $h5c 2>/dev/null | grep -a '^VERSION' | cut -d'"' -f2)
  yes HDF5 "$v"; cppflags+=" $h5c"; libs+=" $h5l"
else no HDF5 "no HDF5: set HDF5=DIR"; missing+=" HDF5"; fi

# CBLAS for fp64. The OpenMP variant shares our threads; the pthread variant competes with them.
arch=$($MPICXX -print-multiarch 2>/dev/null || echo x86_64-linux-gnu)
blas_dir=${BLAS_DIR:-}
for d in /usr/lib/$arch/openblas-openmp /usr/lib/$arch/openblas-serial; do
  [ -z "$blas_dir" ] && [ -e "$d/libopenblas.so" ] && blas_dir=$d
done
if [ -n "$blas_dir" ]; then bl="-L$blas_dir -Wl,-rpath,$blas_dir -lopenblas"; bc="-I$blas_dir/include"
elif pc openblas; then bl=$(pkg-config --libs openblas); bc=$(pkg-config --cflags openblas)
else bl="-lopenblas"; bc=""; fi
for inc in "" "-I/usr/include/$arch/openblas-openmp" "-I/usr/include/$arch"; do
  if printf '#include <cblas.h>\nint main(){return (int)cblas_ddot(0,nullptr,1,nullptr,1);}' | probe $bc $inc $bl; then ok_inc=$inc; break; fi
done
if [ -n "${ok_inc+x}" ]; then
  yes OpenBLAS "${blas_dir:-default}"; cppflags+=" $bc $ok_inc"; libs+=" $bl"
else no OpenBLAS "no CBLAS found: set BLAS_DIR"; missing+=" OpenBLAS"; fi

# Header-only JSON and command line, fmt and spdlog.
for entry in "nlohmann/json.hpp JSON" "CLI/CLI.hpp CLI11"; do
  set -- $entry
  if printf '#include <%s>\nint main(){}' "$1" | probe; then yes "$2" "$1"; else no "$2" "$1 not found"; missing+=" $2"; fi
done
if printf '#include <spdlog/spdlog.h>\nint main(){spdlog::info("x");}' | probe $(pkg-config --cflags spdlog 2>/dev/null) -lspdlog -lfmt; then
  yes spdlog "$(pkg-config --modversion spdlog 2>/dev/null), fmt $(pkg-config --modversion fmt 2>/dev/null)"
  cppflags+=" $(pkg-config --cflags spdlog 2>/dev/null)"; libs+=" -lspdlog -lfmt"
else no spdlog "spdlog/fmt not found"; missing+=" spdlog"; fi

# The rest is optional.
od="${ONEDNN:+-I$ONEDNN/include}" ol="${ONEDNN:+-L$ONEDNN/lib -Wl,-rpath,$ONEDNN/lib} -ldnnl"
if printf '#include <dnnl.hpp>\nint main(){return dnnl_version()->major>=2?0:1;}' | probe $od $ol; then
  v=$(printf '#include <dnnl_version.h>\nVERSION DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR.DNNL_VERSION_PATCH\n' | $MPICXX -E -x c++ - $od 2>/dev/null | sed -n '/^VERSION/,$p' | grep -v '^#' | tr -d ' \n' | sed 's/^VERSION//')
  yes oneDNN "$v (bf16 and fp32 GEMM)"; have ONEDNN; cppflags+=" $od"; libs+=" $ol"
else no oneDNN "fp32 GEMM by OpenBLAS; bf16-mixed runs but is slow"; fi
if printf '#include <hwloc.h>\nint main(){hwloc_topology_t t;return hwloc_topology_init(&t);}' | probe -lhwloc; then
  yes hwloc "$(pkg-config --modversion hwloc 2>/dev/null)"; have HWLOC; libs+=" -lhwloc"
else no hwloc "doctor shows no core topology"; fi
# Speech.
optional() {  # optional NAME MACRO PACKAGE LIBRARIES HEADER COST [FILE_OF_MACROS]
  if printf '#include <%s>\nint main(){}' "$5" | probe $4; then
    yes "$1" "$(pkg-config --modversion "$3" 2>/dev/null)"; have "$2" "${7:-$header}"; libs+=" $4"
  else no "$1" "$6"; fi
}
optional libsndfile SNDFILE sndfile -lsndfile sndfile.h "prepare audio and transcribe read no audio files"
optional libmpg123 MPG123 libmpg123 -lmpg123 mpg123.h "MP3 is refused" "$codec_header"
optional libsoxr SOXR soxr -lsoxr soxr.h "audio of other sample rates is refused"
optional libarchive ARCHIVE libarchive -larchive archive.h "no tarred or compressed manifests"
optional sentencepiece SENTENCEPIECE sentencepiece "-lsentencepiece -lsentencepiece_train" sentencepiece_processor.h "characters are the only units of speech models"
optional ALSA ALSA alsa -lasound alsa/asoundlib.h "choir talk --live is refused"
# Text.
optional utf8proc UTF8PROC libutf8proc -lutf8proc utf8proc.h "tokenizers that normalise (Qwen) are refused"
optional zlib ZLIB zlib -lz zlib.h "texts packed with gzip are refused" "$codec_header"
optional zstd ZSTD libzstd -lzstd zstd.h "texts packed with zstd are refused" "$codec_header"
optional snappy SNAPPY snappy -lsnappy snappy-c.h "Parquet files packed with snappy are refused" "$codec_header"
gtest=""
if printf '#include <gtest/gtest.h>\nint main(){}' | probe -lgtest -lpthread; then
  yes GoogleTest "$(pkg-config --modversion gtest 2>/dev/null)"; gtest="-lgtest -lpthread"
else no GoogleTest "make test will not build"; fi

# CUDA: the toolkit compiles the kernels; the program checks for a GPU when it starts. cuBLASLt,
# cuDNN and NCCL are opened at run time, so only their headers are needed here.
cuda=${CUDA_HOME:-}; [ -z "$cuda" ] && command -v nvcc >/dev/null 2>&1 && cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
[ -z "$cuda" ] && [ -x /usr/local/cuda/bin/nvcc ] && cuda=/usr/local/cuda
[ "$cuda" = none ] && cuda=""
cuda_flags="" known="" here="" archs="" host_compiler=""
if [ -n "$cuda" ] && [ -x "$cuda/bin/nvcc" ] && [ -e "$cuda/include/cublasLt.h" ]; then
  # known: the architectures of releases that this toolkit supports; here: those of the GPUs in this
  # machine, which are the default.
  offered=$("$cuda/bin/nvcc" --list-gpu-code 2>/dev/null)
  for arch in 80 89 90a 100 120; do grep -qx "sm_${arch%a}" <<<"$offered" && known+="${known:+ }$arch"; done
  for capability in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -un); do
    [ "$capability" = 90 ] && capability=90a
    grep -qx "sm_${capability%a}" <<<"$offered" && [ "${capability%a}" -ge 80 ] && here+="${here:+ }$capability"
  done
  archs=${here:-"80 90a"}
  yes CUDA "$("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') in $cuda (for sm_${archs// /, sm_})"
  have CUDA "$cuda_header"; cuda_flags="-I$cuda/include"
  # The compiler behind MPI's wrapper: the option of Open MPI, then that of MPICH.
  host_compiler=$($MPICXX --showme:command 2>/dev/null || $MPICXX -show 2>/dev/null | cut -d' ' -f1)
  host_compiler=$(command -v "${host_compiler:-none}")
  for lib in "cuDNN cudnn_version.h CUDNN_MAJOR CUDNN_MINOR ${CUDNN_HOME:-$cuda} attention_by_choir's_own_kernels_only" \
             "NCCL nccl.h NCCL_MAJOR NCCL_MINOR ${NCCL_HOME:-$cuda} GPUs_talk_through_host_memory"; do
    set -- $lib
    if [ -e "$5/include/$2" ]; then
      yes "$1" "$(sed -n "s/^#define $3 *//p" "$5/include/$2" | head -n1).$(sed -n "s/^#define $4 *//p" "$5/include/$2" | head -n1)"
      have "$(tr '[:lower:]' '[:upper:]' <<<"$1")" "$cuda_header"
      [ "$5" = "$cuda" ] || cuda_flags+=" -I$5/include"
    else no "$1" "${6//_/ }"; fi
  done
else cuda=""; no CUDA "CPU only: set CUDA_HOME=DIR (CUDA_HOME=none silences this)"; no cuDNN "-"; no NCCL "-"; fi

# Wide vectors for the kernels, if the target has them.
vector="" wide=""
macros=$($MPICXX -march="$MARCH" -dM -E -x c++ /dev/null 2>/dev/null)
if grep -q __AVX512F__ <<<"$macros"; then vector="-mprefer-vector-width=512" wide=" (AVX-512)"
# Without AVX, GCC 12 moves 8 bytes through MMX and leaves the x87 unit unusable: the next long
# double is NaN.
elif grep -q __MMX__ <<<"$macros" && ! grep -q __AVX__ <<<"$macros"; then vector="-mno-mmx"; fi
fused=""
if printf 'int main(){}' | probe -c -Werror --param avoid-fma-max-bits=0; then fused="--param avoid-fma-max-bits=0"; fi
say "  target     -march=$MARCH$wide"
rm -f "$build/probe" "$build/probe.log"
if [ -n "$missing" ]; then
  say "Missing and needed:$missing. Debian: 'make deps' (or 'make deps PREFIX=DIR' without root)."
  exit 1
fi
{
  echo "FEATURE_CPPFLAGS := $cppflags"
  echo "FEATURE_LIBS := $libs -lpthread -ldl"
  echo "GTEST_LIBS := $gtest"
  echo "KERNEL_VECTOR_FLAGS := $vector"
  echo "FUSED_FLAGS := $fused"
  case $version in *clang*) echo "COMPILER := clang" ;; *) echo "COMPILER := gcc" ;; esac
  echo "CUDA := $cuda"
  echo "CUDA_CPPFLAGS := $cuda_flags"
  echo "CUDA_HOST_COMPILER := $host_compiler"
  echo "KNOWN_CUDA_ARCHS := $known"
  echo "DEFAULT_CUDA_ARCHS := $archs"
} >>"$mk"
echo "#define CHOIR_BUILD_MARCH \"$MARCH\"" >>"$header"
echo "#define CHOIR_BUILD_COMPILER \"$($MPICXX --version | head -n1)\"" >>"$header"
for written in "$header" "$cuda_header" "$codec_header"; do
  cmp -s "$written" "${written%.new}" && rm "$written" || mv "$written" "${written%.new}"
done
mv "$mk" "${mk%.new}"
