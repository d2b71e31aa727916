#include "test/drawn_decks/legal_decks.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "src/core/json_document.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/lab/verify/verify.hpp"
#include "src/lab/verify/verify_layout.hpp"
#include "test/drawn_decks/dice.hpp"
#include "test/drawn_decks/drawn_values.hpp"
#include "test/support/families.hpp"

namespace choir::test {
namespace {

constexpr int kRanks = 4;
constexpr std::size_t kTurns = 2;  // values of a deck that are given in turns

const std::vector<std::string>& bases() {
  static const std::vector<std::string> kBases{
      "inputs/verify_gpt.json",   "inputs/verify_asr.json",   "inputs/verify_lora.json",
      "inputs/verify_salm.json",  "inputs/verify_codec.json", "inputs/verify_modern.json",
      "inputs/verify_duplex.json"};
  return kBases;
}

/// Reads each file once.
const std::string& text_of(const std::string& base) {
  static std::map<std::string, std::string> texts;
  std::string& text = texts[base];
  if (text.empty()) text = read_deck_text(base);
  return text;
}

/// A key and a word for its value.
using Value = std::pair<std::string, std::string>;

/// Values that a family cannot have, or not in a comparison. A model that answers while it hears
/// needs an encoder for streams. Codes of a codec jump if numbers are rounded in the other
/// direction, which happens in 16 bits.
bool is_none(const ModelFamily& family, const Value& value) {
  static const std::vector<std::pair<std::string, Value>> kNone{
      {"duplex", {"model.encoder.causal", "false"}},
      {"duplex", {"model.encoder.context_style", "regular"}},
      {"duplex", {"model.encoder.conv_norm", "batchnorm"}},
      {"duplex", {"model.encoder.normalise", "true"}},
      {"codec", {"train.frozen_precision", "bf16"}}};
  return std::ranges::count(kNone, std::pair(std::string(family.name()), value)) > 0;
}

/// Every named value that keys of this model can have. Values are given in turns.
std::vector<Value> named_values(const std::vector<KeyWords>& keys, const ModelFamily& family) {
  std::vector<Value> all;
  for (const KeyWords& each : keys)
    if (is_named(*each.key))
      for (const std::string& word : each.words) all.emplace_back(each.key->path, word);
  std::erase_if(all, [&](const Value& value) { return is_none(family, value); });
  return all;
}

/// The named values of the axes of layouts, and the ZeRO stages.
std::vector<Value> named_axes() {
  std::vector<Value> all;
  for (int a = 0; a < kLayoutAxes; ++a) {
    const std::string path = name_of(static_cast<LayoutAxis>(a)).key;
    const Key* key = test::families().keys().find(path);
    if (key == nullptr) continue;
    if (key->type == KeyType::boolean) all.emplace_back(path, "true");
    for (const std::string& word : key->choices) all.emplace_back(path, word);
  }
  // On the CPU device memory is host memory, and "auto" means ulysses if heads can be divided.
  std::erase_if(all, [](const auto& each) {
    return each.second == "ulysses" || (each.first == "parallel.offload" && each.second != "file");
  });
  for (const char* stage : {"1", "2", "3"}) all.emplace_back("parallel.zero", stage);
  return all;
}

class Drawing {
 public:
  Drawing(std::uint64_t seed, std::size_t number, Coverage& coverage)
      : dice_(seed * 1'000'003 + number), coverage_(&coverage) {
    deck_.base = bases()[number % bases().size()];
    const Deck base = parsed(deck_);
    // Rounding errors of gradients that are zero: see inputs/verify_asr.json.
    if (!base.given("optimizer.epsilon")) deck_.given["optimizer.epsilon"] = "1e-6";
    keys_ = words_of(base);
    const std::vector<Value> named = named_values(keys_, base.family());
    // A stride that has no common divisor with their number visits them all.
    const std::size_t step = named.size() % 17 == 0 ? 19 : 17;
    for (std::size_t turn = 0; turn < kTurns; ++turn)
      turns_.push_back(
          named[(seed + (kTurns * (number / bases().size()) + turn) * step) % named.size()]);
  }

  LegalDeck draw(bool laid_out) {
    constexpr int kTries = 40;
    const std::vector<Value> axes = named_axes();
    const Value& axis = dice_.of(axes);
    // Groups of context ranks that exchange heads and are not all context ranks: with four ranks
    // and two heads.
    if (axis.second == "ring-ulysses")
      for (const char* heads : {"model.n_head", "model.lm.n_head"})
        if (is_drawn(heads) && try_value(heads, "2")) fixed_.insert(heads);
    const std::size_t wanted = 4 + dice_.below(7);
    take_turns();
    for (int i = 0; i < kTries && deck_.given.size() < wanted; ++i) {
      const KeyWords& key = dice_.of(keys_);
      // A value that was refused before may fit the deck as it is now.
      if (try_value(key.key->path, dice_.of(key.words))) take_turns();
    }
    choose_precision();
    if (laid_out) choose_layouts(axis);
    return deck_;
  }

 private:
  bool is_drawn(const std::string& key) const {
    return std::ranges::any_of(keys_, [&](const KeyWords& each) { return each.key->path == key; });
  }

  void take_turns() {
    std::erase_if(turns_, [&](const Value& turn) {
      if (!try_value(turn.first, turn.second)) return false;
      fixed_.insert(turn.first);
      return true;
    });
  }

