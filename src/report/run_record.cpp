// Reading of a run directory: metrics, deck, samples, log, and the judgement of a run whose log has
// no end. The facts of that judgement are: the holder of the lock of its log (RunDirectory keeps it
// while it trains), its host, the time of its last line, and the usual time between lines.

#include "src/report/run_record.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>

#include "choir/comm/layout.hpp"
#include "choir/core/error.hpp"
#include "choir/deck/family_table.hpp"
#include "choir/models/family.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/hints.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/report/run_formats.hpp"
#include "src/store/directory.hpp"

namespace choir::report {
namespace {

enum class Lock { held, free, unknown };

Lock lock_of(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Lock::unknown;
  const bool free = flock(file, LOCK_SH | LOCK_NB) == 0;
  const Lock lock = free                   ? Lock::free
                    : errno == EWOULDBLOCK ? Lock::held
                                           : Lock::unknown;  // the file system has no locks
  close(file);
  return lock;
}

/// Mean seconds between lines of the metrics; 0 if unknown.
double usual_gap(const ReportedRun& run) {
  const std::size_t lines = run.curve("dt").x.size();
  return lines == 0 ? 0 : run.stepping_seconds() / static_cast<double>(lines);
}

/// The watchdog writes the last calls of all ranks when it ends a run.
std::string flight_of(const std::string& log) {
  const std::filesystem::path folder = std::filesystem::path(log).parent_path() / "flight";
  std::error_code failed;
  return std::filesystem::is_directory(folder, failed)
             ? " The last calls of each rank are in " + folder.string() + "."
             : "";
}

}  // namespace

void judge_open_end(const std::string& log, const std::string& now, ReportedRun& run) {
  const Lock lock = lock_of(log);
  const double age = seconds_of(now).value_or(NAN) - seconds_of(run.last_line).value_or(NAN),
               gap = usual_gap(run);
  // There are evaluations, samples and saves between some lines.
  const double patience = 60 + 10 * gap;
  const std::string host = run.start.ranks.empty() ? "" : run.start.ranks[0].host;
  const std::string last = fmt::format("its last line was written at {}", run.last_line);
  if (lock == Lock::held) {
    run.fate = Fate::running;
    run.state = fmt::format("A process has its log open; {}", last);
    run.state +=
        age > patience ? fmt::format(", {} ago: it may be hanging.", format_duration(age)) : ".";
  } else if (lock == Lock::free && host == host_name()) {
    run.fate = Fate::silent;
    run.state =
        fmt::format("The log has no end and no process has it open: killed or crashed; {}.{}", last,
                    flight_of(log));
  } else if (age <= patience) {
    run.fate = Fate::running;
    run.state = fmt::format("It is probably running{}: the log has no end, and {}.",
                            host.empty() ? "" : " on " + host, last);
  } else {
    run.fate = Fate::silent;
    run.state = fmt::format("The log has no end and no lines since {}: killed or crashed.{}",
                            run.last_line, flight_of(log));
  }
}

namespace {

constexpr std::size_t kSummaryName = 19;  // columns of the names in a summary
constexpr std::size_t kStamp = 26;        // "[2026-11-22 04:20:07.850][" and then a letter and "] "

/// The number after the last `before` in `text`; -1 if there is none.
std::int64_t number_behind(std::string_view text, std::string_view before) {
  const std::size_t at = text.rfind(before);
  if (at == std::string_view::npos || at + before.size() >= text.size()) return -1;
  const char first = text[at + before.size()];
  if (first < '0' || first > '9') return -1;
  return std::strtoll(std::string(text.substr(at + before.size(), 18)).c_str(), nullptr, 10);
}

class LogReader {
 public:
  explicit LogReader(ReportedRun& run) : run_(run) {}

  void line(std::string_view line) {
    const bool stamped = line.size() > kStamp + 3 && line[0] == '[' && line[kStamp - 1] == '[' &&
                         line[kStamp - 2] == ']';
    if (in_summary_ && !stamped && line.starts_with("  ")) {
      if (line.starts_with("  steps ")) done(std::atoll(line.data() + kSummaryName));
      run_.summary.emplace_back(line.substr(2));
      return;
    }
    in_summary_ = false;
    if (stamped)
      event(std::string(line.substr(1, 19)), line[kStamp], line.substr(kStamp + 3));
    else if (line == "summary:")
      summary();
    else if (line.starts_with("choir ") && line.find(": ranks ") != std::string_view::npos)
      between_ = started_;  // another start, which may be refused
  }
  void conclude() {
    run_.last_line = time_;
    if (failed_) {
      run_.fate = Fate::failed;
      run_.state = failure_ + ".";
    } else if (!started_) {
      run_.state = "The log ends before the first step.";
    } else if (run_.summary.empty()) {
      run_.fate = Fate::silent;
    } else if (!unsaved_.empty()) {
      run_.fate = Fate::unsaved;
      run_.state = unsaved_ + ".";
    } else {
      run_.fate = stopped_ ? Fate::stopped : Fate::finished;
      if (stopped_) run_.state = stop_ + ". The same command continues it.";
    }
  }

