#include "choir/deck/deck.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/deck/foreign_names.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {
namespace {

/// Index of a family in the table. A name that is not in the table is refused elsewhere.
std::size_t index_of(const FamilyTable& table, const std::string& family) {
  const auto& all = table.all();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const ModelFamily* any) { return any->name() == family; });
  return found == all.end() ? 0 : static_cast<std::size_t>(found - all.begin());
}

/// Returns a deck of the same family in which all other keys have their defaults.
Deck defaults_of(const Deck& deck) {
  Deck defaults(deck.families.table());
  defaults.model.type = deck.model.type;
  return defaults;
}

/// The deck's own keys; in each section, the families' keys follow them.
std::unique_ptr<const deck::Table> make_keys(const FamilyTable& families) {
  auto made = std::make_unique<deck::Table>();  // keys refer to it
  deck::Table& table = *made;
  const auto add_those_of_families = [&](const std::string& section) {
    for (std::size_t at = 0; at < families.all().size(); ++at) {
      const ModelFamily& family = *families.all()[at];
      const auto defaults = family.settings();
      for (const Key& key : family.keys().keys())
        if (key.path.starts_with(section + "."))
          table.adopt(
              key, at, key.get(key, defaults->object()),
              [at](void* deck) { return static_cast<Deck*>(deck)->families[at].object(); },
              [&families](void* deck) {
                return index_of(families, static_cast<Deck*>(deck)->model.type);
              });
    }
  };
  deck::add_run_keys(table);
  deck::add_model_keys(table, families);
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
  return made;
}

const deck::Table& keys_of(const Deck& deck) {
  return deck.families.table().keys();
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
  // Timing chooses other bits in another run.
  if (deck.train.reproducible && !deck.given("train.time_products")) {
    deck.train.time_products = false;
    deck.mark_derived("train.time_products");
  }
  if (deck.optimizer.decay_steps == 0) {
    deck.optimizer.decay_steps = deck.train.max_steps;
    deck.mark_derived("optimizer.decay_steps");
  }
}

/// The deck file, and before it the files that it includes, as far as a value of this deck is
/// theirs.
std::vector<std::string> files_of(const Deck& deck) {
  std::vector<std::string> files;
  for (const auto& [key, origin] : deck.origins) {
    if (origin.source != KeySource::file) continue;
    const std::string file = origin.place.substr(0, origin.place.rfind(':'));
    if (file != deck.source && std::ranges::find(files, file) == files.end()) files.push_back(file);
  }
  std::ranges::sort(files);
  files.push_back(deck.source);
  return files;
}

/// Problems with keys that are given but have no effect in this deck.
std::vector<KeyProblem> keys_without_effect(const Deck& deck) {
  std::vector<KeyProblem> problems = keys_of(deck).idle(deck, defaults_of(deck), deck.origins);
  for (const std::string_view unread : deck.family().unread_keys()) {
    const std::string key(unread);
    const bool known = std::ranges::any_of(
        problems, [&](const KeyProblem& problem) { return problem.keys.front() == key; });
    if (!known && deck.given(key))
      problems.push_back({{key, "model.type"},
                          fmt::format("{} has no effect with model.type = \"{}\"; leave it out",
                                      key, deck.family().name())});
  }
  return problems;
}

/// Puts the origin of the first key that has one in front of the text.
KeyProblem placed(KeyProblem problem, const Deck& deck) {
  std::string place = deck.source;
  for (const std::string& key : problem.keys) {
    const auto origin = deck.origins.find(key);
    if (origin == deck.origins.end() || origin->second.place.empty()) continue;
    place = origin->second.place;
    break;
  }
  problem.text = place + ": " + problem.text;
  return problem;
}

/// Appends the problems with keys without effect, except those for which `excused(key)` is true.
template <class Excused>
void append_without_effect(const Deck& deck, const Excused& excused,
                           std::vector<KeyProblem>& problems) {
  const auto refused = [&, n = problems.size()](const std::string& key) {
    return std::any_of(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(n),
                       [&](const KeyProblem& problem) {
                         return std::ranges::find(problem.keys, key) != problem.keys.end();
                       });
  };
  for (KeyProblem& problem : keys_without_effect(deck))
    if (!excused(problem.keys.front()) && std::ranges::none_of(problem.keys, refused))
      problems.push_back(placed(std::move(problem), deck));
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
    problems.push_back(placed(std::move(problem), deck));
  }
}

}  // namespace

FamilyTable::FamilyTable(std::vector<const ModelFamily*> families)
    : families_(std::move(families)) {
  for (std::size_t at = 0; at < families_.size(); ++at)
    for (std::size_t other = 0; other < at; ++other)
      CHOIR_CHECK(families_[at]->name() != families_[other]->name(),
                  "two families of models are called '{}'", families_[at]->name());
  keys_ = make_keys(*this);
}

FamilyTable::~FamilyTable() = default;

const ModelFamily& FamilyTable::named(std::string_view name) const {
  const auto found = std::ranges::find(families_, name, &ModelFamily::name);
  CHOIR_CHECK(found != families_.end(), "no family of models is called '{}'", name);
  return **found;
}

AllSettings::AllSettings(const FamilyTable& table) : table_(&table) {
  for (const ModelFamily* family : table.all()) held_.add(family->settings());
}

SettingsList settings_of_rules() {
  SettingsList list;
  for (const UpdateRule* rule : update_rules()) list.add(rule->settings());
  return list;
}

bool Deck::given(const std::string& key) const {
  const auto origin = origins.find(key);
  return origin != origins.end() && origin->second.source != KeySource::derived;
}

