#include "src/data/audio/audio_report.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include "choir/core/failure.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"

#include "choir/core/clock.hpp"
#include "choir/core/crc32c.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/sync_directory.hpp"
#include "choir/data/audio/audio_catalog.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kReportVersion = 1;
constexpr std::size_t kExamples = 5;

std::string report_path(const std::string& folder) {
  return folder + "/report.json";
}

Json read_report(const std::string& folder) {
  const std::string path = report_path(folder);
  return read_ordered_json(read_whole_file(path, kMostListMiB), path, {.keys = kAnyNumberOfKeys});
}

struct Joined {
  std::vector<AudioCatalog::Utterance> utterances;
  std::int64_t manifest_bytes = 0;
  std::uint32_t manifest_crc = 0;
  std::int64_t samples = 0, resampled = 0, without_text = 0;
  std::vector<std::string> clipped;
  std::vector<OmittedEntry> left_out;
};

void join_part(UnitResult part, PosixFile& manifest, Joined& all) {
  for (AudioCatalog::Utterance u : part.utterances) {
    u.line += all.manifest_bytes;
    all.samples += u.samples;
    all.without_text += u.text_letters == 0;
    all.utterances.push_back(u);
  }
  manifest.write_at(part.lines.data(), part.lines.size(), all.manifest_bytes);
  all.manifest_crc = crc32c(part.lines.data(), part.lines.size(), all.manifest_crc);
  all.manifest_bytes += std::ssize(part.lines);
  all.resampled += part.resampled;
  std::move(part.clipped.begin(), part.clipped.end(), std::back_inserter(all.clipped));
  std::move(part.left_out.begin(), part.left_out.end(), std::back_inserter(all.left_out));
}

Joined join_parts(const std::string& folder, const AudioPlanFacts& facts) {
  Joined all;
  all.left_out = facts.left_out;
  const std::string path = folder + "/manifest.jsonl";
  PosixFile manifest = PosixFile::for_writing(path + ".tmp");
  for (int shard = 0; shard < facts.shards; ++shard) {
    auto part = read_unit_part(folder, shard);
    if (!part)
      throw DataError(
          fmt::format("'{}' or its shard is missing or damaged", unit_part_path(folder, shard)),
          "run the same command again");
    join_part(std::move(*part), manifest, all);
  }
  if (all.utterances.empty())
    throw DataError("no utterance is left: all were left out",
                    all.left_out.empty()
                        ? "the manifests are empty"
                        : fmt::format("the first, {}: {}", all.left_out.front().place,
                                      all.left_out.front().detail));
  manifest.sync();
  rename_file(path + ".tmp", path);
  return all;
}

Json report_of(const Joined& all, const AudioPlanFacts& facts) {
  Json report;
  report["format"] = "choir-audio";
  report["version"] = kReportVersion;
  report["fingerprint"] = fmt::format("{:016x}", facts.fingerprint);
  report["manifests"] = facts.manifests;
  report["sample_rate"] = facts.sample_rate;
  report["shards"] = facts.shards;
  report["utterances"] = all.utterances.size();
  report["samples"] = all.samples;
  report["hours"] = static_cast<double>(all.samples) / facts.sample_rate / 3600;
  report["without_text"] = all.without_text;
  report["resampled"] = all.resampled;
  report["clipped"] = {{"count", all.clipped.size()}, {"ids", all.clipped}};
  std::map<std::string, std::int64_t> reasons;
  Json list = Json::array();
  double seconds = 0;
  for (const OmittedEntry& l : all.left_out) {
    ++reasons[l.reason];
    seconds += l.duration;
    list.push_back({{"place", l.place},
                    {"id", l.id},
                    {"reason", l.reason},
                    {"detail", l.detail},
                    {"duration", l.duration},
                    {"bad", l.bad}});
  }
  report["left_out"] = {{"count", all.left_out.size()},
                        {"hours", seconds / 3600},
                        {"reasons", reasons},
                        {"list", list}};
  return report;
}

// The number in "audio_00012.pcm"; -1 for another name.
int shard_number(const std::string& name) {
  constexpr std::string_view front = "audio_", back = ".pcm";
  if (!name.starts_with(front) || !name.ends_with(back)) return -1;
  int number = -1;
  const char* end = name.data() + name.size() - back.size();
  const auto [at, failed] = std::from_chars(name.data() + front.size(), end, number);
  return failed == std::errc() && at == end ? number : -1;
}

}  // namespace

std::string unfinished_path(const std::string& folder) {
  return folder + "/unfinished.json";
}

