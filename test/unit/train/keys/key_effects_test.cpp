// Tests that no key is ignored: for every key of all decks there is a run in which another value
// makes a difference (key_effects.txt), or a test that shows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "test/support/families.hpp"
#include "test/unit/train/keys/key_runs.hpp"

namespace choir {
namespace {

using test::KeyBase;
using test::KeyEffects;
using test::KeyRow;
using test::KeyRuns;
using test::KeySection;
using test::merged;
using test::NamedTest;

/// The value of the key in a deck, as JSON.
std::string value_of(const Deck& deck, const std::string& key) {
  nlohmann::json node = parsed_json(resolved_json(deck));
  for (const std::string& part : split(key, '.')) {
    const auto found = node.find(part);
    if (found == node.end()) return "none";
    node = nlohmann::json(*found);
  }
  return dumped(node);
}

bool names_one(const std::string& text, const std::vector<std::string>& words) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    return text.find(word.substr(0, word.find('='))) != std::string::npos;
  });
}

/// Without the overrides that belong to it, the key is refused by name, or makes a difference.
std::string fault_alone(const KeyRow& row, const KeySection& section, const KeyBase& base,
                        const std::string& word, KeyRuns& runs) {
  std::vector<std::string> known = base.written(row.with);
  known.push_back(word);
  bool ignored = false;
  try {
    const auto words = merged(base.overrides, {word});
    ignored = runs.of(section.observable, base, words) ==
              runs.of(section.observable, base, base.overrides);
  } catch (const DeckError& error) {
    if (!names_one(error.what(), known))
      return fmt::format("{} alone is refused without its name: {}", word, error.what());
  }
  if (ignored && row.excuse.empty())
    return fmt::format("{} is ignored without {}: refuse it by name", word, join(known, " "));
  if (!ignored && !row.excuse.empty()) return fmt::format("{} is not ignored alone", word);
  return {};
}

const Key& key_of(const Deck& deck, const std::string& path) {
  const Key* key = deck.family().keys().find(path);
  if (key == nullptr) throw DeckError(path + " is no key of " + deck.model.type);
  return *key;
}

/// Checks a key for which the deck's value is the only legal one: every other is refused by name.
std::string fault_refused(const KeyRow& row, const KeyBase& base, KeyRuns& runs) {
  const std::string path = base.written({row.key}).front();
  const Deck deck = runs.deck(base, base.overrides);
  const Key& key = key_of(deck, path);
  const auto values =
      key.type == KeyType::boolean ? std::vector<std::string>{"true", "false"} : key.choices;
  const std::string own = value_of(deck, path);
  std::size_t refused = 0;
  for (const std::string& value : values) try {
      if (own == value || own == "\"" + value + "\"") continue;
      runs.deck(base, merged(base.overrides, {path + "=" + value}));
    } catch (const DeckError& error) {
      if (names_one(error.what(), {path})) ++refused;
    }
  return refused > 0 && refused + 1 == values.size() ? "" : path + " has other legal values";
}

/// The reason why the row does not show its key in this base; "" if it does.
std::string fault_of(const KeyRow& row, const KeySection& section, const KeyBase& base,
                     KeyRuns& runs) {
  const std::string word = base.written({row.key + "=" + row.value}).front();
  const std::string key = word.substr(0, word.find('='));
  const auto plain = merged(base.overrides, base.written(row.with)), other = merged(plain, {word});
  try {
    if (value_of(runs.deck(base, plain), key) == value_of(runs.deck(base, other), key))
      return "both decks have the same value of " + key;
    const std::string& usual = runs.of(section.observable, base, plain);
    if (usual.starts_with("exit") &&
        usual.starts_with("exit 0") == (section.observable == "stopped"))
      return "without the value: " + usual.substr(0, usual.find('\n'));
    if (usual == runs.of(section.observable, base, other)) return word + " makes no difference";
    return row.with.empty() ? "" : fault_alone(row, section, base, word, runs);
  } catch (const Error& error) {
    return fmt::format("{}: {}; {}", word, error.what(), error.hint());
  }
}

const KeyEffects& table() {
  static const KeyEffects kTable = KeyEffects::read();
  return kTable;
}

class KeyEffectsTest : public testing::TestWithParam<std::size_t> {
 protected:
  const KeySection& section() const { return table().sections[GetParam()]; }
  test::ScratchFolder folder_;
  KeyRuns runs_{folder_};
};

TEST_P(KeyEffectsTest, AnotherValueMakesADifference) {
  for (const KeyBase& base : section().bases) {
    if (section().observable == "refused") {
      for (const KeyRow& row : section().rows)
        EXPECT_EQ(fault_refused(row, base, runs_), "") << "key_effects.txt:" << row.line;
      continue;
    }
    // A run that differs from its own repetition would show any key.
    const auto once = runs_.again(section().observable, base, base.overrides);
    EXPECT_EQ(once, runs_.of(section().observable, base, base.overrides)) << base.name;
    for (const KeyRow& row : section().rows)
      EXPECT_EQ(fault_of(row, section(), base, runs_), "")
          << "key_effects.txt:" << row.line << ", deck " << base.name;
  }
}

