#pragma once
// Building blocks of attention on the CPU: the division of the backward pass into tasks (also of
// AMX), and for any vector width 2^x, a small matrix product, a transposing copy, and the addresses
// of operand rows. T is the type of arithmetic, S the type in memory.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "choir/core/error.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/cpu/vector_math.hpp"

namespace choir {

/// Key blocks index, index + count, ... of one (sample, K/V head). They are strided because with a
/// causal mask more queries see the early keys.
struct KeyShare {
  std::int64_t index = 0, count = 1;
};

/// Shares per K/V head: 1 if the heads alone keep the threads busy. Each further share costs a
/// partial d_q.
inline std::int64_t key_shares(const ops::AttentionProblem& p, std::int64_t key_blocks,
                               int threads) {
  const std::int64_t heads = p.batch * p.kv_heads;
  if (heads >= 2 * threads || heads % threads == 0) return 1;
  return std::clamp<std::int64_t>((2 * threads + heads - 1) / heads, 1, key_blocks);
}

/// parts[0] += parts[1] + ..., in order.
template <class T>
void add_shares(T* parts, std::int64_t shares, std::int64_t count) {
  for (std::int64_t s = 1; s < shares; ++s)
    for (std::int64_t i = 0; i < count; ++i) parts[i] += parts[s * count + i];
}

}  // namespace choir

namespace choir::simd {

using cpu::kLanes, cpu::kVectorBytes, cpu::load, cpu::store, cpu::Vec;
inline constexpr int kTileVectors = kVectorBytes == 64 ? 4 : 2;
/// The registers hold kTileRows x kTileVectors accumulators, kTileVectors of B and one broadcast
/// value.
inline constexpr int kTileRows = 6;

/// Queries per block.
template <class T>
inline constexpr int kQueryBlock = kTileVectors* kLanes<T>;
inline constexpr int kKeyBlock = 32;

inline std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

template <class T>
inline Vec<T> broadcast(T value) {
  return value - Vec<T>{};
}

/// Loads n <= kLanes elements, with zeros behind them.
template <class T, class S>
inline Vec<T> load_some(const S* from, std::int64_t n) {
  return n == kLanes<T> ? load(from) : cpu::load_part(from, n);
}
template <class T, class S>
inline void store_some(S* to, Vec<T> v, std::int64_t n) {
  n == kLanes<T> ? store(to, v) : cpu::store_part(to, v, n);
}

/// 2^x, 0 below the normal numbers; the relative error is under 1.5 units of roundoff plus that of
/// x. Uses the Taylor series about 0 on [-1/2, 1/2]; the first omitted term is 5e-9 for f32, 4e-18
/// for f64.
template <class T>
inline Vec<T> exp2(Vec<T> x) {
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kDegree = kSingle ? 7 : 13;
  constexpr int kMantissa = kSingle ? 23 : 52, kBias = kSingle ? 127 : 1023;
  constexpr double kLn2 = 0.69314718055994530942;
  constexpr T kLowest = kSingle ? T(-126) : T(-1022);
  constexpr T kShift = T(1.5) * static_cast<T>(std::int64_t{1} << kMantissa);
  typedef std::conditional_t<kSingle, std::uint32_t, std::uint64_t> Word;
  typedef Word Bits __attribute__((vector_size(kVectorBytes)));
  const Vec<T> y = x < kLowest ? broadcast(kLowest) : x;
  const Vec<T> shifted = y + kShift;  // the nearest integer is in the low bits
  const Vec<T> f = y - (shifted - kShift);
  double c[kDegree + 1] = {1};
  for (int i = 1; i <= kDegree; ++i) c[i] = c[i - 1] * kLn2 / i;
  Vec<T> p = broadcast(static_cast<T>(c[kDegree]));
#pragma GCC unroll 16
  for (int i = kDegree - 1; i >= 0; --i) p = p * f + static_cast<T>(c[i]);
  const Bits power = (std::bit_cast<Bits>(shifted) << kMantissa) + (Word{kBias} << kMantissa);
  const Vec<T> value = p * std::bit_cast<Vec<T>>(power);
  return x < kLowest ? Vec<T>{} : value;
}

/// c tanh(x / c) for scores in units of log 2, with c in the same units.
template <class T>
struct SoftCap {
  T cap, inverse;
  explicit SoftCap(const ops::AttentionProblem& p)
      : cap(static_cast<T>(p.softcap * 1.44269504088896340736)),
        inverse(p.softcap > 0 ? 1 / cap : T(0)) {}
  /// tanh(x / c).
  Vec<T> share(Vec<T> x) const { return cpu::tanh(x * inverse); }
  /// Caps `rows` rows of `vectors` vectors of scores.
  void apply(T* scores, std::int64_t row, std::int64_t rows, std::int64_t vectors) const {
    if (cap == 0) return;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t v = 0; v < vectors; ++v) {
        T* const at = scores + r * row + v * kLanes<T>;
        store(at, cap * share(load(at)));
      }
  }
};

