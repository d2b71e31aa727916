#include "choir/core/json_value.hpp"

#include <set>
#include <vector>

#include "choir/core/error.hpp"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace choir {

using nlohmann::json;
using nlohmann::ordered_json;

std::string dumped(const json& value, int indent) {
  return value.dump(indent);
}
std::string dumped(const ordered_json& value, int indent) {
  return value.dump(indent);
}

std::string dumped_safely(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}
std::string dumped_safely(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

json parsed_json(std::string_view text) {
  return json::parse(text);
}
ordered_json parsed_ordered_json(std::string_view text) {
  return ordered_json::parse(text);
}
json parsed_unique_json(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // keys of the open objects
  return json::parse(text, [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key)
      if (const auto& key = value.get_ref<const std::string&>(); !keys.back().insert(key).second)
        throw DataError("the key '" + key + "' stands twice in one object");
    return true;
  });
}
ordered_json parsed_commented_json(std::string_view text) {
  return ordered_json::parse(text, nullptr, true, true);
}
json json_unless_broken(std::string_view text) {
  return json::parse(text, nullptr, false);
}
ordered_json ordered_json_unless_broken(std::string_view text) {
  return ordered_json::parse(text, nullptr, false);
}

}  // namespace choir
