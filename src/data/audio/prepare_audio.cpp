#include "src/data/audio/prepare_audio.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/audio/packed_audio.hpp"

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
  report["recordings"] = fmt::format("{:016x}", facts.recordings);
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

namespace {

/// A number in hexadecimal digits of a report; 0, which no hash is, for other texts.
std::uint64_t hash_in(const Json& report, const char* key) {
  if (!report.contains(key) || !report[key].is_string()) return 0;
  const auto text = report[key].get<std::string>();
  std::uint64_t hash = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  return failed == std::errc() && end == text.data() + text.size() ? hash : 0;
}

}  // namespace

std::uint64_t report_fingerprint(const std::string& folder) {
  const auto report = read_report(folder);
  if (!report.is_object() || !report.contains("fingerprint") || !report["fingerprint"].is_string())
    throw DataError(fmt::format("'{}' is damaged", report_path(folder)),
                    "remove the folder and prepare the audio again");
  return hash_in(report, "fingerprint");
}

std::vector<std::string> packed_manifests(const std::string& folder) {
  std::vector<std::string> names;
  if (!fs::exists(report_path(folder))) return names;
  const auto report = read_report(folder);
  if (!report.is_object() || !report.contains("manifests")) return names;
  for (const auto& name : report["manifests"])
    if (name.is_string()) names.push_back(name.get<std::string>());
  return names;
}

