#pragma once
// Start and end of a subcommand. Arguments are parsed through a layer over CLI11 that hides it,
// because its header takes longer to compile than a command does. Errors become messages and exit
// codes here; this is the only file that decides to end a process.
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

/// Constraints on one option. Each call returns the option, so that calls can be chained.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption required();
  /// --help shows the default, which is the present value of the variable.
  CommandOption shows_default();
  /// Hides the option from --help.
  CommandOption hidden();
  /// Both ends are legal; NaN is not.
  CommandOption within(int low, int high);
  CommandOption within(std::int64_t low, std::int64_t high);
  CommandOption within(double low, double high);
  /// The value must be above 0 and finite.
  CommandOption positive();
  CommandOption one_of(const std::vector<std::string>& words);
  /// `problem` returns what is wrong with a value, "" if it is legal.
  CommandOption checked(std::function<std::string(const std::string&)> problem);
  CommandOption needs(const CommandOption& other);
  CommandOption excludes(const CommandOption& other);

  /// True if the option was on the command line; valid after parse().
  bool given() const;

 private:
  CLI::Option* option_;
};

/// A subcommand, or a subcommand of one. Copies share their state. Variables must outlive parse().
class CommandLine {
 public:
  /// `name` as users type it, "choir train".
  CommandLine(const std::string& description, const std::string& name);

  /// `names`: "--bytes", or "path" for a positional argument. T is std::string, Arguments, int,
  /// std::int64_t, std::uint64_t, double, std::optional<int> or std::optional<double>; other types
  /// do not link.
  template <class T>
  CommandOption add_option(const std::string& names, T& variable, const std::string& help = "");
  /// "--json" sets the variable, "!--no-json" clears it.
  CommandOption add_flag(const std::string& names, bool& variable, const std::string& help);

  /// The command line must contain one of the subcommands.
  void require_subcommand();
  CommandLine add_subcommand(const std::string& name, const std::string& description);
  /// For a subcommand: parse() calls `action` if the subcommand was given.
  void callback(std::function<void()> action);

 private:
  friend std::optional<int> parse(CommandLine& app, const Arguments& arguments);
  explicit CommandLine(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}
  std::shared_ptr<CLI::App> app_;
};

/// Parses the arguments. On --help or an error it prints a message and returns the exit code (0 or
/// 2).
std::optional<int> parse(CommandLine& app, const Arguments& arguments);

/// Runs `body` with MPI up and returns its exit code. An error that all ranks agreed on is printed
/// once and every rank returns its code; any other error is printed by its rank, and all ranks are
/// aborted with its code.
int with_mpi(const std::function<int(MpiSession&)>& body);

/// Runs a command while signals do not disturb its computing threads (SignalThread), and returns
/// its exit code: 6, with a message, if the command succeeded but its output could not be written.
/// A reader that stops reading (`head`) is not an error: the command completes its work, and its
/// further output is discarded.
int finished(const std::function<int()>& command);

/// The same as with_mpi() for commands of one process that need no MPI. Under a launcher only the
/// first process prints an error, because all would print the same.
int without_mpi(const std::function<int()>& body);

}  // namespace choir
