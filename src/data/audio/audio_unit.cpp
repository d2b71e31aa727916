// Conversion of units and their results to and from bytes.

#include "src/data/audio/audio_unit.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/audio/packed_audio.hpp"

namespace choir {
namespace {

constexpr std::uint64_t kPartVersion = 0x3130545241504843ull;  // "CHPART01"

/// Calls f(field) for the fields of an entry that are stored, in order.
template <class Entry, class F>
void each_field(Entry& e, const F& f) {
  for (auto* text : {&e.place, &e.id, &e.path, &e.member, &e.before, &e.after}) f(*text);
  f(e.by_stem), f(e.occurrence), f(e.whole), f(e.offset), f(e.duration), f(e.channel);
  f(e.rate), f(e.frames), f(e.text_letters);
}

void put_entry(BytePacker& packer, const AudioEntry& e) {
  each_field(e, [&](const auto& field) { packer.put(field); });
}

void get(ByteUnpacker& packed, AudioEntry& e) {
  each_field(e, [&](auto& field) { packed.get(field); });
}

/// Puts the size and time of every file that the entries name, in the order of the paths. Returns
/// false if one of them is missing.
bool put_files(BytePacker& packer, const std::vector<AudioEntry>& entries,
               std::string* newest = nullptr) {
  std::set<std::string> paths;
  for (const AudioEntry& entry : entries) paths.insert(file_of_recording(entry.path));
  bool all = true;
  std::pair<std::int64_t, std::int64_t> last{};
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) status = {}, all = false;
    packer.put(status.st_size);
    packer.put(status.st_mtim.tv_sec);
    packer.put(status.st_mtim.tv_nsec);
    const std::pair<std::int64_t, std::int64_t> time(status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    if (newest != nullptr && time >= last) last = time, *newest = path;
  }
  return all;
}

std::optional<UnitResult> unpack_part(std::string_view bytes) {
  ByteUnpacker packed(bytes);
  std::uint64_t version = 0;
  packed.get(version);
  if (version != kPartVersion) return std::nullopt;
  UnitResult result;
  packed.get(result.fingerprint);
  packed.get(result.shard_samples);
  packed.get(result.payload_crc);
  result.utterances.resize(packed.count());
  for (auto& utterance : result.utterances) packed.get(utterance);
  packed.get(result.lines);
  result.left_out.resize(packed.count());
  for (OmittedEntry& l : result.left_out) {
    for (std::string* text : {&l.place, &l.id, &l.reason, &l.detail, &l.hint}) packed.get(*text);
    packed.get(l.duration);
    packed.get(l.bad);
  }
  result.clipped.resize(packed.count());
  for (std::string& id : result.clipped) packed.get(id);
  packed.get(result.resampled);
  return result;
}

}  // namespace

std::string AudioUnit::pack() const {
  BytePacker packer;
  packer.put(shard);
  packer.put(entries.size());
  for (const AudioEntry& entry : entries) put_entry(packer, entry);
  return packer.bytes();
}

AudioUnit AudioUnit::unpack(const std::string& bytes) {
  ByteUnpacker packed(bytes);
  AudioUnit unit;
  packed.get(unit.shard);
  unit.entries.resize(packed.count());
  for (AudioEntry& entry : unit.entries) get(packed, entry);
  return unit;
}

std::uint64_t unit_fingerprint(const AudioUnit& unit, const UnitOptions& options) {
  BytePacker packer;
  packer.put(kPartVersion);
  packer.put(options.sample_rate);
  packer.put(options.channel.value);
  put_files(packer, unit.entries);
  return fnv1a(unit.pack(), fnv1a(packer.bytes()));
}

RecordingFiles recording_files(const std::vector<AudioEntry>& entries) {
  BytePacker packer;
  RecordingFiles files;
  if (!put_files(packer, entries, &files.newest)) return files;
  files.state = std::max<std::uint64_t>(fnv1a(packer.bytes()), 1);
  return files;
}

std::string unit_part_path(const std::string& folder, int shard) {
  return fmt::format("{}/audio_{:05}.part", folder, shard);
}

