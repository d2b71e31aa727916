#include "src/data/tasks/task_scores.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

Ids encoded(const std::string& text, const TaskItem& item, const TaskTokens& tokens) {
  Ids ids = tokens.starts ? tokens.vocabulary.text_start() : Ids{};
  const Ids own = tokens.vocabulary.encode(text, item.place);
  ids.insert(ids.end(), own.begin(), own.end());
  const auto outside = std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) {
    return id < 0 || id >= tokens.rows_of_table;
  });
  if (outside != ids.end())
    throw DataError(fmt::format("{}: token {} of the text is outside the model's vocabulary of {}",
                                item.place, *outside, tokens.rows_of_table),
                    "the tokenizer of the run belongs to another model");
  return ids;
}

std::int32_t front_of(const TaskItem& item, const TaskTokens& tokens) {
  if (tokens.front) return *tokens.front;
  throw DataError(
      item.place +
          ": the first token has nothing before it, and the vocabulary of this model has "
          "no token that begins or ends a text",
      "--front ID names the token that stands in front, for example that of a line end");
}

}  // namespace

ScoredRow row_of_choice(const TaskItem& item, std::size_t choice, const TaskTokens& tokens) {
  const std::size_t kept = before_trailing_blanks(item.context);
  const std::string context = item.context.substr(0, kept);
  const std::string whole = item.context + item.delimiter + item.choices[choice];
  ScoredRow row{.ids = encoded(context, item, tokens)};
  const Ids together = encoded(whole, item, tokens);
  const auto alone = std::ssize(row.ids);
  row.scored = std::ssize(together) - alone;
  if (row.scored <= 0)
    throw DataError(fmt::format("{}: choice {} has no token of its own, because the context and "
                                "the choice end with the same token",
                                item.place, choice),
                    "begin the choice, or the delimiter, with a blank");
  if (row.scored > tokens.positions)
    throw DataError(fmt::format("{}: choice {} has {} tokens, but the model has {} positions",
                                item.place, choice, row.scored, tokens.positions),
                    "shorten the choice");
  if (row.ids.empty()) row.ids.push_back(front_of(item, tokens));
  row.ids.insert(row.ids.end(), together.begin() + alone, together.end());
  if (const std::int64_t excess = row.inputs() - tokens.positions; excess > 0)
    row.ids.erase(row.ids.begin(), row.ids.begin() + excess);
  return row;
}

std::vector<std::int32_t> prompt_of(const TaskItem& item, const TaskTokens& tokens) {
  if (item.max_tokens >= tokens.positions)
    throw DataError(fmt::format("{}: \"max_tokens\" is {}, but the model has {} positions",
                                item.place, item.max_tokens, tokens.positions),
                    "lower max_tokens");
  Ids ids = encoded(item.context, item, tokens);
  if (ids.empty()) ids.push_back(front_of(item, tokens));
  const std::int64_t excess = std::ssize(ids) + item.max_tokens - tokens.positions;
  if (excess > 0) ids.erase(ids.begin(), ids.begin() + excess);
  return ids;
}

std::vector<ScoredRow> rolling_rows(std::span<const std::int32_t> ids, std::int32_t front,
                                    std::int64_t window, std::int64_t overlap) {
  CHOIR_CHECK(window >= 1 && overlap >= 1 && overlap <= window, "windows of {}, {} overlap", window,
              overlap);
  Ids all{front};
  all.insert(all.end(), ids.begin(), ids.end());
  std::vector<ScoredRow> rows;
  const std::int64_t count = std::ssize(ids);
  // all[i + 1] is predicted from all[i], so `done` is also the index of the last scored id.
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t scored = std::min(count - done, done == 0 ? window : window - overlap + 1);
    const std::int64_t end = done + scored;
    const std::int64_t begin = std::max<std::int64_t>(0, end - window);
    rows.push_back({.ids = Ids(all.begin() + begin, all.begin() + end + 1), .scored = scored});
    done = end;
  }
  return rows;
}

std::vector<ScoredRow> rows_of_text(const TaskItem& item, const TaskTokens& tokens,
                                    std::int64_t window, std::int64_t overlap) {
  TaskTokens plain = tokens;
  plain.starts = false;
  const Ids ids = encoded(item.context, item, plain);
  return rolling_rows(ids, front_of(item, tokens), window, overlap);
}

namespace {

std::int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;  // all but continuation bytes
  });
}

