#pragma once
// Evaluation tasks (src/data/tasks) on a language model: their rows in batches through the pass
// that computes validation losses, with masked contexts, and generated answers.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/run/model_instance.hpp"
#include "src/data/tasks/task_scores.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

struct TaskOptions {
  std::int64_t batch_tokens = 2048;  ///< of a batch of rows, which has at least one row
  std::int64_t together = 4;         ///< texts that are generated together
  std::int64_t window = 0;           ///< inputs of a window of a text; 0: the model's positions
  std::int64_t overlap = 1;          ///< known ids in front of each further window
  /// The token in front of a row without context; default: that with which the vocabulary begins a
  /// text, else that which ends one.
  std::optional<std::int32_t> front;
  bool starts = false;  ///< every context begins with the tokens that begin a text
};

/// Rows of one width that share a forward pass.
struct RowBatch {
  std::int64_t width = 0, rows = 0;  ///< the shape [rows, width]
  std::vector<std::size_t> members;  ///< indices of the rows; at most `rows`
};

/// Divides rows into batches of at most `batch_tokens` tokens (at least one row). Widths are powers
/// of two from 16 on, at most `positions`. The result depends on the rows alone, so the scores do
/// not depend on the number of ranks. Pure.
std::vector<RowBatch> row_batches(const std::vector<ScoredRow>& rows, std::int64_t batch_tokens,
                                  std::int64_t positions);

/// The sum of the log-probabilities of the scored ids of each row. Ranks of the data axis divide
/// the batches. Collective over the mesh; equal on every rank.
std::vector<double> score_rows(ModelInstance& instance, const std::vector<ScoredRow>& rows,
                               const std::vector<RowBatch>& batches);

struct TaskResult {
  NamedNumbers metrics;
  std::vector<ItemScore> items;
};

class TaskEvaluation {
 public:
  /// Tokenises all items. Local. Throws DataError with file and line for an item that the model
  /// cannot take, and DeckError for a window or a front token that it does not have.
  TaskEvaluation(std::vector<EvalTask> tasks, const Vocabulary& vocabulary, const GptConfig& config,
                 const TaskOptions& options);

  const std::vector<EvalTask>& tasks() const { return tasks_; }
  std::int64_t window() const { return options_.window; }
  std::int64_t overlap() const { return options_.overlap; }
  /// Runs one pass of each shape, and the largest generation, on the null device.
  void plan(ModelInstance& instance) const;
  /// One result for each task. Throws NumericError, on all ranks, for a score that is not finite.
  /// Collective over the mesh; equal on every rank.
  std::vector<TaskResult> evaluate(ModelInstance& instance) const;

 private:
  /// The rows of item i of a task are rows_[first[i]] to rows_[first[i + 1] - 1].
  struct Place {
    std::vector<std::size_t> first;
  };
  /// A text to generate: the answer of an item, or the greedy match of a continuation.
  struct Request {
    std::size_t task = 0, item = 0;
    std::vector<std::int32_t> prompt;
    std::vector<std::int32_t> expected;  ///< the ids of a continuation; empty for `generation`
    std::int64_t tokens = 0;
  };

  void add_item(std::size_t task, std::size_t item, const TaskTokens& tokens);
  ItemScore score_of(std::size_t task, std::size_t item, const std::vector<double>& sums) const;
  std::vector<std::vector<std::int32_t>> generated(ModelInstance& instance) const;
  std::vector<std::vector<std::int32_t>> answers_to(ModelInstance& instance, std::size_t first,
                                                    std::size_t count) const;
  std::string text_of(std::span<const std::int32_t> ids) const;
  void judge(const Request& request, const std::vector<std::int32_t>& ids, ItemScore& score) const;

  std::vector<EvalTask> tasks_;
  Vocabulary vocabulary_;
  TaskOptions options_;
  std::vector<ScoredRow> rows_;
  std::vector<Place> places_;
  std::vector<RowBatch> batches_;
  std::vector<Request> requests_;
};

}  // namespace choir
