#pragma once
// Reading of YAML as PyYAML and OmegaConf write it: mappings and lists by indentation or in
// brackets, and plain or quoted scalars. All other features of the language are refused with their
// line, and nothing is executed. Takes time linear in the text and memory of a few times the text
// and about 100 bytes per value: yaml-cpp 0.7 needs 40 to 60 times the text, and resolves aliases
// and equal keys silently.
#include <string>

#include "src/core/json_value.hpp"

namespace choir {

/// Local. Plain scalars that look like null, a boolean or a number are converted. StorageError that
/// names `source` and the line for unsupported syntax, duplicate keys, nesting deeper than 32, more
/// than 16 MiB, and more than 262,144 values.
nlohmann::json read_yaml(const std::string& text, const std::string& source);

}  // namespace choir
