// choir bench scaling FOLDER
#include <fmt/core.h>

#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/core/printable.hpp"
#include "choir/report/sweep.hpp"
#include "src/app/bench.hpp"

namespace choir {
namespace {

struct BenchScalingRequest {
  std::string folder, csv, jsonl, run;
  double loss = 0;
};

int report_scaling(const BenchScalingRequest& request) {
  if (request.run.empty() != (request.loss == 0))
    throw DeckError("--run and --target-loss must be given together",
                    "--run RUN_DIRECTORY --target-loss 2.0");
  std::optional<Target> target;
  if (!request.run.empty()) target = target_of_run(request.run, request.loss);
  const BenchFiles files{.csv = request.csv, .json = request.jsonl};
  files.require_writable();
  const Sweep sweep = read_sweep(request.folder);
  if (files.table()) print_safely("{}\n", to_table(sweep));
  if (files.table() && sweep.valid()) print_safely("{}\n", advice(sweep, target));
  const int code = files.finish(to_csv(sweep), to_json_lines(sweep), sweep.valid());
  if (!files.table()) return code;
  const auto valid = std::count_if(sweep.rows.begin(), sweep.rows.end(),
                                   [](const SweepRow& row) { return row.valid(); });
  print_safely("{}: {} of {} rows are valid\n", sweep.valid() ? "VALID" : "INVALID", valid,
               sweep.rows.size());
  return code;
}

}  // namespace

int bench_scaling_command(const Arguments& arguments) {
  CommandLine app(
      "Summarises a sweep of bench/scaling.sh as a table, CSV or JSON lines, with advice on the "
      "batch.",
      "choir bench scaling");
  BenchScalingRequest request;
  app.add_option("folder", request.folder, "folder with the runs of bench/scaling.sh").required();
  app.add_option("--csv", request.csv,
                 "write header and rows to this file; -: print them instead of the table");
  app.add_option("--jsonl", request.jsonl,
                 "write one JSON line per row, with the times of all steps, to this file; -: print "
                 "them instead of the table");
  app.add_option("--run", request.run,
                 "training run from which time and cost to --target-loss are computed");
  app.add_option("--target-loss", request.loss, "validation loss that this run reached");
  if (const auto code = parse(app, arguments)) return *code;
  return without_mpi([&] { return report_scaling(request); });
}

}  // namespace choir
