#include "test/drawn_decks/broken_decks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <functional>

#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "test/drawn_decks/dice.hpp"
#include "test/support/families.hpp"

namespace choir::test {
namespace {

using nlohmann::ordered_json;

/// A name that is replaced by its twin when the document is written, because no object holds a name
/// twice.
constexpr const char* kTwin = "twin of ";

/// The entry at a dotted path; missing sections are created.
ordered_json& at(ordered_json& root, const std::string& path) {
  ordered_json* node = &root;
  for (const std::string& part : split(path, '.')) node = &(*node)[part];
  return *node;
}

std::string section_of(const std::string& path) {
  return path.substr(0, std::min(path.rfind('.'), path.size()));
}
std::string last_name(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

/// A legal deck as a document of its given values.
class Breaker {
 public:
  Breaker(std::uint64_t seed, std::size_t number) : dice_(seed * 7'919 + number) {
    Coverage ignored;
    const Deck deck = parsed(draw_legal_deck(seed, number, ignored, false));
    const ordered_json resolved = parsed_ordered_json(resolved_json(deck));
    for (const Key& key : test::families().keys().keys()) {
      if (deck::concerns(test::families(), deck.family(), key.path)) keys_.push_back(&key);
      if (!deck.given(key.path)) continue;
      given_.push_back(&key);
      ordered_json copy = resolved;
      at(root_, key.path) = at(copy, key.path);
    }
  }

  BrokenDeck broken(const std::string& kind, bool (Breaker::*way)()) {
    out_.kind = kind;
    for (int i = 0; i < 1000 && !(this->*way)(); ++i)
      CHOIR_CHECK(i < 999, "no key can be broken by {}", kind);
    if (out_.text.empty()) out_.text = dumped(root_, 2);
    return out_;
  }

  bool misspelt() {
    std::string path = dice_.of(given_)->path;
    const std::size_t first = path.rfind('.') + 1, at = first + dice_.below(path.size() - first);
    if (dice_.one_in(3))
      path.erase(at, 1);
    else if (dice_.one_in(2))
      path.insert(at, 1, static_cast<char>('a' + dice_.below(26)));
    else
      path[at] = '-';
    if (path.ends_with('.') || test::families().keys().find(path) != nullptr) return false;
    return set(path, 1);
  }

  bool wrong_type() {
    const Key& key = any();
    const std::vector<ordered_json> values{true,
                                           3,
                                           1.5,
                                           "abc",
                                           ordered_json::array(),
                                           ordered_json::object(),
                                           ordered_json::array({nullptr}),
                                           {{"a", ordered_json::array()}}};
    const ordered_json& value = dice_.of(values);
    return !may_hold(key, value) && set_in_file(key.path, value);
  }

  bool out_of_range() {
    const Key& key = any();
    if (dice_.one_in(2)) {
      if (!key.low) return false;
      const double value = key.low_open && dice_.one_in(2) ? *key.low : *key.low - 1;
      return set(key.path, number(key, value));
    }
    if (!key.high) return false;
    return set(key.path, number(key, key.high_open && dice_.one_in(2) ? *key.high : *key.high + 1));
  }

  bool unknown_name() {
    const Key& key = any();
    if (key.type != KeyType::choice) return false;
    std::string word = dice_.of(key.choices);
    switch (dice_.below(4)) {
      case 0:
        word += "x";
        break;
      case 1:
        word = " " + word;
        break;
      case 2:
        word = std::string(100'000, 'x');
        break;
      default:
        word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
    }
    return std::ranges::count(key.choices, word) == 0 && set_in_file(key.path, word);
  }

  bool huge() {
    const Key& key = any();
    if (key.type == KeyType::integer) {
      const std::vector<ordered_json> values{std::uint64_t{18446744073709551615u}, 1e308, 1e19};
      return set(key.path, dice_.of(values));
    }
    return key.type == KeyType::real && literal(key, dice_.one_in(2) ? "1e400" : "-1e400");
  }

  bool not_a_number() {
    const Key& key = any();
    if (key.type != KeyType::integer && key.type != KeyType::real) return false;
    const std::vector<std::string> words{"NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"};
    if (dice_.one_in(2)) return literal(key, dice_.of(words));
    out_.overrides = {key.path + "=" + dice_.of(words)};
    return name(key.path);
  }

  bool empty() {
    const Key& key = any();
    const bool scalar = key.type == KeyType::integer || key.type == KeyType::real ||
                        key.type == KeyType::boolean || key.type == KeyType::choice ||
                        key.type == KeyType::duration;
    return scalar && std::ranges::count(key.choices, "") == 0 && set(key.path, "");
  }

  bool nested() {
    const Key& key = any();
    const std::string section = section_of(key.path), last = last_name(key.path);
    const bool map = key.type == KeyType::text_map || key.type == KeyType::text_or_map;
    switch (dice_.below(5)) {
      case 0:  // a section that is a value
        return section != key.path && set_in_file(section, 3);
      case 1:  // a section that is a list
        return section != key.path && set_in_file(section, ordered_json::array());
      case 2:  // a key that is a section
        return !map && set_in_file(key.path, {{last, 1}});
      case 3:  // a key outside of its section
        return test::families().keys().find(last) == nullptr && !is_section(last) &&
               set_in_file(last, 1);
      default:  // a path for a name
        if (section == key.path) return false;
        root_[key.path] = 1;
        return name(key.path);
    }
  }

  bool twice() {
    const Key& key = *dice_.of(given_);
    const ordered_json value = at(root_, key.path);
    if (dice_.one_in(3) && value.is_primitive()) {
      const std::string word = value.is_string() ? value.get<std::string>() : dumped(value);
      out_.overrides = {key.path + "=" + word, key.path + "=" + word};
      return name(key.path);
    }
    const std::string section = section_of(key.path);
    ordered_json& parent = section == key.path ? root_ : at(root_, section);
    parent[kTwin + last_name(key.path)] = value;
    out_.text = dumped(root_, 2);
    out_.text.erase(out_.text.find(kTwin), std::string_view(kTwin).size());
    return name(last_name(key.path));
  }

  /// Values that are legal separately, but not together.
  bool contradiction() {
    struct Pair {
      const char *key, *value, *other, *with;
    };
    static const std::vector<Pair> kPairs{
        {"model.n_head", "5", "model.n_embd", "32"},
        {"model.encoder.n_head", "3", "model.encoder.n_embd", "16"},
        {"model.lm.n_head", "5", "model.lm.n_embd", "32"},
        {"model.n_kv_head", "3", "model.n_head", "8"},
        {"train.micro_batch_size", "5", "train.global_batch_size", "24"},
        {"parallel.pipeline", "7", "model.n_layer", "2"},
        {"parallel.tensor", "7", "model.n_head", "8"},
        {"parallel.virtual_stages", "3", "parallel.schedule", "1f1b"},
        {"parallel.sequence", "true", "parallel.tensor", "1"},
        {"parallel.offload", "all", "parallel.zero", "1"},
        {"parallel.zero_group", "2", "parallel.zero", "0"},
        {"optimizer.min_lr", "2", "optimizer.learning_rate", "1"},
        {"optimizer.momentum", "0.5", "optimizer.name", "adamw"},
        {"optimizer.moment_precision", "bf16", "optimizer.name", "lars"},
        {"optimizer.moment_precision", "bf16", "train.precision", "fp64"},
        {"optimizer.muon.momentum", "0.5", "optimizer.name", "lars"},
        {"optimizer.wsd_decay_steps", "3", "optimizer.schedule", "linear"},
        {"train.profile", "30:40", "train.max_steps", "20"},
        {"model.fft", "256", "model.window", "400"},
        {"model.freq_width", "99", "model.mels", "20"},
        {"model.conv_kernel", "4", "model.n_layer", "2"},
        {"model.subsampling", "3", "model.n_layer", "2"},
        {"data.readers_every", "2", "data.reader", "own"},
        {"train.unfreeze", "x*", "train.freeze", "[]"},
        {"train.loss_scale", "128", "train.precision", "fp32"},
    };
    const Pair& pair = dice_.of(kPairs);
    if (!is_mine(pair.key) || !is_mine(pair.other)) return false;
    out_.overrides = {std::string(pair.key) + "=" + pair.value,
                      std::string(pair.other) + "=" + pair.with};
    // A deck that trains only adapters may unfreeze parameters that they freeze.
    return std::string_view(pair.key) != "train.unfreeze" ? name(pair.key)
                                                          : !adapts() && name(pair.key);
  }

 private:
  const Key& any() { return dice_.one_in(2) ? *dice_.of(given_) : *dice_.of(keys_); }

  bool is_mine(const std::string& path) const {
    return std::ranges::any_of(keys_, [&](const Key* key) { return key->path == path; });
  }
  bool adapts() const {
    return std::ranges::any_of(
        given_, [](const Key* key) { return key->path.find(".lora.") != std::string::npos; });
  }
  static bool is_section(const std::string& name) {
    const std::vector<std::string> all = test::families().keys().sections();
    return std::ranges::count(all, name) > 0;
  }

  /// The rules of the documentation; null, which stands for the default, breaks none.
  static bool may_hold(const Key& key, const ordered_json& value) {
    const bool flag = std::ranges::count(key.choices, "true") > 0 || key.word == "true";
    switch (key.type) {
      case KeyType::boolean:
        return value.is_boolean();
      case KeyType::integer:
        return value.is_number_integer();
      case KeyType::real:
      case KeyType::duration:
        return value.is_number();
      case KeyType::text:
      case KeyType::choice:
        return value.is_string() || (flag && value.is_boolean());
      case KeyType::text_list:
        return value.is_string() || (flag && value.is_boolean()) || value == ordered_json::array();
      case KeyType::text_map:
        return value == ordered_json::object();
      case KeyType::text_or_map:
        return value.is_string() || value == ordered_json::object();
    }
    return true;
  }

  static ordered_json number(const Key& key, double value) {
    if (key.type == KeyType::integer) return static_cast<std::int64_t>(value);
    return value;
  }

  bool name(const std::string& named) {
    out_.named = named;
    return true;
  }
  bool set_in_file(const std::string& path, ordered_json value) {
    at(root_, path) = std::move(value);
    return name(path);
  }
  /// In the file or on the command line.
  bool set(const std::string& path, const ordered_json& value) {
    if (dice_.one_in(2)) return set_in_file(path, value);
    out_.overrides = {path + "=" + (value.is_string() ? value.get<std::string>() : dumped(value))};
    return name(path);
  }
  /// Characters that JSON does not allow as a value; the message shows their line.
  bool literal(const Key& key, const std::string& characters) {
    at(root_, key.path) = kTwin;
    out_.text = dumped(root_, 2);
    const std::string held = fmt::format("\"{}\"", kTwin);
    out_.text.replace(out_.text.find(held), held.size(), characters);
    return name(last_name(key.path));
  }

  Dice dice_;
  ordered_json root_ = ordered_json::object();
  std::vector<const Key*> keys_, given_;  // of the family; and in the document
  BrokenDeck out_;
};

struct Kind {
  const char* name;
  bool (Breaker::*way)();
};
constexpr Kind kKinds[] = {
    {"misspelt", &Breaker::misspelt},           {"wrong type", &Breaker::wrong_type},
    {"out of range", &Breaker::out_of_range},   {"unknown name", &Breaker::unknown_name},
    {"contradiction", &Breaker::contradiction}, {"huge", &Breaker::huge},
    {"not a number", &Breaker::not_a_number},   {"empty", &Breaker::empty},
    {"nested wrongly", &Breaker::nested},       {"twice", &Breaker::twice}};

}  // namespace

std::vector<std::string> kinds_of_breaks() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

BrokenDeck draw_broken_deck(std::uint64_t seed, std::size_t number) {
  const Kind& kind = kKinds[number % std::size(kKinds)];
  return Breaker(seed, number).broken(kind.name, kind.way);
}

std::string finding(const BrokenDeck& deck) {
  const std::clock_t start = std::clock();
  std::string found = "is not refused";
  try {
    Deck read = parse_deck(test::families(), deck.text, "deck.json", deck.overrides);
    resolve_batch(read, 1);
  } catch (const DeckError& error) {
    const std::string message = describe(error);
    found = message.find(deck.named) != std::string::npos
                ? ""
                : fmt::format("the message does not name {}: {}", deck.named, message);
    if (message.find("json.exception") != std::string::npos) found = "quotes a library: " + message;
  } catch (const std::exception& error) {
    found = fmt::format("ends in another error: {}", error.what());
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (found.empty() && seconds >= 1) found = fmt::format("takes {:.1f} s", seconds);
  return found;
}

}  // namespace choir::test
