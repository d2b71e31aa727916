#include "choir/train/deck/deck.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "choir/core/json.hpp"
#include "deck_tables.hpp"

namespace choir {
namespace {

deck::Table make_table() {
  deck::Table table;
  deck::add_run_keys(table);
  deck::add_model_keys(table);
  deck::add_speech_keys(table);
  deck::add_data_keys(table);
  deck::add_speech_data_keys(table);
  deck::add_train_keys(table);
  deck::add_parallel_keys(table);
  deck::add_service_keys(table);
  deck::add_watch_keys(table);
  table.foreign(deck::foreign_keys());
  return table;
}

/// For callers that ask often.
const deck::Table& fixed_table() {
  static const deck::Table table = make_table();
  return table;
}

/// Members that follow from others. The run's name and directory count as defaults, not as derived:
/// they must stay when a resolved deck is run again from another place.
void derive(Deck& deck) {
  if (deck.run.name.empty()) deck.run.name = std::filesystem::path(deck.source).stem().string();
  if (deck.run.name.empty()) deck.run.name = "run";
  if (deck.run.dir.empty()) deck.run.dir = "runs/" + deck.run.name;
  if (deck.model.speech()) deck::show_speech(deck);
  GptConfig& gpt = deck.model.gpt;
  if (gpt.n_kv_head == 0) {
    gpt.n_kv_head = gpt.n_head;
    deck.mark_derived("model.n_kv_head");
  }
  if (gpt.ffn_width == 0) {
    gpt.ffn_width = default_ffn_width(gpt);
    deck.mark_derived("model.ffn_width");
  }
  if (deck.optimizer.decay_steps == 0) {
    deck.optimizer.decay_steps = deck.train.max_steps;
    deck.mark_derived("optimizer.decay_steps");
  }
}

/// Appends the cross checks that do not rest on a value already refused.
void append_checks(const Deck& deck, std::vector<KeyProblem>& problems) {
  std::vector<std::string> refused;
  for (const KeyProblem& problem : problems)
    refused.insert(refused.end(), problem.keys.begin(), problem.keys.end());
  for (KeyProblem& problem : deck::check(deck)) {
    const auto is_refused = [&](const std::string& key) {
      return std::find(refused.begin(), refused.end(), key) != refused.end();
    };
    if (std::any_of(problem.keys.begin(), problem.keys.end(), is_refused)) continue;
    std::string place = deck.source;
    for (const std::string& key : problem.keys) {
      const auto origin = deck.origins.find(key);
      if (origin == deck.origins.end() || origin->second.place.empty()) continue;
      place = origin->second.place;
      break;
    }
    problem.text = place + ": " + problem.text;
    problems.push_back(std::move(problem));
  }
}

}  // namespace

Deck read_deck(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_deck(read_deck_text(path), path, overrides);
}

Deck parse_deck(const std::string& text, const std::string& source,
                const std::vector<std::string>& overrides) {
  const JsonDocument document = parse_json(text, source);
  const deck::Table table = make_table();
  Deck result;
  result.source = source;
  std::vector<KeyProblem> problems;
  if (!document.root().is_object())
    throw DeckError(document.place_of("") + ": a deck is an object, { \"model\": { ... }, ... }",
                    "see the decks in inputs/");
  table.read(result, document, result.origins, problems);
  table.override_with(result, overrides, result.origins, problems);
  append_checks(result, problems);
  throw_problems(problems, source);
  derive(result);
  return result;
}

std::string refusal_of(const std::string& key, const std::string& word) {
  Deck deck;
  std::vector<KeyProblem> problems;
  fixed_table().override_with(deck, {key + "=" + word}, deck.origins, problems);
  return problems.empty() ? "" : problems.front().text;
}

Deck vary_deck(const Deck& deck, const std::vector<std::string>& overrides,
               std::vector<KeyProblem>& problems) {
  Deck result = deck;
  fixed_table().override_with(result, overrides, result.origins, problems);
  append_checks(result, problems);
  return result;
}

std::string describe_deck() {
  return make_table().describe();
}

std::string deck_schema() {
  return make_table().schema("choir deck");
}

std::string resolved_json(const Deck& deck) {
  return make_table().resolved(deck, deck.origins);
}

std::string deck_listing(const Deck& deck) {
  return make_table().listing(deck, deck.origins);
}

std::string deck_digest(const Deck& deck) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : make_table().resolved(deck, {}))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return fmt::format("{:016x}", hash);
}

}  // namespace choir
