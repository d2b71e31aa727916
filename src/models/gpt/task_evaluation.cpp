#include "src/models/gpt/task_evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/data/text/token_samples.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/models/gpt/family.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/run/inference_pass.hpp"

namespace choir {
namespace {

constexpr std::int64_t kNarrowest = 16;  // inputs of the narrowest batch

/// A batch of rows in host memory. The context of a row and the padding behind it are masked.
class RowBuffer {
 public:
  /// `batch` may be without members: all rows are then padding.
  RowBuffer(const std::vector<ScoredRow>& rows, const RowBatch& batch)
      : inputs_(static_cast<std::size_t>(batch.rows * batch.width)),
        targets_(inputs_.size(), kIgnoredTarget),
        samples_(batch.rows) {
    const auto width = static_cast<std::size_t>(batch.width);
    for (std::size_t r = 0; r < batch.members.size(); ++r) {
      const ScoredRow& row = rows[batch.members[r]];
      const auto inputs = static_cast<std::size_t>(row.inputs());
      std::copy_n(row.ids.begin(), inputs,
                  inputs_.begin() + static_cast<std::ptrdiff_t>(r * width));
      for (std::size_t i = inputs - static_cast<std::size_t>(row.scored); i < inputs; ++i)
        targets_[r * width + i] = row.ids[i + 1];
    }
  }
  ModelBatch batch() {
    const Shape shape{std::ssize(inputs_)};
    return token_batch(samples_, {inputs_.data(), DType::i32, shape},
                       {targets_.data(), DType::i32, shape});
  }

 private:
  std::vector<std::int32_t> inputs_, targets_;
  std::int64_t samples_;
};

/// Adds up this rank's losses of each row. Returns nothing on the null device, and on ranks of
/// stages without the head.
std::vector<double> row_sums(ModelInstance& instance, ModelBatch batch, HostBuffer& memory) {
  std::vector<double> sums;
  const Tensor losses = instance.forward(Mode::evaluate, batch);
  if (losses.empty()) return sums;
  const std::size_t terms = instance.loss_terms().size();
  look_at_scores(
      instance.device(), losses_of_term(losses, 0, terms), memory, [&](const TensorView& view) {
        std::vector<double> of_token(static_cast<std::size_t>(view.count()));
        to_doubles(view, of_token);
        const std::size_t width = of_token.size() / static_cast<std::size_t>(batch.samples);
        sums.assign(static_cast<std::size_t>(batch.samples), 0);
        for (std::size_t i = 0; i < of_token.size(); ++i) sums[i / width] += of_token[i];
      });
  return sums;
}

TaskOptions completed(TaskOptions options, const Vocabulary& vocabulary, const GptConfig& config) {
  if (options.window == 0) options.window = config.block_size;
  if (options.window > config.block_size)
    throw DeckError(fmt::format("--window {}, but the model has {} positions", options.window,
                                config.block_size),
                    fmt::format("at most {}", config.block_size));
  if (options.overlap > options.window)
    throw DeckError(fmt::format("--overlap {} is more than the window of {} tokens",
                                options.overlap, options.window),
                    fmt::format("1 to {}", options.window));
  if (options.front && (*options.front < 0 || *options.front >= config.vocab_size))
    throw DeckError(fmt::format("--front {} is no token of this model", *options.front),
                    fmt::format("0 to {}", config.vocab_size - 1));
  if (const auto start = vocabulary.text_start(); !options.front && !start.empty())
    options.front = start.back();
  if (!options.front) options.front = vocabulary.end_of_text();
  return options;
}

}  // namespace

std::vector<RowBatch> row_batches(const std::vector<ScoredRow>& rows, std::int64_t batch_tokens,
                                  std::int64_t positions) {
  std::map<std::int64_t, std::vector<std::size_t>> by_width;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::int64_t width = kNarrowest;
    while (width < rows[i].inputs()) width *= 2;
    by_width[std::min(width, positions)].push_back(i);
  }
  std::vector<RowBatch> batches;
  for (const auto& [width, members] : by_width) {
    const std::int64_t most = std::max<std::int64_t>(1, batch_tokens / width);
    for (std::size_t at = 0; at < members.size(); at += static_cast<std::size_t>(most)) {
      const auto count = std::min<std::size_t>(members.size() - at, static_cast<std::size_t>(most));
      std::int64_t shape = 1;
      while (shape < static_cast<std::int64_t>(count)) shape *= 2;
      RowBatch& batch = batches.emplace_back();
      batch.width = width;
      batch.rows = std::min(shape, most);
      batch.members.assign(members.begin() + static_cast<std::ptrdiff_t>(at),
                           members.begin() + static_cast<std::ptrdiff_t>(at + count));
    }
  }
  return batches;
}

