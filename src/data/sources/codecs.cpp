#include "src/data/sources/codecs.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "choir_codec_features.hpp"
#include "src/core/file.hpp"

#ifdef CHOIR_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef CHOIR_HAVE_ZSTD
#include <zstd.h>
#endif
#ifdef CHOIR_HAVE_SNAPPY
#include <snappy-c.h>
#endif

namespace choir {
namespace {

#ifdef CHOIR_HAVE_ZLIB
constexpr bool kHasGzip = true;
#else
constexpr bool kHasGzip = false;
#endif
#ifdef CHOIR_HAVE_ZSTD
constexpr bool kHasZstd = true;
#else
constexpr bool kHasZstd = false;
#endif
#ifdef CHOIR_HAVE_SNAPPY
constexpr bool kHasSnappy = true;
#else
constexpr bool kHasSnappy = false;
#endif

[[noreturn]] void refuse_packed(Codec codec, const std::string& source, const std::string& why) {
  throw DataError(fmt::format("{}: the {} data {}", source, name_of(codec), why),
                  "copy or write the file again");
}

constexpr const char* kCutOff = "are cut off";
constexpr const char* kDamaged = "are damaged";

#ifdef CHOIR_HAVE_ZLIB
/// A gzip or zlib stream, of several members, too.
class Inflater {
 public:
  explicit Inflater(std::string source) : source_(std::move(source)) {
    constexpr int kGzipOrZlib = 15 + 32;
    if (inflateInit2(&stream_, kGzipOrZlib) != Z_OK) refuse_packed(Codec::gzip, source_, kDamaged);
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Moves `packed` past what it used and returns the number of bytes written.
  std::size_t advance(std::string_view& packed, char* to, std::size_t most) {
    if (ended_ && !packed.empty()) {
      inflateReset(&stream_);
      ended_ = false;
    }
    constexpr std::size_t kMost = std::size_t{1} << 30;
    const std::size_t in = std::min(packed.size(), kMost), out = std::min(most, kMost);
    // The library declares its input as not const, and does not write it.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(in);
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(out);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    packed.remove_prefix(in - stream_.avail_in);
    ended_ = code == Z_STREAM_END;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      refuse_packed(Codec::gzip, source_, kDamaged);
    return out - stream_.avail_out;
  }
  bool ended() const { return ended_; }

 private:
  std::string source_;
  z_stream stream_{};
  bool ended_ = false;
};
#else
class Inflater {
 public:
  explicit Inflater(const std::string&) {}
  std::size_t advance(std::string_view&, char*, std::size_t) { return 0; }
  bool ended() const { return true; }
};
#endif

#ifdef CHOIR_HAVE_ZSTD
/// Frames of zstd, one after another.
class ZstdFrames {
 public:
  explicit ZstdFrames(std::string source)
      : source_(std::move(source)), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) refuse_packed(Codec::zstd, source_, "need more memory than there is");
  }
  ~ZstdFrames() { ZSTD_freeDStream(stream_); }
  ZstdFrames(const ZstdFrames&) = delete;
  ZstdFrames& operator=(const ZstdFrames&) = delete;

  std::size_t advance(std::string_view& packed, char* to, std::size_t most) {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer out{to, most, 0};
    const std::size_t left = ZSTD_decompressStream(stream_, &out, &in);
    if (ZSTD_isError(left) != 0) refuse_packed(Codec::zstd, source_, kDamaged);
    packed.remove_prefix(in.pos);
    ended_ = left == 0;
    return out.pos;
  }
  bool ended() const { return ended_; }

 private:
  std::string source_;
  ZSTD_DStream* stream_;
  bool ended_ = false;
};
#else
class ZstdFrames {
 public:
  explicit ZstdFrames(const std::string&) {}
  std::size_t advance(std::string_view&, char*, std::size_t) { return 0; }
  bool ended() const { return true; }
};
#endif

template <class Unpacker>
std::string unpacked_by(Codec codec, std::string_view packed, std::size_t bytes,
                        const std::string& source) {
  Unpacker unpacker(source);
  constexpr std::size_t kFirst = std::size_t{1} << 20;
  std::string all;  // it grows with its contents, because the announced size may be wrong
  std::array<char, 1> beyond;
  std::size_t done = 0;
  for (;;) {
    if (done == all.size()) all.resize(std::min(bytes, 2 * done + kFirst));
    const bool full = done == bytes;
    const std::size_t before = packed.size();
    const std::size_t got = full ? unpacker.advance(packed, beyond.data(), beyond.size())
                                 : unpacker.advance(packed, all.data() + done, all.size() - done);
    if (full && got > 0)
      refuse_packed(codec, source, fmt::format("unpack to more than {} bytes", bytes));
    done += got;
    if (unpacker.ended() && packed.empty()) break;
    if (got == 0 && packed.size() == before) break;
  }
  if (done != bytes || !unpacker.ended()) refuse_packed(codec, source, kCutOff);
  return all;
}

std::string unpacked_snappy([[maybe_unused]] std::string_view packed,
                            [[maybe_unused]] std::size_t bytes,
                            [[maybe_unused]] const std::string& source) {
#ifdef CHOIR_HAVE_SNAPPY
  std::size_t length = 0;
  if (snappy_uncompressed_length(packed.data(), packed.size(), &length) != SNAPPY_OK ||
      length != bytes)
    refuse_packed(Codec::snappy, source, kDamaged);
  std::string all(bytes, '\0');
  if (snappy_uncompress(packed.data(), packed.size(), all.data(), &length) != SNAPPY_OK)
    refuse_packed(Codec::snappy, source, kDamaged);
  return all;
#else
  return {};
#endif
}

class PlainBytes : public ByteStream {
 public:
  PlainBytes(const std::string& path, std::int64_t begin, std::int64_t end)
      : file_(PosixFile::for_reading(path)), at_(begin), end_(end) {}
  std::size_t read(char* to, std::size_t most) override {
    const auto here = std::min<std::int64_t>(static_cast<std::int64_t>(most), end_ - at_);
    if (here <= 0) return 0;
    file_.read_at(to, static_cast<std::size_t>(here), at_);
    at_ += here;
    return static_cast<std::size_t>(here);
  }

