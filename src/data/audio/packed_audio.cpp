#include "src/data/audio/packed_audio.hpp"

#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/recording_list.hpp"

namespace choir {
namespace {

constexpr std::array<char, 8> kShardMagic{'C', 'H', 'O', 'I', 'R', 'P', 'C', 'M'};
constexpr std::uint32_t kShardVersion = 1;
constexpr std::int64_t kSampleBytes = 2;
constexpr const char* kPrepareAgain = "prepare the audio again with 'choir prepare audio'";

struct ShardHeader {
  std::array<char, 8> magic = kShardMagic;
  std::uint32_t version = kShardVersion;
  std::uint32_t sample_rate = 0;
  std::uint64_t samples = 0;
  std::uint32_t payload_crc = 0;
  std::array<std::uint32_t, 9> reserved{};
};
static_assert(sizeof(ShardHeader) == AudioCatalog::kHeaderBytes);

[[noreturn]] void refuse_shard(const std::string& path, const std::string& what) {
  throw DataError(fmt::format("packed audio '{}' {}", path, what), kPrepareAgain);
}

}  // namespace

std::string audio_shard_path(const std::string& folder, int shard) {
  return fmt::format("{}/audio_{:05}.pcm", folder, shard);
}

AudioShardHeader read_audio_shard_header(const std::string& path) {
  const PosixFile file = PosixFile::for_reading(path);
  const std::int64_t size = file.size();
  ShardHeader raw;
  if (size < AudioCatalog::kHeaderBytes)
    refuse_shard(path, fmt::format("is truncated: {} bytes, its header alone has {}", size,
                                   AudioCatalog::kHeaderBytes));
  file.read_at(&raw, sizeof raw, 0);
  if (raw.magic != kShardMagic)
    refuse_shard(path, "is not packed audio (no CHOIRPCM at its start)");
  if (raw.version != kShardVersion)
    refuse_shard(path,
                 fmt::format("has version {}, this program reads {}", raw.version, kShardVersion));
  if (raw.sample_rate > std::numeric_limits<std::int32_t>::max())
    refuse_shard(path, fmt::format("has an impossible sample rate of {} hertz", raw.sample_rate));
  const auto there = static_cast<std::uint64_t>((size - AudioCatalog::kHeaderBytes) / kSampleBytes);
  if (there < raw.samples)
    refuse_shard(path, fmt::format("is truncated: the header promises {} samples, {} are there",
                                   raw.samples, there));
  if (static_cast<std::uint64_t>(size - AudioCatalog::kHeaderBytes) != raw.samples * kSampleBytes)
    refuse_shard(path, fmt::format("has bytes after its {} samples", raw.samples));
  return {static_cast<int>(raw.sample_rate), static_cast<std::int64_t>(raw.samples),
          raw.payload_crc};
}

struct AudioShardWriter::State {
  std::string path, temporary;
  ShardHeader header;
  std::optional<PosixFile> file;

