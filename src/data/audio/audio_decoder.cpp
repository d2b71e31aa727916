#include "src/data/audio/audio_decoder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <span>

#include "choir_features.hpp"
#include "src/core/hints.hpp"
#include "src/core/quantities.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/sound_stream.hpp"
#include "src/data/audio/waveform.hpp"

namespace choir {

ChannelChoice channel_choice_of(const std::string& word) {
  if (word.empty()) return {};
  if (word == "average") return {ChannelChoice::kAverage};
  int value = -1;
  const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (failed != std::errc() || end != word.data() + word.size() || value < 0)
    throw DeckError(fmt::format("invalid channel '{}'", word), "use `average` or a number from 0");
  return {value};
}

#ifdef CHOIR_HAVE_SNDFILE
namespace {

constexpr float kFullScale = 32768.0f;
constexpr int kRailRun = 3;
constexpr float kNoSound = 256;  // times full scale: no sound reaches 48 dB above it

/// Most samples of all channels in one read, also counted after resampling: 4 GiB as fp32.
constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 30;

bool stands_at_the_rail(std::span<const std::int16_t> samples) {
  int run = 0;
  for (const std::int16_t x : samples) {
    run = x == 32767 || x == -32768 ? run + 1 : 0;
    if (run == kRailRun) return true;
  }
  return false;
}

// Converts to 16 bits, rounded to nearest; returns the largest magnitude. Above 1 some samples were
// clipped.
float pack(std::span<const float> samples, std::vector<std::int16_t>& packed) {
  packed.resize(samples.size());
  float highest = 0, lowest = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const float x = std::nearbyint(samples[i] * kFullScale);
    highest = std::max(highest, x);
    lowest = std::min(lowest, x);
    packed[i] = static_cast<std::int16_t>(std::clamp(x, -kFullScale, kFullScale - 1));
  }
  // +1.0 is one step above the largest 16-bit number: cutting it is rounding, not clipping.
  return std::max(highest, -lowest) / kFullScale;
}

}  // namespace

struct AudioDecoder::State {
  std::string name;
  std::unique_ptr<SoundStream> sound;
  SoundStream::Form form;
  std::int64_t at = 0;
  std::vector<float> wide;
  std::vector<std::int16_t> narrow;

  State(std::unique_ptr<ByteSource> bytes, std::string of)
      : name(std::move(of)), sound(open_sound(std::move(bytes), name)), form(sound->form()) {}

  void check_channel(ChannelChoice channel) const {
    if (channel.value == ChannelChoice::kUnset && form.channels > 1)
      throw AudioError(AudioFault::channels,
                       fmt::format("'{}' has {} channels and none was chosen", name, form.channels),
                       fmt::format("--channel average, or --channel 0 ... {}", form.channels - 1));
    if (channel.value >= form.channels)
      throw AudioError(AudioFault::channels,
                       fmt::format("'{}' has {} channel{}, but channel {} was requested", name,
                                   form.channels, plural(form.channels), channel.value),
                       "channels count from 0");
  }
  void seek(std::int64_t first) {
    if (at == first) return;
    if (!sound->seek(first))
      throw AudioError(AudioFault::unreadable,
                       fmt::format("'{}' is damaged: cannot seek to sample {}", name, first),
                       kDamageRemedy);
    at = first;
  }
  void require(std::int64_t got, std::int64_t first, std::int64_t count) {
    at = first + got;
    if (got == count) return;
    const std::string fault = sound->fault();
    throw AudioError(!fault.empty() ? AudioFault::unreadable : AudioFault::too_short,
                     fmt::format("'{}' ends after {} of the {} samples that its header promises{}",
                                 name, first + got, form.frames, fault.empty() ? "" : ": " + fault),
                     kDamageRemedy);
  }

  // Reads in chunks, so that the length in a header is not allocated before the samples exist.
  template <class T>
  void read_pieces(std::vector<T>& to, std::int64_t first, std::int64_t count) {
    constexpr std::int64_t kPiece = std::int64_t{1} << 22;
    const auto width = static_cast<std::size_t>(form.channels);
    to.clear();
    for (std::int64_t done = 0, got = 0; done < count; done += got) {
      const std::int64_t want =
          std::min(count - done, std::max<std::int64_t>(1, kPiece / form.channels));
      to.resize(static_cast<std::size_t>(done + want) * width);
      got = sound->read(to.data() + static_cast<std::size_t>(done) * width, want);
      if (got != want) require(done + got, first, count);
    }
    require(count, first, count);
  }

  std::vector<std::int16_t> read_narrow(std::int64_t first, std::int64_t count, int channel) {
    const auto n = static_cast<std::size_t>(count), width = static_cast<std::size_t>(form.channels);
    read_pieces(narrow, first, count);
    if (width == 1) return std::move(narrow);
    std::vector<std::int16_t> one(n);
    for (std::size_t i = 0; i < n; ++i)
      one[i] = narrow[i * width + static_cast<std::size_t>(channel)];
    return one;
  }

