#include "key_value.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"

#include "choir/core/text.hpp"

namespace choir {

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
  std::string hint;
  if (key.type == KeyType::integer && value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 9e15)
      hint = fmt::format("; write {}", static_cast<std::int64_t>(number));
  }
  if (key.type == KeyType::integer && value.is_number_unsigned())
    return fmt::format("{} = {} is too large for an integer; legal: {}", key.path, shown(value),
                       legal_values(key, true));
  if (key.type == KeyType::boolean && value.is_string()) {
    const std::string folded = fold_name(value.get<std::string>());
    if (folded == "true" || folded == "false")
      hint = "; write " + folded + " without quotes, lower case";
  }
  return fmt::format("{} = {}: expected {}, not {}{}", key.path, shown(value), key.type_name(),
                     kind_of(value), hint);
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
        if (!item.is_string()) return std::nullopt;
        list.push_back(item.get<std::string>());
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
        if (item.is_structured() || item.is_null()) return std::nullopt;
        map[name] = item.is_string() ? item.get<std::string>() : dumped(item);
      }
      return map;
    }
  }
  return std::nullopt;
}

std::string illegal(const Key& key, const json& given, const KeyValue& value) {
  const std::string head = fmt::format("{} = {}", key.path, shown(given));
  if (!key.choices.empty() && std::holds_alternative<std::string>(value)) {
    const auto& name = std::get<std::string>(value);
    const std::string legal = join(key.choices, ", ");
    if (std::find(key.choices.begin(), key.choices.end(), name) != key.choices.end()) return {};
    if (std::find(key.later.begin(), key.later.end(), name) != key.later.end())
      return fmt::format("{} is not yet supported; legal now: {}", head, legal);
    const std::string near = nearest_name(name, key.choices);
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

}  // namespace choir
