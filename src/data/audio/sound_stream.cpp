#include "src/data/audio/sound_stream.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "choir_features.hpp"
#include "src/data/audio/audio_error.hpp"

#ifdef CHOIR_HAVE_SNDFILE
#include <sndfile.h>

namespace choir {
namespace {

// Values beyond these are no sound, and sizes computed from them could overflow.
constexpr sf_count_t kMostFrames = sf_count_t{1} << 40;
constexpr int kLowestRate = 100, kHighestRate = 1000000;
constexpr int kMpeg = 0x230000;  // SF_FORMAT_MPEG; libsndfile 1.0 does not have it

bool at_most_16_bits(int format) {
  switch (format & SF_FORMAT_SUBMASK) {
    case SF_FORMAT_PCM_16:
    case SF_FORMAT_PCM_S8:
    case SF_FORMAT_PCM_U8:
    case SF_FORMAT_ULAW:
    case SF_FORMAT_ALAW:
      return true;
    default:
      return false;
  }
}

/// Throws AudioError for an Ogg file of several recordings, one after another: libsndfile reads the
/// first of them only.
void refuse_chained_ogg(const ByteSource& source, const std::string& name) {
  constexpr std::int64_t kHeader = 27;
  bool sound = false;  // a page that begins no stream was seen
  std::array<unsigned char, kHeader + 255> page{};
  for (std::int64_t at = 0; at + kHeader <= source.size();) {
    const std::int64_t got = source.read_at(at, page.data(), std::ssize(page));
    if (got < kHeader || std::memcmp(page.data(), "OggS", 4) != 0) return;  // damaged: see read()
    const bool begins = (page[5] & 2) != 0;
    if (begins && sound)
      throw AudioError(AudioFault::unreadable,
                       fmt::format("'{}' holds several Ogg recordings, one after another; a second "
                                   "begins at byte {}",
                                   name, at),
                       "join them into one: ffmpeg -i FILE.ogg FILE.flac");
    sound = sound || !begins;
    const int segments = page[26];
    if (got < kHeader + segments) return;
    at += kHeader + segments;
    for (int s = 0; s < segments; ++s) at += page[static_cast<std::size_t>(kHeader + s)];
  }
}

class SndfileStream final : public SoundStream {
 public:
  SndfileStream(std::unique_ptr<ByteSource> source, const std::string& name, float gain,
                std::int64_t promised)
      : source_(std::move(source)), gain_(gain) {
    open();
    if (file_ == nullptr)
      throw AudioError(AudioFault::unreadable,
                       fmt::format("'{}' cannot be read as audio: {}", name, sf_strerror(nullptr)));
    mpeg_ = (info_.format & SF_FORMAT_TYPEMASK) == kMpeg;
    if (mpeg_) return;
    const int kind = info_.format & SF_FORMAT_TYPEMASK;
    if (kind == SF_FORMAT_OGG) refuse_chained_ogg(*source_, name);
    // Seeking in Vorbis and Opus by libsndfile 1.2.0 ends up to thousands of samples away.
    seeks_ = kind != SF_FORMAT_OGG;
    if (info_.frames == 0)
      throw AudioError(AudioFault::zero_length, fmt::format("'{}' holds no samples", name));
    if (info_.frames < 0 || info_.channels < 1)
      throw AudioError(AudioFault::unreadable,
                       fmt::format("'{}' is damaged: its length is unknown", name));
    if (info_.samplerate < kLowestRate || info_.samplerate > kHighestRate)
      throw AudioError(
          AudioFault::unreadable,
          fmt::format("'{}' is damaged: a sample rate of {} hertz", name, info_.samplerate));
    if (info_.frames > kMostFrames) {  // unknown
      info_.frames = count();
      if (info_.frames == 0)
        throw AudioError(AudioFault::zero_length,
                         fmt::format("'{}' holds no samples that can be decoded{}", name,
                                     fault().empty() ? "" : ": " + fault()));
      reopen();
    }
    form_ = {.rate = info_.samplerate,
             .channels = info_.channels,
             .frames = info_.frames,
             .narrow = gain == 1 && at_most_16_bits(info_.format),
             .promised = promised > info_.frames ? promised : 0};
  }
  SndfileStream(const SndfileStream&) = delete;
  SndfileStream& operator=(const SndfileStream&) = delete;

  /// True for MPEG audio, which another decoder reads; then only give_back() may be called.
  bool mpeg() const { return mpeg_; }
  std::unique_ptr<ByteSource> give_back() {
    file_.reset();
    return std::move(source_);
  }

