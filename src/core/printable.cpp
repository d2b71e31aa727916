#include "choir/core/printable.hpp"

#include "choir/core/process.hpp"

namespace choir {
namespace {

/// A character of a text; a byte that begins no character gives `bytes` 1 and `valid` false.
struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  char32_t code = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0u) != 0x80) return {};
    code = code << 6 | (next & 0x3Fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[bytes] || code > 0x10FFFF || surrogate) return {};
  return {code, bytes, true};
}

bool is_obeyed(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

/// If `lines` is true, line ends and tabs are kept.
std::string escaped(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (!c.valid)
      out += fmt::format("\\x{:02x}", byte);
    else if (!is_obeyed(c.code) || (lines && (byte == '\n' || byte == '\t')))
      out += text.substr(0, c.bytes);
    else if (byte == '\n' || byte == '\t' || byte == '\r')
      out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : "\\r";
    else
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c.code));
    text.remove_prefix(c.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(text, true);
}

std::string printable_name(std::string_view name) {
  return escaped(name, false);
}

std::string printable_message(std::string_view text) {
  std::string out = printable(text);
  for (std::size_t at = out.find('\n'); at != std::string::npos; at = out.find('\n', at + 1))
    if (at + 1 < out.size() && out[at + 1] != ' ' && out[at + 1] != '\n') out.insert(at + 1, "  ");
  return out;
}

void write_printable(std::FILE* to, std::string_view text) {
  const std::string shown = printable(text);
  if (to == stderr)
    std::fwrite(shown.data(), 1, shown.size(), to);
  else
    fmt::print(to, "{}", shown);
}

void print_generated(std::string_view text) {
  const std::string shown = stdout_is_terminal() ? printable(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

}  // namespace choir
