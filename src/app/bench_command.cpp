// choir bench KIND ...
#include <fmt/core.h>

#include "choir/app/bench.hpp"
#include "choir/app/guard.hpp"
#include "choir/core/error.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

std::string kinds_table() {
  std::string text;
  for (const Command& kind : bench_kinds())
    text += fmt::format("  {:<12} {}\n", kind.name, kind.summary);
  return text;
}

}  // namespace

const std::vector<Command>& bench_kinds() {
  static const std::vector<Command> table{
      {"step", "the training step of a deck: phases, tokens/s, ratio to the floor",
       bench_step_command},
      {"collectives", "every collective along every axis by every backend, checked",
       bench_collectives_command},
      {"reader", "the token readers against plain pread, checked", bench_reader_command},
      {"checkpoint", "saves and loads against plain reads and writes, checked",
       bench_checkpoint_command},
      {"ops", "the bandwidth-bound ops against the copy rate, checked", bench_ops_command},
      {"gemm", "the matrix products of a deck, and squares, checked", bench_gemm_command},
      {"attention", "attention of a deck, or a series of lengths, checked",
       bench_attention_command},
      {"scaling", "a sweep of bench/scaling.sh as tables, with advice on the batch",
       bench_scaling_command},
  };
  return table;
}

int bench_command(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print("usage: choir bench KIND ...      (choir bench KIND --help)\n\n{}", kinds_table());
    return arguments.empty() ? static_cast<int>(ExitCode::deck) : 0;
  }
  for (const Command& kind : bench_kinds())
    if (arguments[0] == kind.name) return kind.run({arguments.begin() + 1, arguments.end()});
  return without_mpi([&]() -> int {
    std::vector<std::string> names;
    for (const Command& kind : bench_kinds()) names.emplace_back(kind.name);
    throw DeckError(fmt::format("there is no bench '{}'", arguments[0]),
                    "the kinds are " + join(names, ", "));
  });
}

}  // namespace choir
