#!/usr/bin/env bash
# bundle.sh BUILD OUT: collects the files that are needed to run choir on another machine of this
# kind without packages: programs, decks, tests, and every shared library except glibc's own and
# NVIDIA's, which a GPU host has. Makes OUT/bundle/ and packs it as OUT/choir-bundle.tar.zst
# (.tar.gz without zstd), at most LIMIT_MIB (60).
#   bundle.sh --folder BUILD OUT    only the folder
#   bundle.sh --check FOLDER        every library that something in FOLDER needs is in it or expected of the host
set -eu
export LC_ALL=C
cd "$(dirname "$0")/.."
limit_mib=${LIMIT_MIB:-60}

# Libraries of the host: glibc, which must fit its kernel and loader, and CUDA, which must fit its
# driver.
of_glibc='ld-linux[a-z0-9-]*|libc|libm|libmvec|libdl|libpthread|librt|libresolv|libutil|libanl|libnsl|libnss_[a-z]*|libBrokenLocale|libthread_db'
of_nvidia='libcuda|libcudart|libcublas|libcublasLt|libcudnn[a-z_]*|libnccl|libnvrtc|libnvrtc-builtins|libnvJitLink|libnvidia-ml|libnvToolsExt|libcupti'
of_host="^($of_glibc|$of_nvidia)\.so(\.|$)"

elf_files() { find "$1" -type f \( -perm -u+x -o -name '*.so*' \) -exec grep -laP '^\x7fELF' {} +; }
needed_by() { readelf -d "$@" 2>/dev/null | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | sort -u; }

check() {  # check FOLDER
  local missing=0 library
  while read -r library; do
    [ -e "$1/lib/$library" ] || [[ $library =~ $of_host ]] || { echo "bundle: $library is needed and not in it"; missing=1; }
  done < <(elf_files "$1" | tr '\n' '\0' | xargs -0 readelf -d 2>/dev/null | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | sort -u)
  return "$missing"
}
# The newest version of glibc that any file in it requires.
glibc_of() {
  elf_files "$1" | tr '\n' '\0' | xargs -0 readelf -V 2>/dev/null | grep -oE 'GLIBC_[0-9]+\.[0-9]+' | cut -d_ -f2 |
    sort -uV | tail -n 1
}
die() { echo "bundle: $*" >&2; exit 1; }

pack=1
case ${1:-} in
  --check) check "${2:?usage: bundle.sh --check FOLDER}"; exit ;;
  --folder) pack=0; shift ;;
esac
build=${1:?usage: bundle.sh [--folder] BUILD OUT} out=${2:?usage: bundle.sh [--folder] BUILD OUT}
mkdir -p "$out"
folder=$(cd "$out" && pwd)/bundle
rm -rf "$folder"
mkdir -p "$folder"/{bin,lib/openmpi,lib/pmix,lib/hwloc,share/openmpi,share/pmix,etc/openmpi}

# --- programs -----------------------------------------------------------------------------------------------------
[ -x "$build/choir" ] || die "$build/choir is missing"
for program in choir test_unit test_mpi test_cuda; do
  [ ! -x "$build/$program" ] || cp "$build/$program" "$folder/bin/"
done
launcher=$(readlink -f "$(command -v mpiexec)") || die "no mpiexec on the PATH"
case $(basename "$launcher") in
  orterun) ;;
  *) die "mpiexec is $launcher; only Open MPI 4 (orterun) can be bundled" ;;
esac
cp "$launcher" "$folder/bin/mpiexec"
cp "$(readlink -f "$(command -v orted)")" "$folder/bin/orted"

# --- plugins of Open MPI and PMIx, except those for networks and launchers that a single host lacks
where() { ompi_info --path "$1" 2>/dev/null | sed -nE 's/^ *[A-Za-z]+: //p'; }
plugins=$(where pkglibdir) texts=$(where pkgdatadir)
[ -d "$plugins" ] || die "ompi_info does not say where Open MPI's plugins are"
for plugin in "$plugins"/mca_*.so; do
  case $(basename "$plugin") in
    *_ucx.so | *_ofi.so | *_openib.so | *_flux.so | *_monitoring.so | *_netlink.so) ;;
    mca_mtl_* | mca_pml_cm.so) ;;                                                     # networks
    mca_atomic_* | mca_memheap_* | mca_scoll_* | mca_spml_* | mca_sshmem_*) ;;        # OpenSHMEM
    *) cp "$plugin" "$folder/lib/openmpi/" ;;
  esac
