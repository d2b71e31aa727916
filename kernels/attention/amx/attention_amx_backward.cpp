#include "kernels/attention/amx/attention_amx.hpp"

#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/simd/attention_simd.hpp"

namespace choir {
namespace {

using namespace amx;
using simd::Carver;
using simd::keys_of;
using simd::row_of;

constexpr std::int64_t kChunk = 32;  ///< queries or keys of one 2 x 2 product
constexpr std::int64_t kKeys = 2;    ///< chunks of keys in a block
constexpr std::int64_t kStrip =
    8;  ///< chunks of queries whose P and dS are kept until d_k and d_v are summed

struct Sizes {
  explicit Sizes(const ops::AttentionProblem& p)
      : queries((p.queries + kChunk - 1) / kChunk),
        blocks((p.keys + kKeys * kChunk - 1) / (kKeys * kChunk)),
        depth((p.head_width + kDepth - 1) / kDepth),
        rows(2 * depth),
        group(p.heads / p.kv_heads),
        head(queries * rows * 2) {}
  std::int64_t queries;  ///< chunks of queries
  std::int64_t blocks;   ///< blocks of keys
  std::int64_t depth;    ///< tiles along D as an inner extent
  std::int64_t rows;     ///< tiles along D as an outer extent (even)
  std::int64_t group;
  std::int64_t head;  ///< tiles of d_q of one head, [queries, rows, 2], transposed
};

struct Scratch {
  Tile *q_b, *d_out_b;        // [queries, 2, depth]: B, transposed
  Tile *q_rows, *d_out_rows;  // [queries, rows]: B
  Tile* d_q;                  // [queries, rows, 2]: f32, transposed
  Tile *k, *v;                // [kKeys, 2, depth]: A
  Tile* k_t;                  // [kKeys, rows]: A, transposed
  Tile *s, *d_p;              // [4]: f32
  Tile *p_a, *d_s_a;          // [kKeys, kStrip, 2 (keys)]: A
  Tile* d_s_b;                // [kKeys, 2 (queries)]: B
  Tile *d_k, *d_v;            // [kKeys, 2, rows]: f32, of all blocks when heads share K and V
  float *shift, *delta;       // [queries * kChunk]

  Scratch(Carver& c, const ops::AttentionProblem& problem) {
    const Sizes n(problem);
    const std::int64_t sums = (n.group > 1 ? n.blocks : 1) * kKeys * 2 * n.rows;
    q_b = c.take<Tile>(n.queries * 2 * n.depth), d_out_b = c.take<Tile>(n.queries * 2 * n.depth);
    q_rows = c.take<Tile>(n.queries * n.rows), d_out_rows = c.take<Tile>(n.queries * n.rows);
    d_q = c.take<Tile>(n.head);
    k = c.take<Tile>(kKeys * 2 * n.depth), v = c.take<Tile>(kKeys * 2 * n.depth);
    k_t = c.take<Tile>(kKeys * n.rows);
    s = c.take<Tile>(4), d_p = c.take<Tile>(4);
    p_a = c.take<Tile>(kKeys * kStrip * 2), d_s_a = c.take<Tile>(kKeys * kStrip * 2);
    d_s_b = c.take<Tile>(kKeys * 2);
    d_k = c.take<Tile>(sums), d_v = c.take<Tile>(sums);
    shift = c.take<float>(n.queries * kChunk), delta = c.take<float>(n.queries * kChunk);
  }
};

std::int64_t bytes_per_thread(const ops::AttentionProblem& problem) {
  Carver carver(nullptr);
  Scratch(carver, problem);
  return carver.used();
}

/// The backward pass of one (sample, K/V head, share of its key blocks).
class Backward {
 public:
  Backward(const ops::AttentionBackward& args, std::int64_t b, std::int64_t kv_head,
           const KeyShare& share, const Scratch& scratch, Tile* d_q_parts)
      : a_(args),
        p_(args.problem),
        n_(p_),
        s_(scratch),
        b_(b),
        kv_head_(kv_head),
        share_(share),
        d_q_parts_(d_q_parts) {
    keys_ = keys_of(p_, b);
    offset_ = p_.keys - p_.queries;
    to_log2_ = static_cast<float>(p_.scale * 1.44269504088896340736);
  }

