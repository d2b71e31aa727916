#pragma once
// The scores of evaluation tasks: rows of tokens whose last ones are scored (contexts with their
// continuations, and the windows of a long text), and the metrics of a task from the scores of its
// items. Rules, names and definitions are those of lm-evaluation-harness. All functions are local
// and pure.
//
//   choices       acc         share of items whose answer has the highest log-likelihood s
//                 acc_norm    the same with s / characters of the choice without the delimiter
//                 acc_bytes   the same with s / UTF-8 bytes of the choice without the delimiter
//                 acc_token   the same with s / tokens of the choice (not a name of the harness)
//   continuation  acc         share of continuations that greedy decoding generates
//                 perplexity  exp(-mean of s over the items)
//   generation    exact_match share of texts that equal the answer, without blanks at both ends
//   text          bits_per_byte    -sum of s / bytes of the texts / ln 2
//                 byte_perplexity  exp(-sum of s / bytes)
//                 word_perplexity  exp(-sum of s / words); words are separated by white space
//                 token_perplexity exp(-sum of s / tokens) (not a name of the harness)
//
// The first of several equal choices wins. NAME_stderr is the standard error of a share p of n
// items, sqrt(p (1 - p) / (n - 1)), if there are at least two.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/data/tasks/eval_task.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

/// The score of a row is the sum of the log-probabilities of its last `scored` ids, each given all
/// ids before it. The model reads all ids but the last.
struct ScoredRow {
  std::vector<std::int32_t> ids;
  std::int64_t scored = 0;

  std::int64_t inputs() const { return std::ssize(ids) - 1; }
};

/// The tokens of texts for a model.
struct TaskTokens {
  const Vocabulary& vocabulary;
  std::int64_t positions = 0;      ///< of the model: the most inputs of a row
  std::int64_t rows_of_table = 0;  ///< the model's ids are below this
  /// The token in front of a continuation without context and of a text; required only by these.
  std::optional<std::int32_t> front;
  bool starts = false;  ///< every context begins with the vocabulary's text_start()
};

/// The context and the given choice of an item. Blanks at the end of the context belong to the
/// continuation. Its ids are those of context and continuation together, from the number of ids
/// that the context has alone; so a token that spans the border counts for the context. A row with
/// more inputs than positions loses its first ids. Throws DataError with the item's place if the
/// choice alone is longer, if it has no token of its own, or if the text has characters outside the
/// vocabulary.
ScoredRow row_of_choice(const TaskItem& item, std::size_t choice, const TaskTokens& tokens);

/// The ids of a context from which an item's answer is generated: the last ones, so that
/// `max_tokens` further ids have positions. Throws DataError.
std::vector<std::int32_t> prompt_of(const TaskItem& item, const TaskTokens& tokens);

/// The windows of a text: every id is scored once. A window has at most `window` inputs. The first
/// begins with `front`, each further one with at least `overlap` ids (1 to `window`) that were
/// scored before.
std::vector<ScoredRow> rolling_rows(std::span<const std::int32_t> ids, std::int32_t front,
                                    std::int64_t window, std::int64_t overlap);
/// The windows of an item's text. Throws DataError.
std::vector<ScoredRow> rows_of_text(const TaskItem& item, const TaskTokens& tokens,
                                    std::int64_t window, std::int64_t overlap);

struct ItemScore {
  std::vector<double> log_probabilities;  ///< of each choice; of `text`, one sum
  std::vector<std::int64_t> tokens;       ///< scored tokens of each
  bool matches = false;                   ///< greedy match, or exact match
  std::string generated;                  ///< by `generation`
};

/// A name and its value, in the order in which metrics are printed.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// `scores` has one entry for each item.
NamedNumbers task_metrics(const EvalTask& task, const std::vector<ItemScore>& scores);

/// The index of the largest s / divisor, the first of equal ones.
std::size_t best_choice(const std::vector<double>& log_probabilities,
                        const std::vector<double>& divisors);

/// True if both texts are equal without blanks at both ends. `generated` ends before the first
/// string of `item.until`.
std::string until_first(std::string_view generated, const std::vector<std::string>& until);
bool matches_reference(std::string_view generated, std::string_view reference);

}  // namespace choir
