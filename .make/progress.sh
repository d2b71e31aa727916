#!/usr/bin/env bash
# progress.sh BUILD MAKE ARGUMENT...: runs that make, which compiles into BUILD. Says beforehand how many steps there
# are and why, numbers the steps that make prints, because a first build takes minutes ("[12/130]  c++   ..."), and
# estimates the time that is left. Ctrl-C ends it with 130.
set -eu -o pipefail
build=$1
shift
steps='  (c[+][+]|nvcc|host|clang|ar|link) '
# Make describes a step as the command that prints it. A step that fails later is found by the build.
plan=$("$@" --dry-run 2>/dev/null | grep -E "^echo \"$steps" || true)
total=$(grep -c . <<<"$plan" || true)
[ "$total" -gt 1 ] || exec "$@"
# Device code takes about six times as long as a C++ source, and a link a fifth.
weight() { case $1 in *"  nvcc "*) echo 60 ;; *"  ar "* | *"  link "*) echo 2 ;; *) echo 10 ;; esac; }
whole=$(awk '/  nvcc /{ w += 60; next } /  (ar|link) /{ w += 2; next } { w += 10 } END { print w }' <<<"$plan")

objects() { find "$build/obj" -name '*.o' "$@" 2>/dev/null; }
if [ -z "$(objects -print -quit)" ]; then reason="nothing is compiled yet"
elif [ -z "$(objects -newer "$build/flags" -print -quit)" ]; then
  reason="the compiler or its flags have changed since the last build"
elif [ ! -e "$build/choir" ]; then reason="the last build did not end"
else reason="sources or headers have changed since the last build"
fi
echo "make: $total steps in $build, because $reason; the time that is left is shown after some of them"

interrupted=""
trap 'interrupted=yes' INT
code=0
"$@" | {
  trap '' INT  # make itself is interrupted, and its last lines must be read
  count=0 done=0 began=$SECONDS
  while IFS= read -r line; do
    number=""
    if [[ $line =~ ^$steps ]]; then
      # Steps that nobody foresaw (make learns dependencies while it builds) raise the total.
      count=$((count + 1)) total=$((count > total ? count : total))
      printf -v number '[%*d/%d]' ${#total} "$count" "$total"
      took=$((SECONDS - began))
      if [ "$took" -ge 15 ] && [ "$done" -gt 0 ] && [ "$done" -lt "$whole" ]; then
        left=$((took * (whole - done) / done))
        if [ "$left" -ge 90 ]; then line+="   ($(((left + 30) / 60)) min left)"; else line+="   ($left s left)"; fi
      fi
      done=$((done + $(weight "$line")))
    fi
    printf '%s%s\n' "$number" "$line"  # at once: make writes errors between two writes
  done
} || code=$?
if [ -n "$interrupted" ]; then
  echo "make: the build was stopped by Ctrl-C; the same command continues it" >&2
  exit 130
fi
exit "$code"