  /// False if the checks of the deck refuse the value, or if it would undo a value that another one
  /// needs. The deck is unchanged then.
  bool try_value(const std::string& key, const std::string& word) {
    const ModelFamily& family = parsed(deck_).family();
    if (fixed_.contains(key) || is_none(family, {key, word})) return false;
    LegalDeck other = deck_;
    other.given[key] = word;
    std::set<std::string> needed;
    for (const auto& [also, value] : companions(key, word, std::string(family.name()))) {
      if (!deck::concerns(test::families(), family, also)) continue;
      if (fixed_.contains(also) && deck_.given[also] != value) return false;
      other.given[also] = value;
      needed.insert(also);
    }
    // A factor for frozen parameters alone is refused once their names are known.
    if (other.given.contains("train.freeze") && other.given.contains("optimizer.scale"))
      return false;
    try {
      std::vector<std::string> notes;
      verify_deck(parsed(other), precision_named(other.precision), notes);
    } catch (const DeckError&) {
      ++coverage_->refused;
      return false;
    }
    ++coverage_->accepted;
    fixed_.merge(needed);
    deck_ = other;
    return true;
  }

  // Other precisions are measured by the runs of one rank in fp64.
  void choose_precision() {
    const bool frozen = deck_.given.contains("train.frozen_precision") &&
                        deck_.given["train.frozen_precision"] == "bf16";
    const bool codes = deck_.base == "inputs/verify_codec.json";
    if (frozen || (!codes && dice_.one_in(8)))
      deck_.precision = "bf16-mixed";
    else if (dice_.one_in(8))
      deck_.precision = "fp32";
  }

  /// Two layouts of two ranks or more; the first has this value if it can.
  void choose_layouts(const Value& wish) {
    std::vector<std::string> notes;
    std::vector<VerifyLayout> legal =
        legal_layouts(verify_deck(parsed(deck_), precision_named(deck_.precision), notes), kRanks);
    std::erase_if(legal, [](const VerifyLayout& layout) { return layout.ranks() == 1; });
    std::vector<VerifyLayout> wished = legal;
    std::erase_if(wished, [&](const VerifyLayout& layout) { return !has(layout, wish); });
    for (const auto* list : {wished.empty() ? &legal : &wished, &legal}) {
      if (list->empty()) continue;
      const VerifyLayout& layout = dice_.of(*list);
      deck_.ranks = std::max(deck_.ranks, layout.ranks());
      deck_.layouts.push_back(layout.to_string());
    }
  }
  static bool has(const VerifyLayout& layout, const Value& value) {
    for (int a = 0; a < kLayoutAxes; ++a) {
      const auto axis = static_cast<LayoutAxis>(a);
      if (value.first == name_of(axis).key) return layout[axis] == value.second;
    }
    return false;
  }

  Dice dice_;
  Coverage* coverage_;
  LegalDeck deck_;
  std::vector<KeyWords> keys_;
  std::vector<Value> turns_;     // values given in turns that are still to be given
  std::set<std::string> fixed_;  // the keys of values that were given, and of those that they need
};

/// The words in single quotes, because they contain brackets and double quotes.
std::string quoted(const std::string& word) {
  return word.find_first_of("[]{}\"* ,") == std::string::npos ? word : "'" + word + "'";
}

}  // namespace

std::vector<std::string> LegalDeck::overrides() const {
  std::vector<std::string> list;
  for (const auto& [key, word] : given) list.push_back(key + "=" + word);
  return list;
}

std::string LegalDeck::command() const {
  std::string text = "verify " + base;
  for (const std::string& each : overrides()) text += " " + quoted(each);
  // Tolerances of other precisions come from the rounding in this many losses and norms.
  return fmt::format("{} --steps {} --precision {} --layouts '{}'", text,
                     precision == "fp64" ? 2 : 6, precision, join(layouts, ","));
}

Deck parsed(const LegalDeck& deck) {
  return parse_deck(test::families(), text_of(deck.base), deck.base, deck.overrides());
}

void Coverage::add(const LegalDeck& deck) {
  const Deck read = parsed(deck);
  const std::string family(read.family().name());
  for (const auto& [key, word] : deck.given) values_[family + " " + key].insert(word);
  values_["any --precision"].insert(deck.precision);
  for (const std::string& text : deck.layouts) {
    const VerifyLayout layout = parse_layouts(text).front();
    for (int a = 0; a < kLayoutAxes; ++a)
      values_[std::string("any ") + name_of(static_cast<LayoutAxis>(a)).key].insert(
          layout[static_cast<LayoutAxis>(a)]);
  }
}

std::vector<std::string> Coverage::missing() const {
  std::vector<std::string> list;
  const auto want = [&](const std::string& key, const std::string& word) {
    const auto found = values_.find(key);
    if (found == values_.end() || !found->second.contains(word)) list.push_back(key + "=" + word);
  };
  for (const std::string& base : bases()) {
    const Deck deck = parsed({.base = base});
    const std::string family(deck.family().name());
    for (const auto& [key, word] : named_values(words_of(deck), deck.family()))
      want(family + " " + key, word);
  }
  for (const auto& [key, word] : named_axes()) want("any " + key, word);
  for (const char* precision : {"fp64", "fp32", "bf16-mixed"}) want("any --precision", precision);
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

std::string Coverage::to_string() const {
  std::string text;
  for (const auto& [key, words] : values_)
    text += fmt::format("  {}: {}\n", key, join({words.begin(), words.end()}, " "));
  return text;
}

LegalDeck draw_legal_deck(std::uint64_t seed, std::size_t number, Coverage& coverage,
                          bool laid_out) {
  LegalDeck deck = Drawing(seed, number, coverage).draw(laid_out);
  coverage.add(deck);
  return deck;
}

}  // namespace choir::test
