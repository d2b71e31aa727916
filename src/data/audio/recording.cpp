#include "choir/data/audio/recording.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "choir/data/audio/audio_error.hpp"

namespace choir {
namespace {

/// Seconds by which a segment may exceed the end of a file.
constexpr double kTolerance = 0.05;

/// Returns x * to / from, rounded to nearest.
std::int64_t scaled(std::int64_t x, std::int64_t from, std::int64_t to) {
  return (2 * x * to + from) / (2 * from);
}

}  // namespace

Recording Recording::open(const RecordingSource& source, int rate) {
  return Recording(AudioDecoder::from_file(source.path), source, rate);
}

Recording::Recording(AudioDecoder decoder, const RecordingSource& source, int rate)
    : decoder_(std::move(decoder)), channel_(source.channel), rate_(rate) {
  const double native = decoder_.rate(), there = decoder_.seconds();
  const double length = source.duration < 0 ? there - source.offset : source.duration;
  if (source.offset >= there || source.offset + length > there + kTolerance)
    throw AudioError(AudioFault::too_short,
                     fmt::format("'{}' lasts {:.3f} s and ends before {:.3f} + {:.3f} s",
                                 source.path, there, source.offset, std::max(0.0, length)));
  native_first_ =
      std::min<std::int64_t>(std::llround(source.offset * native), decoder_.frames() - 1);
  native_count_ =
      std::min<std::int64_t>(std::llround(length * native), decoder_.frames() - native_first_);
  if (native_count_ < 1)
    throw AudioError(AudioFault::zero_length,
                     fmt::format("{:.6f} s of '{}' contain no sample", length, source.path));
  if (channel_.value == ChannelChoice::kUnset && decoder_.channels() > 1)
    throw AudioError(
        AudioFault::channels,
        fmt::format("'{}' has {} channels and none was chosen", source.path, decoder_.channels()),
        fmt::format("--channel average, or --channel 0 ... {}", decoder_.channels() - 1));
  if (channel_.value >= decoder_.channels())
    throw AudioError(AudioFault::channels,
                     fmt::format("'{}' has {} channel(s), but channel {} was requested",
                                 source.path, decoder_.channels(), channel_.value),
                     "channels count from 0");
  samples_ = std::max<std::int64_t>(1, scaled(native_count_, decoder_.rate(), rate));
}

std::vector<std::int16_t> Recording::read(std::int64_t first, std::int64_t count) {
  const std::int64_t from = decoder_.rate(), to = rate_;
  std::int64_t begin = first, native_begin = first;
  std::int64_t native_end = std::min(first + count, native_count_);
  if (from != to) {
    // A part begins where a sample of the file and one of the model coincide.
    const std::int64_t step = to / std::gcd(from, to);
    const auto margin = static_cast<std::int64_t>(kMargin * static_cast<double>(to));
    begin = std::max<std::int64_t>(0, first - margin) / step * step;
    native_begin = begin * from / to;
    native_end = std::min((first + count + margin) * from / to + 1, native_count_);
  }
  std::vector<std::int16_t> samples =
      decoder_
          .read(native_first_ + native_begin, native_end - native_begin, channel_,
                static_cast<int>(to))
          .samples;
  samples.erase(samples.begin(),
                samples.begin() + std::min<std::int64_t>(first - begin, std::ssize(samples)));
  samples.resize(static_cast<std::size_t>(count));
  return samples;
}

}  // namespace choir
