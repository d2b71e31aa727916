#!/usr/bin/env bash
# House rules that can be checked automatically: names, line length, file length, no unfinished
# marks, documented headers.
set -u
bad=0
files=$(find src include kernels test bench -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' 2>/dev/null | sort)
complain() { echo "style: $*"; bad=1; }
# One pass over all of them, and the median of their lengths at its end.
# shellcheck disable=SC2086
judged=$(awk '
  function complain(text) { print "style: " text; bad = 1 }
  function end_of_file() {
    if (name == "") return
    lengths[++files] = lines
    if (lines > 700) complain(name ": " lines " lines, and the cap is 700 (above 500 ask: is it one concept?)")
    if (is_header && !pragma) complain(name ": starts with #pragma once")
    if (is_header && !promise) complain(name ": second line says what the header is for")
  }
  FNR == 1 {
    end_of_file()
    name = FILENAME; promise = 0
    is_header = name ~ /\.(hpp|cuh)$/
    pragma = /#pragma once/
    if (name !~ /(^|\/)[a-z0-9_]+\.(hpp|cpp|cuh|cu)$/) complain(name ": files are lower_snake")
  }
  { lines = FNR }
  (FNR == 2 || FNR == 3) && /^\/\// { promise = 1 }
  !in_comment && /^ *\/\/+<? Of [a-z`]/ { complain(name ":" FNR ": a comment has a subject: not \"Of ...\"") }
  { in_comment = /^ *\/\// }
  END {
    end_of_file()
    for (i = 1; i <= files; ++i) ++with[lengths[i]]
    for (n = 0; below < (files + 1) / 2 - 0.5; ++n) below += with[n]
    print "median " n - 1 " lines"
    exit bad
  }' $files) || bad=1
echo "$judged" | sed '$d'
median=$(echo "$judged" | tail -n 1)
# shellcheck disable=SC2086
if hits=$(grep -nE '\b(T''ODO|F''IXME|X''XX|H''ACK)\b|using namespace std;' $files); then complain "unfinished marks:"; echo "$hits"; fi
# shellcheck disable=SC2086
if hits=$(grep -nP '\t' $files | head -n 3); [ -n "$hits" ]; then complain "tabs:"; echo "$hits"; fi
if hits=$(grep -rnE '<<<.*>>>' kernels src 2>/dev/null | head -n 3); [ -n "$hits" ]; then complain "bare kernel launch:"; echo "$hits"; fi
# Names from files are printed to a terminal in printable form only (src/core/output.hpp).
printers=$(grep -rlE 'fmt::print\(|std::(cout|cerr|clog|printf|puts|fputs)\b|fprintf\(std' src --include='*.?pp' |
  grep -vxE 'src/(core/(log|output)|report/transcripts|app/prepare_command|comm/watch/(watchdog|flight_report)|device/cuda/cuda_device)\.[ch]pp')
[ -z "$printers" ] || complain "prints past src/core/output.hpp:" $printers
for h in $(find include/choir -name '*.hpp'); do
  t=$(basename "$h" .hpp)
  [ "$t" = prelude ] || grep -qE '^(class|struct|enum|template|inline|constexpr|std|void|bool|int|double|float|[A-Za-z:_<>]+ )' "$h" || complain "$h: declares nothing ($t)"
done
# Two types of the same name in one namespace link, and then crash: this checks those that headers
# declare directly in choir.
twins=$(grep -rhoE '^(struct|class|enum class) [A-Z][A-Za-z0-9]*( final)?( :[^{;]*)? \{' include/choir --include='*.hpp' --exclude-dir=ops |
  awk '{print $1 == "enum" ? $3 : $2}' | sort | uniq -d)
[ -z "$twins" ] || complain "declared in several headers:" $twins
if hits=$(git grep -nE '^(<<<<<<<|>>>>>>>) ' 2>/dev/null | head -n 3); [ -n "$hits" ]; then complain "a merge was not finished:"; echo "$hits"; fi
# The top level is fixed; files that git ignores may be there.
strangers=$(git ls-files 2>/dev/null | cut -d/ -f1 | sort -u | grep -vxE '\..*|Makefile|README\.md|src|kernels|include|inputs|jobs|bench|test')
[ -z "$strangers" ] || complain "the top level is fixed, these do not belong there: $strangers"
.make/links.sh || bad=1
.make/house.sh --bars || bad=1
[ "$bad" = 0 ] && echo "style: clean ($(echo "$files" | wc -l) files, $median)"
exit "$bad"
