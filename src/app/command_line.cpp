#include "choir/app/command_line.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "choir/app/guard.hpp"
#include "choir/core/error.hpp"

namespace choir {
namespace {

/// NaN passes all that CLI11 compares it with.
std::string refusal_unless_finite(const std::string& value) {
  return std::isfinite(std::strtod(value.c_str(), nullptr))
             ? ""
             : fmt::format("Value {} is not a finite number", value);
}

}  // namespace

CommandOption CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption CommandOption::shows_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption CommandOption::hidden() {
  option_->group("");
  return *this;
}

CommandOption CommandOption::within(int low, int high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

CommandOption CommandOption::within(std::int64_t low, std::int64_t high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

CommandOption CommandOption::within(double low, double high) {
  option_->check(refusal_unless_finite)->check(CLI::Range(low, high));
  return *this;
}

CommandOption CommandOption::positive() {
  option_->check(refusal_unless_finite)->check(CLI::PositiveNumber);
  return *this;
}

CommandOption CommandOption::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return *this;
}

CommandOption CommandOption::checked(std::function<std::string(const std::string&)> problem) {
  option_->check(std::move(problem));
  return *this;
}

CommandOption CommandOption::needs(const CommandOption& other) {
  option_->needs(other.option_);
  return *this;
}

CommandOption CommandOption::excludes(const CommandOption& other) {
  option_->excludes(other.option_);
  return *this;
}

bool CommandOption::given() const {
  return option_->count() > 0;
}

CommandLine::CommandLine(const std::string& description, const std::string& name)
    : app_(std::make_shared<CLI::App>(description, name)) {}

template <class T>
CommandOption CommandLine::add_option(const std::string& names, T& variable,
                                      const std::string& help) {
  return CommandOption(app_->add_option(names, variable, help));
}
template CommandOption CommandLine::add_option(const std::string&, std::string&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, Arguments&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, int&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::int64_t&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::uint64_t&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, double&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<int>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<double>&,
                                               const std::string&);

CommandOption CommandLine::add_flag(const std::string& names, bool& variable,
                                    const std::string& help) {
  return CommandOption(app_->add_flag(names, variable, help));
}

void CommandLine::require_subcommand() {
  app_->require_subcommand(1);
}

// It belongs to the one that it was added to, which lives as long.
CommandLine CommandLine::add_subcommand(const std::string& name, const std::string& description) {
  return CommandLine(std::shared_ptr<CLI::App>(app_, app_->add_subcommand(name, description)));
}

void CommandLine::callback(std::function<void()> action) {
  app_->callback(std::move(action));
}

bool CommandLine::parsed() const {
  return app_->parsed();
}

std::optional<int> parse(CommandLine& app, const Arguments& arguments) {
  Arguments reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app.app_->parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.app_->exit(error);  // --help
    return without_mpi([&]() -> int {
      throw DeckError(fmt::format("{}: {}", app.app_->get_name(), error.what()),
                      fmt::format("`{} --help` lists the arguments", app.app_->get_name()));
    });
  }
  return std::nullopt;
}

}  // namespace choir
