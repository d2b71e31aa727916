// choir SUBCOMMAND ...: the usage and the choice of the subcommand.
#include "choir/app/run.hpp"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/deck/family_table.hpp"
#include "src/app/command_line.hpp"
#include "src/core/build_info.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"
#include "src/models/families.hpp"

namespace choir {
namespace {

void print_usage() {
  print_safely("choir {} ({}): trains and runs transformer language models on MPI ranks\n\n",
               kVersion, build_revision());
  print_safely("usage: choir SUBCOMMAND ...      (choir SUBCOMMAND --help)\n\n");
  for (const Command& command : commands())
    print_safely("  {:<10} {}\n", command.name, command.summary);
  print_safely("\non several ranks: mpiexec -n N choir train DECK.json [key.path=value ...]\n");
}

// Refuses an unknown subcommand under MPI, whose end waits for all ranks: a launcher ends the
// others as soon as one exits with an error, perhaps before the message was printed.
int unknown(const std::string& name) {
  return with_mpi([&](MpiSession& session) -> int {
    std::vector<std::string> names;
    for (const Command& command : commands()) names.emplace_back(command.name);
    const std::string nearest = nearest_name(name, names);
    DeckError error(fmt::format("unknown subcommand '{}'", name),
                    (nearest.empty() ? "" : "did you mean '" + nearest + "'? ") +
                        std::string("`choir --help` lists all subcommands"));
    error.set_agreed_ranks(session.size());
    throw error;
  });
}

int run_words(const Arguments& all, const FamilyTable& families) {
  if (all.empty() || all[0] == "--help" || all[0] == "-h" || all[0] == "help") {
    if (speaks_before_mpi()) print_usage();
    return all.empty() ? static_cast<int>(ExitCode::deck) : 0;
  }
  if (all[0] == "--version") {
    if (speaks_before_mpi()) print_safely("choir {} ({})\n", kVersion, build_revision());
    return 0;
  }
  for (const Command& command : commands())
    if (all[0] == command.name) return command.run({{all.begin() + 1, all.end()}, families});
  return unknown(all[0]);
}

}  // namespace

int run(int argc, char** argv, const std::vector<const ModelFamily*>& families) {
  settle_openmp(argv);
  return finished([&] {
    std::vector<const ModelFamily*> all = built_in_families();
    all.insert(all.end(), families.begin(), families.end());
    const FamilyTable table(std::move(all));
    return run_words({argv + 1, argv + argc}, table);
  });
}

}  // namespace choir
