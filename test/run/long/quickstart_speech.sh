#!/usr/bin/env bash
# make quickstart-speech for real: the time on two cores, the error rates on what was never trained on, a second run that
# trains nothing again. About ten minutes and a half.
. "$(dirname "$0")/../lib/common.sh"
if ! command -v espeak-ng >/dev/null || ! grep -q HAVE_SENTENCEPIECE "$build/choir_features.hpp"; then
  pass "quickstart-speech: no espeak-ng here, or a build without SentencePiece"
  exit
fi
unset OMP_NUM_THREADS  # as a user runs it
ln -s "$root/inputs" inputs

quickstart() {
  command="quickstart_speech.sh $*" begin=$SECONDS
  env "$@" "$root/.make/quickstart_speech.sh" "$build" >out 2>&1 </dev/null
  code=$?
  seconds=$((SECONDS - begin))
}
# rate LINE NAME: the WER or CER in a line of the table at the end.
rate() { sed -nE "s/^$1 .*$2 ([0-9.]+) %.*/\1/p" out; }
below() { awk -v value="${1:-none}" -v most="$2" 'BEGIN { print value, "of", most; exit !(value ~ /^[0-9.]+$/ && value + 0 < most) }'; }

quickstart
cp out first
expect "the whole quickstart" 0 "== Done in" "reference   " "hypothesis  "
check "within ten minutes: $seconds s" test "$seconds" -le "${QUICKSTART_LIMIT:-600}"
check "digits: WER below 2 %" below "$(rate digits WER)" 2
seconds_of() { sed -nE 's/^  speed .* over ((([0-9]+)m )?([0-9.]+) ?(ms|s)) of stepping$/\3 \4 \5/p' out | sed -n "$1p"; }
check "new sentences: WER below 15 %" below "$(rate 'book, new sentences ' WER)" 15
check "new sentences: CER below 5 %" below "$(rate 'book, new sentences ' CER)" 5
check "new voices: at most 1.3 times as many errors" below "$(rate 'book, new sentences and voices' WER)" \
  "$(awk -v w="$(rate 'book, new sentences ' WER)" 'BEGIN { print 1.3 * w + 0.01 }')"
if [ -d /usr/share/asterisk/sounds/en_US_f_Allison ]; then
  check "recorded prompts: a quarter fewer errors from the tutorial than from nothing" below \
    "$(rate 'prompts, from the tutorial' CER)" "$(awk -v c="$(rate 'prompts, from nothing' CER)" 'BEGIN { print 0.75 * c }')"
fi

trained() { grep -E '^(digits|book|prompts)' "$1"; }
quickstart
expect "again" 0 "It is there already" "== Done in"
check "... is a matter of seconds: $seconds s" test "$seconds" -le 90
check "... with the same result" eval 'diff <(trained first) <(trained out)'
