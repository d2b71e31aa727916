#include <algorithm>
#include <array>
#include <cmath>
#include "src/core/json_value.hpp"

#include "choir/core/key_table.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string section_of(const std::string& path) {
  const std::size_t dot = path.find('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// Sets an entry of a nested document by its dotted path.
void place(ordered_json& root, const std::string& path, ordered_json value) {
  ordered_json* node = &root;
  for (const std::string& part : split(path, '.')) node = &(*node)[part];
  *node = std::move(value);
}

/// The entry at a dotted path, or null.
const json* entry(const json& root, const std::string& path) {
  const json* node = &root;
  for (const std::string& part : split(path, '.')) {
    if (!node->is_object() || !node->contains(part)) return nullptr;
    node = &(*node)[part];
  }
  return node;
}

std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return fmt::format("{}", static_cast<std::int64_t>(value));
  return fmt::format("{}", value);
}

}  // namespace

std::string_view name_of(KeySource source) {
  switch (source) {
    case KeySource::builtin:
      return "default";
    case KeySource::file:
      return "file";
    case KeySource::command:
      return "override";
    case KeySource::derived:
      return "derived";
  }
  return "?";
}

Key& Key::one_of(std::vector<std::string> names, std::vector<std::string> not_yet) {
  type = KeyType::choice;
  choices = std::move(names);
  later = std::move(not_yet);
  return *this;
}

Key& Key::only(std::int64_t value) {
  if (type == KeyType::boolean) {
    const std::string legal = value ? "true" : "false";
    return checked(legal, [value, legal](const KeyValue& given) {
      return std::get<bool>(given) == (value != 0) ? std::string()
                                                   : "not yet supported; legal now: " + legal;
    });
  }
  low = high = static_cast<double>(value);
  later = {std::to_string(value)};
  return *this;
}

Key& Key::checked(std::string text, std::function<std::string(const KeyValue&)> test) {
  check_text = std::move(text);
  check = std::move(test);
  return *this;
}

std::string Key::constraint() const {
  if (!choices.empty())
    return join(choices, " | ") + (later.empty() ? "" : " (not yet: " + join(later, ", ") + ")");
  if (low && high && *low == *high && !later.empty()) return later.front() + " (others not yet)";
  std::string text;
  const bool bounded_above = high && *high != static_cast<double>(std::numeric_limits<int>::max());
  if (low && bounded_above)
    text = fmt::format("{} {} value {} {}", number_text(*low),
                       low_open ? "<" : "<=", high_open ? "<" : "<=", number_text(*high));
  else if (low)
    text = fmt::format("value {} {}", low_open ? ">" : ">=", number_text(*low));
  else if (high && high_open)
    text = fmt::format("value < {}", number_text(*high));
  else if (high)
    text = fmt::format("value <= {}", number_text(*high));
  if (check_text.empty()) return text;
  return text.empty() ? check_text : text + ", " + check_text;
}

std::string Key::type_name() const {
  switch (type) {
    case KeyType::boolean:
      return "true or false";
    case KeyType::integer:
      return word.empty() ? "an integer" : "an integer or \"" + word + "\"";
    case KeyType::real:
      return "a number";
    case KeyType::text:
      return holds_json ? "text or a list" : "text";
    case KeyType::choice:
      return "one of its names";
    case KeyType::text_list:
      if (holds_json) return "a list of numbers";
      return word.empty() ? "a list of texts" : "a list of texts or " + word;
    case KeyType::text_map:
      return holds_json ? "an object of texts or objects" : "an object of texts";
    case KeyType::text_or_map:
      return "text or an object of texts";
    case KeyType::duration:
      return "seconds or \"HH:MM:SS\"";
  }
  return "?";
}

