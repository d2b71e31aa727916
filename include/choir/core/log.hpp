#pragma once
// A logger that is passed, never global. Every rank owns one; by default only rank 0 speaks.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <string_view>

namespace choir {

class Logger {
 public:
  /// Silent until a sink is added.
  Logger();
  /// `speaks` false mutes info and plain lines (ranks > 0); warnings and errors always pass.
  explicit Logger(bool speaks);
  ~Logger();
  Logger(Logger&&) noexcept;
  Logger& operator=(Logger&&) noexcept;

  void to_stdout();
  /// Appends to a file. Throws StorageError when it cannot be opened.
  void to_file(const std::string& path);
  bool speaks() const { return speaks_; }

  /// Time-stamped line.
  template <class... T>
  void info(fmt::format_string<T...> form, T&&... args) {
    if (speaks_) write(Level::info, fmt::format(form, std::forward<T>(args)...));
  }
  template <class... T>
  void warn(fmt::format_string<T...> form, T&&... args) {
    write(Level::warn, fmt::format(form, std::forward<T>(args)...));
  }
  template <class... T>
  void error(fmt::format_string<T...> form, T&&... args) {
    write(Level::error, fmt::format(form, std::forward<T>(args)...));
  }
  /// Text as it is, for tables and samples; a newline is added.
  void plain(std::string_view text);
  /// A line that the next one takes the place of, where stdout is a terminal; elsewhere nothing.
  void status(std::string_view text);
  /// Whether status() shows anything.
  bool on_terminal() const;
  void flush();

 private:
  enum class Level { info, warn, error, plain };
  void write(Level level, std::string_view text);

  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
  bool speaks_ = true;
};

}  // namespace choir
