#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "src/core/file.hpp"
#include "src/core/output.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {

namespace {

/// The width of the terminal; 80 if it is unknown.
std::size_t shown_columns() {
  constexpr std::size_t kUsual = 80;
  const std::size_t columns = terminal_columns(stdout);
  return columns > 0 ? columns : kUsual;
}

/// The lines of another formatter, fitted into the terminal that shows `stream`.
class FittedLines : public spdlog::formatter {
 public:
  FittedLines(std::FILE* stream, std::unique_ptr<spdlog::formatter> lines)
      : stream_(stream), lines_(std::move(lines)) {}
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& to) override {
    spdlog::memory_buf_t whole;
    lines_->format(line, whole);
    const std::string shown = fitted_for(stream_, std::string_view(whole.data(), whole.size()));
    to.append(shown.data(), shown.data() + shown.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<FittedLines>(stream_, lines_->clone());
  }

 private:
  std::FILE* stream_;
  std::unique_ptr<spdlog::formatter> lines_;
};

/// "warning: " and "error: " in front of lines that have no time stamp.
class LevelWord : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&,
              spdlog::memory_buf_t& to) override {
    const std::string_view word = line.level == spdlog::level::warn  ? "warning: "
                                  : line.level == spdlog::level::err ? "error: "
                                                                     : "";
    to.append(word.data(), word.data() + word.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<LevelWord>();
  }
};

}  // namespace

struct Logger::Sinks {
  spdlog::logger stamped{"choir"};
  spdlog::logger bare{"choir"};
  std::vector<spdlog::sink_ptr> screen, files;  // for lines that have two forms
  bool terminal = false;                        // true if stdout is a terminal
  bool shows_status = false;                    // true if the last line on it has no line end
  bool in_file = false;

  Sinks() {
    for (auto* logger : {&stamped, &bare}) logger->set_level(spdlog::level::trace);
  }
  /// Lines of a terminal are fitted, those of a file are not.
  template <class Sink>
  static void set_formatter(spdlog::sinks::sink& sink, std::unique_ptr<spdlog::formatter> lines) {
    if constexpr (std::is_same_v<Sink, spdlog::sinks::stdout_sink_mt>)
      lines = std::make_unique<FittedLines>(stdout, std::move(lines));
    else if constexpr (std::is_same_v<Sink, spdlog::sinks::stderr_sink_mt>)
      lines = std::make_unique<FittedLines>(stderr, std::move(lines));
    sink.set_formatter(std::move(lines));
  }
  template <class Sink, class... Args>
  void add(Args&&... args) {
    auto with_time = std::make_shared<Sink>(args...);
    auto without = std::make_shared<Sink>(args...);
    set_formatter<Sink>(
        *with_time, std::make_unique<spdlog::pattern_formatter>("[%Y-%m-%d %H:%M:%S.%e][%L] %v"));
    set_formatter<Sink>(*without, std::make_unique<spdlog::pattern_formatter>("%v"));
    stamped.sinks().push_back(with_time);
    bare.sinks().push_back(without);
    if constexpr (std::is_same_v<Sink, spdlog::sinks::stdout_sink_mt>)
      screen.push_back(without);
    else
      files.push_back(with_time);
  }
};

Logger::Logger() : Logger(true) {}
Logger::Logger(bool speaks) : sinks_(std::make_unique<Sinks>()), speaks_(speaks) {}
Logger::~Logger() = default;
Logger::Logger(Logger&&) noexcept = default;
Logger& Logger::operator=(Logger&&) noexcept = default;

void Logger::to_stdout() {
  to_stdout(true);
}

void Logger::to_stdout(bool stamped) {
  sinks_->add<spdlog::sinks::stdout_sink_mt>();
  if (!stamped) {
    auto form = std::make_unique<spdlog::pattern_formatter>();
    form->add_flag<LevelWord>('*').set_pattern("%*%v");
    Sinks::set_formatter<spdlog::sinks::stdout_sink_mt>(*sinks_->stamped.sinks().back(),
                                                        std::move(form));
  }
  sinks_->terminal = speaks_ && stdout_is_terminal();
}

void Logger::to_stderr() {
  sinks_->add<spdlog::sinks::stderr_sink_mt>();
}

bool Logger::on_terminal() const {
  return sinks_->terminal;
}

std::size_t Logger::columns() const {
  return shown_columns();
}

void Logger::two_forms(std::string_view whole, std::string_view shown) {
  if (!speaks_) return;
  if (sinks_->shows_status) status({});
  const auto put = [](const std::vector<spdlog::sink_ptr>& sinks, const std::string& text) {
    for (const spdlog::sink_ptr& sink : sinks)
      sink->log(spdlog::details::log_msg("choir", spdlog::level::info, text));
  };
  put(sinks_->files, printable_message(whole));
  for (const std::string& line : split(std::string(shown), '\n'))
    put(sinks_->screen, printable_name(line));
  settle();
}

void Logger::status(std::string_view text) {
  if (!sinks_->terminal || (text.empty() && !sinks_->shows_status)) return;
  // Longer lines would wrap, and only their last row would be erased. The width is queried each
  // time because windows are resized.
  fmt::print(stdout, "\r\033[K{}", printable_name(text.substr(0, shown_columns() - 1)));
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
  settle();
}

void Logger::settle() {
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

namespace {

constexpr double kRenewal = 0.2;    // seconds between two updates on a terminal
constexpr double kMostGrowth = 20;  // seconds up to which the interval of a log doubles

}  // namespace

ProgressLine::ProgressLine(Logger& log, std::string phase, double interval)
    : log_(log), phase_(std::move(phase)), interval_(interval) {
  restart();
}

ProgressLine::~ProgressLine() {
  log_.status({});
}

void ProgressLine::restart() {
  began_ = said_ = shown_ = now_seconds();
}

bool ProgressLine::due() const {
  const double now = now_seconds();
  return log_.on_terminal() ? now - shown_ >= kRenewal : now - said_ >= interval_;
}

void ProgressLine::at(std::int64_t done, std::int64_t total, std::int64_t begun,
                      std::string_view more) {
  if (listener_) listener_();
  if (!due() || done <= begun || total <= 0) return;
  // Nothing is left of the phase itself, and "100 %, 0 ms left" would be false of what follows it.
  if (done >= total) return log_.status({});
  const double now = now_seconds();
  const double left =
      (now - began_) * static_cast<double>(total - done) / static_cast<double>(done - begun);
  const double percent = 100 * static_cast<double>(done) / static_cast<double>(total);
  const std::string text =
      fmt::format("{}: {:.0f} %, {} left", phase_, std::floor(percent),
                  left < 1 ? std::string("less than a second") : format_duration(left));
  shown_ = now;
  if (log_.on_terminal()) return log_.status(text + std::string(more));
  said_ = now;
  interval_ = std::max(interval_, std::min(2 * interval_, kMostGrowth));
  log_.info("{}", text);
}

}  // namespace choir