  void write(std::span<const std::int16_t> samples) {
    const auto offset = static_cast<std::int64_t>(header.samples) * kSampleBytes;
    file->write_at(samples.data(), samples.size_bytes(), AudioCatalog::kHeaderBytes + offset);
    header.payload_crc = crc32c(samples.data(), samples.size_bytes(), header.payload_crc);
    header.samples += samples.size();
  }
};

AudioShardWriter::AudioShardWriter(std::string path, int sample_rate)
    : state_(std::make_unique<State>()) {
  state_->temporary = path + ".tmp";
  state_->path = std::move(path);
  state_->header.sample_rate = static_cast<std::uint32_t>(sample_rate);
  state_->file.emplace(PosixFile::for_writing(state_->temporary));
}

AudioShardWriter::AudioShardWriter(AudioShardWriter&&) noexcept = default;

AudioShardWriter::~AudioShardWriter() {
  if (state_ == nullptr || !state_->file) return;
  std::error_code ignored;
  std::filesystem::remove(state_->temporary, ignored);
}

AudioShardWriter::Place AudioShardWriter::append(std::span<const std::int16_t> samples) {
  State& s = *state_;
  const std::array<std::int16_t, kAlignment> zeros{};
  const auto beyond = static_cast<std::int64_t>(s.header.samples) % kAlignment;
  if (beyond != 0) s.write(std::span(zeros).first(static_cast<std::size_t>(kAlignment - beyond)));
  const Place place{static_cast<std::int64_t>(s.header.samples),
                    crc32c(samples.data(), samples.size_bytes())};
  s.write(samples);
  return place;
}

AudioShardHeader AudioShardWriter::finish() {
  State& s = *state_;
  CHOIR_CHECK(s.file.has_value(), "'{}' is finished already", s.path);
  s.file->write_at(&s.header, sizeof s.header, 0);
  s.file->sync();
  rename_file(s.temporary, s.path);
  s.file.reset();
  return {static_cast<int>(s.header.sample_rate), static_cast<std::int64_t>(s.header.samples),
          s.header.payload_crc};
}

namespace {

constexpr std::array<char, 8> kCatalogMagic{'C', 'H', 'O', 'I', 'R', 'I', 'D', 'X'};
constexpr std::uint32_t kCatalogVersion = 1;
constexpr std::uint32_t kEndiannessMark = 0x01020304u;
// Numbers beyond these are no speech, and their sums could overflow.
constexpr std::uint32_t kMostRate = 1000000, kMostShards = 10000000;
constexpr std::int64_t kMostSamples = std::int64_t{1} << 48;
constexpr const char* kPrepareCatalogAgain = "prepare the audio again with 'choir prepare audio'";

struct CatalogHeader {
  std::array<char, 8> magic = kCatalogMagic;
  std::uint32_t version = kCatalogVersion;
  std::uint32_t endianness = kEndiannessMark;
  std::uint32_t sample_rate = 0;
  std::uint32_t shards = 0;
  std::uint64_t utterances = 0;
  std::uint64_t manifest_bytes = 0;
  std::uint32_t manifest_crc = 0;
  std::array<std::uint32_t, 5> reserved{};
};
static_assert(sizeof(CatalogHeader) == AudioCatalog::kHeaderBytes);
using Record = AudioCatalog::Utterance;
static_assert(sizeof(Record) == 40, "the records of index.bin");

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw DataError(fmt::format("index '{}' {}", path, what), kPrepareCatalogAgain);
}

// Checks a whole index and returns its header.
CatalogHeader check_index(const std::string& path, std::string_view bytes) {
  if (bytes.empty()) refuse(path, "is empty");
  CatalogHeader raw;
  if (bytes.size() < sizeof raw) refuse(path, fmt::format("is truncated: {} bytes", bytes.size()));
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kCatalogMagic)
    refuse(path, "is not an index of packed speech (no CHOIRIDX at its start)");
  if (raw.endianness != kEndiannessMark)
    refuse(path, "was written on a machine of the other byte order");
  if (raw.version != kCatalogVersion)
    refuse(path,
           fmt::format("has version {}, this program reads {}", raw.version, kCatalogVersion));
  if (raw.sample_rate == 0 || raw.sample_rate > kMostRate || raw.shards > kMostShards)
    refuse(path,
           fmt::format("has impossible numbers: {} hertz, {} shards", raw.sample_rate, raw.shards));
  const std::size_t body = bytes.size() - sizeof raw;
  if (body < sizeof(std::uint32_t) ||
      (body - sizeof(std::uint32_t)) / sizeof(Record) < raw.utterances)
    refuse(path, fmt::format("is truncated: the header promises {} utterances", raw.utterances));
  if (body != raw.utterances * sizeof(Record) + sizeof(std::uint32_t))
    refuse(path, fmt::format("has bytes after its {} utterances", raw.utterances));
  std::uint32_t stored = 0;
  std::memcpy(&stored, bytes.data() + bytes.size() - sizeof stored, sizeof stored);
  const std::uint32_t computed = crc32c(bytes.data(), bytes.size() - sizeof stored);
  if (stored != computed)
    refuse(path, fmt::format("is corrupt (crc32c {:08x}, stored {:08x})", computed, stored));
  return raw;
}