  CHOIR_TILES void run() {
    for (std::int64_t g = 0; g < n_.group; ++g) {
      const std::int64_t h = kv_head_ * n_.group + g;
      Tile* d_q = s_.d_q;
      if (d_q_parts_)
        d_q = d_q_parts_ + ((b_ * p_.heads + h) * share_.count + share_.index) * n_.head;
      prepare(h);
      std::fill_n(d_q->f32(), n_.head * kTileBytes / 4, 0.0f);
      for (std::int64_t j = share_.index; j < n_.blocks; j += share_.count) {
        Tile* d_k = s_.d_k + (n_.group > 1 ? j * kKeys * 2 * n_.rows : 0);
        Tile* d_v = s_.d_v + (n_.group > 1 ? j * kKeys * 2 * n_.rows : 0);
        if (g == 0) {
          std::fill_n(d_k->f32(), kKeys * 2 * n_.rows * kTileBytes / 4, 0.0f);
          std::fill_n(d_v->f32(), kKeys * 2 * n_.rows * kTileBytes / 4, 0.0f);
        }
        add_keys(j * kKeys * kChunk, d_q, d_k, d_v);
        if (g + 1 == n_.group) {
          write_keys(a_.d_k, j * kKeys * kChunk, d_k, static_cast<float>(p_.scale));
          write_keys(a_.d_v, j * kKeys * kChunk, d_v, 1.0f);
        }
      }
      if (!d_q_parts_) write_queries(h, d_q);
    }
  }

  CHOIR_TILES void write_queries(std::int64_t h, const Tile* d_q) {
    const __m512 scale = _mm512_set1_ps(static_cast<float>(p_.scale));
    for (std::int64_t t = 0; t * kEdge < p_.queries; ++t)
      for (std::int64_t d = 0; d * kEdge < p_.head_width; ++d)
        write_transposed(row_of<bf16>(a_.d_q, p_, b_, t * kEdge, h) + d * kEdge,
                         a_.d_q.position_stride, d_q[(t / 2 * n_.rows + d) * 2 + t % 2],
                         p_.queries - t * kEdge, p_.head_width - d * kEdge, scale);
  }

 private:
  CHOIR_TILES void prepare(std::int64_t h) {
    for (std::int64_t c = 0; c < n_.queries; ++c) {
      pack_queries(a_.q, h, c, s_.q_b, s_.q_rows);
      pack_queries(a_.d_out, h, c, s_.d_out_b, s_.d_out_rows);
    }
    const float* lse =
        static_cast<const float*>(a_.log_sum_exp.data) + (b_ * p_.heads + h) * p_.queries;
    // Padding and rows without visible keys (-inf) get P = 2^-inf = 0.
    for (std::int64_t t = 0; t < n_.queries * kChunk; ++t) {
      const bool seen = t < p_.queries && std::isfinite(lse[t]);
      s_.shift[t] = seen ? lse[t] * 1.44269504f : std::numeric_limits<float>::infinity();
      s_.delta[t] =
          seen ? dot(row_of<bf16>(a_.d_out, p_, b_, t, h), row_of<bf16>(a_.out, p_, b_, t, h))
               : 0.0f;
    }
  }

  CHOIR_TILES void pack_queries(const ops::AttentionOperand& x, std::int64_t h, std::int64_t c,
                                Tile* transposed, Tile* plain) {
    const bf16* from = row_of<bf16>(x, p_, b_, c * kChunk, h);
    const std::int64_t left = p_.queries - c * kChunk;
    for (std::int64_t i = 0; i < 2 * n_.depth; ++i) {
      const std::int64_t t = i / n_.depth * kEdge, d = i % n_.depth * kDepth;
      pack_b_transposed(transposed[c * 2 * n_.depth + i], from + t * x.position_stride + d,
                        x.position_stride, left - t, p_.head_width - d);
    }
    for (std::int64_t i = 0; i < n_.rows; ++i)
      pack_b(plain[c * n_.rows + i], from + i * kEdge, x.position_stride, left,
             p_.head_width - i * kEdge);
  }

  CHOIR_TILES float dot(const bf16* x, const bf16* y) const {
    __m512 sum = _mm512_setzero_ps();
    for (std::int64_t d = 0; d < p_.head_width; d += kDepth) {
      const __mmask32 mask = first_bits(p_.head_width - d);
      sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(mask, x + d),
                             (__m512bh)_mm512_maskz_loadu_epi16(mask, y + d));
    }
    return _mm512_reduce_add_ps(sum);
  }

  CHOIR_TILES void pack_keys(std::int64_t k0) {
    const bf16* k = row_of<bf16>(a_.k, p_, b_, k0, kv_head_);
    const bf16* v = row_of<bf16>(a_.v, p_, b_, k0, kv_head_);
    const std::int64_t left = keys_ - k0;
    for (std::int64_t i = 0; i < kKeys * 2 * n_.depth; ++i) {
      const std::int64_t r = i / n_.depth * kEdge, d = i % n_.depth * kDepth;
      pack_a(s_.k[i], k + r * a_.k.position_stride + d, a_.k.position_stride, left - r,
             p_.head_width - d);
      pack_a(s_.v[i], v + r * a_.v.position_stride + d, a_.v.position_stride, left - r,
             p_.head_width - d);
    }
    for (std::int64_t i = 0; i < kKeys * n_.rows; ++i) {
      const std::int64_t r = i / n_.rows * kChunk, d = i % n_.rows * kEdge;
      pack_a_transposed(s_.k_t[i], k + r * a_.k.position_stride + d, a_.k.position_stride, left - r,
                        p_.head_width - d);
    }
  }