std::vector<double> score_rows(ModelInstance& instance, const std::vector<ScoredRow>& rows,
                               const std::vector<RowBatch>& batches) {
  Mesh& mesh = instance.mesh();
  const Communicator& ranks = mesh.host_along(Axis::data);
  const bool sharded = instance.storage().sharding().values_sharded();
  const auto size = static_cast<std::size_t>(ranks.size());
  // One entry per row, zero on the ranks that do not score it.
  std::vector<double> sums(rows.size(), 0.0);
  HostBuffer memory;
  for (std::size_t first = 0; first < batches.size(); first += size) {
    const std::size_t mine = first + static_cast<std::size_t>(ranks.rank());
    const bool idle = mine >= batches.size();
    // A rank without a batch of its own still provides its part of the parameters to the others.
    if (idle && !sharded) continue;
    RowBatch batch = batches[idle ? first : mine];
    if (idle) batch.members.clear();
    const std::vector<double> losses = row_sums(instance, RowBuffer(rows, batch).batch(), memory);
    for (std::size_t r = 0; r < batch.members.size() && !losses.empty(); ++r)
      sums[batch.members[r]] = -losses[r];
  }
  for (Communicator* all : {&mesh.host_replicas(), &mesh.host_along(Axis::pipeline)})
    all->all_reduce(sums.data(), sums.size(), DType::f64, ReduceOp::sum);
  return sums;
}

TaskEvaluation::TaskEvaluation(std::vector<EvalTask> tasks, const Vocabulary& vocabulary,
                               const GptConfig& config, const TaskOptions& options)
    : tasks_(std::move(tasks)),
      vocabulary_(vocabulary),
      options_(completed(options, vocabulary, config)) {
  const TaskTokens tokens{.vocabulary = vocabulary_,
                          .positions = config.block_size,
                          .rows_of_table = config.vocab_size,
                          .front = options_.front,
                          .starts = options_.starts};
  for (std::size_t task = 0; task < tasks_.size(); ++task) {
    places_.emplace_back();
    for (std::size_t item = 0; item < tasks_[task].items.size(); ++item) {
      places_.back().first.push_back(rows_.size());
      add_item(task, item, tokens);
    }
    places_.back().first.push_back(rows_.size());
  }
  batches_ = row_batches(rows_, options_.batch_tokens, config.block_size);
}

void TaskEvaluation::add_item(std::size_t task, std::size_t number, const TaskTokens& tokens) {
  const TaskItem& item = tasks_[task].items[number];
  switch (tasks_[task].kind) {
    case TaskKind::text:
      for (ScoredRow& row : rows_of_text(item, tokens, options_.window, options_.overlap))
        rows_.push_back(std::move(row));
      return;
    case TaskKind::generation:
      requests_.push_back({.task = task,
                           .item = number,
                           .prompt = prompt_of(item, tokens),
                           .expected = {},
                           .tokens = item.max_tokens});
      return;
    case TaskKind::choices:
      for (std::size_t choice = 0; choice < item.choices.size(); ++choice)
        rows_.push_back(row_of_choice(item, choice, tokens));
      return;
    case TaskKind::continuation:
      break;
  }
  const ScoredRow& row = rows_.emplace_back(row_of_choice(item, 0, tokens));
  const auto border = row.ids.end() - row.scored;
  requests_.push_back({.task = task,
                       .item = number,
                       .prompt = {row.ids.begin(), border},
                       .expected = {border, row.ids.end()},
                       .tokens = row.scored});
}

void TaskEvaluation::plan(ModelInstance& instance) const {
  HostBuffer memory;
  std::vector<std::pair<std::int64_t, std::int64_t>> planned;
  for (const RowBatch& batch : batches_) {
    const std::pair shape(batch.width, batch.rows);
    if (std::find(planned.begin(), planned.end(), shape) != planned.end()) continue;
    planned.push_back(shape);
    row_sums(instance, RowBuffer(rows_, batch).batch(), memory);
  }
  if (!requests_.empty())
    Generator(instance).plan(std::min<std::int64_t>(options_.together, std::ssize(requests_)));
}

// A table of embeddings may have more rows than the vocabulary has tokens.
std::string TaskEvaluation::text_of(std::span<const std::int32_t> ids) const {
  std::vector<std::int32_t> spoken(ids.begin(), ids.end());
  if (const auto end = vocabulary_.end_of_text()) std::erase(spoken, *end);
  std::erase_if(spoken, [&](std::int32_t id) { return !vocabulary_.has(id); });
  return vocabulary_.decode(spoken);
}

