#include "src/store/gguf/gguf_format.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/store/gguf/gguf.hpp"

namespace choir {
namespace gguf {

std::optional<std::uint32_t> tensor_type(Encoding encoding) {
  for (const auto& [type, known] : kTensorTypes)
    if (known == encoding) return type;
  return {};
}

std::optional<Encoding> tensor_encoding(std::uint32_t type) {
  for (const auto& [known, encoding] : kTensorTypes)
    if (known == type) return encoding;
  return {};
}

std::string tensor_type_name(std::uint32_t type) {
  constexpr std::array<std::pair<std::uint32_t, const char*>, 10> kOthers{{{6, "Q5_0"},
                                                                           {7, "Q5_1"},
                                                                           {9, "Q8_1"},
                                                                           {10, "Q2_K"},
                                                                           {11, "Q3_K"},
                                                                           {12, "Q4_K"},
                                                                           {13, "Q5_K"},
                                                                           {14, "Q6_K"},
                                                                           {15, "Q8_K"},
                                                                           {20, "IQ4_NL"}}};
  for (const auto& [known, name] : kOthers)
    if (known == type) return name;
  return fmt::format("type {}", type);
}

}  // namespace gguf

void GgufMetadata::add(std::string key, GgufValue value) {
  CHOIR_CHECK(find(key) == nullptr, "{} is there already", key);
  pairs_.emplace_back(std::move(key), std::move(value));
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = std::find_if(pairs_.begin(), pairs_.end(),
                                  [&](const Pair& pair) { return pair.first == key; });
  return found == pairs_.end() ? nullptr : &found->second;
}

}  // namespace choir
