#!/usr/bin/env bash
# progress.sh BUILD MAKE ARGUMENT...: runs that make, which compiles into BUILD. Says beforehand how many steps there
# are and why, numbers the steps that make prints, because a first build takes minutes ("[12/130]  c++   ..."), and
# estimates the time that is left. Ctrl-C ends it with 130.
set -eu -o pipefail
build=$1
shift
steps='  (c[+][+]|nvcc|host|clang|ar|link) '
# Make describes a step as the command that prints it, in which a group of sources is listed by a pipe with quotes of its
# own. A step that fails later is found by the build.
plan=$("$@" --dry-run 2>/dev/null | grep -oE "^echo \"$steps([^\"\$]*\\\$\(sed .* \| tr '.n' ' '\)|[^\"]*)\"" | bash || true)
total=$(grep -c . <<<"$plan" || true)
[ "$total" -gt 1 ] || exec "$@"
# The time of a source is a constant and a part that grows with its size in KiB, in tenths of a second of a usual core.
# Sources of several rooms in one group ("src: ...") are optimised more, and device code takes six times as long.
declare -A weights=()
whole=0
while IFS=$'\t' read -r weight step; do
  weights["$step"]=$weight whole=$((whole + weight))
done < <({ find src kernels test -type f \( -name '*.cpp' -o -name '*.cu' \) -printf '%s\t%p\n' 2>/dev/null || true; printf '0\tplan\n%s\n' "$plan"; } | awk -F '\t' '
  $2 == "plan" { planned = 1; next }
  !planned { size[$2] = $1; next }
  {
    n = split($0, words, " +"); kib = 0
    first = words[1] == "" ? 2 : 1
    kind = words[first]; room = words[first + 1]
    if (room ~ /:$/) {
      sub(":$", "", room)
      for (path in size) if (index(path, room "/") == 1) {
        name = path; sub(".*/", "", name); sub("[.][^.]*$", "", name)
        for (i = first + 2; i <= n; i++) if (words[i] == name) { kib += size[path] / 1024; words[i] = ""; break }
      }
    } else if (room in size) kib = size[room] / 1024
    weight = 12 + kib
    if ($0 ~ /prelude/) weight = 50
    else if (kind == "ar" || kind == "link") weight = 25
    else if (room == "src") weight *= 2.3
    else if (kind == "nvcc") weight *= 6
    printf "%d\t%s\n", weight, $0
  }')

objects() { find "$build/obj" -name '*.o' "$@" 2>/dev/null; }
if [ -z "$(objects -print -quit)" ]; then reason="nothing is compiled yet"
elif [ -z "$(objects -newer "$build/flags" -print -quit)" ]; then
  reason="the compiler or its flags have changed since the last build"
elif [ ! -e "$build/choir" ]; then reason="the last build did not end"
elif [ "$build/asked" -nt "$build/choir" ]; then
  reason="the settings (CUDA_HOME and others) are not those of the last build"
elif [ "$(grep -E '^  (c[+][+]|nvcc|host|clang) ' <<<"$plan")" = "  c++   src/core/build_info.cpp" ]; then
  reason="the revision of git has changed since the last build"
elif [ -n "$(find src kernels include test Makefile .make -type f -newer "$build/choir" -print -quit 2>/dev/null)" ]; then
  reason="sources, headers or rules have changed since the last build"
else reason="the last build did not need them"
fi
echo "make: $total steps in $build, because $reason; the time that is left is shown after some of them"

interrupted=""
trap 'interrupted=yes' INT
code=0
"$@" | {
  trap '' INT  # make itself is interrupted, and its last lines must be read
  count=0 done=0 began=$SECONDS shown=0 running=0
  while IFS= read -r line; do
    number=""
    if [[ $line =~ ^$steps ]]; then
      # Steps that nobody foresaw (make learns dependencies while it builds) raise the total.
      count=$((count + 1)) total=$((count > total ? count : total))
      printf -v number '[%*d/%d]' ${#total} "$count" "$total"
      took=$((SECONDS - began))
      # Half of the two steps that were begun last is still to be done.
      past=$((done - running / 2))
      running=${weights[$line]:-12}
      done=$((done + running))
      if [ "$took" -ge "${PROGRESS_AFTER:-15}" ] && [ "$past" -gt 0 ] && [ "$past" -lt "$whole" ]; then
        left=$((took * (whole - past) / past))
        # A small rise is noise: the estimate falls, unless it was wrong by a quarter.
        if [ "$shown" -gt 0 ] && [ "$left" -gt "$shown" ] && [ "$left" -lt $((shown * 5 / 4)) ]; then left=$shown; fi
        shown=$left
        if [ "$left" -ge 90 ]; then line+="   ($(((left + 30) / 60)) min left)"; else line+="   ($left s left)"; fi
      fi
    fi
    printf '%s%s\n' "$number" "$line"  # at once: make writes errors between two writes
  done
} || code=$?
if [ -n "$interrupted" ]; then
  echo "make: the build was stopped by Ctrl-C; the same command continues it" >&2
  exit 130
fi
exit "$code"