std::vector<std::string> KeySet::sections() const {
  std::vector<std::string> names;
  for (const Key& key : keys_) {
    const std::string name = section_of(key.path);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  return names;
}

json KeySet::value_json(const Key& key, const void* object) const {
  // `get` only reads; it takes void* because the accessor also serves `set`.
  const KeyValue value = key.get(key, const_cast<void*>(object));
  if (!key.word.empty() && value == KeyValue(key.word_value)) return key.word;
  if (key.type == KeyType::text_list && key.holds_json) {
    json list = json::array();
    for (const std::string& text : std::get<std::vector<std::string>>(value)) {
      const json number = json_unless_broken(text);  // broken for ".5", say
      list.push_back(number.is_number() ? number : json(text));
    }
    return list;
  }
  return std::visit([](const auto& held) { return json(held); }, value);
}

std::string KeySet::describe_table(const void* defaults) const {
  std::string text, section = "-";
  for (const Key& key : keys_) {
    if (section_of(key.path) != section) {
      section = section_of(key.path);
      text += fmt::format("\n{}\n", section.empty() ? "(no section)" : section);
    }
    std::string type = key.type_name();
    for (const char* article : {"an ", "a "})
      if (type.starts_with(article)) type = type.substr(std::string_view(article).size());
    if (key.type == KeyType::choice) type = "name";
    text +=
        fmt::format("  {:<34} {}, default {}", key.path, type, dumped(value_json(key, defaults)));
    if (!key.unit.empty()) text += fmt::format(", {}", key.unit);
    const std::string constraint = key.constraint();
    if (!constraint.empty()) text += fmt::format("; {}", constraint);
    if (!key.conditions.empty()) text += fmt::format("; {}", key.condition_text());
    text += "\n" + wrap(key.about, 100, 6);
  }
  return text.substr(1);
}

json KeySet::leaf_schema(const Key& key, const void* defaults) const {
  json leaf;
  switch (key.type) {
    case KeyType::boolean:
      leaf["type"] = "boolean";
      break;
    case KeyType::integer:
      leaf["type"] = "integer";
      break;
    case KeyType::real:
      leaf["type"] = "number";
      break;
    case KeyType::text:
      leaf["type"] = "string";
      if (key.holds_json) leaf["type"] = json::array({"string", "array", "object"});
      break;
    case KeyType::choice:
      leaf["enum"] = key.choices;
      break;
    case KeyType::text_list: {
      const json list = {{"type", "array"},
                         {"items", {{"type", key.holds_json ? "number" : "string"}}}};
      leaf["anyOf"] = json::array({list, {{"type", "string"}}});
      break;
    }
    case KeyType::text_map:
      leaf["type"] = "object";
      leaf["additionalProperties"] = {{"type", json::array({"string", "number", "boolean"})}};
      if (key.holds_json)
        for (const char* more : {"object", "array"})
          leaf["additionalProperties"]["type"].push_back(more);
      break;
    case KeyType::text_or_map:
      leaf["type"] = json::array({"string", "object"});
      leaf["additionalProperties"] = {{"type", json::array({"string", "number", "boolean"})}};
      break;
    case KeyType::duration:
      leaf["type"] = json::array({"number", "string"});
      break;
  }
  const auto bound = [&](double value) {
    return key.type == KeyType::integer ? json(static_cast<std::int64_t>(value)) : json(value);
  };
  if (key.low) leaf[key.low_open ? "exclusiveMinimum" : "minimum"] = bound(*key.low);
  if (key.high) leaf[key.high_open ? "exclusiveMaximum" : "maximum"] = bound(*key.high);
  if (!key.word.empty()) {
    const json word = key.type == KeyType::text_list ? json(true) : json(key.word);
    leaf = {{"anyOf", json::array({leaf, {{"const", word}}})}};
  }
  leaf["default"] = value_json(key, defaults);
  leaf["description"] = key.about + (key.unit.empty() ? "" : " [" + key.unit + "]");
  return leaf;
}

std::string KeySet::schema_text(const void* defaults, const std::string& title) const {
  const ordered_json free_object = {{"type", "object"}};
  ordered_json properties;
  properties["$schema"] = {{"type", "string"}};
  for (const Key& key : keys_) {
    ordered_json* level = &properties;  // sections are nested objects, as in a document
    std::vector<std::string> parts = split(key.path, '.');
    const std::string name = parts.back();
    parts.pop_back();
    for (const std::string& section : parts) {
      ordered_json& node = (*level)[section];
      node["type"] = "object";
      node["additionalProperties"] = false;
      level = &node["properties"];
    }
    (*level)[name] = parsed_ordered_json(dumped(leaf_schema(key, defaults)));
  }
  properties["sources"] = free_object;
  properties["derived"] = free_object;
  for (const char* paths : {"include", "decks"})
    properties[paths] = {{"type", {"string", "array"}}, {"items", {{"type", "string"}}}};
  ordered_json schema;
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = title;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["properties"] = std::move(properties);
  return dumped(schema, 2) + "\n";
}

std::string KeySet::resolved_text(const void* object, const void* defaults,
                                  const KeyOrigins& origins) const {
  ordered_json document, sources, derived = ordered_json::object();
  for (const Key& key : keys_) {
    const auto found = origins.find(key.path);
    const KeySource source = found == origins.end() ? KeySource::builtin : found->second.source;
    const bool computed = source == KeySource::derived;
    place(document, key.path,
          parsed_ordered_json(dumped(value_json(key, computed ? defaults : object))));
    if (computed) derived[key.path] = parsed_ordered_json(dumped(value_json(key, object)));
    sources[key.path] = std::string(name_of(source));
  }
  document["derived"] = std::move(derived);
  document["sources"] = std::move(sources);
  return dumped(document, 2) + "\n";
}

std::vector<KeyChange> KeySet::changes_since(const std::string& resolved, const void* object,
                                             const void* defaults,
                                             const KeyOrigins& origins) const {
  const json document = parsed_json(resolved);
  const json derived = document.value("derived", json::object());
  std::vector<KeyChange> changes;
  for (const Key& key : keys_) {
    const json* stored =
        derived.contains(key.path) ? &derived[key.path] : entry(document, key.path);
    const auto origin = origins.find(key.path);
    const bool given = origin != origins.end() && origin->second.source != KeySource::derived;
    if (stored == nullptr && !given) continue;
    const json before = stored != nullptr ? *stored : value_json(key, defaults);
    const json now = value_json(key, object);
    if (before != now) changes.push_back({key.path, dumped(before), dumped(now)});
  }
  return changes;
}

std::string KeySet::listing_text(const void* object, const KeyOrigins& origins,
                                 const std::function<bool(const Key&)>& concerns) const {
  std::string text, rest;
  for (const Key& key : keys_) {
    const auto found = origins.find(key.path);
    const std::string value = dumped(value_json(key, object));
    if (found == origins.end()) {
      if (concerns(key)) rest += fmt::format("{}={} ", key.path, value);
      continue;
    }
    text += fmt::format("  {:<32} {:<28} {}\n", key.path, value,
                        found->second.place.empty() ? name_of(found->second.source)
                                                    : std::string_view(found->second.place));
  }
  return text + "  defaults:\n" + wrap(rest, 100, 4);
}

std::string format_hms(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  return fmt::format("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

namespace {

constexpr std::size_t kLongestNumber = 9;  // digits

/// A number of digits only.
std::optional<double> whole(std::string_view digits) {
  if (digits.empty() || digits.size() > kLongestNumber ||
      digits.find_first_not_of("0123456789") != digits.npos)
    return std::nullopt;
  return std::stod(std::string(digits));
}

/// "2m", "1h30m", "1d": numbers with units, the longest unit first.
std::optional<double> parse_units(std::string_view text) {
  constexpr std::string_view kUnits = "dhms";
  constexpr std::array kSeconds{86400.0, 3600.0, 60.0, 1.0};
  double seconds = 0;
  for (std::size_t next = 0; !text.empty();) {
    const std::size_t end = text.find_first_of(kUnits.substr(next));
    if (end == text.npos) return std::nullopt;
    const std::optional<double> value = whole(text.substr(0, end));
    if (!value) return std::nullopt;
    const std::size_t unit = kUnits.find(text[end]);
    seconds += *value * kSeconds[unit];
    next = unit + 1;
    text.remove_prefix(end + 1);
  }
  return seconds;
}

}  // namespace

std::optional<double> parse_hms(std::string_view text) {
  if (!text.empty() && std::string_view("dhms").find(text.back()) != text.npos)
    return parse_units(text);
  // SLURM: DAYS-HOURS[:MINUTES[:SECONDS]]
  const std::size_t dash = text.find('-');
  std::vector<std::string> parts = split(text.substr(dash == text.npos ? 0 : dash + 1), ':');
  if (parts.empty() || parts.size() > 3) return std::nullopt;
  std::optional<double> days = 0;
  if (dash != text.npos) {
    days = whole(text.substr(0, dash));
    parts.resize(3, "0");
  }
  double seconds = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::optional<double> value = whole(parts[i]);
    if (!value || !days || (i > 0 && *value >= 60)) return std::nullopt;
    seconds = seconds * 60 + *value;
  }
  return *days * 86400 + seconds;
}

}  // namespace choir
