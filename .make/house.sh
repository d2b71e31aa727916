#!/usr/bin/env bash
# Prints the figures of the source that `make style` has bars for: grain of the files, headers, language, format.
# house.sh          the figures of src, include and kernels, and beside them those of test
# house.sh --bars   prints nothing but the figures that miss their bar, and fails if there is one
# Bars that the source does not meet yet are the figures of today: they may fall, never rise.
set -u
cd "$(dirname "$0")/.." || exit 1
bars=${1:-}
sources() { find "$@" \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) 2>/dev/null | sort; }

# grain FILE...: "files lines median below-40 frame-lines blocks fragments what long-lines most-lines".
# A line is part of the frame of a file if it is blank, an include, a pragma, or opens or closes a
# namespace. A comment block is a run of lines that are comments alone, or the comment behind code.
# It is a fragment if it begins with one of ten words.
grain() {
  awk '
    function characters(line) { gsub(/[\200-\277]/, "", line); return length(line) }  # of UTF-8
    function close_file() { if (name != "") { lengths[++files] = lines; if (lines < 40) ++crumbs; if (lines > most) most = lines } }
    FNR == 1 { close_file(); name = FILENAME; in_block = 0 }
    { lines = FNR; ++all; if (length($0) > 100 && characters($0) > 100) ++wide }
    /^[[:space:]]*$|^#include|^#pragma once|^(inline )?namespace [^=]*\{$|^}  \/\/ namespace/ { ++frame }
    {
      own = $0 ~ /^[[:space:]]*\/\//
      text = ""
      if (own && !in_block) text = $0
      else if (!own && match($0, /[;,{})(][[:space:]]+\/\/[\/<]*[[:space:]]/)) text = substr($0, RSTART + 1)
      in_block = own
      if (text != "") {
        ++blocks
        sub(/^[[:space:]]*\/+<?[[:space:]]*/, "", text)
        if (text ~ /^(What|Those|Which|Of|Whether|Where|As|Likewise|Such|Whose)([^A-Za-z]|$)/) ++fragments
        if (text ~ /^What([^A-Za-z]|$)/) ++what
      }
    }
    END {
      close_file()
      for (i = 1; i <= files; ++i) ++with[lengths[i]]
      for (n = 0; below < (files + 1) / 2 - 0.5; ++n) below += with[n]
      print files + 0, all + 0, n - 1, crumbs + 0, frame + 0, blocks + 0, fragments + 0, what + 0, wide + 0, most + 0
    }' "$@"
}

# Headers of include/ by the number of files outside their room that include them; an operation's room is its kernels.
readers() {
  local header room folder
  for header in $(sources include); do
    folder=$(dirname "${header#include/choir/}")
    room=${folder%%/*}
    awk -v path="\"${header#include/}\"" '$2 == path { print $1 }' "$scratch/includes" |
      grep -cvE "^(src|include/choir)/$room/$([ "$room" != ops ] || echo '|^kernels/')"
  done | awk '$1 == 0 { ++none } $1 == 1 { ++one } $1 > 1 { ++more } END { print NR, none + 0, one + 0, more + 0 }'
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mapfile -t program < <(sources src include kernels)
mapfile -t tests < <(sources test)
read -r files lines median crumbs frame blocks fragments what wide most <<<"$(grain "${program[@]}")"
read -r t_files t_lines t_median t_crumbs t_frame t_blocks t_fragments t_what t_wide t_most <<<"$(grain "${tests[@]}")"
grep -HoE '^#include "[^"]+"' "${program[@]}" | sed -E 's/:#include / /' >"$scratch/includes"
read -r headers alone one more <<<"$(readers)"
train_files=$(awk '$1 !~ /^(src|include\/choir)\/train\// && $2 ~ /^"(choir|src)\/train\// { print $1 }' "$scratch/includes" | sort -u | wc -l)
train_includes=$(awk '$1 !~ /^(src|include\/choir)\/train\// && $2 ~ /^"(choir|src)\/train\//' "$scratch/includes" | wc -l)
formatter=$(command -v clang-format-14 || true)  # another version formats differently
off_format="not measured: there is no clang-format-14"
if [ -n "$formatter" ]; then
  off_format=$(sources src include kernels test bench |
    xargs -P "$(nproc)" -n 40 "$formatter" --dry-run 2>&1 | sed -nE 's/^([^: ]+):[0-9]+:[0-9]+: warning: code should.*/\1/p' |
    sort -u | wc -l)
fi
tenths() { awk -v a="$1" -v b="$2" -v f="$3" 'BEGIN { printf "%.1f", b ? f * a / b : 0 }'; }
share=$(tenths "$fragments" "$blocks" 100)
t_share=$(tenths "$t_fragments" "$t_blocks" 100)

if [ "$bars" = --bars ]; then
  missed=0
  # bar NAME FIGURE LOWEST|- HIGHEST|-
  bar() {
    awk -v figure="$2" -v low="$3" -v high="$4" \
      'BEGIN { exit !(figure !~ /^[0-9.]+$/ || ((low == "-" || figure >= low + 0) && (high == "-" || figure <= high + 0))) }' && return
    echo "style: $1: $2, and the bar is $([ "$3" = - ] || echo "at least $3")$([ "$4" = - ] || echo "at most $4") (make house)"
    missed=1
  }
  bar "files per 1,000 lines" "$(tenths "$files" "$lines" 1000)" - 5.8
  bar "median of the lines of a file" "$median" 125 -
  bar "files below 40 lines" "$crumbs" - 60
  bar "share of comment blocks that begin as a fragment, %" "$share" - 0.1
  bar "... in the tests" "$t_share" - 0.1
  bar "comments that begin with \"What\"" "$((what + t_what))" - 0
  bar "headers in include/" "$headers" - 60
  bar "files outside train/ that include its headers" "$train_files" - 19
  bar "includes of train/ from outside" "$train_includes" - 25
  bar "files off format" "$off_format" - 0
  bar "lines over 100 columns" "$((wide + t_wide))" - 0
  exit "$missed"
fi
row() { printf '%-58s %12s %12s\n' "$1" "$2" "${3:-}"; }
row "figure" "program" "tests"
row "files" "$files" "$t_files"
row "lines" "$lines" "$t_lines"
row "median of the lines of a file" "$median" "$t_median"
row "lines of the longest file" "$most" "$t_most"
row "files below 40 lines" "$crumbs" "$t_crumbs"
row "files per 1,000 lines" "$(tenths "$files" "$lines" 1000)" "$(tenths "$t_files" "$t_lines" 1000)"
row "lines that only frame a file" "$frame" "$t_frame"
row "comment blocks" "$blocks" "$t_blocks"
row "comment blocks that begin as a fragment, %" "$share" "$t_share"
row "comment blocks that begin with \"What\"" "$what" "$t_what"
row "lines over 100 columns" "$wide" "$t_wide"
row "headers in include/" "$headers"
row "  without a reader outside their room" "$alone"
row "  with one" "$one"
row "  with more" "$more"
row "files outside train/ that include its headers" "$train_files"
row "includes of train/ from outside" "$train_includes"
row "files off format (program, tests and bench)" "$off_format"
