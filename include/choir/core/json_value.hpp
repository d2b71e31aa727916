#pragma once
// JSON values are those of nlohmann/json, which is included here alone. What would be compiled at
// every place that reads or writes a document, its parser and its printer, is compiled once, behind
// these functions.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace choir {

/// The document on one line, or indented. Throws nlohmann's exception for text that is not UTF-8.
std::string dumped(const nlohmann::json& value, int indent = -1);
std::string dumped(const nlohmann::ordered_json& value, int indent = -1);
/// The same, with U+FFFD for bytes that are not UTF-8.
std::string dumped_safely(const nlohmann::json& value, int indent = -1);
std::string dumped_safely(const nlohmann::ordered_json& value, int indent = -1);

/// Throw nlohmann's exception for what is not JSON.
nlohmann::json parsed_json(std::string_view text);
nlohmann::ordered_json parsed_ordered_json(std::string_view text);
/// The same of text with comments as C++ has them.
nlohmann::ordered_json parsed_commented_json(std::string_view text);
/// As parsed_json(); DataError that names the key when an object has one twice, of which the
/// library would keep the last.
nlohmann::json parsed_unique_json(std::string_view text);
/// A discarded value for what is not JSON.
nlohmann::json json_unless_broken(std::string_view text);
nlohmann::ordered_json ordered_json_unless_broken(std::string_view text);

}  // namespace choir

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