Deck read_deck(const FamilyTable& table, const std::string& path,
               const std::vector<std::string>& overrides) {
  return parse_deck(table, read_deck_with_includes(path), path, overrides);
}

Deck parse_deck(const FamilyTable& table, const std::string& text, const std::string& source,
                const std::vector<std::string>& overrides) {
  refuse_foreign_file(table.keys(), text, source);
  const JsonDocument document = parse_deck_text(
      text, source, [&](const std::string& path) { return table.keys().find(path) != nullptr; });
  Deck result(table);
  result.source = source;
  std::vector<KeyProblem> problems;
  if (!document.root().is_object())
    throw DeckError(document.place_of("") + ": a deck is an object, { \"model\": { ... }, ... }",
                    "see the decks in inputs/");
  table.keys().read(result, document, defaults_of, result.origins, problems);
  // A key of the file that an override of another key leaves without effect is excused, and so are
  // the keys of decks that a run wrote, which contain such overrides.
  const bool written = document.root().contains("sources");
  const std::set<std::string> idle = written ? std::set<std::string>() : deck::idle_keys(result);
  table.keys().override_with(result, overrides, result.origins, problems);
  append_without_effect(
      result,
      [&](const std::string& key) {
        return result.origins[key].source == KeySource::file && !idle.contains(key);
      },
      problems);
  append_checks(result, problems);
  throw_problems(problems, source);
  derive(result);
  return result;
}

std::string refusal_of(const FamilyTable& table, const std::string& key, const std::string& word) {
  Deck deck(table);
  std::vector<KeyProblem> problems;
  table.keys().override_with(deck, {key + "=" + word}, deck.origins, problems);
  return problems.empty() ? "" : problems.front().text;
}

Deck vary_deck(const Deck& deck, const std::vector<std::string>& overrides,
               std::vector<KeyProblem>& problems) {
  Deck result = deck;
  keys_of(deck).override_with(result, overrides, result.origins, problems);
  append_without_effect(
      result,
      [&](const std::string& key) {
        return std::ranges::none_of(overrides, [&](const std::string& each) {
          return each.starts_with(key) &&
                 trim(std::string_view(each).substr(key.size())).starts_with('=');
        });
      },
      problems);
  append_checks(result, problems);
  return result;
}

std::string describe_deck(const FamilyTable& table) {
  return table.keys().describe(Deck(table)) +
         "\n\nIn a deck, null stands for the default of a key, as if the key were not given.";
}

std::string deck_schema(const FamilyTable& table) {
  return table.keys().schema("choir deck", Deck(table));
}

std::string resolved_json(const Deck& deck) {
  nlohmann::ordered_json json =
      parsed_ordered_json(keys_of(deck).resolved(deck, defaults_of(deck), deck.origins));
  nlohmann::ordered_json& decks = json["decks"] = nlohmann::ordered_json::array();
  for (const std::string& file : files_of(deck)) decks.push_back(file);
  return dumped(json, 2) + "\n";
}

std::string deck_listing(const Deck& deck, bool cuda) {
  return keys_of(deck).listing(deck, deck.origins, [&](const Key& key) {
    if (key.path.starts_with("fault.") && !deck.fault.enable) return false;
    if (!cuda && deck::is_for_cuda(key.path)) return false;
    return deck::concerns(deck.families.table(), deck.family(), key.path);
  });
}

std::vector<KeyChange> deck_changes(const std::string& resolved, const Deck& now) {
  auto changes = keys_of(now).changes(resolved, now, defaults_of(now), now.origins);
  std::erase_if(changes, [&](const KeyChange& change) {
    return !deck::concerns(now.families.table(), now.family(), change.key);
  });
  return changes;
}

OnResume on_resume(const FamilyTable& table, const std::string& key) {
  const Key* found = table.keys().find(key);
  CHOIR_CHECK(found != nullptr, "{} is not in the table", key);
  // The model and the data define a run; all other keys may change when it continues.
  const bool of_the_run = key.starts_with("model.") || key.starts_with("data.");
  return found->on_resume.value_or(of_the_run ? OnResume::fixed : OnResume::free);
}

std::string deck::key_by_last_name(const KeySet& keys, const std::string& last) {
  // The shortest path wins: the dropout of a model rather than that of its adapters.
  std::string found;
  std::ptrdiff_t depth = 0, alike = 0;
  for (const Key& key : keys.keys()) {
    if (key.path.substr(key.path.rfind('.') + 1) != last) continue;
    const std::ptrdiff_t dots = std::ranges::count(key.path, '.');
    if (found.empty() || dots < depth)
      found = key.path, depth = dots, alike = 1;
    else
      alike += dots == depth;
  }
  return alike == 1 ? found : "";
}

std::set<std::string> deck::idle_keys(const Deck& deck) {
  std::set<std::string> keys;
  for (const KeyProblem& problem : keys_without_effect(deck)) keys.insert(problem.keys.front());
  return keys;
}

bool deck::has_adapters(const Deck& deck) {
  Deck copy = deck;  // keys are bound to mutable objects
  return std::ranges::any_of(keys_of(deck).keys(), [&](const Key& key) {
    return key.path.ends_with(".lora.rank") && std::get<std::int64_t>(key.get(key, &copy)) > 0;
  });
}

std::string deck_digest(const Deck& deck) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : keys_of(deck).resolved(deck, defaults_of(deck), {}))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return fmt::format("{:016x}", hash);
}

}  // namespace choir
