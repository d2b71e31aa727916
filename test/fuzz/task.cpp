// Fuzzes evaluation tasks, their rows of tokens and their metrics; 'e': the file in which a run
// keeps its evaluations.
#include <cmath>

#include "src/data/tasks/eval_task.hpp"
#include "src/data/tasks/task_scores.hpp"
#include "src/run/evaluation_record.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

constexpr std::int64_t kPositions = 12;

/// The score of every item, with one row for each choice.
std::vector<ItemScore> scores_of(const EvalTask& task, const TaskTokens& tokens) {
  std::vector<ItemScore> scores;
  for (const TaskItem& item : task.items) {
    ItemScore& score = scores.emplace_back();
    if (task.kind == TaskKind::generation) {
      const auto prompt = prompt_of(item, tokens);
      require(!prompt.empty(), "an empty prompt");
      require(std::ssize(prompt) + item.max_tokens <= kPositions, "a prompt too long");
      score.matches = matches_reference(until_first(item.context, item.until), item.reference);
      continue;
    }
    std::vector<ScoredRow> rows;
    for (std::size_t i = 0; i < item.choices.size(); ++i)
      rows.push_back(row_of_choice(item, i, tokens));
    if (task.kind == TaskKind::text) rows = rows_of_text(item, tokens, kPositions, 5);
    std::int64_t all = 0;
    for (const ScoredRow& row : rows) {
      require(row.scored >= 1 && row.scored <= row.inputs(), "a row with too many scored ids");
      require(row.inputs() <= kPositions, "a row too long");
      all += row.scored;
      score.log_probabilities.push_back(-static_cast<double>(row.inputs()));
      score.tokens.push_back(row.scored);
    }
    if (task.kind == TaskKind::text)
      require(all == std::ssize(item.context), "an id of a text that is not scored once");
  }
  return scores;
}

void try_task(std::string_view bytes) {
  const Vocabulary vocabulary = Vocabulary::bytes();
  const TaskTokens tokens{
      .vocabulary = vocabulary, .positions = kPositions, .rows_of_table = 256, .front = 0};
  const EvalTask task = parse_task(bytes, "task.jsonl");
  require(!task.items.empty(), "a task without items");
  for (const auto& [name, value] : task_metrics(task, scores_of(task, tokens)))
    require(!name.starts_with("acc") || (value >= 0 && value <= 1), "a share that is none");
}

void try_records(std::string_view bytes) {
  const KeptRecords kept = read_records(put("evaluations.jsonl", bytes));
  for (const EvaluationRecord& record : kept.records) {
    require(json_of(record).find('\n') == std::string::npos, "a record of several lines");
    require(!text_of(record).empty(), "a record without text");
  }
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      R"(t{"context": "1 + 1 =", "choices": ["2", "3\u00e9"], "answer": 0, "id": 7}
{"context": "", "choices": ["a", "b"], "gold": 1, "delimiter": ""})",
      R"(t{"context": "a ", "continuation": " b"})",
      R"(t{"context": "a", "answer": "b", "max_tokens": 3, "until": ["\n", "."]})",
      R"(t{"text": "In the beginning God created the heaven", "meta": {"x": 1}})",
      R"(e{"event":"evaluation","step":3,"task":"t","kind":"text","precision":"fp32","items":1,)"
      R"("metrics":{"bits_per_byte":1.5,"x":null}})"};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const std::string_view bytes = input.substr(1);
  accepted([&] { input.front() == 'e' ? try_records(bytes) : try_task(bytes); });
}

}  // namespace choir::fuzz
