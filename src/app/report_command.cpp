// choir report RUN_DIR|FILE.csv|FILE.jsonl ... [--out FILE.html]
#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "choir/report/report_page.hpp"
#include "src/app/session.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

void write_page(const std::string& path, const std::string& page, bool chosen) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  const int why = errno;
  const auto refuse = [&](const std::string& reason) {
    throw StorageError(fmt::format("cannot write '{}': {}", path, reason),
                       chosen ? "name another place with --out FILE.html"
                              : "the run directory cannot be written: name a place with --out "
                                "FILE.html");
  };
  if (!file) refuse(std::strerror(why));
  file << page;
  file.close();
  std::error_code failed;
  if (!file) {
    fs::remove(fresh, failed);
    refuse("is the disk full?");
  }
  fs::rename(fresh, path, failed);
  if (failed) {
    const std::string reason = failed.message();
    fs::remove(fresh, failed);
    refuse(reason);
  }
}

struct Subjects {
  std::vector<report::ReportedRun> runs;
  std::vector<report::ScalingTable> tables;
  std::vector<report::RecordedDialogue> dialogues;
};

Subjects read_subjects(const std::vector<std::string>& paths) {
  Subjects subjects;
  for (const std::string& path : paths) {
    if (fs::path(path).extension() == ".jsonl")
      subjects.dialogues.push_back(report::read_dialogue(path));
    else if (fs::is_regular_file(path))
      subjects.tables.push_back(report::read_scaling(path));
    else
      subjects.runs.push_back(report::read_run(path));
  }
  bool any = !subjects.tables.empty() || !subjects.dialogues.empty();
  for (const report::ReportedRun& run : subjects.runs) {
    any = any || !run.empty();
    if (!run.state.empty())
      fmt::print("{}: {}: {}\n", run.path, report::name_of(run.fate), run.state);
    for (const std::string& note : run.notes) fmt::print("{}: {}\n", run.path, note);
  }
  if (!any)
    throw DataError("nothing to report: no run has a line of metrics",
                    "a run writes its first line after its first step; its log.txt says how far "
                    "it came");
  return subjects;
}

int report_on(const std::vector<std::string>& paths, std::string out) {
  const Subjects subjects = read_subjects(paths);
  const bool chosen = !out.empty();
  if (!chosen && subjects.runs.size() == 1 && subjects.tables.empty() && subjects.dialogues.empty())
    out = subjects.runs[0].path + "/report.html";
  else if (!chosen)
    out = "report.html";
  const std::string page = report::report_page(subjects.runs, subjects.tables, subjects.dialogues);
  write_page(out, page, chosen);
  for (const std::string& caution : report::comparison_cautions(subjects.runs))
    fmt::print("{}\n", caution);
  const std::vector<std::string> keys = report::differing_keys(subjects.runs);
  if (!keys.empty()) fmt::print("the decks differ in {}\n", join(keys, ", "));
  fmt::print("{} ({:.0f} kB)\n", out, static_cast<double>(page.size()) / 1e3);
  return 0;
}

}  // namespace

int report_command(const Arguments& arguments) {
  CommandLine app(
      "Curves, phases, memory, layout, events, samples and provenance of runs side by side, and "
      "tables of benchmarks, and dialogues with their sound: one HTML page that needs nothing "
      "else.",
      "choir report");
  std::vector<std::string> paths;
  std::string out;
  app.add_option("paths", paths,
                 "run directories, CSV files of benchmarks, and JSON lines of dialogues (`choir "
                 "talk --json`)")
      .required();
  app.add_option("--out", out,
                 "the page; default: report.html in the run directory, of several paths in the "
                 "current one");
  if (const auto code = parse(app, arguments)) return *code;
  return without_mpi([&] { return report_on(paths, out); });
}

}  // namespace choir
