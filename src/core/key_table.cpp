// Reading of values into a table of keys, and keys that have no effect with the values of others.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "choir/core/key_table.hpp"
#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {

/// "an integer", "text", "a list" ...
std::string kind_of(const nlohmann::json& value);
/// The complaint about a value whose type is not that of the key.
std::string wrong_type(const Key& key, const nlohmann::json& value);
/// The value in the key's type; nullopt if its type is another one.
std::optional<KeyValue> convert(const Key& key, const nlohmann::json& value);
/// "" for a legal value, else the complaint. `given` is the same value as the user wrote it.
std::string illegal(const Key& key, const nlohmann::json& given, const KeyValue& value);
/// The text after '=' on the command line, as JSON if the key expects JSON.
nlohmann::json from_command(const Key& key, const std::string& raw);

using nlohmann::json;

namespace {

std::string shown(const json& value) {
  std::string text = dumped_safely(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

/// The key's constraint. It omits a bound that follows only from the width of the type; that bound
/// is added for a value that exceeded it.
std::string legal_values(const Key& key, bool too_large) {
  const std::string said = key.constraint();
  if (!too_large) return said;
  constexpr double kMostInt = std::numeric_limits<int>::max();
  const bool untold = !key.high || *key.high == kMostInt;
  if (!untold) return said;
  const std::int64_t most =
      key.high ? std::numeric_limits<int>::max() : std::numeric_limits<std::int64_t>::max();
  return fmt::format("{}{}value <= {}", said, said.empty() ? "" : ", ", most);
}

}  // namespace

std::string kind_of(const json& value) {
  if (value.is_boolean()) return "true or false";
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "text";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return "null";
}

std::string wrong_type(const Key& key, const json& value) {
  std::string hint, kind = kind_of(value);
  if (key.type == KeyType::integer && value.is_number_float()) {
    const double number = value.get<double>();
    kind = "a number with a decimal point or an exponent";
    if (number == std::floor(number) && std::abs(number) < 9e15)
      hint = fmt::format("; write {}", static_cast<std::int64_t>(number));
  }
  if (key.type == KeyType::integer && value.is_number_unsigned())
    return fmt::format("{} = {} is too large for an integer; legal: {}", key.path, shown(value),
                       legal_values(key, true));
  const std::string word = value.is_string() ? value.get<std::string>() : dumped(value);
  if (key.type == KeyType::boolean)
    if (const std::string meant = boolean_meant_by(word); !meant.empty())
      hint = "; write " + meant + " without quotes, lower case";
  if ((key.type == KeyType::integer || key.type == KeyType::real) && value.is_string())
    if (const std::string meant = number_meant_by(word, key.type == KeyType::integer);
        !meant.empty())
      hint = "; write " + meant;
  return fmt::format("{} = {}: expected {}, not {}{}", key.path, shown(value), key.type_name(),
                     kind, hint);
}

std::optional<KeyValue> convert(const Key& key, const json& value) {
  switch (key.type) {
    case KeyType::boolean:
      if (value.is_boolean()) return value.get<bool>();
      break;
    case KeyType::integer:
      if (value.is_string() && !key.word.empty() && value.get<std::string>() == key.word)
        return key.word_value;
      if (value.is_number_unsigned() &&
          value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
        break;
      if (value.is_number_integer()) return value.get<std::int64_t>();
      break;
    case KeyType::real:
      if (value.is_number()) return value.get<double>();
      break;
    case KeyType::text:
    case KeyType::choice:
      if (value.is_string()) return value.get<std::string>();
      if (value.is_structured() && key.holds_json) return dumped(value);
      if (value.is_boolean() && std::count(key.choices.begin(), key.choices.end(), "true") > 0)
        return std::string(value.get<bool>() ? "true" : "false");
      break;
    case KeyType::duration:
      if (value.is_number()) return value.get<double>();
      if (value.is_string())
        if (const auto seconds = parse_hms(value.get<std::string>())) return *seconds;
      break;
    case KeyType::text_list: {
      if (value.is_string()) return std::vector<std::string>{value.get<std::string>()};
      if (value == true && key.word == "true") return std::vector<std::string>{key.word};
      if (!value.is_array()) break;
      std::vector<std::string> list;
      for (const json& item : value) {
        const bool number = key.holds_json && item.is_number();
        if (!item.is_string() && !number) return std::nullopt;
        list.push_back(number ? dumped(item) : item.get<std::string>());
      }
      return list;
    }
    case KeyType::text_or_map:
      if (value.is_string()) return value.get<std::string>();
      [[fallthrough]];
    case KeyType::text_map: {
      if (!value.is_object()) break;
      TextMap map;
      for (const auto& [name, item] : value.items()) {
        if ((item.is_structured() && !key.holds_json) || item.is_null()) return std::nullopt;
        map[name] = item.is_string() ? item.get<std::string>() : dumped(item);
      }
      return map;
    }
  }
  return std::nullopt;
}

/// Words of other programs for values, and the words here.
constexpr std::pair<std::string_view, std::string_view> kForeignWords[] = {
    {"gpu", "cuda"},
    {"nvidia", "cuda"},
    {"host", "cpu"},
    {"bf16", "bf16-mixed"},
    {"bfloat16", "bf16-mixed"},
    {"16-bf16", "bf16-mixed"},
    {"amp", "bf16-mixed"},
    {"mixed", "bf16-mixed"},
    {"fp16", "fp16-mixed"},
    {"float16", "fp16-mixed"},
    {"half", "fp16-mixed"},
    {"16", "fp16-mixed"},
    {"16-mixed", "fp16-mixed"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"single", "fp32"},
    {"32", "fp32"},
    {"32-true", "fp32"},
    {"tf32", "fp32"},
    {"float64", "fp64"},
    {"double", "fp64"},
    {"64", "fp64"},
    {"rotary", "rope"},
    {"absolute", "learned"},
    {"silu", "swiglu"},
    {"swish", "silu"},
    {"swish", "swiglu"},
    {"tcp", "mpi"},
    {"ethernet", "mpi"},
    {"gloo", "mpi"},
    {"ib", "auto"},
    {"infiniband", "auto"},
    {"llama", "gpt"},
    {"gpt2", "gpt"},
    {"transformer", "gpt"},
    {"conformer", "fastconformer"},
    {"ctc", "fastconformer"},
    {"asr", "fastconformer"},
    {"true", "full"},
    {"false", "none"},
    {"on", "full"},
    {"off", "none"},
    {"no", "none"}};

/// The legal word that somebody probably meant: that of a known word of other programs, the
/// nearest one, or one that contains the word or is contained in it; "" if there is none.
std::string probable_word(const std::string& name, const std::vector<std::string>& choices) {
  const std::string folded = fold_name(name);
  const auto is_legal = [&](std::string_view word) {
    return std::find(choices.begin(), choices.end(), word) != choices.end();
  };
  for (const auto& [theirs, ours] : kForeignWords)
    if (folded == theirs && is_legal(ours)) return std::string(ours);
  if (std::string near = nearest_name(name, choices); !near.empty()) return near;
  constexpr std::size_t kLeast = 3;  // characters
  for (const std::string& choice : choices)
    if (std::min(choice.size(), folded.size()) >= kLeast &&
        (folded.find(choice) != std::string::npos || choice.find(folded) != std::string::npos))
      return choice;
  return {};
}

std::string illegal(const Key& key, const json& given, const KeyValue& value) {
  const std::string head = fmt::format("{} = {}", key.path, shown(given));
  if (!key.choices.empty() && std::holds_alternative<std::string>(value)) {
    const auto& name = std::get<std::string>(value);
    const std::string legal = join(key.choices, ", ");
    if (std::find(key.choices.begin(), key.choices.end(), name) != key.choices.end()) return {};
    if (std::find(key.later.begin(), key.later.end(), name) != key.later.end())
      return fmt::format("{} is not yet supported; legal now: {}", head, legal);
    const std::string near = probable_word(name, key.choices);
    return fmt::format("{} is not one of: {}{}", head, legal,
                       near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
  }
  std::optional<double> number;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) number = static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) number = *real;
  const bool is_word = given.is_string() && given == key.word;
  if (number && !is_word) {
    const bool low = key.low && (*number < *key.low || (key.low_open && *number == *key.low));
    const bool high = key.high && (*number > *key.high || (key.high_open && *number == *key.high));
    if ((low || high) && !key.later.empty())
      return fmt::format("{} is not yet supported; legal now: {}", head, key.later.front());
    if (low || high)
      return fmt::format("{} is out of range; legal: {}", head, legal_values(key, high));
  }
  if (key.check) {
    const std::string complaint = key.check(value);
    if (!complaint.empty()) return fmt::format("{}: {}", head, complaint);
  }
  return {};
}

json from_command(const Key& key, const std::string& raw) {
  const bool quoted = raw.size() >= 2 && raw.front() == '"' && raw.back() == '"';
  const bool text = key.type == KeyType::text || key.type == KeyType::choice;
  const bool map = key.type == KeyType::text_or_map && raw.starts_with('{');
  if ((text || (key.type == KeyType::text_or_map && !map)) && !quoted) return raw;
  json value(json::value_t::discarded);
  try {
    value = read_json(raw, key.path);
  } catch (const JsonError& error) {
    // A value that is not JSON, or is nested too deeply, is treated as text. A key given twice is
    // an error.
    if (error.fault().cause.find("is given twice") != std::string::npos)
      throw DeckError(error.what(), error.hint());
  }
  if (key.type == KeyType::text_list && (value.is_discarded() || !value.is_array()))
    return split(raw, ',');
  return value.is_discarded() ? json(raw) : value;
}

namespace {

using nlohmann::json;

constexpr const char* kCommandLine = "command line";

}  // namespace

/// Applies one document or one list of overrides and collects complaints.
class KeySet::Reader {
 public:
  Reader(const KeySet& keys, void* object, KeyOrigins& origins, std::vector<KeyProblem>& problems)
      : keys_(keys), object_(object), origins_(origins), problems_(problems) {}

  /// The overrides that override_one() will get.
  void expect(const std::vector<std::string>& words) { words_ = words; }

  void complain(const std::string& key, const std::string& place, const std::string& text) {
    problems_.push_back({{key}, fmt::format("{}: {}", place, text)});
  }

  bool assign(const Key& key, const json& given, const std::string& place, KeySource source) {
    const auto value = convert(key, given);
    if (!value) return complain(key.path, place, wrong_type(key, given)), false;
    if (std::string complaint = illegal(key, given, *value); !complaint.empty()) {
      const std::string word = given.is_string() ? given.get<std::string>() : "";
      for (const ForeignKey& foreign : keys_.foreign_)
        if (foreign.name == key.path + "=" + word) complaint += "; " + foreign.advice;
      return complain(key.path, place, complaint), false;
    }
    key.set(key, object_, *value);
    origins_[key.path] = {source, place};
    return true;
  }

  void walk(const json& node, const std::string& prefix, const JsonDocument& document) {
    for (const auto& [name, value] : node.items()) {
      const std::string path = prefix.empty() ? name : prefix + "." + name;
      const std::string place = document.place_of(path);
      constexpr std::string_view kBeside[] = {"$schema", "sources", "derived", "decks"};
      if (prefix.empty() && std::ranges::find(kBeside, name) != std::end(kBeside)) continue;
      const Key* key = keys_.find(path);
      if (name.find('.') != std::string::npos) {
        complain(path, place,
                 fmt::format("key '{}' holds a dot; in a file sections are objects: "
                             "\"{}\": {{...}}",
                             path, split(name, '.').front()));
      } else if (key) {
        if (!value.is_null()) assign(*key, value, place, KeySource::file);  // null means not given
      } else if (is_section(path)) {
        if (value.is_object())
          walk(value, path, document);
        else
          complain(
              path, place,
              fmt::format("'{}' is a section: expected an object, not {}", path, kind_of(value)));
      } else {
        complain(path, place, unknown(path));
      }
    }
  }

  /// A resolved document lists which of its values were defaults; they remain defaults while they
  /// are equal.
  void mark_defaults(const JsonDocument& document, const void* defaults) {
    const auto sources = document.root().find("sources");
    if (sources == document.root().end()) return;
    if (!sources->is_object())
      return complain("sources", document.place_of("sources"), "'sources' must be an object");
    for (const auto& [path, source] : sources->items()) {
      const Key* key = keys_.find(path);
      if (!key) {
        complain(path, document.place_of("sources." + path), "sources: " + unknown(path));
      } else if (source == "default" || source == "derived") {
        const KeyValue value = key->get(*key, object_);
        const KeyValue standard = key->get(*key, const_cast<void*>(defaults));
        const bool was = source == "derived" && key->former_default == value;
        if (was) key->set(*key, object_, standard);
        if (was || value == standard) origins_.erase(path);
      }
    }
  }

  /// "key = value" arrives as three words, "key= value" and "key value" as two, of which some have
  /// no meaning of their own. Complains once about all of them.
  bool complain_about_blanks(const std::string& text) {
    const auto at = std::ranges::find(words_, text);
    const auto index = static_cast<std::size_t>(at - words_.begin());
    const auto word = [&](std::size_t i) { return i < words_.size() ? words_[i] : std::string(); };
    const auto is_key = [&](const std::string& name) { return keys_.find(name) != nullptr; };
    const auto complain_with = [&](const std::string& key, std::size_t next, const char* place) {
      std::string value = word(next);
      skipped_.insert(skipped_.end(), words_.begin() + static_cast<std::ptrdiff_t>(index),
                      words_.begin() + static_cast<std::ptrdiff_t>(next + 1));
      if (value.starts_with('=')) value.erase(0, 1);
      complain(key, kCommandLine,
               place == nullptr
                   ? fmt::format("there is no = behind {}: write {}={}", key, key, value)
                   : fmt::format("blanks {} the = of {}: write {}={} without blanks", place, key,
                                 key, value));
      return true;
    };
    if (std::ranges::find(skipped_, text) != skipped_.end()) return true;
    const bool ends = text.ends_with('=');
    const std::string key = ends ? text.substr(0, text.size() - 1) : text;
    if (!is_key(key)) return false;
    const std::string next = word(index + 1);
    if (ends && !next.empty() && next.find('=') == std::string::npos)
      return complain_with(key, index + 1, "behind");
    if (!ends && next == "=" && !word(index + 2).empty())
      return complain_with(key, index + 2, "around");
    if (!ends && next.size() > 1 && next.starts_with('='))
      return complain_with(key, index + 1, "before");
    const bool value = !next.empty() && next.find('=') == std::string::npos && !is_key(next);
    return !ends && value && complain_with(key, index + 1, nullptr);
  }

  void override_one(const std::string& text, std::vector<std::string>& seen) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      if (complain_about_blanks(text)) return;
    if (equals == std::string::npos || equals == 0)
      return complain(text, kCommandLine,
                      fmt::format("'{}' is not of the form key.path=value", text));
    const std::string path(trim(std::string_view(text).substr(0, equals)));
    const std::string raw(trim(std::string_view(text).substr(equals + 1)));
    if (std::find(seen.begin(), seen.end(), path) != seen.end())
      return complain(path, kCommandLine,
                      fmt::format("{} is given twice; remove one of them", path));
    seen.push_back(path);
    if (!is_utf8(raw))
      return complain(path, kCommandLine,
                      fmt::format("{} = {} is not UTF-8, the encoding of all text here: choose "
                                  "another name",
                                  shown_as_text(path), shown_as_text(raw)));
    if (const Key* key = keys_.find(path)) {
      assign(*key, from_command(*key, raw), kCommandLine, KeySource::command);
      return;
    }
    if (override_entry(path, raw)) return;
    complain(path, kCommandLine,
             is_section(path) ? fmt::format("'{}' is a section, not a key", path) : unknown(path));
  }

 private:
  /// The nearest key is searched among all keys; for thousands of errors this would take too long.
  std::string unknown(const std::string& path) const {
    constexpr std::size_t kExplained = 100;
    return problems_.size() < kExplained ? keys_.unknown(path)
                                         : fmt::format("unknown key '{}'", path);
  }
  bool is_section(const std::string& path) const {
    return std::any_of(keys_.keys().begin(), keys_.keys().end(),
                       [&](const Key& key) { return key.path.starts_with(path + "."); });
  }

  /// An override of one entry of a map: data.hints.cb_nodes=4.
  bool override_entry(const std::string& path, const std::string& raw) {
    for (const Key& key : keys_.keys()) {
      const bool maps = key.type == KeyType::text_map || key.type == KeyType::text_or_map;
      if (!maps || !path.starts_with(key.path + ".")) continue;
      const KeyValue held = key.get(key, object_);
      const auto* text = std::get_if<std::string>(&held);
      if (text != nullptr && !text->empty())
        return complain(path, kCommandLine,
                        fmt::format("{} is one text, \"{}\", which has no entries; give it whole",
                                    key.path, *text)),
               true;
      TextMap map = text != nullptr ? TextMap() : std::get<TextMap>(held);
      map[path.substr(key.path.size() + 1)] = raw;
      return assign(key, json(map), kCommandLine, KeySource::command), true;
    }
    return false;
  }

  const KeySet& keys_;
  void* object_;
  KeyOrigins& origins_;
  std::vector<KeyProblem>& problems_;
  std::vector<std::string> words_;    // all overrides
  std::vector<std::string> skipped_;  // words of overrides with blanks, which one complaint named
};

Key& KeySet::append(Key key) {
  CHOIR_CHECK(find(key.path) == nullptr, "key {} stands twice in the table", key.path);
  keys_.push_back(std::move(key));
  return keys_.back();
}

const Key* KeySet::find(const std::string& path) const {
  for (const Key& key : keys_)
    if (key.path == path) return &key;
  return nullptr;
}

void KeySet::adopt(const Key& key, std::size_t owner, const KeyValue& standard,
                   std::function<void*(void*)> part, std::function<std::size_t(void*)> current) {
  Key adopted = key;
  adopted.former_default = standard;
  adopted.get = [key, part](const Key&, void* object) { return key.get(key, part(object)); };
  adopted.set = [key, part](const Key&, void* object, const KeyValue& value) {
    key.set(key, part(object), value);
  };
  const auto found = std::find_if(keys_.begin(), keys_.end(),
                                  [&](const Key& known) { return known.path == key.path; });
  if (found == keys_.end()) {
    keys_.push_back(std::move(adopted));
    return;
  }
  CHOIR_CHECK(found->condition_text() == key.condition_text(),
              "owners of the key {} state different conditions", key.path);
  CHOIR_CHECK(found->type == key.type, "two owners have {} as keys of different types", key.path);
  found->get = [first = found->get, own = adopted.get, owner, current](const Key& self,
                                                                       void* object) {
    return current(object) == owner ? own(self, object) : first(self, object);
  };
  found->set = [first = found->set, own = adopted.set](const Key& self, void* object,
                                                       const KeyValue& value) {
    first(self, object, value);
    own(self, object, value);
  };
}

void KeySet::read_values(void* object, const JsonDocument& document, KeyOrigins& origins,
                         std::vector<KeyProblem>& problems) const {
  CHOIR_CHECK(document.root().is_object(), "{} is not an object", document.source());
  Reader(*this, object, origins, problems).walk(document.root(), "", document);
}

void KeySet::mark_defaults(void* object, const void* defaults, const JsonDocument& document,
                           KeyOrigins& origins, std::vector<KeyProblem>& problems) const {
  Reader(*this, object, origins, problems).mark_defaults(document, defaults);
  // Sorted in the order of the file; the library sorts objects by name.
  std::stable_sort(problems.begin(), problems.end(), [&](const auto& a, const auto& b) {
    return document.line_of(a.keys.front()) < document.line_of(b.keys.front());
  });
}

void KeySet::read_overrides(void* object, const std::vector<std::string>& overrides,
                            KeyOrigins& origins, std::vector<KeyProblem>& problems) const {
  Reader reader(*this, object, origins, problems);
  std::vector<std::string> seen;
  reader.expect(overrides);
  for (const std::string& text : overrides) reader.override_one(text, seen);
}

namespace {

/// A name that no program has for its own has no program to tell.
std::string advice_of(const ForeignKey& foreign) {
  if (foreign.program.empty()) return foreign.advice;
  if (foreign.advice.find(' ') != std::string::npos)
    return fmt::format("a name of {}: {}", foreign.program, foreign.advice);
  return fmt::format("what {} {} '{}' is '{}' here", foreign.program,
                     foreign.program.ends_with("programs") ? "call" : "calls", foreign.name,
                     foreign.advice);
}

/// Advice on the end of `path` that is one of these names of several components, "" if none is.
std::string advice_on_path_end(const std::vector<ForeignKey>& names, const std::string& path) {
  const std::string folded = "." + fold_name(path);
  for (const ForeignKey& foreign : names)
    if (foreign.name.find('.') != std::string::npos &&
        folded.ends_with("." + fold_name(foreign.name)))
      return advice_of(foreign);
  return {};
}

}  // namespace

namespace {

/// The keys, at most four, whose last name contains that of `wanted`, only those of its section if
/// there are any: "'a' or 'b'"; "" for none or more.
std::string keys_with_part(const std::vector<std::string>& paths, const std::string& wanted) {
  constexpr std::size_t kShortest = 4, kMost = 4;
  const std::size_t dot = wanted.rfind('.');
  const std::string part = fold_name(wanted.substr(dot + 1));
  if (part.size() < kShortest) return {};
  const std::string section = dot == std::string::npos ? "" : wanted.substr(0, dot + 1);
  std::vector<std::string> here, elsewhere;
  for (const std::string& path : paths)
    if (path.substr(path.rfind('.') + 1).find(part) != std::string::npos)
      (!section.empty() && path.starts_with(section) ? here : elsewhere)
          .push_back("'" + path + "'");
  const std::vector<std::string>& found = here.empty() ? elsewhere : here;
  return found.size() > kMost ? "" : join(found, " or ");
}

}  // namespace

std::string KeySet::advice_for(const std::string& path) const {
  const std::string folded = fold_name(path);
  const std::string last = folded.substr(folded.rfind('.') + 1);
  for (const std::string& wanted : {folded, last})
    for (const ForeignKey& foreign : foreign_)
      if (fold_name(foreign.name) == wanted) return advice_of(foreign);
  return {};
}

std::string KeySet::unknown(const std::string& path) const {
  const std::string head = fmt::format("unknown key '{}'", path);
  std::vector<std::string> paths, lasts;
  for (const Key& key : keys_) paths.push_back(key.path);
  // Whole paths of other programs first, then the right name in the wrong section, then names of
  // other programs, then misspellings.
  const std::string last = path.substr(path.rfind('.') + 1);
  if (const std::string whole = advice_on_path_end(foreign_, path); !whole.empty())
    return fmt::format("{}; {}", head, whole);
  std::vector<std::string> elsewhere;
  for (const std::string& legal : paths)
    if (legal.substr(legal.rfind('.') + 1) == fold_name(last))
      elsewhere.push_back("'" + legal + "'");
  // A key of a part of another family, such as model.encoder.n_layer, is meant only if no shorter
  // one is: "n_layer" is model.n_layer.
  const auto depth = [](const std::string& key) { return std::ranges::count(key, '.'); };
  if (!elsewhere.empty()) {
    const auto least = depth(*std::ranges::min_element(elsewhere, {}, depth));
    std::erase_if(elsewhere, [&](const std::string& key) { return depth(key) > least; });
    return fmt::format("{}; the key is {}", head, join(elsewhere, " or "));
  }
  const std::string advice = advice_for(path);
  if (!advice.empty()) return fmt::format("{}; {}", head, advice);
  if (last == path) {  // perhaps a section
    const std::string section = nearest_name(path, sections());
    if (!section.empty()) return fmt::format("{}; did you mean the section '{}'?", head, section);
  }
  const std::string near = nearest_name(path, paths);
  // Keys of the same section are compared by their last part: "train.stepz" is nearer to "steps"
  // than the whole path suggests.
  for (const std::string& legal : paths) {
    const std::size_t dot = path.rfind('.');
    if (dot != std::string::npos && legal.starts_with(path.substr(0, dot + 1)))
      lasts.push_back(legal.substr(dot + 1));
  }
  const std::string near_last = nearest_name(last, lasts);
  if (!near_last.empty())
    return fmt::format("{}; did you mean '{}'?", head,
                       path.substr(0, path.rfind('.') + 1) + near_last);
  if (!near.empty()) return fmt::format("{}; did you mean '{}'?", head, near);
  if (const std::string parts = keys_with_part(paths, path); !parts.empty())
    return fmt::format("{}; did you mean {}?", head, parts);
  if (!lasts.empty()) return fmt::format("{}; keys of this section: {}", head, join(lasts, ", "));
  return fmt::format("{}; sections: {}", head, join(sections(), ", "));
}

namespace {

/// The path of the key that a condition of `key` names.
std::string path_of(const KeyCondition& condition, const Key& key) {
  if (condition.key.find('.') != std::string::npos) return condition.key;
  return key.path.substr(0, key.path.rfind('.') + 1) + condition.key;
}

/// A value as in an override.
std::string word_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : dumped(value);
}

/// "a", "a or b", "a, b or c", each as in a deck.
std::string list_of(const std::vector<std::string>& values, bool quoted) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += i + 1 == values.size() ? " or " : ", ";
    text += quoted ? dumped(json(values[i])) : values[i];
  }
  return text;
}

}  // namespace