  // Reads one channel, stored at the front of `wide`.
  std::span<const float> read_wide(std::int64_t first, std::int64_t count, ChannelChoice channel) {
    const auto n = static_cast<std::size_t>(count), width = static_cast<std::size_t>(form.channels);
    read_pieces(wide, first, count);
    if (width > 1) {
      for (std::size_t i = 0; i < n; ++i) {
        const float* frame = wide.data() + i * width;
        float value = channel.value >= 0 ? frame[channel.value] : 0;
        if (channel.value == ChannelChoice::kAverage) {
          for (std::size_t c = 0; c < width; ++c) value += frame[c];
          value /= static_cast<float>(width);
        }
        wide[i] = value;
      }
    }
    const auto one = std::span<const float>(wide).first(n);
    const auto bad =
        std::find_if(one.begin(), one.end(), [](float x) { return !std::isfinite(x); });
    if (bad != one.end())
      throw AudioError(
          AudioFault::not_finite,
          fmt::format("'{}': sample {} is {}", name, first + (bad - one.begin()), *bad),
          "write the recording again from its source; samples are numbers from -1 to 1");
    return one;
  }

  // Resamples. Weighted sums of the largest finite numbers can overflow to NaN, which is refused.
  std::vector<float> converted(std::span<const float> samples, int rate) const {
    std::vector<float> result = resample(samples, form.rate, rate);
    if (std::any_of(result.begin(), result.end(), [](float x) { return std::isnan(x); }))
      throw AudioError(AudioFault::not_finite,
                       fmt::format("'{}': its samples are too large to resample from {} to {} "
                                   "hertz",
                                   name, form.rate, rate));
    return result;
  }
};

namespace {

/// The bytes of a WAV file that begins at this byte of an archive of Kaldi. Its header has its
/// length.
std::vector<char> wav_in_archive(const std::string& file, std::int64_t first) {
  constexpr std::int64_t kRiffHead = 8;
  const auto bytes = bytes_of_file(file);
  std::array<unsigned char, kRiffHead> head{};
  const bool read = bytes->read_at(first, head.data(), kRiffHead) == kRiffHead;
  if (!read || std::memcmp(head.data(), "RIFF", 4) != 0)
    throw AudioError(AudioFault::unreadable,
                     fmt::format("byte {} of '{}' begins no WAV file", first, file),
                     "archives of Kaldi with features or compressed sound are not read: `wav-copy "
                     "scp:wav.scp ark,scp:out.ark,out.scp` writes one of WAV files");
  std::int64_t size = kRiffHead;
  for (int i = 3; i >= 0; --i)
    size += std::int64_t{head[static_cast<std::size_t>(4 + i)]} << (8 * i);
  size = std::min(size, bytes->size() - first);
  std::vector<char> wav(static_cast<std::size_t>(size));
  wav.resize(static_cast<std::size_t>(bytes->read_at(first, wav.data(), size)));
  return wav;
}

}  // namespace

AudioDecoder AudioDecoder::from_file(const std::string& path) {
  if (const std::string file = file_of_recording(path); file != path)
    return from_memory(wav_in_archive(file, std::stoll(path.substr(file.size() + 1))), path);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || ::access(path.c_str(), R_OK) != 0)
    throw AudioError(AudioFault::missing_file,
                     fmt::format("cannot open '{}': {}", path, std::strerror(errno)),
                     advice_on_path(path,
                                    "paths are absolute, relative to the manifest that "
                                    "names them, or to the working directory"));
  if (!S_ISREG(status.st_mode))
    throw AudioError(AudioFault::unreadable, fmt::format("'{}' is not a file", path),
                     "pipes and devices are not read: write the sound to a file first");
  if (status.st_size == 0)
    throw AudioError(AudioFault::empty, fmt::format("'{}' is empty", path), kDamageRemedy);
  return AudioDecoder(std::make_unique<State>(bytes_of_file(path), path));
}

AudioDecoder AudioDecoder::from_memory(std::vector<char> bytes, const std::string& name) {
  if (bytes.empty())
    throw AudioError(AudioFault::empty, fmt::format("'{}' is empty", name), kDamageRemedy);
  return AudioDecoder(std::make_unique<State>(bytes_in_memory(std::move(bytes)), name));
}

int AudioDecoder::rate() const {
  return state_->form.rate;
}
int AudioDecoder::channels() const {
  return state_->form.channels;
}
std::int64_t AudioDecoder::frames() const {
  return state_->form.frames;
}
std::string AudioDecoder::shortfall() const {
  const SoundStream::Form& form = state_->form;
  if (form.promised == 0) return {};
  return fmt::format("ends after {} of the {} samples that its header promises", form.frames,
                     form.promised);
}
bool AudioDecoder::cut_off() const {
  const SoundStream::Form& form = state_->form;
  const double missing = static_cast<double>(form.promised - form.frames);  // negative: nothing
  return missing > 0.2 * form.rate && missing > 0.01 * static_cast<double>(form.promised);
}
void AudioDecoder::require_complete(const std::string& name) const {
  if (cut_off())
    throw AudioError(AudioFault::unreadable, fmt::format("{} {}", name, shortfall()),
                     kDamageRemedy);
}

