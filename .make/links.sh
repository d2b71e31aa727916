#!/usr/bin/env bash
# links.sh [FOLDER]: what the documents (*.md) point to is there. Links and their #headings; paths and names of files in
# `code`; names of results; and every file of bench/results has its line in bench/README.md. Left alone is what a reader
# fills in or a run makes: CAPITALS, *, {}, <>, and what is not under a folder of the sources. A result names the files of
# the revision that it measured, so only its links and the results that it names are checked.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
bad=0
complain() { echo "links: $*"; bad=1; }
documents=$(find . \( -path ./build -o -path ./data -o -path ./runs -o -path ./.git \) -prune -o -name '*.md' -print | sed 's|^\./||' | sort)
names=$(find Makefile README.md .make .ci .github src include kernels inputs jobs bench test -type f 2>/dev/null | sed 's|.*/||' | sort -u)

# Headings, converted to anchors like GitHub does.
anchors() {
  awk '/^ *```/ { code = !code } !code && /^#+ / { sub(/^#+ /, ""); print tolower($0) }' "$1" | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}
prose() { awk '/^ *```/ { code = !code; next } !code && !/^    [^ *-]/' "$1"; }  # without blocks of code

for document in $documents; do
  folder=$(dirname "$document")
  while IFS= read -r target; do
    case $target in *://* | mailto:* | '') continue ;; esac
    file=${target%%#*}
    [ -n "$file" ] && file=$folder/$file || file=$document
    if [ ! -e "$file" ]; then complain "$document: the link to '$target' leads nowhere"; continue; fi
    [[ $target != *'#'* ]] || anchors "$file" | grep -qxF -- "${target#*#}" || complain "$document: '$file' has no heading '#${target#*#}'"
  done < <(prose "$document" | sed 's/`[^`]*`//g' | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//')
  while IFS= read -r word; do
    [[ $word =~ ^[a-z0-9_./-]+$ ]] || continue
    word=${word%[.,:]}
    case $document:$word in
      bench/results/*:20[0-9][0-9]-*) ;;
      bench/results/*) continue ;;
    esac
    case $word in
      bench/* | inputs/* | jobs/* | test/* | src/* | include/* | kernels/* | .make/* | .ci/* | .github/*)
        [ -e "$word" ] || complain "$document: there is no '$word'" ;;
      20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]-*)
        compgen -G "bench/results/$word" >/dev/null || complain "$document: there is no result '$word'" ;;
      ?*.sh | ?*.py | ?*.gp | ?*.md | ?*.cpp | ?*.hpp | ?*.cu | ?*.cuh | ?*.pbs | ?*.slurm)
        grep -qxF -- "${word##*/}" <<<"$names" || complain "$document: no file is called '$word'" ;;
    esac
  done < <(prose "$document" | grep -oE '`[^`]+`' | tr -d '`' | tr ' ' '\n')
done

if [ -e bench/README.md ]; then
  told=$(grep -oE '`20[0-9][0-9]-[^`]+`' bench/README.md | tr -d '`')
  for result in bench/results/*; do
    known=""
    for pattern in $told; do
      # shellcheck disable=SC2053  # a pattern
      [[ ${result##*/} != $pattern ]] || known=yes
    done
    [ -n "$known" ] || complain "bench/README.md has no line for $result"
  done
fi
[ "$bad" = 0 ] && echo "links: all of $(echo "$documents" | wc -w) documents lead somewhere"
exit "$bad"
