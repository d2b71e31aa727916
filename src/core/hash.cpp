#include "src/core/hash.hpp"

#include <array>
#include <cstring>

namespace choir {
namespace {

// Reflected polynomials.
constexpr std::uint32_t kCastagnoli = 0x82F63B78u, kZip = 0xEDB88320u;

using Table = std::array<std::uint32_t, 256>;

constexpr Table make_table(std::uint32_t polynomial) {
  Table table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1u) ? (c >> 1) ^ polynomial : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr Table kTable = make_table(kCastagnoli), kZipTable = make_table(kZip);

std::uint32_t by_table(const Table& table, const unsigned char* p, std::size_t n, std::uint32_t c) {
  for (std::size_t i = 0; i < n; ++i) c = table[(c ^ p[i]) & 0xffu] ^ (c >> 8);
  return c;
}

// The CRC register is linear over GF(2): appending zero bytes is a 32 x 32 bit matrix.
using Matrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t times(const Matrix& m, std::uint32_t vector) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; vector != 0; vector >>= 1, ++i) sum ^= m[i] & (0u - (vector & 1u));
  return sum;
}

constexpr Matrix square(const Matrix& m) {
  Matrix result{};
  for (std::size_t i = 0; i < 32; ++i) result[i] = times(m, m[i]);
  return result;
}

// Matrices that append 2^k zero bytes. They are precomputed because a checkpoint combines one CRC
// per run of elements, and a tensor that is split along its last dim has one run per row.
using Shifts = std::array<Matrix, 64>;

constexpr Shifts make_shifts(std::uint32_t polynomial) {
  Shifts shifts{};
  Matrix bit{};  // one zero bit
  bit[0] = polynomial;
  for (std::size_t i = 1; i < 32; ++i) bit[i] = 1u << (i - 1);
  shifts[0] = square(square(square(bit)));
  for (std::size_t k = 1; k < shifts.size(); ++k) shifts[k] = square(shifts[k - 1]);
  return shifts;
}
constexpr Shifts kShifts = make_shifts(kCastagnoli), kZipShifts = make_shifts(kZip);

std::uint32_t combine(const Shifts& shifts, std::uint32_t crc_a, std::uint32_t crc_b,
                      std::uint64_t bytes_b) {
  for (std::size_t k = 0; bytes_b != 0; bytes_b >>= 1, ++k)
    if (bytes_b & 1u) crc_a = times(shifts[k], crc_a);
  return crc_a ^ crc_b;
}

#if defined(__x86_64__)
using Lanes = std::array<std::uint64_t, 3>;

// The instruction takes 8 bytes in 3 cycles, but a new one can begin in every cycle. Three lanes of
// 2^k bytes therefore run side by side, and the matrices join their results.
template <std::size_t k>
__attribute__((target("sse4.2"))) void by_lanes(const unsigned char*& p, std::size_t& n,
                                                std::uint64_t& c) {
  constexpr std::size_t kLane = std::size_t{1} << k;
  for (; n >= 3 * kLane; n -= 3 * kLane, p += 3 * kLane) {
    std::uint64_t a = c, b = 0, d = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      Lanes word;
      std::memcpy(&word[0], p + i, 8);
      std::memcpy(&word[1], p + kLane + i, 8);
      std::memcpy(&word[2], p + 2 * kLane + i, 8);
      a = __builtin_ia32_crc32di(a, word[0]);
      b = __builtin_ia32_crc32di(b, word[1]);
      d = __builtin_ia32_crc32di(d, word[2]);
    }
    const std::uint32_t two =
        times(kShifts[k], static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    c = times(kShifts[k], two) ^ static_cast<std::uint32_t>(d);
  }
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const unsigned char* p,
                                                               std::size_t n, std::uint32_t c) {
  std::uint64_t wide = c;
  by_lanes<15>(p, n, wide);  // joining takes a few per cent of the time
  by_lanes<11>(p, n, wide);
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return by_table(kTable, p, n, static_cast<std::uint32_t>(wide));
}
#endif

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~by_instruction(p, bytes, ~crc);
#endif
  return ~by_table(kTable, p, bytes, ~crc);
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b) {
  return combine(kShifts, crc_a, crc_b, bytes_b);
}

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t crc) {
  return ~by_table(kZipTable, static_cast<const unsigned char*>(data), bytes, ~crc);
}

std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b) {
  return combine(kZipShifts, crc_a, crc_b, bytes_b);
}

}  // namespace choir
