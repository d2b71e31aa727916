// choir report RUN_DIR|FOLDER|FILE.csv|FILE.jsonl ... [--format FORMAT] [--out FILE]
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "choir/core/error.hpp"
#include "src/app/command_line.hpp"
#include "src/core/file.hpp"
#include "src/core/output.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/report/report_page.hpp"
#include "src/report/run_formats.hpp"
#include "src/report/run_list.hpp"

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
  std::vector<report::KernelTable> kernels;
};

/// The runs below a folder, or the CSV files in it if there are no runs.
std::vector<std::string> inside(const std::string& folder) {
  std::vector<std::string> tables;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed))
    if (entry.path().extension() == ".csv") tables.push_back(entry.path().string());
  std::ranges::sort(tables);
  try {
    return report::run_folders(folder);
  } catch (const DataError&) {
    if (tables.empty()) throw;
    return tables;
  }
}

/// A run, table or dialogue, and whether it was found below a folder instead of being named.
struct ReportPath {
  std::string path;
  bool found = false;
};

/// The paths, with every folder replaced by what is reported of it.
std::vector<ReportPath> with_runs_below(const std::vector<std::string>& paths) {
  std::vector<ReportPath> all;
  for (const std::string& path : paths) {
    std::error_code failed;
    // A directory with any file of a run is read as one, so that its faults are reported.
    const bool folder = fs::is_directory(path, failed) &&
                        std::ranges::none_of(std::array{"deck.json", "log.txt", "metrics.jsonl"},
                                             [&](const char* name) {
                                               return fs::exists(fs::path(path) / name, failed);
                                             });
    if (!folder) all.push_back({path, false});
    if (folder)
      for (std::string& each : inside(path)) all.push_back({std::move(each), true});
  }
  return all;
}