  /// First chunk of queries that sees a chunk of keys.
  std::int64_t first_chunk(std::int64_t k0) const {
    return p_.causal ? std::max<std::int64_t>(0, k0 - offset_) / kChunk : 0;
  }

  CHOIR_TILES void add_keys(std::int64_t k0, Tile* d_q, Tile* d_k, Tile* d_v) {
    if (k0 >= keys_) return;
    pack_keys(k0);
    for (std::int64_t c0 = first_chunk(k0); c0 < n_.queries; c0 += kStrip) {
      const std::int64_t end = std::min(c0 + kStrip, n_.queries);
      for (std::int64_t c = c0; c < end; ++c) add_queries(k0, c0, c, d_q);
      for (std::int64_t s = 0; s < kKeys; ++s) {
        const std::int64_t first = std::max(c0, first_chunk(k0 + s * kChunk));
        if (k0 + s * kChunk >= keys_ || first >= end) continue;
        const std::int64_t at = s * kStrip * 2 + (first - c0) * 2;
        sum_over_queries(d_v + s * 2 * n_.rows, s_.p_a + at, s_.d_out_rows + first * n_.rows,
                         end - first);
        sum_over_queries(d_k + s * 2 * n_.rows, s_.d_s_a + at, s_.q_rows + first * n_.rows,
                         end - first);
      }
    }
  }

  /// Computes P and dS of all keys of the block and chunk c of the queries, and adds their
  /// contribution to d_q.
  CHOIR_TILES void add_queries(std::int64_t k0, std::int64_t c0, std::int64_t c, Tile* d_q) {
    std::int64_t visible_chunks = 0;
    for (; visible_chunks < kKeys; ++visible_chunks) {
      const std::int64_t s = visible_chunks, key = k0 + s * kChunk;
      if (key >= keys_ || c < first_chunk(key)) break;
      scores(s_.k + s * 2 * n_.depth, s_.q_b + c * 2 * n_.depth, s_.s);
      scores(s_.v + s * 2 * n_.depth, s_.d_out_b + c * 2 * n_.depth, s_.d_p);
      const std::int64_t at = (s * kStrip + c - c0) * 2;
      const bool diagonal = p_.causal && key + kChunk - 1 > c * kChunk + offset_;
      if (diagonal || key + kChunk > keys_)
        softmax_gradient<true>(key, c * kChunk, s_.p_a + at, s_.d_s_a + at, s_.d_s_b + 2 * s);
      else
        softmax_gradient<false>(key, c * kChunk, s_.p_a + at, s_.d_s_a + at, s_.d_s_b + 2 * s);
    }
    if (visible_chunks == 0) return;
    for (std::int64_t d = 0; d < n_.rows; d += 2) {
      Tile* sum = d_q + (c * n_.rows + d) * 2;
      load_sums(sum[0], sum[1], sum[2], sum[3]);
      for (std::int64_t s = 0; s < visible_chunks; ++s)
        multiply_add(s_.k_t[s * n_.rows + d], s_.k_t[s * n_.rows + d + 1], s_.d_s_b[2 * s],
                     s_.d_s_b[2 * s + 1]);
      store_sums(sum[0], sum[1], sum[2], sum[3]);
    }
  }

  /// to [2 (rows of a), 2 (columns of b)] = a b over D.
  CHOIR_TILES void scores(const Tile* a, const Tile* b, Tile* to) {
    zero_sums();
    for (std::int64_t d = 0; d < n_.depth; ++d)
      multiply_add(a[d], a[n_.depth + d], b[d], b[n_.depth + d]);
    store_sums(to[0], to[1], to[2], to[3]);
  }

  /// to [2, rows] += sum over `count` chunks of a [2] b [rows].
  CHOIR_TILES void sum_over_queries(Tile* to, const Tile* a, const Tile* b, std::int64_t count) {
    for (std::int64_t d = 0; d < n_.rows; d += 2) {
      load_sums(to[d], to[d + 1], to[n_.rows + d], to[n_.rows + d + 1]);
      for (std::int64_t c = 0; c < count; ++c)
        multiply_add(a[2 * c], a[2 * c + 1], b[c * n_.rows + d], b[c * n_.rows + d + 1]);
      store_sums(to[d], to[d + 1], to[n_.rows + d], to[n_.rows + d + 1]);
    }
  }