std::string changed_recording(const std::string& folder, const RecordingFiles& now) {
  const auto report = read_report(folder);
  const std::uint64_t then = report.is_object() ? hash_in(report, "recordings") : 0;
  return then == 0 || now.state == 0 || then == now.state ? "" : now.newest;
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

namespace {

namespace fs = std::filesystem;

// The plan that rank 0 derives from the manifests; the other ranks receive their units and the
// counts.
struct Plan {
  AudioPlanFacts facts;
  std::vector<AudioUnit> units;
  std::int64_t utterances = 0;  // includes utterances known to be bad
  std::int64_t bad = 0;
  bool finished_before = false;
};

std::vector<AudioUnit> cut_into_units(std::vector<AudioEntry> entries, double shard_seconds) {
  std::vector<AudioUnit> units;
  double filled = shard_seconds;
  for (AudioEntry& entry : entries) {
    if (filled >= shard_seconds) {
      const auto shard = static_cast<int>(units.size());
      units.emplace_back().shard = shard;
      filled = 0;
    }
    filled += entry.duration;
    units.back().entries.push_back(std::move(entry));
  }
  return units;
}

std::uint64_t fingerprint_of(const Plan& plan, const PrepareAudioOptions& options) {
  BytePacker packer;
  packer.put(options.sample_rate);
  packer.put(options.channel.value);
  for (const OmittedEntry& l : plan.facts.left_out) packer.put(l.place + l.id + l.reason);
  std::uint64_t h = fnv1a(packer.bytes());
  for (const AudioUnit& unit : plan.units) h = fnv1a(unit.pack(), h);
  return h;
}

void check_cap(std::int64_t bad, std::int64_t of, const PrepareAudioOptions& options,
               const OmittedEntry& example) {
  if (static_cast<double>(bad) <= options.bad_cap * static_cast<double>(of)) return;
  throw DataError(
      fmt::format("{} of {} utterances are bad, more than the {:g} % that {} allows; one of them: "
                  "{}: {}: {}",
                  bad, of, 100 * options.bad_cap, options.cap_name, example.place, example.reason,
                  example.detail),
      fmt::format("repair the manifests or their audio, or raise {}", options.cap_name));
}

/// The recordings of these entries that are not there, which would be found only once all lines are
/// right.
void add_missing_files(const std::vector<AudioEntry>& entries, BadList& bad) {
  std::map<std::string, std::optional<AudioError>> missing;
  for (const AudioEntry& entry : entries) {
    if (!entry.member.empty()) continue;
    const auto [at, is_new] = missing.emplace(entry.path, std::nullopt);
    std::error_code ignored;
    if (is_new && !fs::exists(file_of_recording(entry.path), ignored)) {
      try {
        AudioDecoder::from_file(entry.path);
      } catch (const AudioError& error) {
        at->second = error;
      }
    }
    if (at->second) bad.add(entry.place, *at->second);
  }
}

void check_left_out(const AudioManifest& manifest, const Plan& plan,
                    const PrepareAudioOptions& options) {
  const auto& all = manifest.left_out;
  const auto first =
      std::find_if(all.begin(), all.end(), [](const OmittedEntry& l) { return l.bad; });
  if (!options.stop_on_bad) {
    if (first != all.end()) check_cap(plan.bad, plan.utterances, options, *first);
    return;
  }
  BadList bad;
  for (const OmittedEntry& l : all)
    if (l.bad) bad.add(l.place, fmt::format("{}: {}", l.reason, l.detail), l.hint);
  if (bad.count() == 0) return;
  add_missing_files(manifest.entries, bad);
  bad.refuse(
      plan.utterances, "utterance",
      plan.bad < plan.utterances ? options.skip_hint : "repair the manifest, or name another one");
}

// Requires that the folder is empty or holds an unfinished run of this program. Returns true if it
// holds the finished result.
bool check_folder(const std::string& folder, std::uint64_t fingerprint,
                  const RecordingFiles& recordings, Logger& log) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw DataError(fmt::format("'{}' exists and is not a folder", folder), "name another --out");
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw StorageError(fmt::format("cannot create folder '{}': {}", folder, failure.message()),
                       "check the permissions and the free space");
  if (fs::exists(folder + "/index.bin")) {
    if (report_fingerprint(folder) == fingerprint) {
      const std::string changed = changed_recording(folder, recordings);
      if (changed.empty()) return true;
      throw DataError(fmt::format("recordings have changed since '{}' was packed from them; the "
                                  "newest is '{}'",
                                  folder, changed),
                      "remove the folder to pack them again, or name another --out");
    }
    throw DataError(fmt::format("'{}' holds packed speech of other manifests or options", folder),
                    "name another --out, or remove it");
  }
  const std::string marker = unfinished_path(folder);
  if (fs::exists(marker)) {
    const auto said = read_json(read_whole_file(marker, kMostSettingsMiB), marker);
    if (said.is_object() && said.contains("fingerprint") &&
        said["fingerprint"] == fmt::format("{:016x}", fingerprint))
      log.info("'{}' was begun by an earlier run: finished shards are kept", folder);
    else
      log.info(
          "'{}' was begun with other manifests or options: shards that differ are written again",
          folder);
  } else {
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().filename() != "unfinished.json.tmp")
        throw DataError(fmt::format("folder '{}' contains files other than packed speech", folder),
                        "name an empty or a new folder");
  }
  const nlohmann::ordered_json mark{{"format", "choir-audio"},
                                    {"fingerprint", fmt::format("{:016x}", fingerprint)}};
  write_whole_file(marker, dumped(mark) + "\n");
  return false;
}

void check_options(const PrepareAudioOptions& options) {
  if (options.sample_rate < 1000 || options.sample_rate > 384000)
    throw DeckError(fmt::format("invalid sample rate of {} hertz", options.sample_rate),
                    "use 1000 to 384000");
  if (!(options.shard_minutes > 0) || !std::isfinite(options.shard_minutes))
    throw DeckError(fmt::format("shards of {} minutes", options.shard_minutes), "more than 0");
  if (!(options.bad_cap >= 0 && options.bad_cap <= 1))
    throw DeckError(fmt::format("--bad-cap {}", options.bad_cap), "a share from 0 to 1");
}