  bool seek(std::int64_t frame) override {
    if (frame == position_) return true;
    if (seeks_) {
      position_ = sf_seek(file_.get(), frame, SEEK_SET);
      return position_ == frame;
    }
    if (frame < position_) reopen();
    constexpr std::int64_t kAtOnce = 1 << 16;
    std::vector<float> passed(
        static_cast<std::size_t>(std::min(kAtOnce, frame - position_) * info_.channels));
    while (position_ < frame && file_ != nullptr)
      if (read(passed.data(), std::min(kAtOnce, frame - position_)) == 0) break;
    return position_ == frame;
  }
  std::int64_t read(float* to, std::int64_t count) override {
    const sf_count_t got = sf_readf_float(file_.get(), to, count);
    position_ += got;
    if (gain_ != 1)
      for (std::int64_t i = 0; i < got * info_.channels; ++i) to[i] *= gain_;
    return got;
  }
  std::int64_t read(std::int16_t* to, std::int64_t count) override {
    const sf_count_t got = sf_readf_short(file_.get(), to, count);
    position_ += got;
    return got;
  }
  std::string fault() const override {
    if (!broken_.empty()) return broken_;
    const int error = sf_error(file_.get());
    return error == 0 ? "" : sf_error_number(error);
  }

 private:
  void open() {
    file_.reset();
    info_ = {};
    at_ = 0;
    position_ = 0;
    SF_VIRTUAL_IO io{length, seek_bytes, read_bytes, write_bytes, tell};
    file_.reset(sf_open_virtual(&io, SFM_READ, &info_, this));
  }
  void reopen() {
    const sf_count_t frames = info_.frames;
    open();
    info_.frames = frames;
  }
  /// Decodes everything and returns the number of frames.
  sf_count_t count() {
    constexpr sf_count_t kAtOnce = 1 << 16;
    std::vector<float> block(static_cast<std::size_t>(kAtOnce * info_.channels));
    while (sf_readf_float(file_.get(), block.data(), kAtOnce) > 0) continue;
    return sf_seek(file_.get(), 0, SEEK_CUR);
  }

  // The callbacks of libsndfile.
  static sf_count_t length(void* self) {
    return static_cast<SndfileStream*>(self)->source_->size();
  }
  static sf_count_t seek_bytes(sf_count_t offset, int whence, void* self) {
    auto& stream = *static_cast<SndfileStream*>(self);
    const sf_count_t size = stream.source_->size();
    const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? stream.at_ : size;
    stream.at_ = base + std::clamp<sf_count_t>(offset, -base, size - base);
    return stream.at_;
  }
  static sf_count_t read_bytes(void* to, sf_count_t count, void* self) {
    auto& stream = *static_cast<SndfileStream*>(self);
    try {
      const sf_count_t got = stream.source_->read_at(stream.at_, to, count);
      stream.at_ += got;
      return got;
    } catch (const Error& error) {  // C functions call this
      stream.broken_ = error.what();
      return 0;
    }
  }
  static sf_count_t write_bytes(const void*, sf_count_t, void*) { return 0; }
  static sf_count_t tell(void* self) { return static_cast<SndfileStream*>(self)->at_; }

  std::unique_ptr<ByteSource> source_;
  float gain_;
  SF_INFO info_{};
  struct Close {
    void operator()(SNDFILE* file) const { sf_close(file); }
  };
  std::unique_ptr<SNDFILE, Close> file_;  // closed before the source that it reads
  sf_count_t at_ = 0, position_ = 0;      // in bytes, in frames
  bool seeks_ = true, mpeg_ = false;
  std::string broken_;
};

/// MD5 (RFC 1321), which FLAC stores of its samples.
class Md5 {
 public:
  using Digest = std::array<unsigned char, 16>;

  void add(const unsigned char* bytes, std::size_t count) {
    length_ += count;
    for (; count > 0; --count) {
      block_[filled_++] = *bytes++;
      if (filled_ == block_.size()) take_block();
    }
  }
  Digest finish() {
    const std::uint64_t bits = 8 * length_;
    const unsigned char end = 0x80, zero = 0;
    add(&end, 1);
    while (filled_ != block_.size() - 8) add(&zero, 1);
    for (int i = 0; i < 8; ++i) {
      const auto byte = static_cast<unsigned char>(bits >> (8 * i));
      add(&byte, 1);
    }
    Digest digest{};
    for (std::size_t i = 0; i < digest.size(); ++i)
      digest[i] = static_cast<unsigned char>(state_[i / 4] >> (8 * (i % 4)));
    return digest;
  }

