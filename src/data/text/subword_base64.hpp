#pragma once
// Base64 (RFC 4648, with padding), for bytes inside JSON.
#include <string>
#include <string_view>

namespace choir {

std::string to_base64(std::string_view bytes);
/// False for text that is not base64.
bool from_base64(std::string_view text, std::string& bytes);

}  // namespace choir
