#include "src/data/vocabulary/byte_alphabet.hpp"

#include <algorithm>
#include <numeric>

#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

constexpr char32_t kFirstOfOthers = 0x100;
constexpr std::size_t kOthers = 68;

bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = kFirstOfOthers;
  for (unsigned byte = 0; byte < 256; ++byte)
    alphabet[byte] = stands_for_itself(byte) ? byte : next++;
  return alphabet;
}

std::array<int, kFirstOfOthers + kOthers> make_bytes() {
  std::array<int, kFirstOfOthers + kOthers> bytes;
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte)
    bytes[byte_alphabet()[static_cast<std::size_t>(byte)]] = byte;
  return bytes;
}

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const std::array<char32_t, 256> alphabet = make_alphabet();
  return alphabet;
}

const std::array<unsigned char, 256>& bytes_by_character() {
  static const std::array<unsigned char, 256> sorted = [] {
    std::array<unsigned char, 256> bytes;
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
    std::sort(bytes.begin(), bytes.end(), [](unsigned char a, unsigned char b) {
      return byte_alphabet()[a] < byte_alphabet()[b];
    });
    return bytes;
  }();
  return sorted;
}

std::string bytes_as_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes)
    append_utf8(text, byte_alphabet()[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> characters_as_bytes(std::string_view text) {
  static const auto bytes_of = make_bytes();
  std::string bytes;
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    if (c.length == 0 || c.value >= bytes_of.size() || bytes_of[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_of[c.value]);
    text.remove_prefix(static_cast<std::size_t>(c.length));
  }
  return bytes;
}

}  // namespace choir