 private:
  void take_block() {
    constexpr std::array<std::array<int, 4>, 4> kTurns{
        {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}}};
    static const std::array<std::uint32_t, 64> kSines = [] {
      std::array<std::uint32_t, 64> sines{};
      for (std::size_t i = 0; i < sines.size(); ++i)
        sines[i] =
            static_cast<std::uint32_t>(std::fabs(std::sin(static_cast<double>(i + 1))) * 0x1p32);
      return sines;
    }();
    std::array<std::uint32_t, 16> words{};
    std::memcpy(words.data(), block_.data(), block_.size());
    auto [a, b, c, d] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t round = i / 16;
      const std::uint32_t mix = round == 0   ? (b & c) | (~b & d)
                                : round == 1 ? (d & b) | (~d & c)
                                : round == 2 ? b ^ c ^ d
                                             : c ^ (b | ~d);
      const std::size_t word = (round == 0   ? i
                                : round == 1 ? 5 * i + 1
                                : round == 2 ? 3 * i + 5
                                             : 7 * i) %
                               16;
      const std::uint32_t next =
          b + std::rotl(a + mix + kSines[i] + words[word], kTurns[round][i % 4]);
      a = d, d = c, c = b, b = next;
    }
    state_[0] += a, state_[1] += b, state_[2] += c, state_[3] += d;
    filled_ = 0;
  }

  std::array<std::uint32_t, 4> state_{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  std::array<unsigned char, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t length_ = 0;
};
static_assert(std::endian::native == std::endian::little, "MD5 reads words in memory order");

/// The facts in the first block of a FLAC file (RFC 9639, section 8.2).
struct FlacHeader {
  int bits = 0;  ///< of a sample
  Md5::Digest md5{};
};
std::optional<FlacHeader> flac_header_of(const std::string& path) {
  std::array<unsigned char, 42> head{};
  const auto bytes = bytes_of_file(path);
  if (bytes->read_at(0, head.data(), std::ssize(head)) != std::ssize(head) ||
      std::memcmp(head.data(), "fLaC", 4) != 0)
    return {};
  FlacHeader header{.bits = ((head[20] & 1) << 4 | head[21] >> 4) + 1};
  std::copy(head.begin() + 26, head.end(), header.md5.begin());
  if (header.md5 == Md5::Digest{}) return {};  // the encoder did not compute it
  return header;
}

}  // namespace

std::string flac_checksum_fault(const std::string& path) {
  const auto header = flac_header_of(path);
  if (!header) return {};
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, int (*)(SNDFILE*)> file(sf_open(path.c_str(), SFM_READ, &info),
                                                         sf_close);
  if (file == nullptr) return "cannot be opened";
  constexpr sf_count_t kAtOnce = 1 << 14;
  const int bytes = (header->bits + 7) / 8;
  std::vector<int> samples(static_cast<std::size_t>(kAtOnce * info.channels));
  std::vector<unsigned char> packed;
  Md5 md5;
  for (sf_count_t got = 0; (got = sf_readf_int(file.get(), samples.data(), kAtOnce)) > 0;) {
    packed.clear();
    for (sf_count_t i = 0; i < got * info.channels; ++i) {
      // libsndfile moves the bits of a sample to the top of the integer.
      const int value = samples[static_cast<std::size_t>(i)] >> (32 - header->bits);
      for (int b = 0; b < bytes; ++b)
        packed.push_back(static_cast<unsigned char>(static_cast<unsigned>(value) >> (8 * b)));
    }
    md5.add(packed.data(), packed.size());
  }
  return md5.finish() == header->md5 ? "" : "has other samples than the MD5 in its header says";
}

std::unique_ptr<SoundStream> open_sound(std::unique_ptr<ByteSource> source,
                                        const std::string& name) {
  if (begins_like_mpeg(*source)) {
    // An ID3 tag may precede other formats, which libsndfile recognises.
    std::array<char, 3> head{};
    source->read_at(0, head.data(), 3);
    if (std::memcmp(head.data(), "ID3", 3) != 0) return open_mpeg(std::move(source), name);
  }
  const HeaderFacts facts = repair_header(*source);
  if (!facts.fault.empty())
    throw AudioError(AudioFault::unreadable,
                     fmt::format("'{}' cannot be read: {}", name, facts.fault),
                     "write it again with a right header: ffmpeg -i FILE.wav FILE.flac");
  auto stream =
      std::make_unique<SndfileStream>(std::move(source), name, facts.gain, facts.promised);
  if (stream->mpeg()) return open_mpeg(stream->give_back(), name);
  return stream;
}

}  // namespace choir
#else
namespace choir {
std::string flac_checksum_fault(const std::string&) {
  return {};
}
}  // namespace choir
#endif