/// One register tile of C (+)= A B; see product().
template <class T, int kRows, int kVectors>
inline void product_tile(std::int64_t depth, const T* a, std::int64_t a_row, std::int64_t a_step,
                         const T* b, std::int64_t b_row, T* c, std::int64_t c_row, bool add) {
  Vec<T> sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = add ? load(c + r * c_row + v * kLanes<T>) : Vec<T>{};
  for (std::int64_t p = 0; p < depth; ++p) {
    Vec<T> right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + p * b_row + v * kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const T left = a[r * a_row + p * a_step];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + r * c_row + v * kLanes<T>, sum[r][v]);
}

/// Computes the last rows, fewer than a tile has.
template <class T, int kRows, int kVectors>
void product_tail(std::int64_t rows, std::int64_t depth, const T* a, std::int64_t a_row,
                  std::int64_t a_step, const T* b, std::int64_t b_row, T* c, std::int64_t c_row,
                  bool add) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      return product_tile<T, kRows, kVectors>(depth, a, a_row, a_step, b, b_row, c, c_row, add);
    product_tail<T, kRows - 1, kVectors>(rows, depth, a, a_row, a_step, b, b_row, c, c_row, add);
  }
}

template <class T, int kVectors>
void product_panel(std::int64_t rows, std::int64_t depth, const T* a, std::int64_t a_row,
                   std::int64_t a_step, const T* b, std::int64_t b_row, T* c, std::int64_t c_row,
                   bool add) {
  std::int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows)
    product_tile<T, kTileRows, kVectors>(depth, a + r * a_row, a_row, a_step, b, b_row,
                                         c + r * c_row, c_row, add);
  product_tail<T, kTileRows - 1, kVectors>(rows - r, depth, a + r * a_row, a_row, a_step, b, b_row,
                                           c + r * c_row, c_row, add);
}

/// C [rows, vectors * kLanes] (+)= A [rows, depth] B [depth, vectors * kLanes]. Element (r, p) of A
/// is at a[r * a_row + p * a_step]; rows of B and C are contiguous.
template <class T>
void product(std::int64_t rows, std::int64_t vectors, std::int64_t depth, const T* a,
             std::int64_t a_row, std::int64_t a_step, const T* b, std::int64_t b_row, T* c,
             std::int64_t c_row, bool add) {
  for (; vectors >= kTileVectors; vectors -= kTileVectors) {
    product_panel<T, kTileVectors>(rows, depth, a, a_row, a_step, b, b_row, c, c_row, add);
    b += kTileVectors * kLanes<T>, c += kTileVectors * kLanes<T>;
  }
  if constexpr (kTileVectors == 4) {
    if (vectors == 3)
      product_panel<T, 3>(rows, depth, a, a_row, a_step, b, b_row, c, c_row, add);
    else if (vectors == 2)
      product_panel<T, 2>(rows, depth, a, a_row, a_step, b, b_row, c, c_row, add);
  }
  if (vectors == 1) product_panel<T, 1>(rows, depth, a, a_row, a_step, b, b_row, c, c_row, add);
}

/// to[c * to_row + r] = factor * from[r * from_row + c] for r < rows, c < columns. With kPad the
/// rows of `to` are filled with zeros up to the next multiple of kLanes.
template <class T, bool kPad, class To, class From>
void transpose(To* to, std::int64_t to_row, const From* from, std::int64_t from_row,
               std::int64_t rows, std::int64_t columns, T factor) {
  constexpr std::int64_t kN = kLanes<T>;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kN)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kN) {
      const std::int64_t r_count = std::min(kN, rows - r0), c_count = std::min(kN, columns - c0);
      Vec<T> block[kN];
#pragma GCC unroll 16
      for (std::int64_t r = 0; r < kN; ++r)
        block[r] = r < r_count ? factor * load_some<T>(from + (r0 + r) * from_row + c0, c_count)
                               : Vec<T>{};
      cpu::transpose_square(block);
      for (std::int64_t c = 0; c < c_count; ++c)
        store_some<T>(to + (c0 + c) * to_row + r0, block[c], kPad ? kN : r_count);
    }
}

/// to[r * to_row + c] = factor * from[r * from_row + c].
template <class T, class To, class From>
void copy_rows(To* to, std::int64_t to_row, const From* from, std::int64_t from_row,
               std::int64_t rows, std::int64_t columns, T factor) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; c += kLanes<T>) {
      const std::int64_t n = std::min<std::int64_t>(kLanes<T>, columns - c);
      store_some<T>(to + r * to_row + c, factor * load_some<T>(from + r * from_row + c, n), n);
    }
}