 private:
  void done(std::int64_t step) { run_.done = std::max(run_.done, step); }

  void event(std::string time, char level, std::string_view text) {
    time_ = time;
    const auto add = [&](EventKind kind, std::int64_t step) {
      if (step >= 0) step_ = step;
      run_.events.push_back({kind, time, step, std::string(text)});
    };
    std::string_view rest = text;
    if (take_prefix(rest, "resumed from ")) {
      resumed_ = number_behind(text, "(step ");
      resumed_words_ = text;
    } else if (take_prefix(rest, "ready after ")) {
      const bool again = started_ || resumed_ >= 0;
      started_ = true;
      stopped_ = failed_ = between_ = false;
      unsaved_.clear();
      run_.summary.clear();
      if (resumed_ >= 0) text = resumed_words_;
      add(again ? EventKind::restart : EventKind::start, resumed_ >= 0 ? resumed_ : 0);
      resumed_ = -1;
    } else if (take_prefix(rest, "checkpoint of step ")) {
      add(EventKind::failed_save, number_behind(text, "checkpoint of step "));
    } else if (level == 'E' && take_prefix(rest, "the state after step ")) {
      unsaved_ = text;
      unsaved_[0] = 'T';
      add(EventKind::failure, number_behind(text, "after step "));
    } else if (take_prefix(rest, "checkpoint ") && rest.find("/step_") != std::string_view::npos) {
      add(EventKind::save, number_behind(rest.substr(0, rest.find(" (")), "/step_"));
      done(step_);
    } else if (take_prefix(rest, "stopping after step ")) {
      stopped_ = true;
      stop_ = text;
      stop_[0] = 'S';
      add(EventKind::stop, number_behind(text, "stopping after step "));
      done(step_);
    } else if (level == 'E' && between_ && rest.starts_with("ended with exit code ")) {
      add(EventKind::warning, -1);  // a later start that was refused: the run is as it was
    } else if (level == 'E' && take_prefix(rest, "ended with exit code ")) {
      failed_ = true;
      failure_ = text;
      failure_[0] = 'E';
      add(EventKind::failure,
          rest.find(": step ") != std::string_view::npos ? number_behind(text, ": step ") : -1);
    } else if (level == 'W' || level == 'E') {
      add(EventKind::warning, rest.starts_with("step ") ? number_behind(text, "step ") : -1);
    }
  }
  void summary() {
    in_summary_ = true;
    between_ = true;
    run_.summary.clear();
    run_.events.push_back({EventKind::end, time_, step_, stopped_ ? "stopped" : "end"});
  }