 private:
  PosixFile file_;
  std::int64_t at_, end_;
};

template <class Unpacker, Codec codec>
class PackedBytes : public ByteStream {
 public:
  explicit PackedBytes(const std::string& path)
      : source_(fmt::format("'{}'", path)),
        file_(path, 0, PosixFile::for_reading(path).size()),
        unpacker_(source_),
        pieces_(std::size_t{1} << 17) {}

  std::size_t read(char* to, std::size_t most) override {
    for (;;) {
      if (packed_.empty() && !file_ended_) {
        packed_ = {pieces_.data(), file_.read(pieces_.data(), pieces_.size())};
        file_ended_ = packed_.empty();
      }
      if (file_ended_ && unpacker_.ended()) return 0;
      const std::size_t got = unpacker_.advance(packed_, to, most);
      if (got > 0) return got;
      if (file_ended_ && !unpacker_.ended()) refuse_packed(codec, source_, kCutOff);
    }
  }

 private:
  std::string source_;
  PlainBytes file_;
  Unpacker unpacker_;
  std::vector<char> pieces_;
  std::string_view packed_;
  bool file_ended_ = false;
};

}  // namespace

std::string name_of(Codec codec) {
  switch (codec) {
    case Codec::none:
      return "unpacked";
    case Codec::snappy:
      return "snappy";
    case Codec::gzip:
      return "gzip";
    case Codec::lzo:
      return "LZO";
    case Codec::brotli:
      return "Brotli";
    case Codec::lz4:
      return "LZ4";
    case Codec::zstd:
      return "zstd";
    case Codec::lz4_raw:
      return "LZ4 (raw)";
  }
  return fmt::format("unknown (number {})", static_cast<std::int32_t>(codec));
}

void require_codec(Codec codec, const std::string& source) {
  const auto missing = [&](bool has, const char* package) {
    if (!has)
      throw DeckError(fmt::format("{} is packed with {}, and this program was built without its "
                                  "library",
                                  source, name_of(codec)),
                      fmt::format("install {} and build again, or unpack the file", package));
  };
  switch (codec) {
    case Codec::none:
      return;
    case Codec::snappy:
      return missing(kHasSnappy, "libsnappy-dev");
    case Codec::gzip:
      return missing(kHasGzip, "zlib1g-dev");
    case Codec::zstd:
      return missing(kHasZstd, "libzstd-dev");
    default:
      throw DataError(fmt::format("{}: the codec {} is not read", source, name_of(codec)),
                      "write the file again with zstd, snappy, gzip or no compression");
  }
}

std::string unpacked(Codec codec, std::string_view packed, std::size_t bytes,
                     const std::string& source) {
  require_codec(codec, source);
  if (codec == Codec::snappy) return unpacked_snappy(packed, bytes, source);
  if (codec == Codec::gzip) return unpacked_by<Inflater>(codec, packed, bytes, source);
  if (codec == Codec::zstd) return unpacked_by<ZstdFrames>(codec, packed, bytes, source);
  if (packed.size() != bytes)
    refuse_packed(codec, source, fmt::format("have {} bytes, not {}", packed.size(), bytes));
  return std::string(packed);
}

Codec packing_of(const std::string& path) {
  const PosixFile file = PosixFile::for_reading(path);
  std::array<char, 4> first{};
  const auto bytes = static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 4));
  file.read_at(first.data(), bytes, 0);
  const std::string_view begin(first.data(), bytes);
  if (begin.starts_with("\x1f\x8b")) return Codec::gzip;
  if (begin == "\x28\xb5\x2f\xfd") return Codec::zstd;
  return Codec::none;
}

std::unique_ptr<ByteStream> open_bytes(const std::string& path) {
  const Codec codec = packing_of(path);
  require_codec(codec, fmt::format("'{}'", path));
  if (codec == Codec::gzip) return std::make_unique<PackedBytes<Inflater, Codec::gzip>>(path);
  if (codec == Codec::zstd) return std::make_unique<PackedBytes<ZstdFrames, Codec::zstd>>(path);
  return open_bytes(path, 0, PosixFile::for_reading(path).size());
}

std::unique_ptr<ByteStream> open_bytes(const std::string& path, std::int64_t begin,
                                       std::int64_t end) {
  return std::make_unique<PlainBytes>(path, begin, end);
}

}  // namespace choir
