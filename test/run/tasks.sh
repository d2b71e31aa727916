#!/usr/bin/env bash
# choir eval --tasks: scores of a trained model on four kinds of tasks, equal on one rank and on
# several, as text, as JSON and in the report; files with faults; tasks of lm-evaluation-harness.
. "$(dirname "$0")/lib/common.sh"

train 1 model train.precision=fp64 model.block_size=48 eval.interval=0 checkpoint.interval=20
expect "a model to evaluate" 0 "step=20"

for answer in 0 1 0 1 0; do
  echo "{\"context\": \"the king and his\", \"choices\": [\"horse\", \"hors$answer?\", \"hill;\"], \"answer\": $answer}" | tr -d 01 |
    sed "s/\"answer\": /\"answer\": $answer/"
done >words.jsonl
printf '%s\r\n' '{"context": "the wind and ", "continuation": "rain"}' '{"context": "over a", "continuation": " hill"}' >ends.jsonl
echo '{"context": "the king", "answer": "and", "until": [" h"], "max_tokens": 6}' >spoken.jsonl
tail -n 3 text.txt | sed 's/^/{"text": "/; s/$/"}/' >text.jsonl
tasks=(--tasks words.jsonl ends.jsonl spoken.jsonl text.jsonl --window 40 --overlap 8 --front 0)

run 1 eval model "${tasks[@]}" --items one.items
expect "four kinds of tasks" 0 "task=words kind=choices items=5 acc=" "acc_norm=" "acc_bytes=" "task=ends kind=continuation items=2 acc=" \
  "perplexity=" "task=spoken kind=generation items=1 exact_match=" "task=text kind=text items=3 window=40 overlap=8" "bits_per_byte="
scores() { grep -o '^task=.*' stdout; }
scores >one.scores
close_items() {  # close_items A B: the numbers of all items are equal to 1e-12, the words exactly
  paste -d' ' <(tr ',[]{}' '\n' <"$1") <(tr ',[]{}' '\n' <"$2") | awk '
    { if (NF == 2 && $1 ~ /^-?[0-9.]+(e-?[0-9]+)?$/) { n++; d = $1 - $2; if (d < 0) d = -d; m = $1 < 0 ? -$1 : $1
        if (d > 1e-12 * (m > 1 ? m : 1)) bad = 1 }
      else for (i = 1; i <= NF / 2; i++) if ($i != $(i + NF / 2)) bad = 1 }
    END { exit bad || n < 20 }'
}
for layout in "2" "3" "2 --tensor 2" "2 parallel.zero=3" "4 --tensor 2 parallel.zero=3"; do
  # shellcheck disable=SC2086
  run ${layout%% *} eval model "${tasks[@]}" --items many.items $([[ $layout != *' '* ]] || echo "${layout#* }")
  scores >many.scores
  check "the same scores on $layout" close_items one.items many.items
  check "... and metrics" diff one.scores many.scores
done
run 1 eval model "${tasks[@]}" --items many.items --batch-tokens 48 --together 1
check "... and in other batches" close_items one.items many.items

# The longer choice has the larger log-probability for each of its characters, but not for each token, among which is the blank.
echo '{"context": "the king", "choices": ["a", "and his"], "answer": 1}' >norm.jsonl
run 1 eval model --tasks norm.jsonl
expect "acc_norm divides by characters" 0 "task=norm kind=choices items=1 acc=0.000000 acc_norm=1.000000"
run_broken norm-by-tokens 1 eval model --tasks norm.jsonl
expect "... and not by tokens" 0 "task=norm kind=choices items=1 acc=0.000000 acc_norm=0.000000"