  ReportedRun& run_;
  std::string time_;
  std::int64_t step_ = -1, resumed_ = -1;
  std::string resumed_words_, stop_, failure_, unsaved_;
  bool started_ = false, stopped_ = false, failed_ = false, in_summary_ = false;
  bool between_ = false;  // after the end of a run, before it has begun again
};

}  // namespace

const char* name_of(EventKind kind) {
  constexpr const char* kNames[kEventKinds] = {"start",   "restart", "save",    "failed save",
                                               "warning", "stop",    "failure", "end"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(Fate fate) {
  constexpr const char* kNames[] = {"state unknown", "finished",  "stopped",
                                    "failed",        "running",   "no end in its log",
                                    "imported",      "not saved", "averaged"};
  return kNames[static_cast<int>(fate)];
}

bool read_log(const std::string& path, ReportedRun& run) {
  require_regular(path);
  constexpr std::size_t kMostMiB = 4096;
  std::ifstream file(path);
  if (!file) return false;
  if (const std::string excess = file_excess(path, kMostMiB); !excess.empty())
    throw DataError(fmt::format("'{}' {}", path, excess), "is it the log.txt of a run?");
  LogReader reader(run);
  for (std::string line; std::getline(file, line);) reader.line(line);
  reader.conclude();
  return true;
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Reads at most `most_mib` MiB of a file.
CappedText record_text(const fs::path& path, std::size_t most_mib) {
  require_regular(path);
  std::ifstream file(path, std::ios::binary);
  return read_capped(file, most_mib);
}

/// A number of an object, clamped to the range of int. Throws nlohmann's exception for another
/// type.
int small_integer(const json& object, const char* key, int absent) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  const auto whole = clamped_integer(object.value(key, static_cast<double>(absent)));
  return static_cast<int>(std::clamp(whole, -kMost, kMost));
}

std::string word(const json& value) {
  return value.is_string() ? value.get<std::string>() : dumped(value);
}

void read_ranks(const json& record, RunStart& start) {
  for (const json& rank : record.value("ranks", json::array()))
    start.ranks.push_back({.node = small_integer(rank, "node", 0),
                           .threads = small_integer(rank, "threads", 1),
                           .host = rank.value("host", ""),
                           .planned = rank.value("planned", 0.0)});
  for (const json& entry : record.value("memory", json::array()))
    start.memory.push_back({.name = entry.value("name", ""),
                            .place = entry.value("place", ""),
                            .bytes = entry.value("bytes", 0.0)});
}

void read_work(const json& record, RunStart& start) {
  for (const json& phase : record.value("work", json::array()))
    start.work.push_back({.phase = phase.value("phase", ""),
                          .flops = phase.value("flops", 0.0),
                          .bytes = phase.value("bytes", 0.0)});
}

RunStart start_of(const json& record) {
  RunStart start;
  start.time = record.value("time", "");
  start.device = record.value("device", "");
  start.parameters = record.value("parameters", 0.0);
  start.resident_before = record.value("resident_before", 0.0);
  start.mfu_peak = record.value("mfu_peak", "");
  const json layout = record.value("layout", json::object());
  start.order = layout.value("order", "tp-cp-dp-pp");
  start.tp = small_integer(layout, "tp", 1);
  start.cp = small_integer(layout, "cp", 1);
  start.dp = small_integer(layout, "dp", 1);
  start.pp = small_integer(layout, "pp", 1);
  read_ranks(record, start);
  read_work(record, start);
  const json provenance = record.value("provenance", json::object());
  for (const auto& [key, value] : provenance.items())
    start.provenance.emplace_back(key, word(value));
  start.known = true;
  return start;
}

/// Returns the fault of a start record; empty if its ranks fill a layout.
std::string fault_of(const RunStart& start) {
  const auto ranks = static_cast<int>(start.ranks.size());
  try {
    if (Layout(start.tp, start.cp, start.dp, start.pp, start.order).ranks() != ranks)
      return fmt::format("it lists {} ranks, but its layout has another number", ranks);
  } catch (const Error& error) {
    return error.what();
  }
  const bool good = std::ranges::all_of(start.ranks, [&](const RankPlace& place) {
    return place.node >= 0 && place.node < ranks && place.threads >= 0;
  });
  return good ? "" : "a rank has an impossible node or number of threads";
}

void read_metrics(const std::string& path, ReportedRun& run) {
  constexpr std::uintmax_t kMostGib = 4;
  std::error_code absent;
  if (const auto bytes = fs::file_size(path, absent); !absent && bytes > kMostGib << 30) {
    run.notes.push_back(
        fmt::format("metrics.jsonl has more than {} GiB and was not read", kMostGib));
    return;
  }
  MetricLines lines;
  if (!lines.read(path)) {
    run.notes.emplace_back("metrics.jsonl is missing: the run ended before its first step");
    return;
  }
  run.curves = lines.take_curves();
  if (lines.lines() == 0)
    run.notes.emplace_back("metrics.jsonl has no step: the run ended before its first step");
  if (lines.cut())
    run.notes.push_back(fmt::format("the last line of metrics.jsonl is cut off; used up to step {}",
                                    clamped_integer(run.last_step())));
  if (lines.broken() > 0)
    run.notes.push_back(fmt::format("{} of metrics.jsonl {} damaged and {} skipped",
                                    counted(static_cast<std::int64_t>(lines.broken()), "line"),
                                    lines.broken() == 1 ? "is" : "are",
                                    lines.broken() == 1 ? "was" : "were"));
  if (lines.repeated())
    run.notes.emplace_back("some steps occur twice in metrics.jsonl; the later lines were used");
  for (const std::string& line : lines.records()) {
    const json record = document_of(line);
    if (record["event"] != "start") continue;
    run.starts.emplace_back();
    try {
      run.starts.back() = {.step = clamped_integer(record.value("step", 0.0)),
                           .time = record.value("time", "")};
      run.start = start_of(record);
      run.starts.back().mfu_peak = run.start.mfu_peak;
    } catch (const json::exception&) {
      run.notes.emplace_back("a start record of metrics.jsonl is damaged and was skipped");
      continue;
    }
    const std::string fault = fault_of(run.start);
    run.start.known = fault.empty();
    const RunStart& s = run.start;
    if (s.known)
      run.starts.back().layout = fmt::format(
          "{} = dp {} x tp {} x pp {} x cp {}",
          counted(static_cast<std::int64_t>(s.ranks.size()), "rank"), s.dp, s.tp, s.pp, s.cp);
    if (!fault.empty())
      run.notes.push_back(
          fmt::format("a start record of metrics.jsonl is damaged and was skipped: {}", fault));
  }
  if (!run.start.known)
    run.notes.emplace_back(
        "metrics.jsonl has no start record: layout, memory plan and provenance are unknown");
}

}  // namespace

const Curve& ReportedRun::curve(const std::string& key) const {
  static const Curve kNone;
  const auto found = curves.find(key);
  return found == curves.end() ? kNone : found->second;
}

std::string ReportedRun::deck_value(const std::string& key) const {
  const auto found = deck.find(key);
  if (found == deck.end()) return {};
  const json value = document_of(found->second.value);
  return value.is_string() ? value.get<std::string>() : found->second.value;
}

double ReportedRun::last_step() const {
  const Curve& loss = curve("loss");
  return loss.x.empty() ? 0 : loss.x.back();
}

double ReportedRun::steps_done() const {
  return std::max(last_step(), static_cast<double>(done));
}

namespace {

struct SumOverSteps {
  double sum = 0, steps = 0;
};

/// Each line has the mean since the previous line, which may lie many steps before it.
SumOverSteps sum_over_steps(const Curve& curve) {
  SumOverSteps all;
  double before = 0;
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    const double steps = curve.x[i] - before;
    if (std::isfinite(curve.y[i])) all.sum += curve.y[i] * steps, all.steps += steps;
    before = curve.x[i];
  }
  return all;
}

}  // namespace

double ReportedRun::stepping_seconds() const {
  return sum_over_steps(curve("dt")).sum;
}

double ReportedRun::mean_over_steps(const std::string& key) const {
  const SumOverSteps all = sum_over_steps(curve(key));
  return all.steps > 0 ? all.sum / all.steps : 0;
}

void read_deck(const std::string& path, ReportedRun& run) {
  if (!fs::exists(path)) {
    run.notes.emplace_back("deck.json is missing");
    return;
  }
  constexpr std::size_t kMostMib = 64;
  const CappedText read = record_text(path, kMostMib);
  const json deck = document_of(read.text);
  if (!read.fault.empty() || !deck.is_object()) {
    run.notes.push_back(read.fault.empty() ? "deck.json is damaged: not a JSON object"
                                           : fmt::format("deck.json {}", read.fault));
    return;
  }
  run.deck_crc32c = fmt::format("{:08x}", crc32c(read.text.data(), read.text.size()));
  const json sources = deck.value("sources", json::object());
  const json derived = deck.value("derived", json::object());
  // Objects are sections, at any depth, except the values of keys that hold an object.
  const std::function<void(const std::string&, const json&)> add = [&](const std::string& key,
                                                                       const json& value) {
    const auto source = sources.find(key);
    if (value.is_object() && source == sources.end() && !value.empty()) {
      for (const auto& [name, member] : value.items()) add(key + "." + name, member);
      return;
    }
    const auto computed = derived.find(key);
    run.deck[key] = {dumped(computed == derived.end() ? value : *computed),
                     source == sources.end() ? "" : word(*source)};
  };
  for (const auto& [section, value] : deck.items()) {
    if (section == "sources" || section == "derived") continue;
    if (section != "decks") {
      add(section, value);
      continue;
    }
    for (const json& file : value)
      if (file.is_string()) run.deck_files.push_back(file.get<std::string>());
  }
}

std::function<bool(const std::string&)> keys_of_family(const FamilyTable& families,
                                                       const std::string& type) {
  const auto& all = families.all();
  const auto family =
      std::ranges::find_if(all, [&](const ModelFamily* each) { return each->name() == type; });
  if (family == all.end()) return [](const std::string&) { return true; };
  return [&families, own = *family](const std::string& key) {
    return deck::concerns(families, *own, key);
  };
}

void mark_own_keys(const FamilyTable& families, ReportedRun& run) {
  const auto unquoted = [&](const char* key) {
    std::string value = run.deck_value(key);
    std::erase(value, '"');
    return value;
  };
  const auto of_family = keys_of_family(families, unquoted("model.type"));
  const bool on_gpus = run.start.device.empty() || run.start.device.find("cpu") != 0;
  const bool drills = unquoted("fault.enable") == "true";
  for (auto& [key, entry] : run.deck)
    entry.concerns = entry.given() || (of_family(key) && (drills || !key.starts_with("fault.")) &&
                                       (on_gpus || !deck::is_for_cuda(key)));
}

void read_samples(const std::string& folder, ReportedRun& run) {
  constexpr std::size_t kShown = 6, kLength = 1600;
  std::vector<std::pair<std::int64_t, fs::path>> files;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") && name.ends_with(".txt"))
      files.emplace_back(std::atoll(name.c_str() + 5), entry.path());
  }
  std::sort(files.begin(), files.end());
  run.sample_count = files.size();
  const std::size_t shown = std::min(kShown, files.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [step, path] = files[shown == 1 ? 0 : i * (files.size() - 1) / (shown - 1)];
    std::string text = record_text(path, 1).text;
    if (text.size() > kLength) {
      std::size_t end = kLength;  // not inside a multi-byte character
      while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
      text = text.substr(0, end) + " ...";
    }
    run.samples.push_back({step, std::move(text)});
  }
}

