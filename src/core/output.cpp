#include "src/core/output.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "src/core/process.hpp"

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

namespace {

void write_bytes(std::FILE* to, const std::string& text) {
  if (to == stderr)
    std::fwrite(text.data(), 1, text.size(), to);
  else
    fmt::print(to, "{}", text);
}

}  // namespace

void write_printable(std::FILE* to, std::string_view text) {
  write_bytes(to, printable(text));
}

namespace {

/// The number in a variable of the environment; 0 if there is none.
std::size_t number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  const long number = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  return number > 0 ? static_cast<std::size_t>(number) : 0;
}

}  // namespace

std::size_t terminal_columns(std::FILE* to) {
  std::size_t reported = reported_columns(to == stderr ? STDERR_FILENO : STDOUT_FILENO);
  // jobs/launch filters the standard error of the launcher on its way to the terminal.
  if (reported == 0 && to == stderr) reported = number_in("CHOIR_STDERR_COLUMNS");
  const std::size_t given = number_in("COLUMNS");
  return reported > 0 && given > 0 ? given : reported;
}

std::string fitted_for(std::FILE* to, std::string_view text) {
  constexpr std::size_t kLeast = 60;
  const std::size_t columns = terminal_columns(to);
  return fitted(text, columns == 0 ? 0 : std::max(kLeast, columns));
}

void write_fitted(std::FILE* to, std::string_view text) {
  write_bytes(to, fitted_for(to, printable(text)));
}

void print_generated(std::string_view text) {
  const std::string shown = stdout_is_terminal() ? printable(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

namespace {

/// True if text was discarded. The streams of the C library belong to the whole process, and so
/// does this flag.
std::atomic<bool>& anything_discarded() {
  static std::atomic<bool> discarded{false};
  return discarded;
}

bool means_no_reader(int error, int descriptor) {
  if (error == EPIPE || error == ECONNRESET) return true;
  struct stat what {};
  // EIO means a terminal that was hung up; for a regular file it would mean a bad disk.
  return error == EIO && fstat(descriptor, &what) == 0 && S_ISCHR(what.st_mode);
}

int descriptor_of(void* cookie) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(cookie));
}

ssize_t write_or_discard(void* cookie, const char* text, std::size_t size) {
  const int descriptor = descriptor_of(cookie);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t written = ::write(descriptor, text + done, size - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      if (written == 0 || !means_no_reader(errno, descriptor)) break;
      anything_discarded() = true;
      return static_cast<ssize_t>(size);
    }
  }
  return static_cast<ssize_t>(done);  // a result below `size` means an error, which is in errno
}

/// A stream of the C library over `descriptor`; nullptr if there is no memory for it.
std::FILE* stream_over(int descriptor, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = write_or_discard;
  auto* const cookie = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  std::FILE* const stream = fopencookie(cookie, "w", functions);
  if (stream != nullptr) std::setvbuf(stream, nullptr, buffering, BUFSIZ);
  return stream;
}

}  // namespace

void outlive_readers() {
  std::fflush(nullptr);
  const int buffering = isatty(STDOUT_FILENO) != 0 ? _IOLBF : _IOFBF;
  if (std::FILE* const out = stream_over(STDOUT_FILENO, buffering)) stdout = out;
  if (std::FILE* const err = stream_over(STDERR_FILENO, _IONBF)) stderr = err;
}

bool report_lost_reader() {
  static std::atomic<bool> reported{false};
  return anything_discarded() && !reported.exchange(true);
}

}  // namespace choir