run 1 eval model --tasks words.jsonl --json
expect "JSON lines" 0 '{"event":"evaluation","step":20,"checkpoint":"model/checkpoints/step_00000020"' '"task":"words","kind":"choices"' '"metrics":{"acc":'
check "... and nothing else on standard output" test "$(wc -l <stdout)" = 1
check "the run keeps its scores" matches model/evaluations.jsonl '"task":"text".*"bits_per_byte":'
echo '{"event":"evaluation","step":' >>model/evaluations.jsonl
run 0 report model
expect "a report of them" 0 "1 line of evaluations.jsonl is damaged and skipped"
check "... with each task once" test "$(grep -o '<td>words</td>' model/report.html | wc -l)" = 1
check "... and its scores" matches model/report.html "<td>ends</td>.*perplexity "

# Faults of files and of options.
fault() {  # fault NAME LINE WORDS...
  local name=$1
  printf '%b\n' "$2" >bad.jsonl
  shift 2
  run 2 eval model --tasks bad.jsonl
  expect "$name" 3 "$@"
}
good='{"context": "the", "choices": ["king", "hill"], "answer": 0}\n'
fault "an empty choice" "$good"'{"context": "a", "choices": ["b", ""], "answer": 0}' "bad.jsonl:2: choice 1 is empty"
fault "NaN for an answer" '{"context": "a", "choices": ["b", "c"], "answer": NaN}' "bad.jsonl:1:51: not valid JSON"
fault "two kinds in a file" "$good"'{"text": "the"}' "bad.jsonl:2: the item is of kind text, but bad.jsonl:1 is of kind choices"
fault "a character that the vocabulary lacks" '{"context": "the", "choices": ["king", "7"], "answer": 0}' "bad.jsonl:1" "U+0037"
fault "a choice longer than the model" '{"context": "the", "choices": ["'"$(printf 'a%.0s' $(seq 49))"'", "b"], "answer": 0}' \
  "bad.jsonl:1: choice 0 has 50 tokens, but the model has 48 positions"
fault "nothing in front of a text" '{"text": "the"}' "bad.jsonl:1: the first token has nothing before it" "--front ID"
run 1 eval model --tasks none.jsonl
expect "a task that is missing" 3 "task 'none.jsonl' cannot be read"
run 2 eval model --tasks text.jsonl --front 0 --window 49
expect "a window that the model does not have" 2 "--window 49, but the model has 48 positions"
run 1 eval model --window 8
expect "a window without a task" 2 "--window requires --tasks"
rm -f model/evaluations.jsonl && mkdir model/evaluations.jsonl
run 1 eval model --tasks words.jsonl
expect "scores that cannot be kept are still printed" 0 "task=words" "the scores are not in the report of the run"

# The converter, with a package of the same interface in place of lm_eval.
if command -v python3 >/dev/null; then
  mkdir -p fake/lm_eval/tasks
  : >fake/lm_eval/__init__.py
  cat >fake/lm_eval/tasks/__init__.py <<'P'
from types import SimpleNamespace as Request

class TaskManager: pass

class Task:
    OUTPUT_TYPE = "multiple_choice"
    docs = [("the king", ["and", "hill"], 0), ("over a", ["fox", "hill"], "hill")]
    shots = ""
    def set_fewshot_seed(self, seed): self.seed = seed
    def set_config(self, key, value): self.shots = "one " * value
    def doc_to_choice(self, doc): return doc[1]
    def doc_to_target(self, doc): return doc[2]
    def build_all_requests(self, limit, rank, world_size):
        self.instances = [Request(doc_id=i, doc=d, idx=k, args=a, request_type="loglikelihood")
                          for i, d in enumerate(self.docs[:limit])
                          for k, a in enumerate([(self.shots + d[0], " " + c) for c in d[1]] + [("", c) for c in d[1]])]

def get_task_dict(names, manager): return {names[0]: Task()}
P
  check "a task of the harness" eval 'PYTHONPATH=fake python3 "$root/inputs/harness_task.py" any --fewshot 1 >any.jsonl'
  check "... with its examples and answers" has any.jsonl '"context": "one over a", "choices": ["fox", "hill"], "answer": 1, "delimiter": " "}'
  run 1 eval model --tasks any.jsonl
  expect "... is a task of choir" 0 "task=any kind=choices items=2 acc="
else
  skip "tasks of lm-evaluation-harness" "there is no python3"
fi