std::string section_name(const testing::TestParamInfo<std::size_t>& info) {
  const KeySection& section = table().sections[info.param];
  std::string name = section.observable + "_" + section.bases.front().name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name + "_" + std::to_string(info.param);
}

INSTANTIATE_TEST_SUITE_P(Of, KeyEffectsTest,
                         testing::Range<std::size_t>(0, table().sections.size()), section_name);

/// "model.n_layer of gpt": every key once for each family that has it, common keys once.
std::set<std::string> keys_of_all_families() {
  std::set<std::string> all, of_families;
  for (const ModelFamily* family : test::families().all())
    for (const Key& key : family->keys().keys()) {
      all.insert(key.path + " of " + std::string(family->name()));
      of_families.insert(key.path);
    }
  const nlohmann::json sources = parsed_json(resolved_json(Deck(test::families())))["sources"];
  for (const auto& [key, source] : sources.items())
    if (!of_families.contains(key)) all.insert(key);
  return all;
}

/// The same list for the keys that a table shows.
std::set<std::string> keys_shown(const KeyEffects& effects, const std::set<std::string>& all) {
  std::set<std::string> shown;
  const auto add = [&](const std::string& key, const std::string& family) {
    bool known = false;
    for (const ModelFamily* any : test::families().all()) {
      const std::string name = key + " of " + std::string(any->name());
      if (!all.contains(name) || !(family.empty() || family == any->name())) continue;
      shown.insert(name), known = true;
    }
    if (!known) shown.insert(key);
  };
  for (const KeySection& section : effects.sections)
    for (const KeyBase& base : section.bases) {
      const std::string family = read_deck(test::families(), base.path, base.overrides).model.type;
      for (const KeyRow& row : section.rows) add(base.written({row.key}).front(), family);
    }
  for (const NamedTest& test : effects.named) add(test.key, test.family);
  for (const std::string& key : effects.unseen) add(key, "");
  return shown;
}

std::vector<std::string> only_in(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::vector<std::string> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  return rest;
}

TEST(KeyEffects, EveryKeyIsShown) {
  const auto all = keys_of_all_families(), shown = keys_shown(table(), all);
  EXPECT_EQ(join(only_in(all, shown), "\n"), "") << "no test shows that these have an effect";
  EXPECT_EQ(join(only_in(shown, all), "\n"), "") << "the table has keys that no deck has";
}

// An entry that is added to the list of keys without observable effect must be added here, too.
TEST(KeyEffects, OneKeyIsUnseen) {
  for (const std::string& key : table().unseen)
    EXPECT_TRUE(key.ends_with(".attention_deterministic")) << key;
}

TEST(KeyEffects, NamedTestsAreThereAndHaveTheirKeys) {
  for (const NamedTest& test : table().named)
    EXPECT_EQ(fault_of(test), "") << "key_effects.txt:" << test.line;
}

// Negative controls: the walk detects each of the mistakes for which it exists.
TEST(KeyEffects, MistakesOfATableAreNoticed) {
  const test::ScratchFolder folder;
  KeyRuns runs(folder);
  const auto fault = [&](const std::string& row) {
    const KeyEffects one = KeyEffects::parse(
        "deck gpt inputs/verify_gpt.json train.global_batch_size=2\nlosses gpt\n  " + row);
    const KeySection& section = one.sections.front();
    return fault_of(section.rows.front(), section, section.bases.front(), runs);
  };
  EXPECT_EQ(fault("model.n_layer = 3"), "");
  EXPECT_NE(fault("model.n_layer = 4").find("the same value"), std::string::npos);
  EXPECT_NE(fault("log.interval = 3").find("no difference"), std::string::npos);
  EXPECT_NE(fault("model.n_layers = 3").find("unknown key"), std::string::npos);
  EXPECT_NE(fault("log.verbose = true with model.n_layer=3").find("no difference"),
            std::string::npos);
  EXPECT_NE(fault("model.n_head = 4 with model.n_layer=3 alone it is not").find("is not ignored"),
            std::string::npos);
  const auto all = keys_of_all_families();
  KeyEffects fewer = table();
  for (KeySection& section : fewer.sections)
    std::erase_if(section.rows, [](const KeyRow& row) { return row.key == "train.recompute"; });
  fewer.named.push_back({.line = 0, .family = "", .key = "train.steps", .file = "", .name = ""});
  const auto shown = keys_shown(fewer, all);
  EXPECT_EQ(only_in(all, shown), std::vector<std::string>{"train.recompute"});
  EXPECT_EQ(only_in(shown, all), std::vector<std::string>{"train.steps"});
  EXPECT_NE(fault_of(NamedTest{.line = 0,
                               .family = "",
                               .key = "log.all_ranks",
                               .file = "test/unit/train/keys/key_effects_test.cpp",
                               .name = "KeyEffects.NoSuchTest"}),
            "");
  EXPECT_NE(fault_of(NamedTest{.line = 0,
                               .family = "",
                               .key = "parallel.timeout",
                               .file = "test/unit/train/keys/key_effects_test.cpp",
                               .name = "KeyEffects.EveryKeyIsShown"}),
            "");
}

}  // namespace
}  // namespace choir
