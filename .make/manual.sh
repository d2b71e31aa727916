#!/usr/bin/env bash
# manual.sh CHOIR FOLDER: writes man pages from the program's own descriptions: FOLDER/man1/choir.1,
# a page for each subcommand from its --help, and FOLDER/man5/choir-deck.5 from `train --describe`.
set -euo pipefail
export LC_ALL=C COLUMNS=10000  # a description is one line, which roff fills
choir=${1:?usage: manual.sh CHOIR FOLDER} out=${2:?usage: manual.sh CHOIR FOLDER}
version=$("$choir" --version)
mkdir -p "$out/man1" "$out/man5"
# Text, with \x01 before each request to roff.
roff() { sed -E -e 's/\\/\\e/g; s/-/\\-/g' -e "s/^[.']/\\\\\&&/; s/^\x01//"; }
begin() {  # begin NAME SECTION SUMMARY
  printf '\x01.TH %s %s "" "%s" choir\n\x01.SH NAME\n%s - %s\n' "${1^^}" "$2" "$version" "$1" "$3"
}
see() { printf '\x01.SH SEE ALSO\n'; printf '\x01.BR %s (%s)\n' "$@"; }

# CLI11 prints a description, "Usage: ...", then headings and "  NAME  text", where text begins in
# column 31, or on the next line behind a long name. Tables of the program itself ("  NAME text")
# have no heading.
page_of() {
  awk '
    function item(line, next_line) {
      at = match(substr(line, 3), / [ ]+/) + 2
      if (at == 2) at = heading == "" ? index(substr(line, 3), " ") + 2 : substr(next_line, 1, 20) ~ /^ +$/ ? 0 : 30
      name = at ? substr(line, 3, at - 3) : substr(line, 3); sub(/ +$/, "", name)
      print "\001.TP\n\001.B " name
      if (at) { rest = substr(line, at); sub(/^ +/, "", rest); print rest }
    }
    { lines[NR] = $0 }
    END {
      for (i = 1; i <= NR && lines[i] !~ /^[Uu]sage:/; ++i) text = text lines[i] "\n"
      usage = lines[i]; sub(/^[^:]*: */, "", usage); sub(/  +\(.*/, "", usage)
      printf "\001.SH SYNOPSIS\n\001.nf\n%s\n\001.fi\n\001.SH DESCRIPTION\n%s", usage, text
      for (++i; i <= NR; ++i) {
        if (lines[i] ~ /^[A-Za-z]+: *$/) { heading = toupper(lines[i]); sub(/:.*/, "", heading); print "\001.SH " heading }
        else if (lines[i] ~ /^  [^ ]/) item(lines[i], lines[i + 1])
        else { sub(/^ +/, "", lines[i]); if (lines[i] == "") print "\001.PP"; else print lines[i] }
      }
    }'
}
subcommands() { "$choir" "$@" --help | sed -nE 's/^  ([a-z]+)  *([^ ].*)/\1 \2/p'; }
page() {  # page SUMMARY WORD...
  local summary=$1 name=choir word
  shift
  for word in "$@"; do name+=-$word; done
  { begin "$name" 1 "$summary"
    "$choir" "$@" --help | page_of
    see "$([ $# -gt 0 ] && echo choir || echo choir-train)" 1 choir-deck 5; } | roff >"$out/man1/$name.1"
}

page "train and run transformer language and speech models on MPI ranks"
while read -r name summary; do
  page "$summary" "$name"
  case $name in
    bench | prepare) while read -r kind what; do page "$what" "$name" "$kind"; done < <(subcommands "$name") ;;
  esac
done < <(subcommands)

{ begin choir-deck 5 "keys of a deck, the JSON file of a run"
  printf '\x01.SH DESCRIPTION\nA deck has one object for each section; on the command line a key is SECTION.NAME=VALUE.\n'
  "$choir" train --describe | awk '
    /^[a-z]+$/ { print "\001.SH " toupper($0); next }
    /^  [^ ]/ { name = $1; sub(/^ +[^ ]+ +/, ""); print "\001.TP\n\001.B " name "\n" $0 "\n\001.br"; next }
    { sub(/^ +/, ""); if ($0 != "") print }'
  see choir-train 1; } | roff >"$out/man5/choir-deck.5"
