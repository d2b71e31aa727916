#include "choir/core/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "choir/core/error.hpp"
#include "choir/core/printable.hpp"
#include "choir/core/process.hpp"
#include "choir/core/regular_file.hpp"
#include "choir/core/standard_streams.hpp"

namespace choir {

namespace {

/// The width of the terminal; 80 if it is unknown.
std::size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

}  // namespace

struct Logger::Sinks {
  spdlog::logger stamped{"choir"};
  spdlog::logger bare{"choir"};
  bool terminal = false;      // true if stdout is a terminal
  bool shows_status = false;  // true if the last line on it has no line end
  bool in_file = false;

  Sinks() {
    for (auto* logger : {&stamped, &bare}) logger->set_level(spdlog::level::trace);
  }
  template <class Sink, class... Args>
  void add(Args&&... args) {
    auto with_time = std::make_shared<Sink>(args...);
    auto without = std::make_shared<Sink>(args...);
    with_time->set_pattern("[%Y-%m-%d %H:%M:%S.%e][%L] %v");
    without->set_pattern("%v");
    stamped.sinks().push_back(with_time);
    bare.sinks().push_back(without);
  }
};

Logger::Logger() : Logger(true) {}
Logger::Logger(bool speaks) : sinks_(std::make_unique<Sinks>()), speaks_(speaks) {}
Logger::~Logger() = default;
Logger::Logger(Logger&&) noexcept = default;
Logger& Logger::operator=(Logger&&) noexcept = default;

void Logger::to_stdout() {
  sinks_->add<spdlog::sinks::stdout_sink_mt>();
  sinks_->terminal = speaks_ && stdout_is_terminal();
}

bool Logger::on_terminal() const {
  return sinks_->terminal;
}

void Logger::status(std::string_view text) {
  if (!sinks_->terminal || (text.empty() && !sinks_->shows_status)) return;
  // Longer lines would wrap, and only their last row would be erased. The width is queried each
  // time because windows are resized.
  fmt::print(stdout, "\r\033[K{}", printable_name(text.substr(0, terminal_columns() - 1)));
  std::fflush(stdout);
  sinks_->shows_status = !text.empty();
}

void Logger::to_file(const std::string& path) {
  require_regular(path);
  try {
    sinks_->add<spdlog::sinks::basic_file_sink_mt>(path, false);
    sinks_->in_file = true;
  } catch (const spdlog::spdlog_ex&) {
    throw StorageError("cannot open the log file '" + path + "': " + std::strerror(errno),
                       "check that the directory exists and is writable");
  }
}

void Logger::plain(std::string_view text) {
  if (speaks_) write(Level::plain, text);
}

void Logger::write(Level level, std::string_view text) {
  if (sinks_->bare.sinks().empty()) return;
  if (sinks_->shows_status) status({});
  switch (level) {
    case Level::info:
      sinks_->stamped.info("{}", printable_message(text));
      break;
    case Level::warn:
      sinks_->stamped.warn("{}", printable_message(text));
      break;
    case Level::error:
      sinks_->stamped.error("{}", printable_message(text));
      break;
    case Level::plain:
      sinks_->bare.info("{}", printable(text));
      break;
  }
  flush();
  if (sinks_->in_file && report_lost_reader())
    write(Level::warn,
          "nobody reads the output of this command any more: the command continues, "
          "and this file holds its whole log");
}

void Logger::flush() {
  sinks_->stamped.flush();
  sinks_->bare.flush();
}

}  // namespace choir
