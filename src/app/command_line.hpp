#pragma once
// Subcommands: their table, the parsing of their arguments, and the start and end of the process.
// Arguments are parsed through a layer over CLI11 that hides it, because its header takes longer to
// compile than a command does. Errors become messages and exit codes here; this is the only file
// that decides to end a process.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_session.hpp"

namespace choir {

class FamilyTable;
struct CodecRunRequest;

using Arguments = std::vector<std::string>;

/// A command as the user typed it, and the families of models that the program has.
struct Invocation {
  Arguments arguments;  ///< the words after the name of the command
  const FamilyTable& families;
};

int train_command(const Invocation& call);
int eval_command(const Invocation& call);
int generate_command(const Invocation& call);
int import_command(const Invocation& call);
int export_command(const Invocation& call);
int average_command(const Invocation& call);
int transcribe_command(const Invocation& call);
int speak_command(const Invocation& call);
int talk_command(const Invocation& call);
int prepare_command(const Invocation& call);
int plan_command(const Invocation& call);
int rehearse_command(const Invocation& call);
int calibrate_command(const Invocation& call);
int tune_command(const Invocation& call);
int inspect_command(const Invocation& call);
int verify_command(const Invocation& call);
int doctor_command(const Invocation& call);
int bench_command(const Invocation& call);
int report_command(const Invocation& call);
int runs_command(const Invocation& call);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Invocation&);
};
const std::vector<Command>& commands();

}  // namespace choir

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
  friend std::optional<int> parse(CommandLine& app, const Invocation& call);
  explicit CommandLine(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}
  std::shared_ptr<CLI::App> app_;
};

/// Adds --tensor, for commands that run a model.
void add_tensor_option(CommandLine& app, int& tensor);
/// Adds the positional argument of commands that open a codec, and its options.
void add_codec_run(CommandLine& app, CodecRunRequest& request);
/// Adds --ema, for commands that read a model; see with_ema() in run/loaded_model.hpp.
void add_ema_option(CommandLine& app, bool& ema);

/// Parses the arguments. On --help or an error it prints a message and returns the exit code (0 or
/// 2).
std::optional<int> parse(CommandLine& app, const Invocation& call);

/// Runs `body` with MPI up and returns its exit code. An error that all ranks agreed on is printed
/// once and every rank returns its code; any other error is printed by its rank, and all ranks are
/// aborted with its code.
int with_mpi(const std::function<int(MpiSession&)>& body);

/// Runs a command while signals do not disturb its computing threads (SignalThread), and returns
/// its exit code: 6, with a message, if the command succeeded but its output could not be written.
/// A reader that stops reading (`head`) is not an error: the command completes its work, and its
/// further output is discarded.
int finished(const std::function<int()>& command);

/// True if this process prints what all ranks would print alike before MPI is initialised: errors
/// and --help. Only the launcher's first process does.
bool speaks_before_mpi();

/// The same as with_mpi() for commands of one process that need no MPI. Under a launcher only the
/// first process prints an error, because all would print the same.
int without_mpi(const std::function<int()>& body);

/// Corrects the environment variables that libgomp reads before main(); if one must change, the
/// program executes itself again as the same process.
///
/// Threads that wait for others poll for some microseconds and then sleep. libgomp's default of 3
/// ms keeps a core from other work: with one of two cores busy, a FastConformer trained at two
/// thirds of the speed (bench/results/2026-11-26-busy-cores.txt).
///
/// Teams must have the requested size: in a smaller one (OMP_DYNAMIC, OMP_THREAD_LIMIT,
/// OMP_MAX_ACTIVE_LEVELS=0) oneDNN silently skips the products of the missing threads.
void settle_openmp(char** argv);

}  // namespace choir
