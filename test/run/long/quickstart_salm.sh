#!/usr/bin/env bash
# make quickstart-salm for real: the time on two cores, answers about clips that were never trained
# on, and the control with another recording. It takes nine to ten minutes.
. "$(dirname "$0")/../lib/common.sh"
if ! command -v espeak-ng >/dev/null || ! grep -q HAVE_SENTENCEPIECE "$build/choir_features.hpp"; then
  skip "quickstart-salm" "espeak-ng is not installed, or the build has no SentencePiece"
  exit
fi
unset OMP_NUM_THREADS  # as a user runs it
ln -s "$root/inputs" inputs
command=quickstart_salm.sh
begin=$SECONDS
"$root/.make/quickstart_salm.sh" "$build" >out 2>&1 </dev/null
code=$?
expect "the whole quickstart" 0 "== Done in"
in_time "within twelve minutes" $(((SECONDS - begin) * 1000)) $((${QUICKSTART_LIMIT:-720} * 1000))
rate() { sed -nE "s/^$1 +([0-9.]+) %$/\1/p" out; }
check "new words: at least 90 % are right to the letter" number_is "$(rate 'new words')" above 90
check "... of new voices, too" number_is "$(rate 'new words of new voices')" above 90
check "hearing another recording is of no use" number_is "$(rate 'control: the clip of another one')" below 15