namespace {

/// Says how a run that failed continues: from its newest checkpoint, if it has one.
std::string continuation_of(const ReportedRun& run) {
  if (run.saved >= 0)
    return fmt::format(" The same command continues it from its last checkpoint, step {}.",
                       run.saved);
  const bool numbers = run.state.find("exit code 4") != std::string::npos;
  return fmt::format(" It has no checkpoint: the same command starts it again{}",
                     numbers ? "; lower optimizer.learning_rate first." : ".");
}

/// True if this checkpoint was made by `choir average`, according to its manifest.
bool is_average(const fs::path& checkpoints, std::int64_t step) {
  if (step < 0) return false;
  constexpr std::size_t kMostMib = 64;
  const fs::path manifest = checkpoints / step_name(step) / "manifest.json";
  const json read = document_of(record_text(manifest, kMostMib).text);
  return read.is_object() && read.contains("manifest") && read["manifest"].is_object() &&
         word(read["manifest"].value("layout", json())).starts_with("average of ");
}

/// Reads metrics and log, and judges the state of the run by them.
void read_course(const fs::path& folder, ReportedRun& run) {
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  if (!has("metrics.jsonl") && !has("log.txt") && has("checkpoints")) {
    const bool averaged = is_average(folder / "checkpoints", run.saved);
    run.fate = averaged ? Fate::averaged : Fate::imported;
    run.state = averaged ? "It is an average of checkpoints, and has not trained."
                         : "It was imported, and has not trained.";
    return;
  }
  read_metrics((folder / "metrics.jsonl").string(), run);
  const std::string log = (folder / "log.txt").string();
  if (!read_log(log, run)) run.notes.emplace_back("log.txt is missing");
  if (run.fate == Fate::silent) judge_open_end(log, timestamp(), run);
  const bool named = run.state.find("the same command continues") != std::string::npos;
  if (run.fate == Fate::failed && !named) run.state += continuation_of(run);
}

}  // namespace