Plan make_plan(const std::vector<std::string>& manifests, const std::string& folder,
               const PrepareAudioOptions& options, Logger& log) {
  check_options(options);
  AudioManifest manifest = read_audio_manifests(manifests, options.manifest);
  Plan plan;
  plan.bad = std::count_if(manifest.left_out.begin(), manifest.left_out.end(),
                           [](const OmittedEntry& l) { return l.bad; });
  plan.utterances = std::ssize(manifest.entries) + plan.bad;
  check_left_out(manifest, plan, options);
  plan.facts.left_out = std::move(manifest.left_out);
  double seconds = 0;
  for (const AudioEntry& entry : manifest.entries) seconds += entry.duration;
  const RecordingFiles recordings = recording_files(manifest.entries);
  plan.facts.recordings = recordings.state;
  plan.units = cut_into_units(std::move(manifest.entries), 60 * options.shard_minutes);
  if (plan.units.empty())
    throw DataError("no utterance is left: the manifests leave all of them out");
  plan.facts.shards = static_cast<int>(plan.units.size());
  plan.facts.sample_rate = options.sample_rate;
  plan.facts.manifests = manifests;
  plan.facts.fingerprint = fingerprint_of(plan, options);
  plan.finished_before = check_folder(folder, plan.facts.fingerprint, recordings, log);
  log.info("{}, {:.3f} h, to {}", counted(plan.utterances, "utterance"), seconds / 3600,
           counted(plan.facts.shards, "shard"));
  return plan;
}

// Unit u is assigned to rank u mod size, which balances the rounds, also those that a killed run
// left.
std::vector<AudioUnit> deal_units(Communicator& world, std::vector<AudioUnit> units) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<BytePacker> packers(ranks);
  for (std::size_t u = 0; u < units.size(); ++u) packers[u % ranks].put(units[u].pack());
  std::string all;
  std::vector<std::int64_t> counts(ranks), offsets(ranks), eights(ranks, 8), places(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    offsets[r] = std::ssize(all);
    counts[r] = std::ssize(packers[r].bytes());
    places[r] = static_cast<std::int64_t>(8 * r);
    all += packers[r].bytes();
  }
  std::int64_t bytes = 0;
  world.scatter(counts.data(), eights.data(), places.data(), &bytes, sizeof bytes, 0);
  std::string own(static_cast<std::size_t>(bytes), '\0');
  world.scatter(all.data(), counts.data(), offsets.data(), own.data(), own.size(), 0);
  std::vector<AudioUnit> mine;
  ByteUnpacker packed(own);
  while (!packed.done()) {
    std::string unit;
    packed.get(unit);
    mine.push_back(AudioUnit::unpack(unit));
  }
  return mine;
}

// The units of one rank.
class Worker {
 public:
  Worker(std::vector<AudioUnit> units, std::string folder, const UnitOptions& options, Logger& log)
      : units_(std::move(units)),
        folder_(std::move(folder)),
        options_(options),
        progress_(log, "packing speech", 5) {
    for (const AudioUnit& unit : units_)
      for (const AudioEntry& entry : unit.entries) planned_ += entry.duration;
  }

  void run(std::size_t round) {
    if (round >= units_.size()) return;
    const AudioUnit& unit = units_[round];
    const auto step = [&](double seconds) {
      done_ += seconds;
      progress_.at(std::llround(1000 * done_), std::llround(1000 * planned_));
    };
    auto part = read_unit_part(folder_, unit.shard);
    const bool there = part && part->fingerprint == unit_fingerprint(unit, options_) &&
                       !(options_.stop_on_bad &&
                         !part->left_out.empty());  // such a run stops at the first of them
    if (there) {
      for (const AudioEntry& entry : unit.entries) planned_ -= entry.duration;
    } else {
      part = run_audio_unit(unit, options_, folder_, step);
    }
    bad_ += std::ssize(part->left_out);
    if (!example_ && !part->left_out.empty()) example_ = part->left_out.front();
  }
  std::int64_t bad() const { return bad_; }
  const std::optional<OmittedEntry>& example() const { return example_; }
  double seconds_done() const { return done_; }

 private:
  std::vector<AudioUnit> units_;
  std::string folder_;
  UnitOptions options_;
  ProgressLine progress_;
  double planned_ = 0, done_ = 0;
  std::int64_t bad_ = 0;
  std::optional<OmittedEntry> example_;
};

