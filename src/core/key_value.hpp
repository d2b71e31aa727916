#pragma once
// Private to the key table: one JSON value against the type and the limits of one key.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "choir/core/key_table.hpp"

namespace choir {

/// "an integer", "text", "a list" ...
std::string kind_of(const nlohmann::json& value);
/// The complaint about a value of another type than the key's.
std::string wrong_type(const Key& key, const nlohmann::json& value);
/// The value in the key's type; nullopt when it is of another type.
std::optional<KeyValue> convert(const Key& key, const nlohmann::json& value);
/// "" for a legal value, else what is wrong with it. `given` is the same value as it was written.
std::string illegal(const Key& key, const nlohmann::json& given, const KeyValue& value);
/// What stands behind '=' on the command line, as JSON where the key wants JSON.
nlohmann::json from_command(const Key& key, const std::string& raw);

}  // namespace choir