void write_unit_part(const UnitResult& result, const std::string& folder, int shard) {
  BytePacker packer;
  packer.put(kPartVersion);
  packer.put(result.fingerprint);
  packer.put(result.shard_samples);
  packer.put(result.payload_crc);
  packer.put(result.utterances);
  packer.put(result.lines);
  packer.put(result.left_out.size());
  for (const OmittedEntry& l : result.left_out) {
    for (const std::string* text : {&l.place, &l.id, &l.reason, &l.detail, &l.hint})
      packer.put(*text);
    packer.put(l.duration);
    packer.put(l.bad);
  }
  packer.put(result.clipped);
  packer.put(result.resampled);
  std::string bytes = packer.bytes();
  const std::uint32_t crc = crc32c(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  write_whole_file(unit_part_path(folder, shard), bytes);
}

std::optional<UnitResult> read_unit_part(const std::string& folder, int shard) {
  const std::string path = unit_part_path(folder, shard);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string bytes = read_whole_file(path, kMostBinaryMiB);
  std::uint32_t crc = 0;
  if (bytes.size() < sizeof crc) return std::nullopt;
  std::memcpy(&crc, bytes.data() + bytes.size() - sizeof crc, sizeof crc);
  if (crc != crc32c(bytes.data(), bytes.size() - sizeof crc)) return std::nullopt;
  try {
    auto result = unpack_part(std::string_view(bytes).substr(0, bytes.size() - sizeof crc));
    if (!result) return std::nullopt;
    const AudioShardHeader header = read_audio_shard_header(audio_shard_path(folder, shard));
    if (header.samples != result->shard_samples || header.payload_crc != result->payload_crc)
      return std::nullopt;
    return result;
  } catch (const Error&) {
    return std::nullopt;  // the shard is made again
  }
}

namespace {

struct Outcome {
  Pcm pcm;
  std::optional<OmittedEntry> left_out;
  bool resampled = false;
};

// Returns the first frame and the number of frames of the recording that an entry refers to. Throws
// AudioError if the recording does not contain them.
std::pair<std::int64_t, std::int64_t> span_of(const AudioEntry& entry, const AudioDecoder& audio) {
  if (entry.rate > 0 && entry.rate != audio.rate())
    throw AudioError(AudioFault::wrong_rate, fmt::format("{} has {} hertz, its manifest says {}",
                                                         entry.source(), audio.rate(), entry.rate));
  const double rate = audio.rate(), there = audio.seconds();
  const auto tolerated = static_cast<std::int64_t>(std::floor(kDurationTolerance * rate));
  if (entry.frames > 0 && std::abs(entry.frames - audio.frames()) > tolerated)
    throw AudioError(AudioFault::wrong_duration,
                     fmt::format("{} has {} samples, its manifest says {}", entry.source(),
                                 audio.frames(), entry.frames));
  if (entry.whole && entry.duration > there + kDurationTolerance) {
    const std::string cut = audio.shortfall();
    throw AudioError(AudioFault::wrong_duration,
                     fmt::format("{} lasts {:.3f} s, its manifest says {:.3f}{}", entry.source(),
                                 there, entry.duration, cut.empty() ? "" : "; the file " + cut),
                     cut.empty() ? "`choir prepare manifest IN --out OUT` corrects the durations "
                                   "of whole files"
                                 : "copy the recording again");
  }
  // A duration that is shorter than the file by more than rounding limits it, as in NeMo.
  const bool complete = entry.whole && entry.duration >= there - kDurationTolerance;
  if (complete && entry.text_letters > 0) audio.require_complete(entry.source());
  if (complete) return {0, audio.frames()};
  if (!((entry.offset + entry.duration) - there <= kDurationTolerance) || entry.offset >= there)
    throw AudioError(AudioFault::too_short,
                     fmt::format("{} lasts {:.3f} s and ends before {:.3f} + {:.3f} s",
                                 entry.source(), there, entry.offset, entry.duration));
  const std::int64_t first =
      std::min<std::int64_t>(std::llround(entry.offset * rate), audio.frames() - 1);
  const std::int64_t count =
      std::min<std::int64_t>(std::llround(entry.duration * rate), audio.frames() - first);
  if (count < 1)
    throw AudioError(AudioFault::zero_length, fmt::format("{:.6f} s of {} contain no sample",
                                                          entry.duration, entry.source()));
  return {first, count};
}

class UnitDecoder {
 public:
  UnitDecoder(const AudioUnit& unit, const UnitOptions& options,
              const std::function<void(double)>& progress)
      : unit_(unit), options_(options), progress_(progress), outcomes_(unit.entries.size()) {}

  std::vector<Outcome> run() {
    std::vector<std::string> order;  // paths in order of first appearance
    std::map<std::string, std::vector<std::size_t>> of_path;
    for (std::size_t i = 0; i < unit_.entries.size(); ++i) {
      auto& all = of_path[unit_.entries[i].path];
      if (all.empty()) order.push_back(unit_.entries[i].path);
      all.push_back(i);
    }
    for (const std::string& path : order) {
      std::vector<std::size_t> files, members;
      for (const std::size_t i : of_path[path])
        (unit_.entries[i].member.empty() ? files : members).push_back(i);
      if (!files.empty()) decode_all(files, [&] { return AudioDecoder::from_file(path); });
      if (!members.empty()) decode_archive(path, members);
    }
    return std::move(outcomes_);
  }

 private:
  // Decodes segments of one recording in the order of their offsets, so that it is decoded once.
  template <class Open>
  void decode_all(std::vector<std::size_t> entries, Open&& open) {
    std::stable_sort(entries.begin(), entries.end(), [&](std::size_t a, std::size_t b) {
      return unit_.entries[a].offset < unit_.entries[b].offset;
    });
    std::optional<AudioDecoder> audio;
    std::optional<AudioError> closed;  // the reason why it does not open
    for (const std::size_t i : entries) {
      attempt(i, [&] {
        if (closed) throw AudioError(*closed);
        try {
          if (!audio) audio.emplace(open());
        } catch (const AudioError& error) {
          closed = error;
          throw;
        }
        decode(i, *audio);
      });
    }
  }

  void decode(std::size_t i, AudioDecoder& audio) {
    const AudioEntry& entry = unit_.entries[i];
    const auto [first, count] = span_of(entry, audio);
    ChannelChoice channel = options_.channel;
    if (entry.channel >= 0) channel.value = entry.channel;
    // Shar stores only the channel of the cut, whatever its number was.
    if (entry.by_stem && audio.channels() == 1) channel.value = 0;
    outcomes_[i].pcm = audio.read(first, count, channel, options_.sample_rate);
    outcomes_[i].resampled = audio.rate() != options_.sample_rate;
  }

  template <class Action>
  void attempt(std::size_t i, Action&& action) {
    const AudioEntry& entry = unit_.entries[i];
    try {
      action();
    } catch (const AudioError& error) {
      const bool choose = error.fault() == AudioFault::channels && !options_.channel_hint.empty();
      outcomes_[i].left_out = OmittedEntry{.place = entry.place,
                                           .id = entry.id,
                                           .reason = std::string(name_of(error.fault())),
                                           .detail = error.what(),
                                           .hint = choose ? options_.channel_hint : error.hint(),
                                           .duration = entry.duration,
                                           .bad = true};
    }
    progress_(entry.duration);
  }

  static std::string stem(const std::string& name) {
    const auto dot = name.rfind('.');
    const auto slash = name.rfind('/');
    const bool inside = dot != std::string::npos && (slash == std::string::npos || dot > slash);
    return inside ? name.substr(0, dot) : name;
  }
  // NeMo names further segments of a member with a suffix: "a-sub2.wav" is a segment of "a.wav".
  static std::string without_sub(const std::string& name) {
    const std::string base = stem(name);
    const auto at = base.rfind("-sub");
    const bool numbered = at != std::string::npos && at + 4 < base.size() &&
                          base.find_first_not_of("0123456789", at + 4) == std::string::npos;
    return numbered ? base.substr(0, at) + name.substr(base.size()) : name;
  }

  // The order of cuts with the same id in a Shar distinguishes them.
  static std::string stem_key(const std::string& stem, int occurrence) {
    return fmt::format("{}\n{}", stem, occurrence);
  }
  static std::string key_of(const AudioEntry& entry) {
    return entry.by_stem ? stem_key(entry.member, entry.occurrence) : entry.member;
  }

  void decode_archive(const std::string& path, const std::vector<std::size_t>& entries) {
    std::map<std::string, std::vector<std::size_t>> wanted;
    for (const std::size_t i : entries) wanted[key_of(unit_.entries[i])].push_back(i);
    seen_.clear();
    // A second name for members that are missing under their own.
    std::map<std::string, std::vector<std::string>> second;
    for (const auto& [name, who] : wanted) {
      if (unit_.entries[who.front()].by_stem) continue;
      if (const std::string base = without_sub(name); base != name) second[base].push_back(name);
      // NeMo finds members by their names without folders.
      if (const std::string last = name.substr(name.rfind('/') + 1); last != name)
        second[last].push_back(name);
    }
    std::optional<ArchiveReader> archive;
    std::optional<AudioError> broken;
    // Catches errors of the archive only; errors thrown by attempt() must pass.
    const auto fine = [&](auto&& action) {
      try {
        return action();
      } catch (const AudioError& error) {
        broken = error;
        return false;
      }
    };
    bool more = fine([&] { return archive.emplace(path), true; });
    while (more && !wanted.empty()) {
      more = fine([&] { return archive->next(); });
      if (more) take(*archive, path, wanted, second);
    }
    for (const auto& [name, who] : wanted)
      for (const std::size_t i : who)
        attempt(i, [&] {
          if (broken) throw AudioError(*broken);
          throw AudioError(AudioFault::missing_member,
                           fmt::format("'{}' has no member '{}'", path, unit_.entries[i].member),
                           "a manifest of several tars needs all of them: --tars "
                           "audio__OP_0..N_CL_.tar");
        });
  }

  void take(ArchiveReader& archive, const std::string& path,
            std::map<std::string, std::vector<std::size_t>>& wanted,
            const std::map<std::string, std::vector<std::string>>& second) {
    const std::string name = archive.name();
    const bool audio = !name.ends_with(".nodata");
    std::vector<std::size_t> who;
    if (const auto at = wanted.find(name); at != wanted.end()) {
      who = at->second;
      wanted.erase(at);
    } else if (!name.ends_with(".json") && !name.ends_with(".nometa")) {
      const std::string base = stem(name);
      const auto cut = wanted.find(stem_key(base, seen_[base]++));
      if (cut != wanted.end()) {
        who = cut->second;
        wanted.erase(cut);
      }
    }
    if (const auto more = second.find(name); more != second.end()) {
      for (const std::string& other : more->second) {
        const auto at = wanted.find(other);
        if (at == wanted.end()) continue;
        who.insert(who.end(), at->second.begin(), at->second.end());
        wanted.erase(at);
      }
    }
    if (who.empty()) return;
    if (!audio) {
      for (const std::size_t i : who)
        attempt(i, [&] {
          throw AudioError(AudioFault::missing_member,
                           fmt::format("'{}' has '{}': the cut has no audio", path, name));
        });
      return;
    }
    decode_all(who, [&] {
      return AudioDecoder::from_memory(archive.read(), fmt::format("{}' member '{}", path, name));
    });
  }

  const AudioUnit& unit_;
  const UnitOptions& options_;
  const std::function<void(double)>& progress_;
  std::vector<Outcome> outcomes_;
  std::map<std::string, int> seen_;  // occurrences of stems in the archive so far
};

/// Throws the DataError that names the bad utterances of a unit, if it has any.
void refuse_bad(const AudioUnit& unit, const std::vector<Outcome>& outcomes,
                const UnitOptions& options) {
  BadList bad;
  for (const Outcome& outcome : outcomes)
    if (const auto& l = outcome.left_out)
      bad.add(l->place, fmt::format("{}: {}", l->reason, l->detail), l->hint);
  if (bad.count() == 0) return;
  bad.refuse(std::ssize(outcomes), "utterance", options.skip_hint,
             options.shards > 1 ? fmt::format("of shard {}", unit.shard) : "");
}

}  // namespace

UnitResult run_audio_unit(const AudioUnit& unit, const UnitOptions& options,
                          const std::string& folder, const std::function<void(double)>& progress) {
  UnitResult result;
  result.fingerprint = unit_fingerprint(unit, options);
  std::vector<Outcome> outcomes = UnitDecoder(unit, options, progress).run();
  if (options.stop_on_bad) refuse_bad(unit, outcomes, options);
  AudioShardWriter writer(audio_shard_path(folder, unit.shard), options.sample_rate);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    Outcome& outcome = outcomes[i];
    const AudioEntry& entry = unit.entries[i];
    if (outcome.left_out) {
      result.left_out.push_back(*outcome.left_out);
      continue;
    }
    const auto samples = std::ssize(outcome.pcm.samples);
    CHOIR_CHECK(samples > 0, "{} was neither decoded nor left out", entry.place);
    const auto place = writer.append(outcome.pcm.samples);
    const std::string line = entry.line(static_cast<double>(samples) / options.sample_rate);
    result.utterances.push_back({.shard = unit.shard,
                                 .crc = place.crc,
                                 .first = place.first,
                                 .samples = samples,
                                 .line = std::ssize(result.lines),
                                 .line_bytes = static_cast<std::int32_t>(line.size()),
                                 .text_letters = entry.text_letters});
    result.lines += line + "\n";
    result.resampled += outcome.resampled;
    if (outcome.pcm.clipped) result.clipped.push_back(entry.id);
    outcome = {};
  }
  const AudioShardHeader header = writer.finish();
  result.shard_samples = header.samples;
  result.payload_crc = header.payload_crc;
  write_unit_part(result, folder, unit.shard);
  return result;
}

}  // namespace choir