std::int64_t words_of(std::string_view text) {
  const Utf8Scan scan(text);
  std::int64_t words = 0;
  for (std::size_t at = scan.past(0, kBlank); at < scan.size(); at = scan.past(at, kBlank)) {
    ++words;
    at = scan.until(at, kBlank);
  }
  return words;
}

std::string_view without_blanks(std::string_view text) {
  text = text.substr(0, before_trailing_blanks(text));
  return text.substr(Utf8Scan(text).past(0, kBlank));
}

void add_share(NamedNumbers& metrics, const std::string& name, std::int64_t hits,
               std::size_t items) {
  const auto n = static_cast<double>(items);
  const double share = static_cast<double>(hits) / n;
  metrics.emplace_back(name, share);
  if (items > 1) metrics.emplace_back(name + "_stderr", std::sqrt(share * (1 - share) / (n - 1)));
}

NamedNumbers choice_metrics(const EvalTask& task, const std::vector<ItemScore>& scores) {
  constexpr std::size_t kRules = 4;
  constexpr std::array<const char*, kRules> kNames{"acc", "acc_norm", "acc_bytes", "acc_token"};
  std::array<std::int64_t, kRules> hits{};
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const TaskItem& item = task.items[i];
    std::array<std::vector<double>, kRules> divisors;
    for (std::size_t c = 0; c < item.choices.size(); ++c) {
      divisors[0].push_back(1);
      divisors[1].push_back(static_cast<double>(characters_of(item.choices[c])));
      divisors[2].push_back(static_cast<double>(item.choices[c].size()));
      divisors[3].push_back(static_cast<double>(scores[i].tokens[c]));
    }
    for (std::size_t rule = 0; rule < kRules; ++rule)
      hits[rule] += best_choice(scores[i].log_probabilities, divisors[rule]) ==
                    static_cast<std::size_t>(item.answer);
  }
  NamedNumbers metrics;
  for (std::size_t rule = 0; rule < kRules; ++rule)
    add_share(metrics, kNames[rule], hits[rule], task.items.size());
  return metrics;
}

NamedNumbers text_metrics(const EvalTask& task, const std::vector<ItemScore>& scores) {
  double sum = 0, bytes = 0, words = 0, tokens = 0;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    sum += scores[i].log_probabilities.front();
    tokens += static_cast<double>(scores[i].tokens.front());
    bytes += static_cast<double>(task.items[i].context.size());
    words += static_cast<double>(words_of(task.items[i].context));
  }
  NamedNumbers metrics{{"bits_per_byte", -sum / bytes / std::numbers::ln2},
                       {"byte_perplexity", std::exp(-sum / bytes)}};
  if (words > 0) metrics.emplace_back("word_perplexity", std::exp(-sum / words));
  metrics.emplace_back("token_perplexity", std::exp(-sum / tokens));
  return metrics;
}

}  // namespace

std::size_t best_choice(const std::vector<double>& log_probabilities,
                        const std::vector<double>& divisors) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < log_probabilities.size(); ++i)
    if (log_probabilities[i] / divisors[i] > log_probabilities[best] / divisors[best]) best = i;
  return best;
}

std::string until_first(std::string_view generated, const std::vector<std::string>& until) {
  std::size_t end = generated.size();
  for (const std::string& string : until) end = std::min(end, generated.find(string));
  return std::string(generated.substr(0, end));
}

bool matches_reference(std::string_view generated, std::string_view reference) {
  return without_blanks(generated) == without_blanks(reference);
}

NamedNumbers task_metrics(const EvalTask& task, const std::vector<ItemScore>& scores) {
  CHOIR_CHECK(scores.size() == task.items.size(), "{} scores of {} items", scores.size(),
              task.items.size());
  if (task.kind == TaskKind::choices) return choice_metrics(task, scores);
  if (task.kind == TaskKind::text) return text_metrics(task, scores);
  const auto hits = std::count_if(scores.begin(), scores.end(),
                                  [](const ItemScore& score) { return score.matches; });
  NamedNumbers metrics;
  add_share(metrics, task.kind == TaskKind::continuation ? "acc" : "exact_match", hits,
            scores.size());
  if (task.kind == TaskKind::generation) return metrics;
  double sum = 0;
  for (const ItemScore& score : scores) sum += score.log_probabilities.front();
  metrics.emplace_back("perplexity", std::exp(-sum / static_cast<double>(scores.size())));
  return metrics;
}

}  // namespace choir