std::string Key::condition_text() const {
  std::string text;
  for (const KeyCondition& condition : conditions)
    text += fmt::format("{}{} {} = {}", text.empty() ? "" : ", ",
                        condition.among ? "only with" : "not with", path_of(condition, *this),
                        join(condition.values, " | "));
  return text;
}

std::vector<KeyProblem> KeySet::idle_keys(const void* object, const void* defaults,
                                          const KeyOrigins& origins) const {
  std::vector<KeyProblem> problems;
  for (const Key& key : keys_) {
    const auto origin = origins.find(key.path);
    if (key.conditions.empty() || origin == origins.end()) continue;
    if (origin->second.source == KeySource::derived) continue;
    const json value = value_json(key, object);
    if (value == value_json(key, defaults)) continue;
    for (const KeyCondition& condition : key.conditions) {
      const std::string path = path_of(condition, key);
      const Key* other = find(path);
      CHOIR_CHECK(other != nullptr, "a condition of {} names {}, which is no key", key.path, path);
      const json now = value_json(*other, object);
      const auto found = std::ranges::find(condition.values, word_of(now));
      if ((found != condition.values.end()) == condition.among) continue;
      const std::string fault =
          condition.among ? fmt::format("is for {} = {}, not {}", path,
                                        list_of(condition.values, now.is_string()), dumped(now))
                          : fmt::format("has no effect with {} = {}", path, dumped(now));
      problems.push_back({{key.path, path},
                          fmt::format("{} = {} {}; leave it out, or change {}", key.path,
                                      dumped(value), fault, path)});
      break;
    }
  }
  return problems;
}