/// f(T{}, S{}) for operands of type `dtype`.
template <class F>
inline auto with_types(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64:
      return f(double{}, double{});
    case DType::f32:
      return f(float{}, float{});
    case DType::bf16:
      return f(float{}, bf16{});
    default:
      CHOIR_CHECK(dtype == DType::f16, "attention of {}", name_of(dtype));
      return f(float{}, f16{});
  }
}

/// The address of row (b, t) of head h.
template <class S>
inline S* row_of(const ops::AttentionOperand& x, const ops::AttentionProblem& p, std::int64_t b,
                 std::int64_t t, std::int64_t h) {
  return static_cast<S*>(x.data) + b * x.batch_stride + t * x.position_stride + h * p.head_width;
}

/// The address of the bias of query t and key j.
template <class S>
inline const S* bias_of(const ops::AttentionBias& x, std::int64_t b, std::int64_t h, std::int64_t t,
                        std::int64_t j) {
  return static_cast<const S*>(x.data) + b * x.batch_stride + h * x.head_stride +
         t * x.query_stride + j;
}

/// scores[j * row + t] += factor * bias[t * bias_row + j]; `copy` holds as many elements as scores.
template <class T, class S>
void add_bias(T* scores, T* copy, std::int64_t row, const S* bias, std::int64_t bias_row,
              std::int64_t queries, std::int64_t keys, T factor) {
  transpose<T, true>(copy, row, bias, bias_row, queries, keys, factor);
  for (std::int64_t r = 0; r < keys; ++r)
    for (std::int64_t c = 0; c < queries; c += kLanes<T>)
      store(scores + r * row + c, load(scores + r * row + c) + load(copy + r * row + c));
}

/// Number of keys of sample b.
inline std::int64_t keys_of(const ops::AttentionProblem& p, std::int64_t b) {
  return p.lengths ? std::clamp<std::int64_t>(p.lengths[b], 0, p.keys) : p.keys;
}

/// Writes `value` for the pairs that the causal mask hides: columns are queries first_query + i,
/// rows are keys first_key + r.
template <class T>
void mask_causal(T* scores, std::int64_t row, std::int64_t rows, std::int64_t vectors,
                 std::int64_t lead, T value) {
  typedef std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t> Index;
  typedef Index Mask __attribute__((vector_size(kVectorBytes)));
  constexpr auto lane = cpu::lanes_of<Mask>([](int i) { return i; });
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t v = 0; v < vectors && v * kLanes<T> < r + lead; ++v) {
      T* at = scores + r * row + v * kLanes<T>;
      const Mask hidden = lane < static_cast<Index>(r + lead - v * kLanes<T>);
      store(at, hidden ? broadcast(value) : load(at));
    }
}

/// The same for a window: query first_query + i sees key first_key + r if i <= r + last, with
/// `last` = lead + window - 1.
template <class T>
void mask_window(T* scores, std::int64_t row, std::int64_t rows, std::int64_t vectors,
                 std::int64_t last, T value) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = std::max<std::int64_t>(0, r + last + 1); i < vectors * kLanes<T>; ++i)
      scores[r * row + i] = value;
}

/// First position of the document of a query.
inline std::int64_t begin_of(const ops::AttentionProblem& p, std::int64_t b, std::int64_t query) {
  if (!p.divided()) return 0;
  return p.begins[b * p.positions + std::min(p.keys - p.queries + query, p.positions - 1)];
}

/// The first key that any query from `query` on sees.
inline std::int64_t first_key(const ops::AttentionProblem& p, std::int64_t b, std::int64_t query) {
  const std::int64_t begin = begin_of(p, b, query);
  return p.windowed() ? std::max(begin, p.keys - p.queries + query + 1 - p.window) : begin;
}

/// One past the last query that sees `key`.
inline std::int64_t queries_to(const ops::AttentionProblem& p, std::int64_t b, std::int64_t key) {
  std::int64_t low = 0, high = p.queries;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (first_key(p, b, middle) <= key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/// The same for documents: masks keys key + r before the first position of the document of queries
/// query + i, i < queries.
template <class T>
void mask_documents(T* scores, std::int64_t row, std::int64_t rows, const ops::AttentionProblem& p,
                    std::int64_t b, std::int64_t query, std::int64_t queries, std::int64_t key,
                    T value) {
  if (!p.divided() || begin_of(p, b, query + queries - 1) <= key) return;
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::int64_t hidden = std::min(begin_of(p, b, query + i) - key, rows);
    for (std::int64_t r = 0; r < hidden; ++r) scores[r * row + i] = value;
  }
}

/// Allocates 64-byte aligned parts of a block; with a null base it only adds up sizes.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    T* part = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return part;
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

}  // namespace choir::simd