done
cp -r "$texts/." "$folder/share/openmpi/"
cp /dev/null "$folder/etc/openmpi/openmpi-mca-params.conf"

# --- shared libraries ---------------------------------------------------------------------------------------------
# The loop runs twice: PMIx, which a plugin of Open MPI needs, has its own plugins, which are found
# next to it.
libraries() {
  elf_files "$folder" | tr '\n' '\0' | LD_LIBRARY_PATH=$folder/lib:${LD_LIBRARY_PATH:-} xargs -0 ldd 2>/dev/null |
    sed -nE 's/^\s*(\S+) => (\/\S+) .*/\1 \2/p' | sort -u | while read -r name path; do
      [[ $name =~ $of_host ]] || [ -e "$folder/lib/$name" ] || { cp -L "$path" "$folder/lib/$name"; echo "$path"; }
    done
}
for path in $(libraries); do
  case $path in
    *libpmix.so*)
      beside=$(dirname "$(readlink -f "$path")")
      [ -d "$beside/pmix" ] && cp "$beside"/pmix/*.so "$folder/lib/pmix/"
      [ ! -d "$beside/../share/pmix" ] || cp -r "$beside/../share/pmix/." "$folder/share/pmix/" ;;
  esac
done
# PMIx's plugins for stores and networks that need more than PMIx itself are left out.
for plugin in "$folder"/lib/pmix/*.so; do
  [ -e "$plugin" ] || continue
  for library in $(needed_by "$plugin"); do
    [ -e "$folder/lib/$library" ] || [[ $library =~ $of_host ]] || { rm -f "$plugin"; break; }
  done
done
check "$folder" || die "incomplete"
chmod -R u+w "$folder"
elf_files "$folder" | tr '\n' '\0' | xargs -0 strip --strip-unneeded

# --- scripts and decks that are run with it -------------------------------------------------------
cp -r inputs jobs "$folder/"
mkdir -p "$folder/bench" "$folder/test"
cp bench/*.sh bench/*.py "$folder/bench/"
cp -r bench/lib "$folder/bench/"
cp -r test/run test/run_all.sh test/run_shards.sh "$folder/test/"
cp .make/bundle_run.sh "$folder/run"
chmod +x "$folder/run"
revision=$(sed -nE 's/.*CHOIR_BUILD_REVISION "(.*)"/\1/p' "$build/choir_revision.hpp")
march=$(sed -nE 's/.*CHOIR_BUILD_MARCH "(.*)"/\1/p' "$build/choir_features.hpp")
glibc=$(glibc_of "$folder")
{
  echo "revision $revision"
  echo "march $march"
  echo "glibc $glibc"
  (cd "$folder" && elf_files . | sort | while read -r file; do
    needed_by "$file" | while read -r library; do
      if [ -e "lib/$library" ]; then echo "needs $file lib/$library"; else echo "needs $file host:$library"; fi
    done
  done)
} >"$folder/MANIFEST"
echo "bundle: revision $revision, -march=$march, $(elf_files "$folder" | wc -l) programs and libraries," \
  "$(du -sm "$folder" | cut -f1) MiB in $folder; the host needs glibc $glibc"
[ "$pack" = 1 ] || exit 0

# --- one file -----------------------------------------------------------------------------------------------------
rm -f "$out"/choir-bundle.tar.*
if command -v zstd >/dev/null 2>&1; then
  archive=$out/choir-bundle.tar.zst
  tar -C "$out" --owner=0 --group=0 -cf - bundle | zstd -q -19 -T0 -o "$archive"
else
  archive=$out/choir-bundle.tar.gz
  tar -C "$out" --owner=0 --group=0 -cf - bundle | gzip -9 >"$archive"
fi
bytes=$(stat -c %s "$archive")
echo "bundle: $archive, $(awk "BEGIN {printf \"%.1f\", $bytes / 1048576}") MiB"
[ "$bytes" -le $((limit_mib * 1048576)) ] || die "$archive is larger than $limit_mib MiB"