Subjects read_subjects(const std::vector<std::string>& paths, const FamilyTable& families) {
  Subjects subjects;
  std::int64_t hidden = 0;
  for (const auto& [path, found] : with_runs_below(paths)) {
    const fs::path rows = fs::path(path).replace_extension(".csv");
    if (fs::path(path).extension() == ".jsonl" && path.find("-scaling-") != std::string::npos &&
        fs::exists(rows))
      throw DataError(fmt::format("'{}' has the times of all steps of a sweep", path),
                      fmt::format("name its rows, {}", rows.string()));
    if (fs::path(path).extension() == ".jsonl")
      subjects.dialogues.push_back(report::read_dialogue(path));
    else if (fs::is_regular_file(path) && report::is_kernel_table(path))
      report::add_kernels(subjects.kernels, report::read_kernels(path));
    else if (fs::is_regular_file(path))
      subjects.tables.push_back(report::read_scaling(path));
    else if (report::ReportedRun run = report::read_run(path); found && report::never_began(run))
      ++hidden;
    else
      subjects.runs.push_back(std::move(run));
  }
  print_safely("{}", report::note_on_refused(hidden, "the path of a run shows"));
  for (report::ReportedRun& run : subjects.runs) report::mark_own_keys(families, run);
  bool any = !subjects.tables.empty() || !subjects.dialogues.empty() || !subjects.kernels.empty();
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

/// Runs of `paths` that have steps. `format`: the option that needs run directories.
std::vector<report::ReportedRun> runs_of(const std::vector<std::string>& paths,
                                         const std::string& format, const FamilyTable& families) {
  for (const std::string& path : paths)
    if (fs::is_regular_file(path))
      throw DeckError(
          fmt::format("--format {} needs run directories, but '{}' is a file", format, path),
          "give only run directories (run.dir of a deck)");
  Subjects subjects = read_subjects(paths, families);
  if (subjects.runs.empty())
    throw DeckError(fmt::format("--format {} needs run directories, and there is none in '{}'",
                                format, join(paths, "', '")),
                    "give run directories (run.dir of a deck), or folders of them");
  std::erase_if(subjects.runs, [](const report::ReportedRun& run) { return run.empty(); });
  return std::move(subjects.runs);
}

/// Writes offline runs of Weights & Biases, each to its run directory or to `out`.
int export_to_wandb(const std::vector<std::string>& paths, const std::string& out,
                    const FamilyTable& families) {
  for (const report::ReportedRun& run : runs_of(paths, "wandb", families)) {
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

/// Writes files of events for TensorBoard, each to its run directory, or below `out`.
int export_to_tensorboard(const std::vector<std::string>& paths, const std::string& out,
                          const FamilyTable& families) {
  const std::vector<report::ReportedRun> runs = runs_of(paths, "tensorboard", families);
  for (const report::ReportedRun& run : runs) {
    fs::path name = fs::path(run.path).lexically_normal();
    if (!name.has_filename()) name = name.parent_path();
    const fs::path folder = out.empty() ? name / "tensorboard" : fs::path(out) / name.filename();
    std::error_code failed;
    fs::create_directories(folder, failed);
    const std::string bytes = report::tensorboard_events(run);
    const std::string file = (folder / "events.out.tfevents.0000000000.choir_report").string();
    write_whole(file, bytes, "give a writable folder with --out FOLDER");
    print_safely("{} ({})\n", printable_name(file),
                 format_bytes(static_cast<double>(bytes.size())));
  }
  if (!runs.empty())
    print_safely("look at them with: tensorboard --logdir {}\n",
                 printable_name(out.empty() ? paths.front() : out));
  return 0;
}

/// Splits "submission_org=NAME".
std::map<std::string, std::string> values_of(const std::vector<std::string>& settings) {
  std::map<std::string, std::string> values;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw DeckError(fmt::format("--set {}: it must be KEY=VALUE", setting),
                      "choir report RUN --format mllog --set submission_org=NAME");
    values[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return values;
}

/// Writes the lines of one run for MLPerf, or a row for each run, to `out` or to the standard
/// output.
int write_lines(const std::string& format, const std::vector<std::string>& paths,
                const std::string& out, const std::vector<std::string>& settings,
                const FamilyTable& families) {
  const auto values = values_of(settings);
  const std::vector<report::ReportedRun> runs = runs_of(paths, format, families);
  if (format == "mllog" && runs.size() != 1)
    throw DeckError(fmt::format("--format mllog describes one run, not {}", runs.size()),
                    "give one run directory, and another --out for each further run");
  std::string text;
  if (format == "mllog")
    for (const std::string& note : report::mllog_notes(runs.front(), values))
      print_safely(stderr, "choir: note: {}\n", note);
  for (const report::ReportedRun& run : runs)
    text += format == "mllog" ? report::mllog_lines(run, values) : report::scale_row(run) + "\n";
  if (out.empty()) {
    write_printable(stdout, text);
    return 0;
  }
  write_whole(out, text, "give another file with --out FILE");
  print_safely("{} ({})\n", printable_name(out), format_bytes(static_cast<double>(text.size())));
  return 0;
}

/// True if a folder of PATH has a program of this name.
bool is_installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  return std::ranges::any_of(split(path == nullptr ? "" : path, ':'), [&](const std::string& in) {
    return access((fs::path(in) / program).c_str(), X_OK) == 0;
  });
}

/// Prints a page to `pdf` with the first browser that is installed, or with WeasyPrint.
void print_page(const std::string& page, const std::string& pdf) {
  const std::string from = fs::absolute(page).string(), to = fs::absolute(pdf).string();
  for (const char* browser : {"chromium", "chromium-browser", "google-chrome", "chrome"}) {
    if (!is_installed(browser)) continue;
    const bool root = geteuid() == 0;  // browsers refuse a sandbox then
    run_program({browser, "--headless", root ? "--no-sandbox" : "--incognito", "--disable-gpu",
                 "--no-pdf-header-footer", "--print-to-pdf=" + to, "file://" + from},
                "chromium");
    return;
  }
  if (!is_installed("weasyprint"))
    throw Error(
        ExitCode::other, fmt::format("'{}' is written, but no program here prints it as PDF", page),
        "install chromium or weasyprint (apt install weasyprint), or print the page in a browser");
  const std::string plain = to + ".tmp.html";
  const std::string html = read_whole_file(from, kMostListMiB);
  write_whole(plain, report::page_for_weasyprint(html), "choose another --out");
  try {
    run_program({"weasyprint", plain, to}, "weasyprint");
  } catch (const Error&) {
    fs::remove(plain);
    throw;
  }
  fs::remove(plain);
}

struct PageRequest {
  std::vector<std::string> paths;
  std::string out;
  report::TrainingGoal goal;
  bool pdf = false;
};

int report_on(const PageRequest& request, const FamilyTable& families) {
  const std::vector<std::string>& paths = request.paths;
  std::string out = request.out;
  const Subjects subjects = read_subjects(paths, families);
  const bool chosen = !out.empty();
  if (!chosen && paths.size() == 1 && fs::is_directory(paths[0]))
    out = paths[0] + "/report.html";
  else if (!chosen && subjects.runs.size() == 1 && subjects.tables.empty() &&
           subjects.dialogues.empty() && subjects.kernels.empty())
    out = subjects.runs[0].path + "/report.html";
  else if (!chosen)
    out = "report.html";
  const std::string page = report::report_page(subjects.runs, subjects.tables, subjects.dialogues,
                                               subjects.kernels, request.goal);
  write_whole(out, page,
              chosen ? "give another file with --out FILE.html"
                     : "the run directory is not writable: give a file with --out FILE.html");
  for (const std::string& caution : report::comparison_cautions(subjects.runs))
    print_safely("{}\n", caution);
  const std::vector<std::string> keys = report::differing_keys(subjects.runs);
  constexpr std::size_t kMostNamed = 12;
  if (keys.size() > kMostNamed)
    print_safely("the decks differ in {}, which the page lists\n", counted(keys.size(), "key"));
  else if (!keys.empty())
    print_safely("the decks differ in {}\n", printable_name(join(keys, ", ")));
  print_safely("{} ({})\n", printable_name(out), format_bytes(static_cast<double>(page.size())));
  if (request.pdf) {
    const std::string pdf = fs::path(out).replace_extension(".pdf").string();
    print_page(out, pdf);
    print_safely("{}\n", printable_name(pdf));
  }
  return 0;
}

/// Splits "0.9 EUR", the price of an hour.
void read_price(const std::string& text, report::TrainingGoal& goal) {
  if (text.empty()) return;
  char* end = nullptr;
  goal.price = std::strtod(text.c_str(), &end);
  goal.currency = std::string(trim(end));
  if (!(goal.price > 0) || goal.currency.empty() || goal.currency.size() > 8 ||
      !std::isfinite(goal.price))
    throw DeckError(fmt::format("--price {}: it must be a number and a currency", text),
                    "for example --price '0.9 EUR', of an hour of one GPU or, on CPUs, one core");
}

std::vector<std::string> format_names() {
  return {"page", "pdf", "wandb", "tensorboard", "mllog", "row"};
}

/// The refusal of a format that another command or key makes, perhaps misspelt; "" for others.
std::string problem_of_format(const std::string& word) {
  static const std::map<std::string, std::string> kElsewhere{
      {"prometheus", "a run writes it while it trains, with log.prometheus=FILE"},
      {"mlflow", "jobs/live_upload.py RUN --to mlflow sends a run there"},
      {"csv", "metrics.jsonl in the run directory has the numbers, one JSON object a line"},
      {"tb", "--format tensorboard writes the files of TensorBoard"}};
  std::vector<std::string> names = format_names();
  for (const auto& [name, maker] : kElsewhere) names.push_back(name);
  const auto found = kElsewhere.find(nearest_name(word, names));
  if (found == kElsewhere.end()) return {};
  return fmt::format("'{}' is not one of: {}; {}: {}", word, join(format_names(), ", "),
                     found->first, found->second);
}

}  // namespace

int report_command(const Invocation& call) {
  CommandLine app(
      "Writes one self-contained HTML page: curves, phases, memory, layout, events, samples and "
      "provenance of runs side by side, tables of benchmarks, and dialogues with their sound.",
      "choir report");
  std::vector<std::string> paths;
  std::string out;
  app.add_option(
         "paths", paths,
         "run directories, folders of runs, CSV files of benchmarks (of `choir bench ops`: a "
         "roofline) and folders of them, JSON lines of dialogues (`choir talk --json`)")
      .required();
  app.add_option(
      "--out", out,
      "page to write; default: report.html in the run directory or folder, or in the "
      "current one for several paths; with --format wandb or tensorboard a folder, default: one of "
      "that name in the run directory");
  std::string format = "page";
  app.add_option(
         "--format", format,
         "page: HTML. pdf: the same as --pdf. wandb: each run, with all of its jobs, as an offline "
         "run of Weights & "
         "Biases for `wandb sync`. tensorboard: the curves of each run as a file of events. mllog: "
         "the log lines of MLPerf of one run. row: a JSON "
         "object per run, for dashboards of system, scale, efficiency and energy. mllog "
         "and row go to the standard output without --out")
      .checked(problem_of_format)
      .one_of(format_names());
  std::vector<std::string> settings;
  app.add_option("--set", settings,
                 "KEY=VALUE of MLPerf's lines, such as submission_org=NAME or "
                 "submission_benchmark=llama31_8b");
  PageRequest page;
  app.add_flag("--pdf", page.pdf,
               "also print the page to a PDF beside it, with chromium or weasyprint");
  app.add_option(
         "--tokens", page.goal.tokens,
         "tables of a sweep also tell the time, price and energy of a training of this many "
         "tokens (of speech: hours)")
      .positive();
  std::string price;
  app.add_option("--price", price,
                 "price of an hour of one GPU or, on CPUs, one core, with its currency: '0.9 EUR'; "
                 "needs --tokens");
  bool wandb = false;
  app.add_flag("--wandb", wandb, "the same as --format wandb");
  if (const auto code = parse(app, call)) return *code;
  return without_mpi([&] {
    if (wandb) format = "wandb";
    if (format == "pdf") page.pdf = true, format = "page";
    if (!settings.empty() && format != "mllog")
      throw DeckError("--set is for --format mllog", "add --format mllog, or remove --set");
    if (format == "wandb") return export_to_wandb(paths, out, call.families);
    if (format == "tensorboard") return export_to_tensorboard(paths, out, call.families);
    read_price(price, page.goal);
    if (!price.empty() && !(page.goal.tokens > 0))
      throw DeckError("--price needs --tokens", "for example --tokens 20e9");
    if (page.pdf && format != "page")
      throw DeckError("--pdf prints a page, and --format asks for another form", "remove one");
    page.paths = paths;
    page.out = out;
    if (format == "page") return report_on(page, call.families);
    return write_lines(format, paths, out, settings, call.families);
  });
}

}  // namespace choir