void check_record(const std::string& path, const CatalogHeader& raw, std::uint64_t i,
                  const Record& u) {
  const bool fits = u.shard >= 0 && static_cast<std::uint32_t>(u.shard) < raw.shards &&
                    u.first >= 0 && u.first <= kMostSamples &&
                    u.first % AudioShardWriter::kAlignment == 0 && u.samples > 0 &&
                    u.samples <= std::numeric_limits<std::int32_t>::max() && u.line >= 0 &&
                    u.line_bytes > 0 && u.text_letters >= 0 &&
                    static_cast<std::uint64_t>(u.line) + static_cast<std::uint64_t>(u.line_bytes) <=
                        raw.manifest_bytes;
  if (!fits) refuse(path, fmt::format("has an impossible record: utterance {}", i));
}

std::string index_path(const std::string& folder) {
  return folder + "/index.bin";
}
std::string manifest_path(const std::string& folder) {
  return folder + "/manifest.jsonl";
}

/// How the contents of a folder without packed audio become training data.
std::string advice_on_unpacked(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) return advice_on_path(folder, "name a manifest");
  std::string manifest;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string path = entry.path().string();
    if ((path.ends_with(".json") || path.ends_with(".jsonl")) &&
        (manifest.empty() || path < manifest))
      manifest = path;
  }
  if (!manifest.empty())
    return fmt::format(
        "{} looks like a manifest: a deck may name it, and `choir prepare audio {} --out DIR` "
        "makes "
        "a packed folder of it",
        manifest, manifest);
  if (const std::string advice = advice_on_recordings(folder); !advice.empty())
    return advice + ", which takes the place of the folder in the deck";
  return "create it with 'choir prepare audio MANIFEST --out DIR'";
}

}  // namespace

AudioCatalog AudioCatalog::open(const std::string& folder) {
  const std::string path = index_path(folder);
  if (!std::filesystem::exists(path))
    throw DataError(fmt::format("'{}' holds no packed speech ('{}' does not exist)", folder, path),
                    advice_on_unpacked(folder));
  const std::string bytes = read_whole_file(path, kMostBinaryMiB);
  const CatalogHeader raw = check_index(path, bytes);
  AudioCatalog catalog;
  catalog.folder_ = folder;
  catalog.sample_rate_ = static_cast<int>(raw.sample_rate);
  catalog.shards_ = static_cast<int>(raw.shards);
  catalog.hash_ = fnv1a(bytes);
  catalog.utterances_.resize(raw.utterances);
  if (raw.utterances > 0)
    std::memcpy(catalog.utterances_.data(), bytes.data() + sizeof raw,
                raw.utterances * sizeof(Record));
  for (std::uint64_t i = 0; i < raw.utterances; ++i)
    check_record(path, raw, i, catalog.utterances_[i]);
  const auto there =
      static_cast<std::uint64_t>(PosixFile::for_reading(manifest_path(folder)).size());
  if (there != raw.manifest_bytes)
    refuse(path, fmt::format("belongs to a manifest of {} bytes; '{}' has {}", raw.manifest_bytes,
                             manifest_path(folder), there));
  return catalog;
}