void throw_problems(const std::vector<KeyProblem>& problems, const std::string& source) {
  if (problems.empty()) return;
  // A text that names legal values or the right name needs no further hint.
  const bool helped = std::ranges::all_of(problems, [](const KeyProblem& problem) {
    constexpr std::array kHelps{"legal",        "did you mean", "leave it out",
                                "; the key is", " for example", " here"};
    return std::ranges::any_of(
        kHelps, [&](const char* words) { return problem.text.find(words) != std::string::npos; });
  });
  const bool unknown = std::ranges::any_of(problems, [](const KeyProblem& problem) {
    return problem.text.find("unknown key") != std::string::npos;
  });
  std::vector<std::string> keys;
  for (const KeyProblem& problem : problems)
    for (const std::string& key : problem.keys)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  constexpr std::size_t kMost = 4;  // a longer list would be read less than the whole table
  const bool few = !unknown && !keys.empty() && keys.size() <= kMost;
  const std::string hint = helped ? ""
                           : few  ? fmt::format("`choir train --describe {}` explains {}",
                                                join(keys, " "), keys.size() == 1 ? "it" : "them")
                                  : "`choir train --describe` lists every key";
  if (problems.size() == 1) throw DeckError(problems.front().text, hint);
  std::string text = fmt::format("{}: {} errors", source, problems.size());
  for (const KeyProblem& problem : problems) text += "\n  " + problem.text;
  throw DeckError(text, hint);
}

}  // namespace choir
