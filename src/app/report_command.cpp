// choir report RUN_DIR|FOLDER|FILE.csv|FILE.jsonl ... [--out FILE.html] [--wandb]
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "choir/core/error.hpp"
#include "src/app/command_line.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/report/report_page.hpp"
#include "src/report/run_list.hpp"
#include "src/report/wandb_run.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// Replaces a file atomically. `cure` is the hint if it cannot be written.
void write_whole(const std::string& path, const std::string& bytes, const std::string& cure) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  const int why = errno;
  const auto refuse = [&](const std::string& reason) {
    throw StorageError(fmt::format("cannot write '{}': {}", path, reason), cure);
  };
  if (!file) refuse(std::strerror(why));
  file << bytes;
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

/// The paths, with every folder of runs replaced by the runs below it.
std::vector<std::string> with_runs_below(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    std::error_code failed;
    // A directory with any file of a run is read as one, so that its faults are reported.
    const bool folder = fs::is_directory(path, failed) &&
                        std::ranges::none_of(std::array{"deck.json", "log.txt", "metrics.jsonl"},
                                             [&](const char* name) {
                                               return fs::exists(fs::path(path) / name, failed);
                                             });
    const std::vector<std::string> runs =
        folder ? report::run_folders(path) : std::vector<std::string>{path};
    all.insert(all.end(), runs.begin(), runs.end());
  }
  return all;
}

Subjects read_subjects(const std::vector<std::string>& paths, const FamilyTable& families) {
  Subjects subjects;
  for (const std::string& path : with_runs_below(paths)) {
    if (fs::path(path).extension() == ".jsonl")
      subjects.dialogues.push_back(report::read_dialogue(path));
    else if (fs::is_regular_file(path))
      subjects.tables.push_back(report::read_scaling(path));
    else
      subjects.runs.push_back(report::read_run(path));
  }
  for (report::ReportedRun& run : subjects.runs) report::mark_own_keys(families, run);
  bool any = !subjects.tables.empty() || !subjects.dialogues.empty();
  for (const report::ReportedRun& run : subjects.runs) {
    any = any || !run.empty();
    if (!run.state.empty())
      print_safely("{}: {}: {}\n", printable_name(run.path), report::name_of(run.fate),
                   printable_name(run.state));
    for (const std::string& note : run.notes)
      print_safely("{}: {}\n", printable_name(run.path), printable_name(note));
  }
  if (!any)
    throw DataError("nothing to report: no run has a line of metrics",
                    "a run writes its first line after its first step; see its log.txt");
  return subjects;
}

/// Writes offline runs of Weights & Biases, each to its run directory or to `out`.
int export_to_wandb(const std::vector<std::string>& paths, const std::string& out,
                    const FamilyTable& families) {
  for (const std::string& path : paths)
    if (fs::is_regular_file(path))
      throw DeckError(fmt::format("--wandb needs run directories, but '{}' is a file", path),
                      "give only run directories (run.dir of a deck)");
  const Subjects subjects = read_subjects(paths, families);
  for (const report::ReportedRun& run : subjects.runs) {
    if (run.empty()) continue;  // already reported as a run without metrics
    const report::WandbRun made = report::wandb_run(run);
    const fs::path folder = fs::path(out.empty() ? run.path + "/wandb" : out) / made.folder;
    std::error_code failed;
    fs::create_directories(folder, failed);
    write_whole((folder / made.file).string(), made.bytes,
                "give a writable folder with --out FOLDER");
    print_safely(
        "{} ({})\nupload with: wandb sync --project NAME {}\n", printable_name(folder.string()),
        format_bytes(static_cast<double>(made.bytes.size())), printable_name(folder.string()));
  }
  return 0;
}

int report_on(const std::vector<std::string>& paths, std::string out, const FamilyTable& families) {
  const Subjects subjects = read_subjects(paths, families);
  const bool chosen = !out.empty();
  if (!chosen && paths.size() == 1 && fs::is_directory(paths[0]))
    out = paths[0] + "/report.html";
  else if (!chosen && subjects.runs.size() == 1 && subjects.tables.empty() &&
           subjects.dialogues.empty())
    out = subjects.runs[0].path + "/report.html";
  else if (!chosen)
    out = "report.html";
  const std::string page = report::report_page(subjects.runs, subjects.tables, subjects.dialogues);
  write_whole(out, page,
              chosen ? "give another file with --out FILE.html"
                     : "the run directory is not writable: give a file with --out FILE.html");
  for (const std::string& caution : report::comparison_cautions(subjects.runs))
    print_safely("{}\n", caution);
  const std::vector<std::string> keys = report::differing_keys(subjects.runs);
  constexpr std::size_t kMostNamed = 12;
  if (keys.size() > kMostNamed)
    print_safely("the decks differ in {} keys, which the page lists\n", keys.size());
  else if (!keys.empty())
    print_safely("the decks differ in {}\n", printable_name(join(keys, ", ")));
  print_safely("{} ({})\n", printable_name(out), format_bytes(static_cast<double>(page.size())));
  return 0;
}

}  // namespace

int report_command(const Invocation& call) {
  CommandLine app(
      "Writes one self-contained HTML page: curves, phases, memory, layout, events, samples and "
      "provenance of runs side by side, tables of benchmarks, and dialogues with their sound.",
      "choir report");
  std::vector<std::string> paths;
  std::string out;
  app.add_option("paths", paths,
                 "run directories, folders of runs, CSV files of benchmarks, JSON lines of "
                 "dialogues (`choir talk --json`)")
      .required();
  app.add_option(
      "--out", out,
      "page to write; default: report.html in the run directory or folder, or in the "
      "current one for several paths; with --wandb a folder, default: wandb in the run directory");
  bool wandb = false;
  app.add_flag("--wandb", wandb,
               "instead of a page, write each run, with all of its jobs, as an offline run of "
               "Weights & Biases for `wandb sync`");
  if (const auto code = parse(app, call)) return *code;
  return without_mpi([&] {
    return wandb ? export_to_wandb(paths, out, call.families)
                 : report_on(paths, out, call.families);
  });
}

}  // namespace choir
