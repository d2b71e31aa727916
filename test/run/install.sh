#!/usr/bin/env bash
# `make install`: the program, decks, job files, man pages and completion in a folder, and what is there works
# (library.sh: the library).
. "$(dirname "$0")/lib/common.sh"
prefix=/opt/choir stage=$work/stage
there=$stage$prefix share=$stage$prefix/share
command="install.sh" code=0
DESTDIR=$stage "$root/.make/install.sh" "$build" "$prefix" >out 2>&1 || code=$?
expect "installs below DESTDIR" 0 "installed: $there/bin/choir"
check "... and again" env DESTDIR="$stage" "$root/.make/install.sh" "$build" "$prefix"

version=$(sed -nE 's/.*kVersion = "(.*)";/\1/p' "$root/src/core/build_info.hpp")
choir=$there/bin/choir
run 0 --version
expect "--version has the version and the revision" 0 "choir $version ("
check "... which the citation has, too" grep -qxF "version: $version" "$root/.github/CITATION.cff"
check "... and the changelog" matches "$root/.github/CHANGELOG.md" "^## ${version//./\\.}( |$)"

# In a folder of the user, as jobs/README.md describes.
mkdir own && cd own || exit 1
cp -r "$share"/choir/{jobs,inputs,bench} .
command="jobs/launch -n 2 choir train" code=0
timeout $((limit * patience)) jobs/launch -n 2 "$choir" train inputs/debug.json "data.train=[\"../text.txt\"]" train.max_steps=4 \
  run.dir=runs/x log.verbose=true >../out 2>&1 </dev/null || code=$?
cd ..
expect "two ranks train from the installed files" 0 "rank=1/1" "summary:"

# The dry run of a job without the text of the deck: the advice is something that can be done here.
command="jobs/generic.slurm --dry-run" code=0
(cd own && CHOIR=$choir bash jobs/generic.slurm --dry-run inputs/gpt_quickstart.json) >out 2>&1 </dev/null || code=$?
expect "a text that is missing" 3 "name a text of your own: 'data.train=[\"my.txt\"]'"
check "... without make, which is not installed" lacks out "make data"
command="jobs/generic.slurm --dry-run with a text" code=0
(cd own && CHOIR=$choir bash jobs/generic.slurm --dry-run inputs/gpt_quickstart.json "data.train=[\"../text.txt\"]") >out 2>&1 </dev/null || code=$?
expect "... and the deck passes with it" 0 "job: a dry run: the deck passed its check"

# Everything that an installed script calls or sources is installed, too. build/, data/ and results are the user's; x.json, NAME
# and K stand for names.
named() { grep -rhoE '\b(\.make|test|jobs|bench|inputs|lib|sites)/[A-Za-z0-9_./-]*[A-Za-z0-9]' "$@" | sort -u; }
absent=""
for path in $(named own/jobs/{launch,*.sh,*.pbs,*.slurm,lib,sites} own/bench); do
  case $path in inputs/x.json | */NAME.sh | bench/results*) continue ;; esac
  [ -e "own/$path" ] || [ -e "own/jobs/$path" ] || [ -e "own/bench/$path" ] || absent+=" $path"
done
check "what installed scripts call is installed:${absent:- all}" test -z "$absent"
check "... which are many" test "$(named own/jobs own/bench | wc -l)" -gt 20
command="jobs/scaling.slurm --help" code=0
(cd own && CHOIR=$choir SITE=local bash jobs/scaling.slurm --help) >out 2>&1 </dev/null || code=$?
expect "a job of a sweep finds its script" 0 "scaling.sh [--weak]"

# Links of installed pages lead to installed files.
dangling=""
for page in "$share"/choir/*/*.md; do
  for link in $(grep -oE '\]\([^)#:]+[)#]' "$page" | sed -E 's/^\]\(//; s/[)#]$//'); do
    [ -e "${page%/*}/$link" ] || dangling+=" ${page##*/}:$link"
  done
done
check "links of installed pages:${dangling:- all there}" test -z "$dangling"
check "a modulefile sets what a job needs" has "$share/choir/modulefiles/choir/$version" "setenv CHOIR $prefix/bin/choir"
check "... and names the MPI of the program" grep -qE "^module-whatis \"choir $version, with .*(MPI|RTE|HYDRA|mpiexec)" "$share/choir/modulefiles/choir/$version"
if command -v tclsh >/dev/null; then
  echo 'proc module-whatis args {}; proc conflict args {}; proc prepend-path args {}; proc setenv {n v} { puts $n=$v }; source [lindex $argv 0]' >m.tcl
  check "... and is Tcl" test "$(tclsh m.tcl "$share/choir/modulefiles/choir/$version")" = "CHOIR=$prefix/bin/choir"
fi

# Every subcommand has its page, and roff accepts them.
missing=""
for name in $("$choir" --help | sed -nE 's/^  ([a-z]+)  *[^ ].*/\1/p'); do
  [ -s "$share/man/man1/choir-$name.1" ] || missing+=" $name"
done
check "a man page for each subcommand" test -z "$missing" -a -s "$share/man/man1/choir-prepare-text.1"
check "the page of generate names its options" grep -q '^\.B \\-\\-prompt TEXT' "$share/man/man1/choir-generate.1"
check "the page of decks names keys" grep -qxF '.B train.micro_batch_size' "$share/man/man5/choir-deck.5"
if command -v groff >/dev/null 2>&1; then
  for page in "$share"/man/man?/*; do groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null; done >roff.txt
  check "roff has no complaint" test ! -s roff.txt
else skip "roff has no complaint" "groff is not installed"; fi

# Prints the completions that a shell would offer after the given words, sorted.
offered() {  # offered WORDS
  (
    PATH=$there/bin:$PATH
    # shellcheck source=../../.make/choir_completion.bash
    . "$share/bash-completion/completions/choir"
    COMP_LINE=$1 COMP_POINT=${#1}
    _choir
    echo "${COMPREPLY[*]}"
  )
}
offers() { [ "$(offered "$1")" = "$2" ]; }  # offers WORDS COMPLETIONS
check "completes subcommands" offers "choir tr" "train transcribe"
check "... those of prepare" offers "choir prepare tok" "tokenizer tokens"
check "... options" offers "choir generate runs/x --top" "--top-k --top-p"
check "... options of prepare text" offers "choir prepare text --tra" "--train-fraction"
check "... keys of a deck" offers "choir train deck.json run.walltime" "run.walltime= run.walltime_margin="
check "... values of a key" offers "choir train deck.json model.norm=l" "layernorm"
check "... true and false" offers "choir train deck.json model.bias=" "true false"
