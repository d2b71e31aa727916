// MP3 by libmpg123. The header of an MP3 file does not have to give a length, so the file is
// scanned when it is opened, which makes its length exact; samples are found by decoding from the
// beginning.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "choir_codec_features.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/sound_stream.hpp"

#ifdef CHOIR_HAVE_MPG123
#include <mpg123.h>
#endif

namespace choir {

bool begins_like_mpeg(const ByteSource& source) {
  std::array<unsigned char, 4> head{};
  if (source.read_at(0, head.data(), 4) < 4) return false;
  if (std::memcmp(head.data(), "ID3", 3) == 0) return true;
  // Eleven bits of synchronisation; version 1, layer 0, bit rate 15 and sample rate 3 do not exist.
  return head[0] == 0xFF && head[1] >= 0xE0 && (head[1] >> 3 & 3) != 1 && (head[1] >> 1 & 3) != 0 &&
         head[2] >> 4 != 15 && (head[2] >> 2 & 3) != 3;
}

#ifdef CHOIR_HAVE_MPG123
namespace {

/// The samples that the tag "Xing" or "Info" in the first frame counts; 0 without such a tag.
std::int64_t promised_by_tag(const ByteSource& source) {
  std::array<unsigned char, 10> id3{};
  std::int64_t first = 0;
  if (source.read_at(0, id3.data(), 10) == 10 && std::memcmp(id3.data(), "ID3", 3) == 0)
    first = 10 + (std::int64_t{id3[6]} << 21 | id3[7] << 14 | id3[8] << 7 | id3[9]);
  std::array<unsigned char, 64> frame{};
  if (source.read_at(first, frame.data(), 64) < 64 || frame[0] != 0xFF || frame[1] < 0xE0) return 0;
  const bool mpeg1 = (frame[1] >> 3 & 3) == 3, mono = frame[3] >> 6 == 3;
  const unsigned char* tag = frame.data() + 4 + (mpeg1 ? (mono ? 17 : 32) : (mono ? 9 : 17));
  const bool there = std::memcmp(tag, "Xing", 4) == 0 || std::memcmp(tag, "Info", 4) == 0;
  if (!there || (tag[7] & 1) == 0) return 0;
  const std::int64_t frames = std::int64_t{tag[8]} << 24 | tag[9] << 16 | tag[10] << 8 | tag[11];
  return frames * (mpeg1 ? 1152 : 576);
}

class MpegStream final : public SoundStream {
 public:
  MpegStream(std::unique_ptr<ByteSource> source, const std::string& name)
      : source_(std::move(source)), name_(name) {
    int failed = MPG123_OK;
    owner_.reset(mpg123_new(nullptr, &failed));
    handle_ = owner_.get();
    if (handle_ == nullptr) refuse(mpg123_plain_strerror(failed));
    mpg123_param(handle_, MPG123_ADD_FLAGS, MPG123_QUIET | MPG123_FORCE_FLOAT, 0);
    check(mpg123_replace_reader_handle(handle_, read_bytes, seek_bytes, nullptr));
    open();
    const off_t frames = mpg123_length(handle_);
    if (frames < 0) refuse("its length cannot be found");
    form_.frames = frames;
    // Encoders count their delay and padding as frames, too.
    constexpr std::int64_t kExtra = 4 * 1152;
    const std::int64_t promised = promised_by_tag(*source_);
    form_.promised = promised > frames + kExtra ? promised : 0;
  }
  MpegStream(const MpegStream&) = delete;
  MpegStream& operator=(const MpegStream&) = delete;

  bool seek(std::int64_t frame) override {
    // After mpg123_seek() samples differ by rounding from those of the whole.
    if (frame < position_) {
      mpg123_close(handle_);
      open();
    }
    constexpr std::int64_t kAtOnce = 1 << 16;
    std::vector<float> passed(
        static_cast<std::size_t>(std::min(kAtOnce, frame - position_) * form_.channels));
    while (position_ < frame)
      if (read(passed.data(), std::min(kAtOnce, frame - position_)) == 0) break;
    return position_ == frame;
  }

