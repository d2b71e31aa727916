// Manifests and the report of a corpus.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"
#include "choir/data/spoken/spoken_corpus.hpp"
#include "src/data/whole_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array kSplits{CorpusSplit::train, CorpusSplit::val, CorpusSplit::val_voices};
constexpr const char* kReport = "/corpus.json";

CorpusReport::Part& part_of(CorpusReport& report, CorpusSplit split) {
  return report.parts[static_cast<int>(split)];
}
const CorpusReport::Part& part_of(const CorpusReport& report, CorpusSplit split) {
  return report.parts[static_cast<int>(split)];
}

std::string manifest_path(const std::string& folder, CorpusSplit split) {
  return folder + "/" + name_of(split) + ".json";
}

std::string line_of(const CorpusEntry& entry) {
  Json line;
  line["audio_filepath"] = entry.audio;
  line["offset"] = static_cast<double>(entry.offset_ms) / 1000;
  line["duration"] = entry.duration;
  line["text"] = entry.text;
  line["speaker"] = entry.speaker;
  line["lang"] = "en";
  return line.dump() + "\n";
}

bool read_report(const std::string& folder, const std::string& request, CorpusReport& report) {
  if (!fs::exists(folder + kReport)) return false;
  const Json json = Json::parse(read_whole_file(folder + kReport), nullptr, false);
  if (!json.is_object() || json.value("request", Json()).dump() != request) return false;
  report.request = request;
  report.made = false;
  for (const CorpusSplit split : kSplits) {
    const Json part = json.value(name_of(split), Json::object());
    part_of(report, split) = {part.value("utterances", std::int64_t{0}),
                              part.value("seconds", 0.0)};
    if (part_of(report, split).utterances > 0 && !fs::exists(manifest_path(folder, split)))
      return false;
  }
  return true;
}

}  // namespace

std::string name_of(CorpusSplit split) {
  return split == CorpusSplit::train ? "train" : split == CorpusSplit::val ? "val" : "val_voices";
}

bool find_corpus(const std::string& folder, const std::string& request, CorpusReport& report) {
  if (read_report(folder, request, report)) return true;
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw StorageError(fmt::format("cannot create '{}': {}", folder, failure.message()));
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == "audio" || name == "corpus.json" ||
                      std::any_of(kSplits.begin(), kSplits.end(), [&](CorpusSplit split) {
                        return name == name_of(split) + ".json";
                      });
    if (!ours)
      throw DataError(
          fmt::format("folder '{}' holds '{}', which is no part of a corpus", folder, name),
          "name an empty or a new folder");
    old.push_back(entry.path());
  }
  // The report first: half of a corpus is none.
  fs::remove(folder + kReport, failure);
  for (const fs::path& path : old) {
    fs::remove_all(path, failure);
    if (failure)
      throw StorageError(fmt::format("cannot remove '{}': {}", path.string(), failure.message()));
  }
  return false;
}

CorpusReport finish_corpus(const std::string& folder, const std::string& request,
                           const std::vector<CorpusEntry>& entries) {
  CorpusReport report;
  report.request = request;
  std::array<std::string, kCorpusSplits> manifests;
  for (const CorpusEntry& entry : entries) {
    CorpusReport::Part& part = part_of(report, entry.split);
    ++part.utterances;
    part.seconds += entry.duration;
    manifests[static_cast<std::size_t>(entry.split)] += line_of(entry);
  }
  Json json;
  json["request"] = Json::parse(request);
  for (const CorpusSplit split : kSplits) {
    CorpusReport::Part& part = part_of(report, split);
    const std::string& manifest = manifests[static_cast<std::size_t>(split)];
    if (!manifest.empty()) write_whole_file(manifest_path(folder, split), manifest);
    part.seconds = std::round(part.seconds * 1000) / 1000;  // no dust of the sum
    json[name_of(split)] = {{"utterances", part.utterances}, {"seconds", part.seconds}};
  }
  write_whole_file(folder + kReport, json.dump(1) + "\n");
  return report;
}

std::string CorpusReport::to_string(const std::string& folder) const {
  std::string text = made ? "" : "It is there already.\n";
  for (const CorpusSplit split : kSplits) {
    const Part& part = part_of(*this, split);
    if (part.utterances > 0)
      text += fmt::format("{:<12}{}, {:.2f} minutes: {}\n", name_of(split),
                          counted(part.utterances, "utterance"), part.seconds / 60,
                          manifest_path(folder, split));
  }
  return note.empty() ? text : text + note + "\n";
}

}  // namespace choir
