#pragma once
// A logger that is passed as an argument and is never global (every rank owns one; by default only
// rank 0 prints), and lines that show the progress and the remaining time of a long phase.

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace choir {

class Logger {
 public:
  /// Silent until a sink is added.
  Logger();
  /// If `speaks` is false (ranks > 0), info and plain lines are muted; warnings and errors always
  /// pass.
  explicit Logger(bool speaks);
  ~Logger();
  Logger(Logger&&) noexcept;
  Logger& operator=(Logger&&) noexcept;

  void to_stdout();
  /// Lines on the standard output have no time stamp if `stamped` is false; warnings and errors
  /// then begin with their level.
  void to_stdout(bool stamped);
  /// For commands whose standard output has the result alone.
  void to_stderr();
  /// Appends to a file. Throws StorageError when it cannot be opened.
  void to_file(const std::string& path);
  bool speaks() const { return speaks_; }

  /// Writes a line with a time stamp.
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
  /// Writes text without a time stamp, for tables and samples; a newline is added.
  void plain(std::string_view text);
  /// Writes one message in two forms: `whole` to the files, with a time stamp, and to the standard
  /// output `shown`, one line or several, without one.
  void two_forms(std::string_view whole, std::string_view shown);
  /// Writes a line that the next one replaces, if stdout is a terminal; otherwise writes nothing.
  void status(std::string_view text);
  /// True if status() writes anything.
  bool on_terminal() const;
  /// The width of the terminal in characters; 80 if it is unknown.
  std::size_t columns() const;
  void flush();

 private:
  enum class Level { info, warn, error, plain };
  void write(Level level, std::string_view text);
  /// Flushes, and reports once in the file that nobody reads the standard output any more.
  void settle();

  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
  bool speaks_ = true;
};

/// Renews its line on a terminal; in a log it writes a line at intervals. Silent for short phases.
class ProgressLine {
 public:
  /// In a log, lines are at least `interval` seconds apart, and the first one comes after the first
  /// interval; intervals below 20 seconds double with each line up to that.
  ProgressLine(Logger& log, std::string phase, double interval = 10);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  /// "evaluation: 34 %, 12.3 s left". `begun` is the part that was done before this object existed
  /// and says nothing about speed; `more` is appended on a terminal.
  void at(std::int64_t done, std::int64_t total, std::int64_t begun = 0,
          std::string_view more = {});
  /// True if at() would print now.
  bool due() const;
  /// `listener` is called at the beginning of every at(), whether that prints or not.
  void listen(std::function<void()> listener) { listener_ = std::move(listener); }
  /// Restarts the clock: earlier time does not count for the speed.
  void restart();

 private:
  Logger& log_;
  std::string phase_;
  double interval_, began_, said_, shown_;
  std::function<void()> listener_;
};

}  // namespace choir