  std::int64_t read(float* to, std::int64_t count) override {
    fault_.clear();
    const std::size_t frame = sizeof(float) * static_cast<std::size_t>(form_.channels);
    auto* out = reinterpret_cast<unsigned char*>(to);
    const std::size_t wanted = static_cast<std::size_t>(count) * frame;
    std::size_t done = 0;
    while (done < wanted) {
      std::size_t got = 0;
      const int result = mpg123_read(handle_, out + done, wanted - done, &got);
      done += got;
      if (result == MPG123_DONE) break;
      if (result == MPG123_NEW_FORMAT) {
        long rate = 0;
        int channels = 0, encoding = 0;
        mpg123_getformat(handle_, &rate, &channels, &encoding);
        if (rate == form_.rate && channels == form_.channels) continue;
        fault_ = fmt::format("it changes to {} hertz and {} channels", rate, channels);
        break;
      }
      if (result != MPG123_OK) {
        fault_ = mpg123_strerror(handle_);
        break;
      }
    }
    if (!broken_.empty()) fault_ = broken_;
    const auto frames = static_cast<std::int64_t>(done / frame);
    position_ += frames;
    return frames;
  }
  std::int64_t read(std::int16_t*, std::int64_t) override { return 0; }  // form().narrow is false
  std::string fault() const override { return fault_; }

 private:
  void open() {
    at_ = 0, position_ = 0;
    check(mpg123_open_handle(handle_, this));
    long rate = 0;
    int channels = 0, encoding = 0;
    check(mpg123_getformat(handle_, &rate, &channels, &encoding));
    mpg123_format_none(handle_);
    check(mpg123_format(handle_, rate, channels, MPG123_ENC_FLOAT_32));
    check(mpg123_scan(handle_));
    form_.rate = static_cast<int>(rate), form_.channels = channels;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw AudioError(AudioFault::unreadable,
                     fmt::format("'{}' cannot be read as MP3: {}", name_, why));
  }
  void check(int result) const {
    if (result != MPG123_OK) refuse(mpg123_strerror(handle_));
  }

  static ssize_t read_bytes(void* self, void* to, std::size_t count) {
    auto& stream = *static_cast<MpegStream*>(self);
    try {
      const std::int64_t got =
          stream.source_->read_at(stream.at_, to, static_cast<std::int64_t>(count));
      stream.at_ += got;
      return static_cast<ssize_t>(got);
    } catch (const Error& error) {  // C functions call this
      stream.broken_ = error.what();
      return -1;
    }
  }
  static off_t seek_bytes(void* self, off_t offset, int whence) {
    auto& stream = *static_cast<MpegStream*>(self);
    const std::int64_t size = stream.source_->size();
    const std::int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? stream.at_ : size;
    const std::int64_t target = base + offset;
    if (target < 0 || target > size) return -1;
    return stream.at_ = target;
  }

  std::unique_ptr<ByteSource> source_;
  std::string name_, fault_, broken_;
  std::int64_t at_ = 0, position_ = 0;  // in bytes, in frames
  struct Delete {
    void operator()(mpg123_handle* handle) const { mpg123_delete(handle); }
  };
  std::unique_ptr<mpg123_handle, Delete> owner_;
  mpg123_handle* handle_ = nullptr;  // of owner_
};

}  // namespace

std::unique_ptr<SoundStream> open_mpeg(std::unique_ptr<ByteSource> source,
                                       const std::string& name) {
  return std::make_unique<MpegStream>(std::move(source), name);
}
#else
std::unique_ptr<SoundStream> open_mpeg(std::unique_ptr<ByteSource>, const std::string& name) {
  throw AudioError(
      AudioFault::unreadable,
      fmt::format("'{}' is MP3, and this program was built without libmpg123", name),
      "install libmpg123-dev and build again, or convert it: ffmpeg -i FILE.mp3 FILE.flac");
}
#endif

}  // namespace choir