  /// P = 2^(scores - shift) and dS = P (dP - delta) of a 32 x 32 chunk, packed three ways.
  template <bool kMasked>
  CHOIR_TILES void softmax_gradient(std::int64_t k0, std::int64_t q0, Tile* p_a, Tile* d_s_a,
                                    Tile* d_s_b) {
    const __m512 factor = _mm512_set1_ps(to_log2_);
    const __m512 shift[2] = {_mm512_load_ps(s_.shift + q0), _mm512_load_ps(s_.shift + q0 + kEdge)};
    const __m512 delta[2] = {_mm512_load_ps(s_.delta + q0), _mm512_load_ps(s_.delta + q0 + kEdge)};
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t r = 0; r < kEdge; r += 2) {
        __m512 p[2][2], d_s[2][2];  // [key, query tile]
#pragma GCC unroll 2
        for (int o = 0; o < 2; ++o)
#pragma GCC unroll 2
          for (int t = 0; t < 2; ++t) {
            const std::int64_t at = 16 * (r + o);
            p[o][t] =
                exp2(_mm512_fmsub_ps(_mm512_load_ps(s_.s[2 * i + t].f32() + at), factor, shift[t]));
            const __m512 d_p = _mm512_load_ps(s_.d_p[2 * i + t].f32() + at);
            d_s[o][t] = _mm512_mul_ps(p[o][t], _mm512_sub_ps(d_p, delta[t]));
            if constexpr (kMasked) {
              const std::int64_t key = k0 + kEdge * i;
              const std::int64_t lead = p_.causal ? key - offset_ - q0 - kEdge * t : kNoMask;
              const __mmask16 seen = visible(r + o, lead, keys_ - key);
              p[o][t] = _mm512_maskz_mov_ps(seen, p[o][t]);
              d_s[o][t] = _mm512_maskz_mov_ps(seen, d_s[o][t]);
            }
          }
#pragma GCC unroll 2
        for (int o = 0; o < 2; ++o) {
          _mm512_store_si512(p_a[i].row(r + o), to_bf16(p[o][0], p[o][1]));
          _mm512_store_si512(d_s_a[i].row(r + o), to_bf16(d_s[o][0], d_s[o][1]));
          _mm512_store_si512(d_s_b[o].row(8 * i + r / 2), to_pairs(d_s[0][o], d_s[1][o]));
        }
      }
  }

  CHOIR_TILES void write_keys(const ops::AttentionOperand& to, std::int64_t k0, const Tile* sums,
                              float factor) {
    for (std::int64_t i = 0; i < kKeys * 2 && k0 + i * kEdge < p_.keys; ++i)
      for (std::int64_t d = 0; d * kEdge < p_.head_width; ++d)
        write_rows(row_of<bf16>(to, p_, b_, k0 + i * kEdge, kv_head_) + d * kEdge,
                   to.position_stride, sums[i * n_.rows + d], p_.keys - k0 - i * kEdge,
                   p_.head_width - d * kEdge, factor);
  }

  const ops::AttentionBackward& a_;
  const ops::AttentionProblem& p_;
  const Sizes n_;
  const Scratch& s_;
  std::int64_t b_, kv_head_, keys_, offset_;
  KeyShare share_;
  Tile* d_q_parts_;
  float to_log2_;
};

}  // namespace

std::int64_t attention_backward_amx_bytes(const ops::AttentionProblem& p, int threads) {
  const Sizes n(p);
  const std::int64_t shares = key_shares(p, n.blocks, threads);
  const std::int64_t parts = shares > 1 ? p.batch * p.heads * shares * n.head : 0;
  return threads * bytes_per_thread(p) + parts * kTileBytes;
}

void attention_backward_amx(const ops::AttentionBackward& args, int threads) {
  const ops::AttentionProblem& p = args.problem;
  const Sizes n(p);
  const std::int64_t bytes = bytes_per_thread(p);
  const std::int64_t shares = key_shares(p, n.blocks, threads);
  auto* base = static_cast<std::byte*>(args.workspace.data);
  Tile* parts = shares > 1 ? reinterpret_cast<Tile*>(base + threads * bytes) : nullptr;
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    Carver carver(base + omp_get_thread_num() * bytes);
    const Scratch scratch(carver, p);
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t i = 0; i < p.batch * p.kv_heads * shares; ++i) {
      const std::int64_t head = i / shares;
      Backward(args, head / p.kv_heads, head % p.kv_heads, {i % shares, shares}, scratch, parts)
          .run();
    }
    if (parts) {
#pragma omp barrier
#pragma omp for schedule(dynamic) nowait
      for (std::int64_t head = 0; head < p.batch * p.heads; ++head) {
        Tile* total = parts + head * shares * n.head;
        add_shares(total->f32(), shares, n.head * kTileBytes / 4);
        Backward(args, head / p.heads, 0, {}, scratch, nullptr)
            .write_queries(head % p.heads, total);
      }
    }
  }
}

}  // namespace choir
