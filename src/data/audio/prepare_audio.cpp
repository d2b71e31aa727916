#include "choir/data/audio/prepare_audio.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/progress_line.hpp"
#include "choir/core/text.hpp"
#include "src/data/audio/audio_report.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/byte_packer.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSkipHint = "use --on-bad skip to leave such utterances out";

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

void check_cap(std::int64_t bad, std::int64_t of, double cap, const OmittedEntry& example) {
  if (static_cast<double>(bad) <= cap * static_cast<double>(of)) return;
  throw DataError(fmt::format("{} of {} utterances are bad, more than the {:g} % that --bad-cap "
                              "allows; one of them: {}: {}: {}",
                              bad, of, 100 * cap, example.place, example.reason, example.detail),
                  "repair the manifests or their audio, or raise --bad-cap");
}

void check_left_out(const Plan& plan, const PrepareAudioOptions& options) {
  const auto& all = plan.facts.left_out;
  const auto first =
      std::find_if(all.begin(), all.end(), [](const OmittedEntry& l) { return l.bad; });
  if (first == all.end()) return;
  if (!options.stop_on_bad) return check_cap(plan.bad, plan.utterances, options.bad_cap, *first);
  throw DataError(
      fmt::format("{}: {}: {}{}", first->place, first->reason, first->detail,
                  plan.bad > 1 ? fmt::format(" (and {} more bad lines)", plan.bad - 1) : ""),
      (first->hint.empty() ? "" : first->hint + "; ") + kSkipHint);
}

// Requires that the folder is empty or holds an unfinished run of this program. Returns true if it
// holds the finished result.
bool check_folder(const std::string& folder, std::uint64_t fingerprint, Logger& log) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw DataError(fmt::format("'{}' exists and is not a folder", folder), "name another --out");
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw StorageError(fmt::format("cannot create folder '{}': {}", folder, failure.message()),
                       "check the permissions and the free space");
  if (fs::exists(folder + "/index.bin")) {
    if (report_fingerprint(folder) == fingerprint) return true;
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
  plan.facts.left_out = std::move(manifest.left_out);
  check_left_out(plan, options);
  double seconds = 0;
  for (const AudioEntry& entry : manifest.entries) seconds += entry.duration;
  plan.units = cut_into_units(std::move(manifest.entries), 60 * options.shard_minutes);
  if (plan.units.empty())
    throw DataError("no utterance is left: the manifests leave all of them out");
  plan.facts.shards = static_cast<int>(plan.units.size());
  plan.facts.sample_rate = options.sample_rate;
  plan.facts.manifests = manifests;
  plan.facts.fingerprint = fingerprint_of(plan, options);
  plan.finished_before = check_folder(folder, plan.facts.fingerprint, log);
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

}  // namespace

PrepareAudioSummary prepare_audio(Communicator& world, Logger& log,
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
                 .stop_on_bad = options.stop_on_bad},
                log);
  const auto rounds = static_cast<std::size_t>((shared.shards + world.size() - 1) / world.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    together(world, [&] { worker.run(round); });
    std::int64_t bad = worker.bad();
    world.all_reduce(&bad, 1, DType::i64, ReduceOp::sum);
    together(world, [&] {
      if (worker.example())
        check_cap(shared.bad + bad, shared.utterances, options.bad_cap, *worker.example());
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

}  // namespace choir