Pcm AudioDecoder::read(std::int64_t first, std::int64_t count, ChannelChoice channel, int rate) {
  State& s = *state_;
  s.check_channel(channel);
  if (first < 0 || count < 1 || first > s.form.frames || count > s.form.frames - first)
    throw AudioError(AudioFault::too_short,
                     fmt::format("'{}' has {} samples, but {} from sample {} on were requested",
                                 s.name, s.form.frames, count, first));
  const std::int64_t longest = std::max<std::int64_t>(
      s.form.channels,
      static_cast<std::int64_t>(std::ceil(static_cast<double>(rate) / s.form.rate)));
  if (count > kMostAtOnce / longest)
    throw AudioError(AudioFault::unreadable,
                     fmt::format("'{}': {} samples of {} channels at {} hertz are too many at once",
                                 s.name, count, s.form.channels, s.form.rate),
                     "cut it into parts of some minutes");
  s.seek(first);
  if (s.form.channels == 1) channel.value = 0;
  Pcm pcm;
  if (rate == s.form.rate && channel.value >= 0 && s.form.narrow) {
    pcm.samples = s.read_narrow(first, count, channel.value);
  } else {
    const auto one = s.read_wide(first, count, channel);
    pcm.peak =
        rate == s.form.rate ? pack(one, pcm.samples) : pack(s.converted(one, rate), pcm.samples);
    pcm.clipped = pcm.peak > 1;
    if (pcm.peak > kNoSound)
      throw AudioError(
          AudioFault::unreadable,
          fmt::format("'{}' has samples of {:.4g} times full scale: floating-point samples are "
                      "from -1 to 1, and these are scaled to integers",
                      s.name, pcm.peak),
          "divide them by 32768 or write 16-bit integers");
  }
  if (pcm.samples.empty())
    throw AudioError(
        AudioFault::zero_length,
        fmt::format("'{}': {} samples become no sample at {} hertz", s.name, count, rate));
  pcm.clipped = pcm.clipped || stands_at_the_rail(pcm.samples);
  return pcm;
}
#else
struct AudioDecoder::State {};
namespace {
[[noreturn]] void absent(const std::string& name) {
  throw DeckError(
      fmt::format("'{}' cannot be read: this program was built without libsndfile", name),
      "install libsndfile1-dev and build again; preparing and transcribing audio need it");
}
}  // namespace
AudioDecoder AudioDecoder::from_file(const std::string& path) {
  absent(path);
}
AudioDecoder AudioDecoder::from_memory(std::vector<char> /*bytes*/, const std::string& name) {
  absent(name);
}
int AudioDecoder::rate() const {
  absent("audio");
}
int AudioDecoder::channels() const {
  absent("audio");
}
std::int64_t AudioDecoder::frames() const {
  absent("audio");
}
std::string AudioDecoder::shortfall() const {
  absent("audio");
}
bool AudioDecoder::cut_off() const {
  absent("audio");
}
void AudioDecoder::require_complete(const std::string&) const {
  absent("audio");
}
Pcm AudioDecoder::read(std::int64_t, std::int64_t, ChannelChoice, int) {
  absent("audio");
}
#endif

std::string file_of_recording(const std::string& path) {
  const std::size_t colon = path.rfind(':');
  std::error_code ignored;
  const bool place = colon != std::string::npos && colon > 0 && colon + 1 < path.size() &&
                     path.size() - colon < 18 &&
                     path.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (!place || std::filesystem::exists(path, ignored)) return path;
  const std::string file = path.substr(0, colon);
  return std::filesystem::is_regular_file(file, ignored) ? file : path;
}

AudioDecoder::AudioDecoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
AudioDecoder::~AudioDecoder() = default;
AudioDecoder::AudioDecoder(AudioDecoder&&) noexcept = default;

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
    throw AudioError(
        AudioFault::too_short,
        fmt::format("'{}' lasts {:.3f} s and ends before {:.3f} + {:.3f} s{}", source.path, there,
                    source.offset, std::max(0.0, length),
                    decoder_.shortfall().empty() ? "" : "; it " + decoder_.shortfall()),
        source.offset > 0 || !decoder_.shortfall().empty()
            ? ""
            : "`choir prepare manifest IN --out OUT` corrects the durations of whole "
              "files");
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

std::string Recording::shortfall() const {
  return native_first_ + native_count_ < decoder_.frames() ? "" : decoder_.shortfall();
}

std::string Recording::overload() const {
  constexpr float kSuspicious = 2;  // decoders of compressed sound exceed full scale a little
  if (peak_ < kSuspicious) return {};
  return fmt::format(
      "samples up to {:.4g} times full scale were cut: floating-point samples are from -1 to 1",
      peak_);
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
  Pcm pcm = decoder_.read(native_first_ + native_begin, native_end - native_begin, channel_,
                          static_cast<int>(to));
  peak_ = std::max(peak_, pcm.peak);
  std::vector<std::int16_t> samples = std::move(pcm.samples);
  samples.erase(samples.begin(),
                samples.begin() + std::min<std::int64_t>(first - begin, std::ssize(samples)));
  samples.resize(static_cast<std::size_t>(count));
  return samples;
}

}  // namespace choir
