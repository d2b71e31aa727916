// choir runs [FOLDER ...] [--all] [--json | --index]
#include "src/app/command_line.hpp"
#include "src/core/file.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/report/run_list.hpp"

namespace choir {
namespace {

struct RunsRequest {
  std::vector<std::string> folders;
  std::string state;  ///< "": all
  bool json = false, index = false, all = false;
};

/// Replaces the index of each folder by a line for each of its runs.
int write_indices(const RunsRequest& request) {
  for (const std::string& folder : request.folders) {
    std::vector<report::ListedRun> runs;
    for (const std::string& path : report::run_folders(folder))
      runs.push_back(report::listed(report::read_run(path)));
    const std::string file = folder + "/index.jsonl";
    write_whole_file(file, report::run_lines(runs) + "\n");
    print_safely("{}: {}\n", printable_name(file), counted(std::ssize(runs), "run"));
  }
  return 0;
}

int list_runs(const RunsRequest& request) {
  std::vector<report::ListedRun> runs;
  std::int64_t hidden = 0;
  for (const std::string& folder : request.folders) {
    const bool hides =
        !request.all && !request.json && request.state.empty() && !report::is_run_folder(folder);
    for (const std::string& path : report::run_folders(folder)) {
      const report::ReportedRun read = report::read_run(path);
      report::ListedRun run = report::listed(read);
      if (hides && report::never_began(read))
        ++hidden;
      else if (request.state.empty() || run.state == request.state)
        runs.push_back(std::move(run));
    }
  }
  if (request.json && runs.empty()) return 0;
  print_safely("{}\n", request.json ? report::run_lines(runs) : report::run_table(runs));
  print_safely("{}", report::note_on_refused(hidden, "--all shows"));
  return 0;
}

}  // namespace

int runs_command(const Invocation& call) {
  CommandLine app(
      "Lists the runs below a folder: whether each has finished, is running, was stopped or has "
      "failed, its newest step and losses, its kind of model, and the deck that it began with.",
      "choir runs");
  RunsRequest request;
  app.add_option("folders", request.folders, "folders of runs; default: runs");
  app.add_option("--state", request.state, "list only the runs in this state")
      .one_of(report::run_states());
  app.add_flag("--all", request.all,
               "list also the runs that were refused before their first step, such as those with a "
               "misspelt file of data; --json always has them");
  app.add_flag("--json", request.json, "print one JSON object per run");
  app.add_flag("--index", request.index,
               "write these objects to FOLDER/index.jsonl, to which every run also adds a line at "
               "its end; this removes lines of runs that are gone");
  if (const auto code = parse(app, call)) return *code;
  if (request.folders.empty()) request.folders.emplace_back("runs");
  return without_mpi([&] { return request.index ? write_indices(request) : list_runs(request); });
}

}  // namespace choir
