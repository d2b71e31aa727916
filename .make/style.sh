#!/usr/bin/env bash
# House rules that a machine can see: names, line length, file length, no unfinished marks, headers documented.
set -u
bad=0
files=$(find src include kernels test bench -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' 2>/dev/null | sort)
complain() { echo "style: $*"; bad=1; }
for f in $files; do
  base=$(basename "$f")
  [[ $base =~ ^[a-z0-9_]+\.(hpp|cpp|cuh|cu)$ ]] || complain "$f: files are lower_snake"
  n=$(wc -l <"$f"); [ "$n" -gt 500 ] && complain "$f: $n lines (soft cap 300, hard cap 500): is it one concept?"
  long=$(awk 'length($0) > 110 {print FNR; exit}' "$f"); [ -n "$long" ] && complain "$f:$long: over 100 columns"
  case $f in *.hpp|*.cuh)
    head -n 1 "$f" | grep -q '#pragma once' || complain "$f: starts with #pragma once"
    sed -n 2,3p "$f" | grep -q '^//' || complain "$f: second line says what the header is for" ;;
  esac
done
# shellcheck disable=SC2086
if hits=$(grep -nE '\b(T''ODO|F''IXME|X''XX|H''ACK)\b|using namespace std;' $files); then complain "unfinished marks:"; echo "$hits"; fi
# shellcheck disable=SC2086
if hits=$(grep -nP '\t' $files | head -n 3); [ -n "$hits" ]; then complain "tabs:"; echo "$hits"; fi
if hits=$(grep -rnE '<<<.*>>>' kernels src 2>/dev/null | head -n 3); [ -n "$hits" ]; then complain "bare kernel launch:"; echo "$hits"; fi
for h in $(find include/choir -name '*.hpp'); do
  t=$(basename "$h" .hpp)
  [ "$t" = prelude ] || grep -qE '^(class|struct|enum|template|inline|constexpr|std|void|bool|int|double|float|[A-Za-z:_<>]+ )' "$h" || complain "$h: declares nothing ($t)"
done
# Two types of one name in one namespace link, and then crash: those that headers put straight into choir.
twins=$(grep -rhoE '^(struct|class|enum class) [A-Z][A-Za-z0-9]*( final)?( :[^{;]*)? \{' include/choir --include='*.hpp' --exclude-dir=ops |
  awk '{print $1 == "enum" ? $3 : $2}' | sort | uniq -d)
[ -z "$twins" ] || complain "declared in several headers:" $twins
if hits=$(git grep -nE '^(<<<<<<<|>>>>>>>) ' 2>/dev/null | head -n 3); [ -n "$hits" ]; then complain "a merge was not finished:"; echo "$hits"; fi
# The top level is fixed; what git does not know may lie there.
strangers=$(git ls-files 2>/dev/null | cut -d/ -f1 | sort -u | grep -vxE '\..*|Makefile|README\.md|src|kernels|include|inputs|jobs|bench|test')
[ -z "$strangers" ] || complain "the top level is fixed, these do not belong there: $strangers"
.make/links.sh || bad=1
[ "$bad" = 0 ] && echo "style: clean ($(echo "$files" | wc -l) files, median $(for f in $files; do wc -l <"$f"; done | sort -n | awk '{a[NR]=$1} END {print a[int((NR+1)/2)]}') lines)"
exit "$bad"
