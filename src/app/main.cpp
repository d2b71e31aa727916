// choir SUBCOMMAND ...: the table of contents.
#include <fmt/core.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "choir/core/cores.hpp"
#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "choir/train/step/build_info.hpp"
#include "src/app/command_line.hpp"

namespace {

void print_usage() {
  fmt::print("choir {} ({}): trains and runs transformer language models on MPI ranks\n\n",
             choir::kVersion, choir::build_revision());
  fmt::print("usage: choir SUBCOMMAND ...      (choir SUBCOMMAND --help)\n\n");
  for (const choir::Command& command : choir::commands())
    fmt::print("  {:<10} {}\n", command.name, command.summary);
  fmt::print("\nseveral ranks: mpiexec -n N choir train DECK.json [key.path=value ...]\n");
}

// With MPI, whose end waits for all ranks: a launcher ends the others as soon as one exits with an
// error, perhaps before it was printed.
int unknown(const std::string& name) {
  return choir::with_mpi([&](choir::MpiSession& session) -> int {
    std::vector<std::string> names;
    for (const choir::Command& command : choir::commands()) names.emplace_back(command.name);
    const std::string nearest = choir::nearest_name(name, names);
    choir::DeckError error(fmt::format("there is no subcommand '{}'", name),
                           (nearest.empty() ? "" : "did you mean '" + nearest + "'? ") +
                               std::string("`choir --help` lists them all"));
    error.set_agreed_ranks(session.size());
    throw error;
  });
}

int run(const std::vector<std::string>& all) {
  if (all.empty() || all[0] == "--help" || all[0] == "-h" || all[0] == "help") {
    print_usage();
    return all.empty() ? static_cast<int>(choir::ExitCode::deck) : 0;
  }
  if (all[0] == "--version") {
    fmt::print("choir {} ({})\n", choir::kVersion, choir::build_revision());
    return 0;
  }
  for (const choir::Command& command : choir::commands())
    if (all[0] == command.name) return command.run({all.begin() + 1, all.end()});
  return unknown(all[0]);
}

/// Threads that wait for others look for work some microseconds long, then they sleep. libgomp's 3
/// ms keep a core from whoever should have it: with one of two cores busy, a FastConformer trained
/// at two thirds of the speed (bench/results/2026-11-26-busy-cores.txt). It reads its environment
/// before main(), so the program starts once more, as the same process.
void wait_briefly(char** argv) {
  constexpr const char *kSpins = "GOMP_SPINCOUNT", *kPolicy = "OMP_WAIT_POLICY";
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  if (threads != nullptr && std::string_view(threads) == "1") return;
  if (std::getenv(kSpins) != nullptr || std::getenv(kPolicy) != nullptr) return;
  if (getauxval(AT_BASE) == 0) return;  // the loader was called with the program as its argument
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  setenv(kSpins, "1000", 1);
  // libgomp has bound this thread to one place already (OMP_PROC_BIND); it will divide anew.
  const cpu_set_t cores = choir::own_cores();
  sched_setaffinity(0, sizeof cores, &cores);
  execv(self.c_str(), argv);
  unsetenv(kSpins);
}

}  // namespace

int main(int argc, char** argv) {
  wait_briefly(argv);
  // A limit on the size of files (ulimit -f) then is an error of the write, as a full disk is, and
  // a save that fails; by default it kills the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return choir::finished([&] { return run({argv + 1, argv + argc}); });
}
