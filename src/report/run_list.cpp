#include "src/report/run_list.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir::report {
namespace {

namespace fs = std::filesystem;

void find_runs(const fs::path& folder, std::vector<std::string>& found) {
  if (is_run_folder(folder.string())) {
    found.push_back(folder.string());
    return;
  }
  std::error_code failed;
  std::vector<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(folder, failed))
    if (entry.is_directory(failed) && !entry.is_symlink(failed)) inside.push_back(entry.path());
  std::sort(inside.begin(), inside.end());
  for (const fs::path& each : inside) find_runs(each, found);
}

double newest(const ReportedRun& run, const char* key) {
  const Curve& curve = run.curve(key);
  return curve.y.empty() ? std::numeric_limits<double>::quiet_NaN() : curve.y.back();
}

double step_of_newest(const ReportedRun& run, const char* key) {
  const Curve& curve = run.curve(key);
  return curve.x.empty() ? 0 : curve.x.back();
}

std::string revision_of(const ReportedRun& run) {
  for (const auto& [key, value] : run.start.provenance)
    if (key == "revision") return value;
  return "";
}

/// "2.2289", or "2.2289 at 200" if the run has done more steps since it was logged.
std::string loss_text(double loss, double at, double step) {
  if (std::isnan(loss)) return "-";
  return at == step ? fmt::format("{:.4f}", loss) : fmt::format("{:.4f} at {:.0f}", loss, at);
}

/// The main metrics of evaluations beside the loss. Where a run has several, the first counts.
struct MainScore {
  const char *key, *name, *shown;
};
constexpr std::array<MainScore, 3> kMainScores{{{"val_exact_match", "exact_match", "exact match"},
                                                {"val_wer", "wer", "WER"},
                                                {"val_asr_bleu", "asr_bleu", "ASR-BLEU"}}};

const MainScore* main_score(const ReportedRun& run) {
  const auto found = std::ranges::find_if(
      kMainScores, [&](const MainScore& score) { return !run.curve(score.key).y.empty(); });
  return found == kMainScores.end() ? nullptr : &*found;
}

/// "WER 7.76 %"; BLEU is no share.
std::string score_text(const ListedRun& run) {
  const auto found = std::ranges::find(kMainScores, run.score, &MainScore::name);
  if (found == kMainScores.end() || std::isnan(run.score_value)) return "-";
  return run.score == "asr_bleu" ? fmt::format("{} {:.2f}", found->shown, run.score_value)
                                 : fmt::format("{} {:.2f} %", found->shown, 100 * run.score_value);
}

nlohmann::ordered_json loss_json(double loss) {
  return std::isfinite(loss) ? nlohmann::ordered_json(loss) : nlohmann::ordered_json(nullptr);
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code failed;
  const auto has = [&](const char* name) { return fs::exists(fs::path(path) / name, failed); };
  // A first start that was refused has a log and no deck.
  return (has("deck.json") && (has("log.txt") || has("metrics.jsonl") || has("checkpoints"))) ||
         (has("log.txt") && has("checkpoints"));
}

std::vector<std::string> run_folders(const std::string& folder) {
  std::error_code failed;
  if (!fs::is_directory(folder, failed))
    throw DataError(fmt::format("no such folder: {}", folder),
                    "name a folder of runs; by default, runs are in runs/");
  std::string path = folder;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::vector<std::string> found;
  find_runs(path, found);
  if (found.empty())
    throw DataError(fmt::format("no run is below '{}'", folder),
                    "a run directory holds deck.json, log.txt, metrics.jsonl and checkpoints/");
  return found;
}

bool never_began(const ReportedRun& run) {
  return run.fate == Fate::failed && run.starts.empty() && run.steps_done() == 0;
}

std::string note_on_refused(std::int64_t runs, const std::string& remedy) {
  if (runs == 0) return {};
  return fmt::format("{} refused before the first step {} not shown; {} {}\n", counted(runs, "run"),
                     runs == 1 ? "is" : "are", remedy, runs == 1 ? "it" : "them");
}

