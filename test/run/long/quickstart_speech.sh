#!/usr/bin/env bash
# make quickstart-speech for real: the time on two cores, the error rates on utterances that were
# never trained on, and a second run that trains nothing again. It takes about eleven minutes.
. "$(dirname "$0")/../lib/common.sh"
if ! command -v espeak-ng >/dev/null || ! grep -q HAVE_SENTENCEPIECE "$build/choir_features.hpp"; then
  skip "quickstart-speech" "espeak-ng is not installed, or the build has no SentencePiece"
  exit
fi
unset OMP_NUM_THREADS  # as a user runs it
ln -s "$root/inputs" inputs

quickstart() {
  command=quickstart_speech.sh
  local begin=$SECONDS
  "$root/.make/quickstart_speech.sh" "$build" >out 2>&1 </dev/null
  code=$?
  seconds=$((SECONDS - begin))
}
# rate LINE NAME: the WER or CER in a line of the table at the end of the first run.
rate() { sed -nE "s/^$1 .*$2 ([0-9.]+) %.*/\1/p" first; }
below() { awk -v v="${1:-none}" -v most="$2" 'BEGIN { print v, "of", most; exit !(v ~ /^[0-9.]+$/ && v + 0 < most + 0) }'; }
times() { awk -v factor="$1" -v value="${2:-0}" 'BEGIN { print factor * value }'; }

quickstart
cp out first
expect "the whole quickstart" 0 "== Done in" "reference   " "hypothesis  "
in_time "within ten minutes" $((seconds * 1000)) $((${QUICKSTART_LIMIT:-600} * 1000))
digits=$(sed -nE 's/^runs\/asr_digits: ([0-9]+) s$/\1/p' first)
check "digits within a minute: $digits s" below "$digits" "${QUICKSTART_DIGITS_LIMIT:-61}"
check "digits: WER below 2 %" below "$(rate digits WER)" 2
sentences=$(rate 'book, new sentences  ' WER)
check "new sentences: WER below 15 %" below "$sentences" 15
check "new sentences: CER below 5 %" below "$(rate 'book, new sentences  ' CER)" 5
check "new voices: at most 1.3 times the errors" below "$(rate 'book, new sentences and voices' WER)" \
  "$(times 1.3 "$sentences")"
if [ -d /usr/share/asterisk/sounds/en_US_f_Allison ]; then
  for unit in WER CER; do
    check "recorded prompts: a fifth fewer errors from the tutorial than from nothing, $unit" below \
      "$(rate 'prompts, from the tutorial' $unit)" "$(times 0.8 "$(rate 'prompts, from nothing' $unit)")"
  done
fi

results() { sed -n '/^digits  /,$p' "$1"; }
quickstart
expect "again" 0 "The corpus exists already" "== Done in"
in_time "... is a matter of seconds" $((seconds * 1000)) 90000
check "... with the same result" same "results first" "results out"