PrepareAudioSummary pack_folder(Communicator& world, Logger& log,
                                const std::vector<std::string>& manifests,
                                const std::string& folder, const PrepareAudioOptions& options) {
  const double began = now_seconds();
  Plan plan;
  together(world, [&] {
    if (world.rank() == 0) plan = make_plan(manifests, folder, options, log);
  });
  struct {
    std::int64_t shards, utterances, bad;
    bool finished_before;
  } shared{plan.facts.shards, plan.utterances, plan.bad, plan.finished_before};
  world.broadcast(&shared, sizeof shared, 0);
  PrepareAudioSummary summary;
  if (shared.finished_before) {
    together(world, [&] {
      if (world.rank() != 0) return;
      remove_leftovers(folder, plan.facts.shards);
      summary = read_audio_report(folder);
      summary.there_before = true;
    });
    return summary;
  }
  Worker worker(deal_units(world, std::move(plan.units)), folder,
                {.sample_rate = options.sample_rate,
                 .channel = options.channel,
                 .stop_on_bad = options.stop_on_bad,
                 .shards = static_cast<int>(shared.shards),
                 .skip_hint = options.skip_hint,
                 .channel_hint = options.channel_hint},
                log);
  const auto rounds = static_cast<std::size_t>((shared.shards + world.size() - 1) / world.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    together(world, [&] { worker.run(round); });
    std::int64_t bad = worker.bad();
    world.all_reduce(&bad, 1, DType::i64, ReduceOp::sum);
    together(world, [&] {
      if (worker.example())
        check_cap(shared.bad + bad, shared.utterances, options, *worker.example());
    });
  }
  double decoded = worker.seconds_done();
  world.all_reduce(&decoded, 1, DType::f64, ReduceOp::sum);
  together(world, [&] {
    if (world.rank() == 0) summary = finish_audio_folder(folder, plan.facts);
  });
  summary.audio_seconds = decoded;
  summary.seconds = now_seconds() - began;
  return summary;
}

/// Removes the files of a folder that a refused run began, unless a shard is finished.
void abandon_folder(const std::string& folder, bool was_there, Logger& log) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".part") {
      log.info("finished shards are kept in '{}', with which the same command continues", folder);
      return;
    }
  if (!fs::exists(unfinished_path(folder), ignored)) return;
  remove_leftovers(folder, 0);
  if (!was_there) fs::remove(folder, ignored);  // which fails if it is not empty
}

}  // namespace

std::string judge_left_out(const std::string& folder, const PrepareAudioOptions& options) {
  const PrepareAudioSummary packed = read_audio_report(folder);
  if (packed.left_out == 0) return {};
  BadList bad;
  OmittedEntry first;
  const Json report = read_report(folder);
  for (const auto& l : report.at("left_out").at("list")) {
    if (!l.value("bad", true)) continue;
    OmittedEntry omitted{.place = l.at("place").get<std::string>(),
                         .reason = l.at("reason").get<std::string>(),
                         .detail = l.at("detail").get<std::string>()};
    bad.add(omitted.place, fmt::format("{}: {}", omitted.reason, omitted.detail), "");
    if (bad.count() == 1) first = std::move(omitted);
  }
  if (bad.count() == 0) return {};
  const std::int64_t all = packed.utterances + bad.count();
  if (options.stop_on_bad) bad.refuse(all, "utterance", options.skip_hint);
  check_cap(bad.count(), all, options, first);
  const std::int64_t more = bad.count() - std::ssize(bad.named());
  return fmt::format("{} of {} are left out as bad: {}{}", bad.count(), counted(all, "utterance"),
                     join(bad.named(), "; "), more > 0 ? fmt::format("; and {} more", more) : "");
}

PrepareAudioSummary prepare_audio(Communicator& world, Logger& log,
                                  const std::vector<std::string>& manifests,
                                  const std::string& folder, const PrepareAudioOptions& options) {
  std::error_code ignored;
  const bool first = world.rank() == 0, was_there = first && fs::exists(folder, ignored);
  const bool was_begun = first && fs::exists(unfinished_path(folder), ignored);
  try {
    return pack_folder(world, log, manifests, folder, options);
  } catch (const DataError&) {
    if (first && !was_begun && options.keeps_shards) abandon_folder(folder, was_there, log);
    throw;
  }
}

}  // namespace choir
