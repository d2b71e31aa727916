#pragma once
// Building blocks of attention on AMX tiles: packing bf16 rows into the four operand orders, 2^x,
// and products of tiles. Everything here is compiled for AMX whatever the target of the build;
// callers check amx_available() first.
//
// A tile is 1 KiB: 16 rows of 64 bytes. Operands of C (+)= A B:
//   A [16, 32] bf16 row-major, B [32, 16] as 16 rows of pairs: word (r, n) =
//   {B(2r, n), B(2r + 1, n)}, C [16, 16] f32.
// GCC 12 warns about the deliberately undefined operands inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "choir/core/dtype.hpp"

#define CHOIR_TILES \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))

namespace choir::amx {

inline constexpr std::int64_t kEdge = 16;   ///< rows of a tile, columns of C
inline constexpr std::int64_t kDepth = 32;  ///< inner extent of one product
inline constexpr std::int64_t kTileBytes = 1024;

/// One tile of memory.
struct alignas(64) Tile {
  std::byte bytes[kTileBytes];
  float* f32() { return reinterpret_cast<float*>(bytes); }
  const float* f32() const { return reinterpret_cast<const float*>(bytes); }
  std::byte* row(std::int64_t r) { return bytes + 64 * r; }
};

/// The tile intrinsics of GCC 12 do not tell the compiler which memory they access. This barrier
/// completes all stores before tiles are loaded, and discards cached values after tiles are stored.
inline void settle_memory(const void* address = nullptr) {
  __asm__ volatile("" : : "r"(address) : "memory");
}

/// Configures the tile registers of this thread, all 16 x 64 bytes, for the life of the object.
/// Other users of the tiles (oneDNN) configure them on entry too.
class TileRegisters {
 public:
  CHOIR_TILES TileRegisters() {
    struct alignas(64) {
      std::uint8_t palette = 1, start = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shape;
    settle_memory(&shape);
    _tile_loadconfig(&shape);
  }
  CHOIR_TILES ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

/// Transposes 16 x 16 words by four perfect shuffles.
CHOIR_TILES inline void transpose_words(__m512i* v) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#pragma GCC unroll 4
  for (int stage = 0; stage < 4; ++stage) {
    __m512i next[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm512_permutex2var_epi32(v[i], low, v[i + 8]);
      next[2 * i + 1] = _mm512_permutex2var_epi32(v[i], high, v[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = next[i];
  }
}

/// A mask of the first n bits.
inline std::uint32_t first_bits(std::int64_t n) {
  return n >= 32 ? ~std::uint32_t{0} : n <= 0 ? 0u : (std::uint32_t{1} << n) - 1;
}

/// Packs A [16, 32] in row order from `rows` valid rows and `columns` valid columns; the rest is
/// zero.
CHOIR_TILES inline void pack_a(Tile& to, const bf16* from, std::int64_t row, std::int64_t rows,
                               std::int64_t columns) {
  const __mmask32 mask = first_bits(columns);
  for (std::int64_t r = 0; r < kEdge; ++r)
    _mm512_store_si512(to.row(r), _mm512_maskz_loadu_epi16(r < rows ? mask : 0, from + r * row));
}

/// Packs B, the transpose of 16 rows of 32.
CHOIR_TILES inline void pack_b_transposed(Tile& to, const bf16* from, std::int64_t row,
                                          std::int64_t rows, std::int64_t columns) {
  const __mmask32 mask = first_bits(columns);
  __m512i v[16];
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kEdge; ++r)
    v[r] = _mm512_maskz_loadu_epi16(r < rows ? mask : 0, from + r * row);
  transpose_words(v);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) _mm512_store_si512(to.row(r), v[r]);
}

/// Words {row 2r, row 2r + 1} of a [32, 16] block.
CHOIR_TILES inline void load_pairs(__m512i* v, const bf16* from, std::int64_t row,
                                   std::int64_t rows, std::int64_t columns) {
  const auto mask = static_cast<__mmask16>(first_bits(std::min<std::int64_t>(columns, kEdge)));
  const __mmask16 none = 0;
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < 16; ++r) {
    const bf16* pair = from + 2 * r * row;
    const __m256i even = _mm256_maskz_loadu_epi16(2 * r < rows ? mask : none, pair);
    const __m256i odd = _mm256_maskz_loadu_epi16(2 * r + 1 < rows ? mask : none, pair + row);
    v[r] = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
}

/// Packs B [32, 16] in row order.
CHOIR_TILES inline void pack_b(Tile& to, const bf16* from, std::int64_t row, std::int64_t rows,
                               std::int64_t columns) {
  __m512i v[16];
  load_pairs(v, from, row, rows, columns);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) _mm512_store_si512(to.row(r), v[r]);
}

/// Packs A, the transpose of 32 rows of 16.
CHOIR_TILES inline void pack_a_transposed(Tile& to, const bf16* from, std::int64_t row,
                                          std::int64_t rows, std::int64_t columns) {
  __m512i v[16];
  load_pairs(v, from, row, rows, columns);
  transpose_words(v);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) _mm512_store_si512(to.row(r), v[r]);
}

/// 2^x for x <= 127 or so, 0 for -inf: degree 5 on the fraction in [0, 1), relative error 1.1e-7.
CHOIR_TILES inline __m512 exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0.0018937540581920975f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00894959042337237f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05586033707720827f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24014181820146044f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931544896632286f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999998983500245f));
  return _mm512_scalef_ps(p, x);
}

