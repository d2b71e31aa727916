#pragma once
// The YAML that PyYAML and OmegaConf write: mappings and lists by indentation, or in brackets, and
// plain or quoted scalars, over several lines or not. Whatever else the language has (anchors,
// aliases, tags, block scalars, several documents) is refused by its line, and nothing is executed.
// Time is linear in the text. Memory is a few times the text and about 100 bytes a value: yaml-cpp
// 0.7 needs 40 to 60 times the text, and resolves aliases and equal keys silently.
#include <string>

#include "choir/core/json_value.hpp"

namespace choir {

/// Local. Plain scalars that look like null, a boolean or a number are such. StorageError that
/// names `source` and the line: for what is not understood, two keys of one name, and nesting
/// deeper than 32, more than 16 MiB, and more than 262,144 values.
nlohmann::json read_yaml(const std::string& text, const std::string& source);

}  // namespace choir
