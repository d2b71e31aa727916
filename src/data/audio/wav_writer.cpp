#include "choir/data/audio/wav_writer.hpp"

#include <filesystem>
#include <optional>

#include "choir/core/error.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

constexpr std::int64_t kWavHeaderBytes = 44;
constexpr std::int64_t kMostWavSamples = (std::int64_t{1} << 31) - 19;  // sizes are 32 bits

}  // namespace

struct WavWriter::State {
  std::string path, temporary;
  int sample_rate = 0;
  std::int64_t samples = 0;
  std::optional<PosixFile> file;
};

WavWriter::WavWriter(const std::string& path, int sample_rate) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->temporary = path + ".tmp";
  state_->sample_rate = sample_rate;
  state_->file.emplace(PosixFile::for_writing(state_->temporary));
}

WavWriter::WavWriter(WavWriter&&) noexcept = default;

WavWriter::~WavWriter() {
  if (state_ == nullptr || !state_->file) return;
  std::error_code ignored;
  std::filesystem::remove(state_->temporary, ignored);
}

void WavWriter::append(std::span<const std::int16_t> samples) {
  State& s = *state_;
  CHOIR_CHECK(s.file.has_value(), "'{}' is finished already", s.path);
  if (std::ssize(samples) > kMostWavSamples - s.samples)
    throw StorageError(fmt::format("'{}' exceeds the length of a WAV file", s.path),
                       "split the recording into parts of a day or less");
  s.file->write_at(samples.data(), samples.size_bytes(), kWavHeaderBytes + 2 * s.samples);
  s.samples += std::ssize(samples);
}

std::int64_t WavWriter::samples() const {
  return state_->samples;
}

void WavWriter::finish() {
  State& s = *state_;
  CHOIR_CHECK(s.file.has_value(), "'{}' is finished already", s.path);
  const std::string header = wav_header(s.sample_rate, s.samples);
  s.file->write_at(header.data(), header.size(), 0);
  s.file.reset();
  rename_file(s.temporary, s.path);
}

}  // namespace choir