std::vector<std::string> run_states() {
  std::vector<std::string> states;
  for (const Fate fate : {Fate::imported, Fate::averaged, Fate::unknown, Fate::finished,
                          Fate::stopped, Fate::unsaved, Fate::failed, Fate::running, Fate::silent})
    states.emplace_back(name_of(fate));
  return states;
}

ListedRun listed(const ReportedRun& run) {
  const MainScore* const score = main_score(run);
  return {.path = run.path,
          .state = name_of(run.fate),
          .began = run.starts.empty() ? "" : run.starts.back().time,
          .model = run.deck_value("model.type"),
          .deck = run.deck_files.empty() ? "" : run.deck_files.back(),
          .step = run.steps_done(),
          .max_steps = std::strtod(run.deck_value("train.max_steps").c_str(), nullptr),
          .loss = newest(run, "loss"),
          .val_loss = newest(run, "val_loss"),
          .loss_step = step_of_newest(run, "loss"),
          .val_loss_step = step_of_newest(run, "val_loss"),
          .score = score == nullptr ? "" : score->name,
          .score_value = newest(run, score == nullptr ? "" : score->key),
          .deck_crc32c = run.deck_crc32c,
          .revision = revision_of(run)};
}

std::string index_of_runs(const std::string& run) {
  fs::path path = fs::path(run).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "runs/a/"
  const fs::path folder = path.parent_path();
  return folder.empty() ? "" : (folder / "index.jsonl").string();
}

std::string add_to_index(const std::string& run) {
  const std::string index = index_of_runs(run);
  if (index.empty() || !is_run_folder(run)) return "";
  const ReportedRun record = read_run(run);
  return record.empty() ? "" : append_to_file(index, run_lines({listed(record)}) + "\n");
}

std::string run_table(const std::vector<ListedRun>& runs) {
  const bool scored =
      std::ranges::any_of(runs, [](const ListedRun& run) { return !run.score.empty(); });
  std::vector<std::vector<std::string>> rows{{"run", "state", "step", "loss", "val_loss"}};
  if (scored) rows.front().emplace_back("score");
  const std::size_t numbers = rows.front().size();
  rows.front().insert(rows.front().end(), {"model", "deck"});
  for (const ListedRun& run : runs) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {printable_name(run.path), run.state,
           fmt::format("{:.0f}/{:.0f}", run.step, run.max_steps),
           loss_text(run.loss, run.loss_step, run.step),
           loss_text(run.val_loss, run.val_loss_step, run.step)};
    if (scored) row.push_back(score_text(run));
    row.insert(row.end(), {printable_name(run.model), printable_name(run.deck)});
  }
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool number = i >= 2 && i < numbers;
      line += number ? fmt::format("{:>{}}  ", row[i], widths[i])
                     : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    text += std::string(trim(line)) + "\n";
  }
  if (!text.empty()) text.pop_back();
  return text;
}

std::string run_lines(const std::vector<ListedRun>& runs) {
  std::string text;
  for (const ListedRun& run : runs) {
    nlohmann::ordered_json line{{"run", run.path},
                                {"state", run.state},
                                {"began", run.began},
                                {"step", static_cast<std::int64_t>(run.step)},
                                {"max_steps", static_cast<std::int64_t>(run.max_steps)},
                                {"loss", loss_json(run.loss)},
                                {"val_loss", loss_json(run.val_loss)},
                                {"loss_step", static_cast<std::int64_t>(run.loss_step)},
                                {"val_loss_step", static_cast<std::int64_t>(run.val_loss_step)},
                                {"score", run.score},
                                {"score_value", loss_json(run.score_value)},
                                {"model", run.model},
                                {"deck", run.deck},
                                {"deck_crc32c", run.deck_crc32c},
                                {"revision", run.revision}};
    text += (text.empty() ? "" : "\n") + dumped(line);
  }
  return text;
}

}  // namespace choir::report
