#include "src/data/audio/audio_shard.hpp"

#include <array>
#include <filesystem>
#include <limits>
#include <optional>

#include "choir/core/crc32c.hpp"
#include "choir/core/error.hpp"
#include "choir/data/audio/audio_catalog.hpp"
#include "src/data/posix_file.hpp"

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

}  // namespace choir
