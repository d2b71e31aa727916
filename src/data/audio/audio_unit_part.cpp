// Conversion of units and their results to and from bytes.
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "choir/core/crc32c.hpp"
#include "choir/core/text.hpp"
#include "src/data/audio/audio_shard.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/byte_packer.hpp"
#include "src/data/posix_file.hpp"

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
  std::set<std::string> paths;
  for (const AudioEntry& entry : unit.entries) paths.insert(entry.path);
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) status = {};
    packer.put(status.st_size);
    packer.put(status.st_mtim.tv_sec);
    packer.put(status.st_mtim.tv_nsec);
  }
  return fnv1a(unit.pack(), fnv1a(packer.bytes()));
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

}  // namespace choir
