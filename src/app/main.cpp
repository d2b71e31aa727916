// Entry point: choir SUBCOMMAND ...
#include <fmt/core.h>

#include <string>
#include <vector>

#include "choir/core/error.hpp"
#include "src/app/command_line.hpp"
#include "src/core/build_info.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"

namespace {

void print_usage() {
  choir::print_safely("choir {} ({}): trains and runs transformer language models on MPI ranks\n\n",
                      choir::kVersion, choir::build_revision());
  choir::print_safely("usage: choir SUBCOMMAND ...      (choir SUBCOMMAND --help)\n\n");
  for (const choir::Command& command : choir::commands())
    choir::print_safely("  {:<10} {}\n", command.name, command.summary);
  choir::print_safely(
      "\non several ranks: mpiexec -n N choir train DECK.json [key.path=value ...]\n");
}

// Refuses an unknown subcommand under MPI, whose end waits for all ranks: a launcher ends the
// others as soon as one exits with an error, perhaps before the message was printed.
int unknown(const std::string& name) {
  return choir::with_mpi([&](choir::MpiSession& session) -> int {
    std::vector<std::string> names;
    for (const choir::Command& command : choir::commands()) names.emplace_back(command.name);
    const std::string nearest = choir::nearest_name(name, names);
    choir::DeckError error(fmt::format("unknown subcommand '{}'", name),
                           (nearest.empty() ? "" : "did you mean '" + nearest + "'? ") +
                               std::string("`choir --help` lists all subcommands"));
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
    choir::print_safely("choir {} ({})\n", choir::kVersion, choir::build_revision());
    return 0;
  }
  for (const choir::Command& command : choir::commands())
    if (all[0] == command.name) return command.run({all.begin() + 1, all.end()});
  return unknown(all[0]);
}

}  // namespace

int main(int argc, char** argv) {
  return choir::run(argc, argv);
}