void AudioCatalog::write(const std::string& folder, int sample_rate, int shards,
                         const std::vector<Utterance>& utterances, std::int64_t manifest_bytes,
                         std::uint32_t manifest_crc) {
  CatalogHeader raw;
  raw.sample_rate = static_cast<std::uint32_t>(sample_rate);
  raw.shards = static_cast<std::uint32_t>(shards);
  raw.utterances = utterances.size();
  raw.manifest_bytes = static_cast<std::uint64_t>(manifest_bytes);
  raw.manifest_crc = manifest_crc;
  std::string bytes(reinterpret_cast<const char*>(&raw), sizeof raw);
  bytes.append(reinterpret_cast<const char*>(utterances.data()),
               utterances.size() * sizeof(Record));
  const std::uint32_t crc = crc32c(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  write_whole_file(index_path(folder), bytes);
}

std::string AudioCatalog::shard_path(int shard) const {
  return audio_shard_path(folder_, shard);
}

double AudioCatalog::hours() const {
  std::int64_t samples = 0;
  for (const Utterance& u : utterances_) samples += u.samples;
  return sample_rate_ > 0 ? static_cast<double>(samples) / sample_rate_ / 3600 : 0;
}

std::string AudioCatalog::line(std::int64_t i) const {
  const Utterance& u = (*this)[i];
  std::string line(static_cast<std::size_t>(u.line_bytes), '\0');
  PosixFile::for_reading(manifest_path(folder_)).read_at(line.data(), line.size(), u.line);
  return line;
}

std::string AudioCatalog::text(std::int64_t i) const {
  const auto json =
      read_json_line(line(i), fmt::format("'{}', utterance {}", manifest_path(folder_), i));
  if (!json.is_object())
    throw DataError(fmt::format("'{}' is damaged: the line of utterance {} is not a JSON object",
                                manifest_path(folder_), i),
                    kPrepareCatalogAgain);
  const auto text = json.find("text");
  return text != json.end() && text->is_string() ? text->get<std::string>() : std::string();
}

std::string AudioCatalog::name(std::int64_t i) const {
  const std::string otherwise = fmt::format("utterance {} of '{}'", i, folder_);
  nlohmann::json json;
  try {
    json = read_json_line(line(i), otherwise);
  } catch (const Error&) {  // the folder may be gone since it was opened
    return otherwise;
  }
  const auto text_in = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!json.is_object()) return otherwise;
  const std::string file = text_in("audio_filepath"), id = text_in("id");
  if (file.empty()) return id.empty() ? otherwise : id;
  const auto offset = json.find("offset");
  const bool part = offset != json.end() && offset->is_number() && offset->get<double>() > 0;
  return part ? fmt::format("{} from {:g} s", file, offset->get<double>()) : file;
}

std::string AudioCatalog::serialise() const {
  const auto records = nlohmann::json::binary_t::container_type(
      reinterpret_cast<const std::uint8_t*>(utterances_.data()),
      reinterpret_cast<const std::uint8_t*>(utterances_.data() + utterances_.size()));
  const auto bytes = nlohmann::json::to_cbor(nlohmann::json::array(
      {folder_, sample_rate_, shards_, hash_, nlohmann::json::binary(records)}));
  return {bytes.begin(), bytes.end()};
}

AudioCatalog AudioCatalog::deserialise(std::string_view bytes) {
  const auto parts = nlohmann::json::from_cbor(bytes);
  AudioCatalog catalog;
  catalog.folder_ = parts[0].get<std::string>();
  catalog.sample_rate_ = parts[1].get<int>();
  catalog.shards_ = parts[2].get<int>();
  catalog.hash_ = parts[3].get<std::uint64_t>();
  const auto& records = parts[4].get_binary();
  catalog.utterances_.resize(records.size() / sizeof(Utterance));
  if (!records.empty()) std::memcpy(catalog.utterances_.data(), records.data(), records.size());
  return catalog;
}

std::vector<std::int16_t> read_packed_audio(const AudioCatalog& catalog, std::int64_t recording) {
  CHOIR_CHECK(recording >= 0 && recording < catalog.size(), "recording {} of {}", recording,
              catalog.size());
  const AudioCatalog::Utterance& u = catalog[recording];
  const std::string path = catalog.shard_path(u.shard);
  std::vector<std::int16_t> samples(static_cast<std::size_t>(u.samples));
  const std::size_t bytes = samples.size() * sizeof(std::int16_t);
  PosixFile::for_reading(path).read_at(samples.data(), bytes,
                                       AudioCatalog::kHeaderBytes + 2 * u.first);
  if (const std::uint32_t crc = crc32c(samples.data(), bytes); crc != u.crc)
    throw DataError(fmt::format("packed audio '{}' is damaged in recording {} (crc32c {:08x}, "
                                "stored {:08x})",
                                path, recording, crc, u.crc),
                    "prepare the audio again with 'choir prepare audio'");
  return samples;
}

}  // namespace choir
