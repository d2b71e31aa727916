#include "choir/report/run_record.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "choir/comm/layout.hpp"
#include "choir/core/capped_text.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/regular_file.hpp"

namespace choir::report {
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

RunStart start_of(const json& record) {
  RunStart start;
  start.time = record.value("time", "");
  start.device = record.value("device", "");
  start.parameters = record.value("parameters", 0.0);
  start.resident_before = record.value("resident_before", 0.0);
  const json layout = record.value("layout", json::object());
  start.order = layout.value("order", "tp-cp-dp-pp");
  start.tp = small_integer(layout, "tp", 1);
  start.cp = small_integer(layout, "cp", 1);
  start.dp = small_integer(layout, "dp", 1);
  start.pp = small_integer(layout, "pp", 1);
  read_ranks(record, start);
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
    run.notes.push_back(
        fmt::format("{} lines of metrics.jsonl are damaged and were skipped", lines.broken()));
  if (lines.repeated())
    run.notes.emplace_back("some steps occur twice in metrics.jsonl; the later lines were used");
  for (const std::string& line : lines.records()) {
    const json record = document_of(line);
    if (record["event"] != "start") continue;
    run.starts.emplace_back();
    try {
      run.starts.back() = {clamped_integer(record.value("step", 0.0)), record.value("time", "")};
      run.start = start_of(record);
    } catch (const json::exception&) {
      run.notes.emplace_back("a start record of metrics.jsonl is damaged and was skipped");
      continue;
    }
    const std::string fault = fault_of(run.start);
    run.start.known = fault.empty();
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

// dt is the mean since the previous line.
double ReportedRun::stepping_seconds() const {
  const Curve& dt = curve("dt");
  double seconds = 0, before = 0;
  for (std::size_t i = 0; i < dt.x.size(); ++i) {
    if (std::isfinite(dt.y[i])) seconds += dt.y[i] * (dt.x[i] - before);
    before = dt.x[i];
  }
  return seconds;
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
  const json sources = deck.value("sources", json::object());
  const auto add = [&](const std::string& key, const json& value) {
    const auto source = sources.find(key);
    run.deck[key] = {dumped(value), source == sources.end() ? "" : word(*source)};
  };
  for (const auto& [section, value] : deck.items()) {
    if (section == "sources" || section == "derived") continue;
    if (!value.is_object())
      add(section, value);
    else
      for (const auto& [key, member] : value.items()) add(section + "." + key, member);
  }
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

ReportedRun read_run(const std::string& path) {
  ReportedRun run;
  run.path = path;
  while (run.path.size() > 1 && run.path.ends_with('/')) run.path.pop_back();
  const fs::path folder(run.path);
  if (!fs::is_directory(folder))
    throw DataError(fmt::format("no such directory: {}", path),
                    "give run directories (run.dir of a deck) or CSV files of choir bench");
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  if (!has("metrics.jsonl") && !has("deck.json") && !has("log.txt"))
    throw DataError(
        fmt::format("'{}' is not a run directory: it has no metrics.jsonl, deck.json or log.txt",
                    path),
        "give the run.dir of a training run");
  read_metrics((folder / "metrics.jsonl").string(), run);
  read_deck((folder / "deck.json").string(), run);
  const std::string log = (folder / "log.txt").string();
  if (!read_log(log, run)) run.notes.emplace_back("log.txt is missing");
  if (run.fate == Fate::silent) judge_open_end(log, timestamp(), run);
  read_samples((folder / "samples").string(), run);
  run.name = run.deck_value("run.name");
  if (run.name.empty()) run.name = fs::absolute(folder).filename().string();
  return run;
}

}  // namespace choir::report
