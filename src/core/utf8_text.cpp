#include "choir/core/utf8_text.hpp"

#include "choir/core/json_value.hpp"

namespace choir {

bool is_utf8(const std::string& bytes) {
  try {
    dumped(nlohmann::json(bytes));
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

std::string shown_as_text(const std::string& bytes) {
  return dumped_safely(nlohmann::json(bytes));
}

}  // namespace choir
