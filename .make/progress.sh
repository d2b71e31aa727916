#!/usr/bin/env bash
# progress.sh MAKE ARGUMENT...: runs that make and numbers the steps that it prints, because a first
# build takes minutes: "[12/130]  c++   ...". It asks make for the number of steps beforehand.
set -eu -o pipefail
steps='  (c[+][+]|nvcc|ar|link) '
# Make describes a step as the command that prints it. A step that fails later is found by the build.
total=$("$@" --dry-run 2>/dev/null | grep -cE "^echo \"$steps" || true)
[ "$total" -gt 1 ] || exec "$@"
count=0
"$@" | while IFS= read -r line; do
  if [[ $line =~ ^$steps ]]; then
    # Steps that nobody foresaw (make learns dependencies while it builds) raise the total.
    count=$((count + 1)) total=$((count > total ? count : total))
    printf '[%*d/%d]' ${#total} "$count" "$total"
  fi
  printf '%s\n' "$line"
done
