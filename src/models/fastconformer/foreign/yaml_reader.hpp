#pragma once
// Reader of the YAML that PyYAML and OmegaConf write: mappings and lists by indentation or in
// brackets, and plain or quoted scalars, on one line or several. All other features of the language
// (anchors, aliases, tags, block scalars, several documents) are refused with their line, and
// nothing is executed. Time is linear in the text. Memory is a few times the text and about 100
// bytes per value: yaml-cpp 0.7 needs 40 to 60 times the text, and resolves aliases and equal keys
// silently.
#include <string>

#include "src/core/json_value.hpp"

namespace choir {

/// Local. Plain scalars that look like null, a boolean or a number are converted. StorageError that
/// names `source` and the line for unsupported syntax, duplicate keys, nesting deeper than 32, more
/// than 16 MiB, and more than 262,144 values.
nlohmann::json read_yaml(const std::string& text, const std::string& source);

}  // namespace choir
