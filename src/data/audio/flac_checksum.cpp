#include "src/data/audio/flac_checksum.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "choir_features.hpp"
#include "src/data/audio/byte_source.hpp"

#ifdef CHOIR_HAVE_SNDFILE
#include <sndfile.h>

namespace choir {
namespace {

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

}  // namespace choir
#else
namespace choir {
std::string flac_checksum_fault(const std::string&) {
  return {};
}
}  // namespace choir
#endif
