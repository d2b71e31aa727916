#pragma once
// Private to the key table: checks one JSON value against the type and the limits of one key.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "choir/core/key_table.hpp"

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

}  // namespace choir
