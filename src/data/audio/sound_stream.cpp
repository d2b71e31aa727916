#include "src/data/audio/sound_stream.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "choir_features.hpp"
#include "src/core/file_kind.hpp"
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

/// Beginnings of files that libsndfile does not read; the bytes are at an offset.
struct OtherKind {
  std::size_t offset;
  std::string_view bytes, name;
};
using namespace std::string_view_literals;
constexpr OtherKind kOtherKinds[] = {{4, "ftyp"sv, "MP4 or M4A"},
                                     {0, "\x1A\x45\xDF\xA3"sv, "WebM or Matroska"},
                                     {0, "\x30\x26\xB2\x75"sv, "WMA"},
                                     {0, "wvpk"sv, "WavPack"},
                                     {0, "MAC "sv, "Monkey's Audio"},
                                     {0, "#!AMR"sv, "AMR"},
                                     {28,
                                      "\x7F"
                                      "FLAC"sv,
                                      "FLAC in Ogg"},
                                     {28, "Speex"sv, "Speex"},
                                     {0, "\xFF\xF1"sv, "AAC"},
                                     {0, "\xFF\xF9"sv, "AAC"}};

/// Names the kind of file that cannot be decoded.
[[noreturn]] void refuse_unreadable(const ByteSource& source, const std::string& name,
                                    const char* cause) {
  constexpr const char* kConvert = "convert it: ffmpeg -i FILE FILE.flac";
  std::string head(kFileKindBytes, '\0');
  const std::int64_t got = source.read_at(0, head.data(), std::ssize(head));
  head.resize(static_cast<std::size_t>(got));
  for (const OtherKind& kind : kOtherKinds)
    if (head.size() > kind.offset &&
        std::string_view(head).substr(kind.offset).starts_with(kind.bytes))
      throw AudioError(AudioFault::unreadable,
                       fmt::format("'{}' is {}, which is not read", name, kind.name), kConvert);
  const FileKind kind = file_kind(head);
  if (kind == FileKind::unknown)
    throw AudioError(
        AudioFault::unreadable, fmt::format("'{}' cannot be read as audio: {}", name, cause),
        fmt::format("if other programs play it, {}; else copy it again from its source", kConvert));
  throw AudioError(AudioFault::unreadable,
                   fmt::format("'{}' is {}, not audio", name, describe(kind)),
                   "name the sound file itself");
}

class SndfileStream final : public SoundStream {
 public:
  SndfileStream(std::unique_ptr<ByteSource> source, const std::string& name, float gain,
                std::int64_t promised)
      : source_(std::move(source)), gain_(gain) {
    open();
    if (file_ == nullptr) refuse_unreadable(*source_, name, sf_strerror(nullptr));
    mpeg_ = (info_.format & SF_FORMAT_TYPEMASK) == kMpeg;
    if (mpeg_) return;
    const int kind = info_.format & SF_FORMAT_TYPEMASK;
    if (kind == SF_FORMAT_OGG) refuse_chained_ogg(*source_, name);
    // Seeking in Vorbis and Opus by libsndfile 1.2.0 ends up to thousands of samples away.
    seeks_ = kind != SF_FORMAT_OGG;
    if (info_.frames == 0)
      throw AudioError(AudioFault::zero_length, fmt::format("'{}' holds no samples", name),
                       kDamageRemedy);
    if (info_.frames < 0 || info_.channels < 1)
      throw AudioError(AudioFault::unreadable,
                       fmt::format("'{}' is damaged: its length is unknown", name), kDamageRemedy);
    if (info_.samplerate < kLowestRate || info_.samplerate > kHighestRate)
      throw AudioError(
          AudioFault::unreadable,
          fmt::format("'{}' is damaged: a sample rate of {} hertz", name, info_.samplerate),
          kDamageRemedy);
    if (info_.frames > kMostFrames) {  // unknown
      info_.frames = count();
      if (info_.frames == 0)
        throw AudioError(AudioFault::zero_length,
                         fmt::format("'{}' holds no samples that can be decoded{}", name,
                                     fault().empty() ? "" : ": " + fault()),
                         kDamageRemedy);
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

/// Leaves out an ID3 tag in front of a file of chunks: libsndfile counts its bytes among those of
/// the samples, and loses as many at the end.
std::unique_ptr<ByteSource> without_tag(std::unique_ptr<ByteSource> source) {
  constexpr std::int64_t kHead = 10;
  constexpr unsigned char kHasFooter = 0x10;
  std::array<unsigned char, kHead> head{};
  if (source->read_at(0, head.data(), kHead) < kHead) return source;
  std::int64_t size = 0;  // four bytes of seven bits
  for (std::size_t i = 6; i < kHead; ++i) size = size * 128 + (head[i] & 0x7F);
  size += kHead + ((head[5] & kHasFooter) != 0 ? kHead : 0);
  std::array<char, 4> next{};
  if (source->read_at(size, next.data(), 4) < 4) return source;
  const std::string_view kind(next.data(), next.size());
  const bool chunks = kind == "RIFF" || kind == "RF64" || kind == "FORM";
  return chunks ? bytes_behind(std::move(source), size) : std::move(source);
}

}  // namespace

std::unique_ptr<SoundStream> open_sound(std::unique_ptr<ByteSource> source,
                                        const std::string& name) {
  if (begins_like_mpeg(*source)) {
    // An ID3 tag may precede other formats, which libsndfile recognises.
    std::array<char, 3> head{};
    source->read_at(0, head.data(), 3);
    if (std::memcmp(head.data(), "ID3", 3) != 0) return open_mpeg(std::move(source), name);
    source = without_tag(std::move(source));
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
#endif