/// Converts 32 floats to bf16, in order.
CHOIR_TILES inline __m512i to_bf16(__m512 first, __m512 second) {
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}
/// Words {first[i], second[i]}: a row of B from two rows of floats.
CHOIR_TILES inline __m512i to_pairs(__m512 first, __m512 second) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, to_bf16(first, second));
}

/// C (2 x 2 tiles, registers 0 to 3) += A (2 tiles) B (2 tiles).
CHOIR_TILES inline void multiply_add(const Tile& a0, const Tile& a1, const Tile& b0,
                                     const Tile& b1) {
  _tile_loadd(4, a0.bytes, 64);
  _tile_loadd(6, b0.bytes, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b1.bytes, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a1.bytes, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}
CHOIR_TILES inline void zero_sums() {
  settle_memory();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
CHOIR_TILES inline void load_sums(const Tile& c00, const Tile& c01, const Tile& c10,
                                  const Tile& c11) {
  settle_memory();
  _tile_loadd(0, c00.bytes, 64);
  _tile_loadd(1, c01.bytes, 64);
  _tile_loadd(2, c10.bytes, 64);
  _tile_loadd(3, c11.bytes, 64);
}
CHOIR_TILES inline void store_sums(Tile& c00, Tile& c01, Tile& c10, Tile& c11) {
  _tile_stored(0, c00.bytes, 64);
  _tile_stored(1, c01.bytes, 64);
  _tile_stored(2, c10.bytes, 64);
  _tile_stored(3, c11.bytes, 64);
  settle_memory();
}

/// Writes a tile's rows of 16 floats as bf16: to[r * row + c], r < rows, c < columns.
CHOIR_TILES inline void write_rows(bf16* to, std::int64_t row, const Tile& from, std::int64_t rows,
                                   std::int64_t columns, float factor) {
  const auto mask = static_cast<__mmask16>(first_bits(std::min<std::int64_t>(columns, kEdge)));
  const __m512 scale = _mm512_set1_ps(factor);
  for (std::int64_t r = 0; r < std::min(rows, kEdge); ++r)
    _mm256_mask_storeu_epi16(
        to + r * row, mask,
        (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(scale, _mm512_load_ps(from.f32() + 16 * r))));
}

/// The same for the transpose of the tile, with row r multiplied by factors[r].
CHOIR_TILES inline void write_transposed(bf16* to, std::int64_t row, const Tile& from,
                                         std::int64_t rows, std::int64_t columns, __m512 factors) {
  const auto mask = static_cast<__mmask16>(first_bits(std::min<std::int64_t>(columns, kEdge)));
  __m512i v[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r)
    v[r] = _mm512_castps_si512(_mm512_mul_ps(factors, _mm512_load_ps(from.f32() + 16 * r)));
  transpose_words(v);
  for (std::int64_t r = 0; r < std::min(rows, kEdge); ++r)
    _mm256_mask_storeu_epi16(to + r * row, mask,
                             (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(v[r])));
}

/// Mask of the queries first_query + 0..15 that see key first_key + r. `keys` keys exist from
/// first_key on; `lead` is first_key - (Tk - Tq) - first_query with a causal mask, kNoMask without.
inline constexpr std::int64_t kNoMask = -(std::int64_t{1} << 40);
CHOIR_TILES inline __mmask16 visible(std::int64_t r, std::int64_t lead, std::int64_t keys) {
  if (r >= keys) return 0;
  const std::int64_t hidden = std::clamp<std::int64_t>(r + lead, 0, 16);
  return static_cast<__mmask16>(0xffffu << hidden);
}

}  // namespace choir::amx
