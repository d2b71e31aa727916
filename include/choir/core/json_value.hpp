#pragma once
// JSON values are those of nlohmann/json, which only this header includes. Its parser and printer
// are compiled once, behind these functions, and not in every source that reads or writes a
// document.
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

/// Throw nlohmann's exception if the text is not JSON.
nlohmann::json parsed_json(std::string_view text);
nlohmann::ordered_json parsed_ordered_json(std::string_view text);
/// The same for text with C++ comments.
nlohmann::ordered_json parsed_commented_json(std::string_view text);
/// Like parsed_json(), but throws DataError with the name of a key that occurs twice in one object;
/// the library would keep the last value.
nlohmann::json parsed_unique_json(std::string_view text);
/// A discarded value if the text is not JSON.
nlohmann::json json_unless_broken(std::string_view text);
nlohmann::ordered_json ordered_json_unless_broken(std::string_view text);

}  // namespace choir

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
