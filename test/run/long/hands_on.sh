#!/usr/bin/env bash
# Runs every command of jobs/hands_on.md in a copy of the tree: a ```console block has commands
# (lines with "$ ", continued by "\") and their shortened output. A command exits with 0 unless the
# next one is `echo $?`, and prints the lines shown: a number stands for any number (with its unit),
# "..." for anything; for `echo $?` the number itself counts. It takes about seven minutes.
# HANDS_ON_KEEP=FOLDER keeps the output of each command; HANDS_ON_FRESH=FILE gets the text with the
# numbers of this run in the lines that it shows.
. "$(dirname "$0")/../lib/common.sh"
text=${HANDS_ON_TEXT:-$root/jobs/hands_on.md}
if ! command -v espeak-ng >/dev/null; then skip "hands-on" "espeak-ng is not installed"; exit; fi
unset OMP_NUM_THREADS  # as a user runs it

# A clean clone that is built: sources, and files that make would not build again.
copy=$work/choir
mkdir -p "$copy/build/obj"
(cd "$root" && { git ls-files 2>/dev/null || find . -type f ! -path './build*' ! -path './data/*' ! -path './runs/*'; } |
  tar cf - -T -) | tar xf - -C "$copy"
cp -a "$build"/choir "$build"/choir_*.hpp "$build"/features.* "$copy/build/"
cp -a "$build"/obj/src "$build"/obj/kernels "$copy/build/obj/"
cp -a "$build"/{groups,prelude,kernels,flags,asked,cuda_archs} "$copy/build/"
touch "$copy/src/app/main.cpp"  # so that `make` has something to do
if [ -s "$root/data/shakespeare/input.txt" ]; then  # avoids the download
  mkdir -p "$copy/data/shakespeare" && cp "$root/data/shakespeare/input.txt" "$copy/data/shakespeare/"
fi
# The same revision as the build; otherwise make would link again.
if git -C "$root" rev-parse --absolute-git-dir >git_dir 2>/dev/null; then
  GIT_DIR=$(cat git_dir) GIT_WORK_TREE=$root
  export GIT_DIR GIT_WORK_TREE
fi

# Commands are written to command.N, the lines shown after each to shown.N.
mkdir steps
awk -v out="$work/steps" '
  /^```/ { inside = $0 == "```console"; continued = 0; next }
  !inside { next }
  continued || /^\$ / { if (!continued) { n++; printf "" >(out "/shown." n) }
    sub(/^\$ /, ""); continued = /(\\|[|])$/; print >(out "/command." n); next }
  { print >(out "/shown." n) }
  END { print n + 0 >(out "/count") }' "$text"
count=$(cat steps/count)
check "the text has commands: $count" test "$count" -ge 40

# Each step of the session has output, a question and an answer.
incomplete=$(awk '/^## / { if (step != "" && missing()) print step; step = $0; shown = asked = answered = 0 }
  /^```/ { inside = $0 == "```console"; continued = 0; next }
  inside && (continued || /^\$ /) { continued = /(\\|[|])$/; next }
  inside { shown = 1 }
  /[*][*]Question[.][*][*]/ { asked = 1 }
  /[*][*]Answer[.][*][*]/ { answered = 1 }
  function missing() { return !shown || !asked || !answered }
  END { if (missing()) print step }' "$text" | paste -sd';')
if [ -z "$incomplete" ]; then pass "each step shows output, asks and answers"
else fail "each step shows output, asks and answers" "$incomplete"
fi

# Prints the output that a line of the text promises, as a pattern.
pattern() {  # pattern LINE
  sed -E 's/[][\\.*^$()+?{}|]/\\&/g; s/(\\\.){3}/@ANY@/g
    s/[-+]?[0-9]([0-9,:]|\\\.|e[-+]?[0-9])*( ?(ns|us|ms|s|m|h|B|KiB|MiB|GiB|TiB|KB|MB|GB|GFLOP|TFLOP|MFLOP)\b)?/@NUM@/g
    s/@NUM@( @NUM@)+/@NUM@/g; s/ +/ +/g
    s/@NUM@/[-+]?[0-9][0-9,:.e+-]*( ?[a-zA-Z]+)?( [-+]?[0-9][0-9,:.e+-]*( ?[a-zA-Z]+)?)*/g; s/@ANY@/.*/g; s/^ \+/ */; s/ \+$//' <<<"$1"
}
promised() {  # promised OUTPUT SHOWN: each shown line is printed
  local line missing=0
  while IFS= read -r line; do
    case $line in '' | ...) continue ;; esac
    grep -qE -- "^ *$(pattern "$line")" "$1" || { echo "not printed: $line"; missing=1; }
  done <"$2"
  return $missing
}