void remove_leftovers(const std::string& folder, int shards) {
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool ours = name.starts_with("audio_") || name.starts_with("manifest.jsonl") ||
                      name.starts_with("report.json") || name.starts_with("index.bin") ||
                      name.starts_with("unfinished.json");
    if (!ours) continue;
    if (name.ends_with(".part") || name.ends_with(".tmp") || name == "unfinished.json" ||
        shard_number(name) >= shards)
      leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
}

PrepareAudioSummary finish_audio_folder(const std::string& folder, const AudioPlanFacts& facts) {
  const Joined all = join_parts(folder, facts);
  // File names may contain bytes that are not UTF-8.
  const std::string text = dumped_safely(report_of(all, facts), 1);
  write_whole_file(report_path(folder), text + "\n");
  sync_directory(folder);
  AudioCatalog::write(folder, facts.sample_rate, facts.shards, all.utterances, all.manifest_bytes,
                      all.manifest_crc);
  remove_leftovers(folder, facts.shards);
  return read_audio_report(folder);
}

std::uint64_t report_fingerprint(const std::string& folder) {
  const auto report = read_report(folder);
  if (!report.is_object() || !report.contains("fingerprint") || !report["fingerprint"].is_string())
    throw DataError(fmt::format("'{}' is damaged", report_path(folder)),
                    "remove the folder and prepare the audio again");
  const auto text = report["fingerprint"].get<std::string>();
  std::uint64_t fingerprint = 0;  // 0 never occurs
  const auto [end, failed] =
      std::from_chars(text.data(), text.data() + text.size(), fingerprint, 16);
  return failed == std::errc() && end == text.data() + text.size() ? fingerprint : 0;
}

PrepareAudioSummary read_audio_report(const std::string& folder) {
  PrepareAudioSummary summary;
  summary.folder = folder;
  try {
    const auto report = read_report(folder);
    summary.sample_rate = report.at("sample_rate").get<int>();
    summary.shards = report.at("shards").get<std::int64_t>();
    summary.utterances = report.at("utterances").get<std::int64_t>();
    summary.samples = report.at("samples").get<std::int64_t>();
    summary.without_text = report.at("without_text").get<std::int64_t>();
    summary.resampled = report.at("resampled").get<std::int64_t>();
    summary.clipped = report.at("clipped").at("count").get<std::int64_t>();
    const auto& out = report.at("left_out");
    summary.left_out = out.at("count").get<std::int64_t>();
    summary.hours_left_out = out.at("hours").get<double>();
    for (const auto& [reason, count] : out.at("reasons").items())
      summary.reasons[reason] = count.get<std::int64_t>();
    for (const auto& l : out.at("list")) {
      if (summary.examples.size() == kExamples) break;
      summary.examples.push_back(fmt::format("{}: {}: {}", l.at("place").get<std::string>(),
                                             l.at("reason").get<std::string>(),
                                             l.at("detail").get<std::string>()));
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("'{}' is damaged: {}", report_path(folder), plain_cause(error)),
                    "remove the folder and prepare the audio again");
  }
  return summary;
}

std::string PrepareAudioSummary::to_string() const {
  std::string text =
      fmt::format("speech      {}, {:.3f} h, {} at {} Hz\n", counted(utterances, "utterance"),
                  hours(), counted(shards, "shard"), sample_rate);
  if (without_text > 0) text += fmt::format("no text     {}\n", counted(without_text, "utterance"));
  if (resampled > 0) text += fmt::format("resampled   {}\n", counted(resampled, "utterance"));
  if (clipped > 0) text += fmt::format("clipped     {}, kept\n", counted(clipped, "utterance"));
  text += fmt::format("left out    {}", counted(left_out, "utterance"));
  if (left_out > 0) {
    std::string why;
    for (const auto& [reason, count] : reasons)
      why += fmt::format("{}{} {}", why.empty() ? "" : ", ", format_count(count), reason);
    text += fmt::format(", {:.3f} h: {}", hours_left_out, why);
  }
  for (const std::string& example : examples) text += "\n            " + example;
  if (left_out > std::ssize(examples)) text += "\n            ... for all of them see report.json";
  if (there_before) {
    text += "\n            nothing to do: already prepared";
  } else if (audio_seconds > 0 && seconds > 0) {
    text += fmt::format("\nspeed       {} of audio in {}, {:.0f} times real time",
                        format_duration(audio_seconds), format_duration(seconds),
                        audio_seconds / seconds);
  }
  return text + fmt::format("\nwritten to  {}", folder);
}

}  // namespace choir
