# shellcheck shell=bash
# Sourced in place of common.sh by the scripts that build the program once more, under a sanitizer, and run tests of it:
#
#   build_sanitized DIRECTORY SANITIZERS ARGUMENT...   make's arguments: targets of DIRECTORY, variables
#   libraries_stay                                     from here on nothing is unloaded: reports can name it
#   tests, script                                      of another_build.sh
#
# A report anywhere is a failure even if every test passes, and leaves its first lines.

# The shadow memory of a sanitizer has a fixed address, and the kernel may put something else there.
if [ -z "${CHOIR_FIXED_ADDRESSES:-}" ] && setarch -R true 2>/dev/null; then
  CHOIR_FIXED_ADDRESSES=1 exec setarch -R "$0" "$@"
fi
# shellcheck source=another_build.sh
. "$(dirname "${BASH_SOURCE[0]}")/another_build.sh"
# The same processor type for all machines, so that code tested here replaces the instructions that
# it lacks.
build_sanitized() {
  local directory=$1 sanitizers=$2
  shift 2
  build_another "$directory" SANITIZE="$sanitizers" MARCH=x86-64-v3 CUDA_HOME=none "$@"
}

# Plugins of Open MPI are closed before a sanitizer looks up where a leak was allocated, or to which
# library a thread belonged.
libraries_stay() {
  echo 'extern "C" int dlclose(void*) { return 0; }' |
    "${MPICXX:-mpicxx}" -x c++ -shared -fPIC -o "$work/stay_loaded.so" - || exit
  export LD_PRELOAD=$work/stay_loaded.so
}

findings='ERROR: (Address|Leak)Sanitizer|runtime error: |WARNING: ThreadSanitizer'
# A report is written where the program's output is written, which a script shows only if it misses
# other words: here it has a file.
reports() {
  local name
  for name in ASAN LSAN UBSAN TSAN; do
    local options=${name}_OPTIONS
    printf '%s_OPTIONS=%s:log_path=%s\n' "$name" "${!options}" "$work/found"
  done
}