# The text with the output of this run; of lines that differ only in numbers the one with the same
# first number is taken, then the next.
refresh() {  # refresh COMMAND_NUMBER
  local line rest chunk part found first fresh at after=0 output=$work/steps/output.$1
  while IFS= read -r line; do
    fresh=$line
    if [ -n "$line" ] && [ "$line" != ... ]; then
      first=$(sed -E 's/^([^0-9]*[0-9][0-9,.]*).*/\1/' <<<"$line")
      found=$(grep -nE -- "^ *$(pattern "$line")" "$output" | cut -d: -f1)
      rest=$(for at in $found; do sed -n "${at}p" "$output" | grep -F -- "${first##*...}" >/dev/null && echo "$at"; done)
      [ -z "$rest" ] || found=$rest
      at=$(awk -v after="$after" '$1 > after { print; exit }' <<<"$found")
      at=${at:-${found%%$'\n'*}}
      if [ -n "$at" ]; then
        after=$at fresh="" rest=$(sed -n "${at}p" "$output")
        while :; do
          chunk=${line%%...*}
          [[ $rest =~ $(pattern "$chunk") ]]
          part=${BASH_REMATCH[0]}
          rest=${rest#*"$part"}
          [[ ${chunk% } != *[0-9] || $part == *[0-9] ]] || part=${part% [a-zA-Z]*}  # a word after it is not a unit
          fresh+=$part
          [ "$chunk" != "$line" ] || break
          [[ $chunk != *' ' ]] || fresh+=" "
          fresh+=... line=${line#*...}
        done
      fi
    fi
    printf '%s\n' "$fresh"
  done <"$work/steps/shown.$1"
}
fresh_text() {
  local line inside="" continued="" n=0
  while IFS= read -r line; do
    case $line in
      '```console') inside=yes ;;
      '```'*) inside="" ;;
    esac
    if [ -z "$inside" ] || [ "$line" = '```console' ]; then printf '%s\n' "$line"; continue; fi
    if [ -n "$continued" ] || [[ $line == '$ '* ]]; then
      [ -n "$continued" ] || n=$((n + 1))
      continued=""
      printf '%s\n' "$line"
      if [[ $line =~ [\\|]$ ]]; then continued=yes; else refresh "$n"; fi
    fi
  done <"$text"
}

cd "$copy" || exit 1
began=$SECONDS last=0
for ((step = 1; step <= count; ++step)); do
  command=$(cat "$work/steps/command.$step")
  output=$work/steps/output.$step shown=$work/steps/shown.$step start=$SECONDS
  (exit "$last")
  eval "$command" >"$output" 2>&1 </dev/null
  last=$?
  printf '# %s s, exit code %s\n' $((SECONDS - start)) $last >"$work/steps/end.$step"
  cp "$output" "$work/out"
  code=$last
  cd "$work" || exit 1  # where the checks look for the output
  next=$(cat "$work/steps/command.$((step + 1))" 2>/dev/null)
  # shellcheck disable=SC2016  # the words of the text
  if [ "$command" = 'echo $?' ]; then check "$step: ... which is $(cat "$shown")" diff "$shown" "$output"
  elif [ "$next" != 'echo $?' ]; then expect "$step: $command" 0
  fi
  check "$step: prints what is shown" promised "$output" "$shown" || show_output
  cd "$copy" || exit 1
done
cd "$work" || exit 1
[ -z "${HANDS_ON_KEEP:-}" ] || cp -r steps "$HANDS_ON_KEEP"
[ -z "${HANDS_ON_FRESH:-}" ] || { fresh_text >fresh.md && cp fresh.md "$HANDS_ON_FRESH"; }
in_time "in at most 45 minutes" $(((SECONDS - began) * 1000)) $((${HANDS_ON_LIMIT:-2700} * 1000))
