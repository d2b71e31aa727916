#include "choir/deck/deck.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/deck/foreign_names.hpp"

namespace choir {
namespace {

/// Index of a family in the table. A name that is not in the table is refused elsewhere.
std::size_t index_of(const std::string& family) {
  const auto& all = model_families();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const ModelFamily* any) { return any->name() == family; });
  return found == all.end() ? 0 : static_cast<std::size_t>(found - all.begin());
}

/// Returns a deck of the same family in which all other keys have their defaults.
Deck defaults_of(const Deck& deck) {
  Deck defaults;
  defaults.model.type = deck.model.type;
  return defaults;
}

/// The deck's own table; in each section, the families' keys follow the deck's.
deck::Table make_table() {
  deck::Table table;
  const auto add_those_of_families = [&](const std::string& section) {
    for (std::size_t at = 0; at < model_families().size(); ++at) {
      const ModelFamily& family = *model_families()[at];
      const auto defaults = family.settings();
      for (const Key& key : family.keys().keys())
        if (key.path.starts_with(section + "."))
          table.adopt(
              key, at, key.get(key, defaults->object()),
              [at](void* deck) { return static_cast<Deck*>(deck)->families[at].object(); },
              [](void* deck) { return index_of(static_cast<Deck*>(deck)->model.type); });
    }
  };
  deck::add_run_keys(table);
  deck::add_model_keys(table);
  add_those_of_families("model");
  deck::add_data_keys(table);
  add_those_of_families("data");
  deck::add_train_keys(table);
  add_those_of_families("train");
  deck::add_optimizer_keys(table);
  deck::add_parallel_keys(table);
  add_those_of_families("parallel");
  deck::add_eval_keys(table);
  add_those_of_families("eval");
  deck::add_service_keys(table);
  deck::add_watch_keys(table);
  table.foreign(deck::foreign_keys());
  return table;
}

/// The table is built once because planners parse thousands of decks.
const deck::Table& fixed_table() {
  static const deck::Table table = make_table();
  return table;
}

/// Sets the members that follow from others. The run's name and directory count as defaults, not as
/// derived values, because they must not change when a resolved deck is run again from another
/// directory.
void derive(Deck& deck) {
  if (deck.run.name.empty()) deck.run.name = std::filesystem::path(deck.source).stem().string();
  if (deck.run.name.empty()) deck.run.name = "run";
  if (deck.run.dir.empty()) deck.run.dir = "runs/" + deck.run.name;
  if (!is_utf8(deck.run.dir))  // it may come from the name of the deck file
    throw DeckError(fmt::format("run.dir = {} is not UTF-8, the encoding of all text here",
                                shown_as_text(deck.run.dir)),
                    "set run.dir, or give the deck another name");
  // Job files, chains and logs read run.dir as one line.
  if (std::ranges::any_of(deck.run.dir, [](unsigned char c) { return c < ' ' || c == 127; }))
    throw DeckError(fmt::format("run.dir = {} has a line end or another control character",
                                shown_as_text(deck.run.dir)),
                    "set run.dir, or give the deck another name");
  deck.family().derive(deck);
  if (deck.optimizer.decay_steps == 0) {
    deck.optimizer.decay_steps = deck.train.max_steps;
    deck.mark_derived("optimizer.decay_steps");
  }
}

/// Appends the cross checks that do not depend on a value already refused.
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

AllSettings::AllSettings() {
  for (const ModelFamily* family : model_families()) held_.push_back(family->settings());
}

AllSettings::AllSettings(const AllSettings& other) {
  for (const auto& settings : other.held_) held_.push_back(settings->clone());
}

AllSettings& AllSettings::operator=(const AllSettings& other) {
  return *this = AllSettings(other);
}

bool Deck::given(const std::string& key) const {
  const auto origin = origins.find(key);
  return origin != origins.end() && origin->second.source != KeySource::derived;
}

Deck read_deck(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_deck(read_deck_text(path), path, overrides);
}

Deck parse_deck(const std::string& text, const std::string& source,
                const std::vector<std::string>& overrides) {
  refuse_foreign_file(text, source);
  const JsonDocument document = parse_json(text, source);
  Deck result;
  result.source = source;
  std::vector<KeyProblem> problems;
  if (!document.root().is_object())
    throw DeckError(document.place_of("") + ": a deck is an object, { \"model\": { ... }, ... }",
                    "see the decks in inputs/");
  fixed_table().read(result, document, defaults_of, result.origins, problems);
  fixed_table().override_with(result, overrides, result.origins, problems);
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
  return fixed_table().describe() +
         "\n\nIn a deck, null stands for the default of a key, as if the key were not given.";
}

std::string deck_schema() {
  return fixed_table().schema("choir deck");
}

std::string resolved_json(const Deck& deck) {
  return fixed_table().resolved(deck, defaults_of(deck), deck.origins);
}

std::string deck_listing(const Deck& deck, bool cuda) {
  return fixed_table().listing(deck, deck.origins, [&](const Key& key) {
    if (key.path.starts_with("fault.") && !deck.fault.enable) return false;
    if (!cuda && deck::is_for_cuda(key.path)) return false;
    return deck::concerns(deck.family(), key.path);
  });
}

std::vector<KeyChange> deck_changes(const std::string& resolved, const Deck& now) {
  auto changes = fixed_table().changes(resolved, now, defaults_of(now), now.origins);
  std::erase_if(changes,
                [&](const KeyChange& change) { return !deck::concerns(now.family(), change.key); });
  return changes;
}

OnResume on_resume(const std::string& key) {
  const Key* found = fixed_table().find(key);
  CHOIR_CHECK(found != nullptr, "{} is not in the table", key);
  // The model and the data define a run; all other keys may change when it continues.
  const bool of_the_run = key.starts_with("model.") || key.starts_with("data.");
  return found->on_resume.value_or(of_the_run ? OnResume::fixed : OnResume::free);
}

const KeySet& deck::keys() {
  return fixed_table();
}

bool deck::is_key(const std::string& key) {
  return fixed_table().find(key) != nullptr;
}

std::string deck::key_by_last_name(const std::string& last) {
  // The shortest path wins: the dropout of a model rather than that of its adapters.
  std::string found;
  std::ptrdiff_t depth = 0, alike = 0;
  for (const Key& key : fixed_table().keys()) {
    if (key.path.substr(key.path.rfind('.') + 1) != last) continue;
    const std::ptrdiff_t dots = std::ranges::count(key.path, '.');
    if (found.empty() || dots < depth)
      found = key.path, depth = dots, alike = 1;
    else
      alike += dots == depth;
  }
  return alike == 1 ? found : "";
}

bool deck::has_adapters(const Deck& deck) {
  Deck copy = deck;  // keys are bound to mutable objects
  return std::ranges::any_of(fixed_table().keys(), [&](const Key& key) {
    return key.path.ends_with(".lora.rank") && std::get<std::int64_t>(key.get(key, &copy)) > 0;
  });
}

std::string deck_digest(const Deck& deck) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : fixed_table().resolved(deck, defaults_of(deck), {}))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return fmt::format("{:016x}", hash);
}

}  // namespace choir
