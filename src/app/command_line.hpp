#pragma once
// How a subcommand begins and ends. Its arguments, by a layer over CLI11 that nobody sees through:
// its header takes the compiler longer than a command does. And what becomes of errors: messages
// and exit codes, the only place where a process decides to end.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/mpi/mpi_session.hpp"
#include "src/app/commands.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace choir {

/// What holds for one option. Each call returns the option, for the next.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption required();
  /// --help says what it is without being given: what its variable holds now.
  CommandOption shows_default();
  /// Not in --help.
  CommandOption hidden();
  /// Both ends are legal; NaN is not.
  CommandOption within(int low, int high);
  CommandOption within(std::int64_t low, std::int64_t high);
  CommandOption within(double low, double high);
  /// Above 0 and finite.
  CommandOption positive();
  CommandOption one_of(const std::vector<std::string>& words);
  /// `problem` returns what is wrong with a value, "" for nothing.
  CommandOption checked(std::function<std::string(const std::string&)> problem);
  CommandOption needs(const CommandOption& other);
  CommandOption excludes(const CommandOption& other);

  /// After parse(): it was on the command line.
  bool given() const;

 private:
  CLI::Option* option_;
};

/// A subcommand, or one of a subcommand. Copies are the same one. Variables must outlive parse().
class CommandLine {
 public:
  /// `name` as users type it, "choir train".
  CommandLine(const std::string& description, const std::string& name);

  /// `names`: "--bytes", or "path" for a positional argument. T: std::string, Arguments, int,
  /// std::int64_t, std::uint64_t, double, std::optional<int>, std::optional<double>; others do not
  /// link.
  template <class T>
  CommandOption add_option(const std::string& names, T& variable, const std::string& help = "");
  /// "--json" sets the variable, "!--no-json" clears it.
  CommandOption add_flag(const std::string& names, bool& variable, const std::string& help);

  /// One of them has to be given.
  void require_subcommand();
  CommandLine add_subcommand(const std::string& name, const std::string& description);
  /// For a subcommand: parse() calls `action` when it was given.
  void callback(std::function<void()> action);

 private:
  friend std::optional<int> parse(CommandLine& app, const Arguments& arguments);
  explicit CommandLine(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}
  std::shared_ptr<CLI::App> app_;
};

/// Parses; on --help or an error prints it and returns the exit code to end with (0 or 2).
std::optional<int> parse(CommandLine& app, const Arguments& arguments);

/// Runs `body` with MPI up and returns its exit code. An error that all ranks agreed on is printed
/// once and every rank returns its code; any other error is printed by its rank, and all ranks are
/// aborted with its code.
int with_mpi(const std::function<int(MpiSession&)>& body);

/// Runs a command in a process in which signals do not disturb what computes (SignalThread), and
/// returns its exit code: 6, with a message, if the command succeeded but its output could not be
/// written. A reader that stops reading (`head`) is no such error: the command does its work to the
/// end, and what it prints from then on is discarded.
int finished(const std::function<int()>& command);

/// The same as with_mpi() for commands of one process that need no MPI. Under a launcher, whose
/// every process would say the same, the first prints the error.
int without_mpi(const std::function<int()>& body);

}  // namespace choir