std::vector<std::vector<std::int32_t>> TaskEvaluation::answers_to(ModelInstance& instance,
                                                                  std::size_t first,
                                                                  std::size_t count) const {
  std::vector<Question> questions;
  std::int64_t most = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    const Request& request = requests_[i];
    most = std::max(most, request.tokens);
    Question& question = questions.emplace_back();
    question.prompt = request.prompt;
    question.choice.temperature = 0;
    if (request.expected.empty())
      if (const auto end = vocabulary_.end_of_text()) question.choice.stop.push_back(*end);
    question.ends = [this, &request](std::span<const std::int32_t> ids) {
      if (std::ssize(ids) >= request.tokens) return true;
      if (!request.expected.empty()) return ids.back() != request.expected[ids.size() - 1];
      const TaskItem& item = tasks_[request.task].items[request.item];
      const std::string text = text_of(ids);
      return until_first(text, item.until).size() < text.size();
    };
  }
  auto answers = Generator(instance).generate_together(questions, most);
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = answers[i].begin();
    answers[i].erase(begin, begin + std::ssize(requests_[first + i].prompt));
  }
  return answers;
}

// Ranks of the data axis divide the texts; if parameters are sharded, all generate all texts, since
// each pass needs every rank.
std::vector<std::vector<std::int32_t>> TaskEvaluation::generated(ModelInstance& instance) const {
  Communicator& ranks = instance.mesh().host_along(Axis::data);
  const bool all = instance.storage().sharding().values_sharded();
  const auto batch = static_cast<std::size_t>(options_.together);
  std::vector<std::vector<std::int32_t>> answers(requests_.size());
  for (std::size_t at = 0, turn = 0; at < requests_.size(); at += batch, ++turn) {
    if (!all && static_cast<int>(turn % static_cast<std::size_t>(ranks.size())) != ranks.rank())
      continue;
    const std::size_t count = std::min(batch, requests_.size() - at);
    auto made = answers_to(instance, at, count);
    std::move(made.begin(), made.end(), answers.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (all || ranks.size() == 1) return answers;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const int owner = static_cast<int>(i / batch % static_cast<std::size_t>(ranks.size()));
    std::int64_t count = std::ssize(answers[i]);
    ranks.broadcast(&count, sizeof count, owner);
    answers[i].resize(static_cast<std::size_t>(count));
    if (count > 0)
      ranks.broadcast(answers[i].data(), answers[i].size() * sizeof answers[i][0], owner);
  }
  return answers;
}

void TaskEvaluation::judge(const Request& request, const std::vector<std::int32_t>& ids,
                           ItemScore& score) const {
  if (!request.expected.empty()) {
    score.matches = ids == request.expected;
    return;
  }
  const TaskItem& item = tasks_[request.task].items[request.item];
  score.generated = whole_utf8(until_first(text_of(ids), item.until));
  score.matches = matches_reference(score.generated, item.reference);
}

ItemScore TaskEvaluation::score_of(std::size_t task, std::size_t item,
                                   const std::vector<double>& sums) const {
  ItemScore score;
  const std::vector<std::size_t>& first = places_[task].first;
  for (std::size_t row = first[item]; row < first[item + 1]; ++row) {
    if (!std::isfinite(sums[row]))
      throw NumericError(
          fmt::format("{}: the log-probability is {}", tasks_[task].items[item].place, sums[row]),
          "the weights are damaged, or --precision is too narrow for them");
    const bool goes_on = tasks_[task].kind == TaskKind::text && row > first[item];
    if (!goes_on) {
      score.log_probabilities.push_back(0);
      score.tokens.push_back(0);
    }
    score.log_probabilities.back() += sums[row];
    score.tokens.back() += rows_[row].scored;
  }
  return score;
}

std::vector<TaskResult> TaskEvaluation::evaluate(ModelInstance& instance) const {
  const std::vector<double> sums = score_rows(instance, rows_, batches_);
  std::vector<TaskResult> results(tasks_.size());
  together(instance.mesh().world(), [&] {
    for (std::size_t task = 0; task < tasks_.size(); ++task)
      for (std::size_t item = 0; item < tasks_[task].items.size(); ++item)
        results[task].items.push_back(score_of(task, item, sums));
  });
  const auto answers = generated(instance);
  for (std::size_t i = 0; i < requests_.size(); ++i)
    judge(requests_[i], answers[i], results[requests_[i].task].items[requests_[i].item]);
  for (std::size_t task = 0; task < tasks_.size(); ++task)
    results[task].metrics = task_metrics(tasks_[task], results[task].items);
  return results;
}

}  // namespace choir