ReportedRun read_run(const std::string& path) {
  ReportedRun run;
  run.path = path;
  while (run.path.size() > 1 && run.path.ends_with('/')) run.path.pop_back();
  const fs::path folder(run.path);
  if (!fs::is_directory(folder))
    throw DataError(fmt::format("no such directory: {}", path),
                    advice_on_path(path,
                                   "give run directories (run.dir of a deck) or CSV files of "
                                   "choir bench"));
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  if (!has("metrics.jsonl") && !has("deck.json") && !has("log.txt"))
    throw DataError(
        fmt::format("'{}' is not a run directory: it has no metrics.jsonl, deck.json or log.txt",
                    path),
        "give the run.dir of a training run");
  const std::vector<std::int64_t> saves =
      CheckpointDirectory((folder / "checkpoints").string()).steps();
  if (!saves.empty()) run.saved = saves.front();
  read_course(folder, run);
  read_deck((folder / "deck.json").string(), run);
  read_samples((folder / "samples").string(), run);
  KeptRecords evaluations = read_records((folder / "evaluations.jsonl").string());
  run.evaluations = std::move(evaluations.records);
  if (!evaluations.note.empty()) run.notes.push_back(evaluations.note);
  run.worst = read_worst((folder / "worst_samples.jsonl").string());
  // Several runs of one deck have the same run.name, unless it was given on the command line.
  const auto name = run.deck.find("run.name");
  if (name != run.deck.end() && name->second.source.find("override") != std::string::npos)
    run.name = run.deck_value("run.name");
  if (run.name.empty()) run.name = fs::absolute(run.path).lexically_normal().filename().string();
  return run;
}

}  // namespace choir::report
