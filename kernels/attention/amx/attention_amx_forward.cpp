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

constexpr std::int64_t kQueries = 32;  ///< queries of a block: two tiles
constexpr std::int64_t kChunk = 32;    ///< keys of one 2 x 2 product
constexpr std::int64_t kStrip = 4;     ///< chunks between two rescalings of the output
constexpr float kNothing = -1e30f;     ///< below every score, but finite

struct Sizes {
  explicit Sizes(const ops::AttentionProblem& p)
      : chunks((p.keys + kChunk - 1) / kChunk),
        depth((p.head_width + kDepth - 1) / kDepth),
        rows(2 * depth),
        blocks((p.queries + kQueries - 1) / kQueries) {}
  std::int64_t chunks;  ///< chunks of keys
  std::int64_t depth;   ///< tiles along D as an inner extent
  std::int64_t rows;    ///< tiles along D as an outer extent (even)
  std::int64_t blocks;  ///< blocks of queries
};

struct Scratch {
  Tile* k;       // [chunks, 2, depth]: A
  Tile* v;       // [chunks, rows]: A, transposed
  Tile* q;       // [2, depth]: B, transposed
  Tile* scores;  // [kStrip, 2 (keys), 2 (queries)]: f32
  Tile* p;       // [kStrip, 2 (queries)]: B
  Tile* out;     // [rows, 2]: f32, transposed
  float* most;   // [kQueries]
  float* sum;    // [kQueries]

  Scratch(Carver& c, const ops::AttentionProblem& problem) {
    const Sizes n(problem);
    k = c.take<Tile>(n.chunks * 2 * n.depth), v = c.take<Tile>(n.chunks * n.rows);
    q = c.take<Tile>(2 * n.depth), scores = c.take<Tile>(kStrip * 4), p = c.take<Tile>(kStrip * 2);
    out = c.take<Tile>(n.rows * 2);
    most = c.take<float>(kQueries), sum = c.take<float>(kQueries);
  }
};

std::int64_t bytes_per_thread(const ops::AttentionProblem& problem) {
  Carver carver(nullptr);
  Scratch(carver, problem);
  return carver.used();
}

/// The forward pass of every share-th block of queries of the heads that share one K/V head.
class Forward {
 public:
  Forward(const ops::AttentionForward& args, std::int64_t b, std::int64_t kv_head,
          const Scratch& scratch)
      : a_(args), p_(args.problem), n_(p_), s_(scratch), b_(b), kv_head_(kv_head) {
    keys_ = keys_of(p_, b);
    offset_ = p_.keys - p_.queries;
    to_log2_ = static_cast<float>(p_.scale * 1.44269504088896340736);
  }

  CHOIR_TILES void run(std::int64_t share, std::int64_t shares) {
    pack_keys();
    const std::int64_t group = p_.heads / p_.kv_heads;
    for (std::int64_t h = kv_head_ * group; h < (kv_head_ + 1) * group; ++h)
      for (std::int64_t block = share; block < n_.blocks; block += shares)
        run_block(h, block * kQueries);
  }

 private:
  CHOIR_TILES void pack_keys() {
    const bf16* k = row_of<bf16>(a_.k, p_, b_, 0, kv_head_);
    const bf16* v = row_of<bf16>(a_.v, p_, b_, 0, kv_head_);
    for (std::int64_t c = 0; c * kChunk < keys_; ++c) {
      for (std::int64_t i = 0; i < 2 * n_.depth; ++i) {
        const std::int64_t first = c * kChunk + i / n_.depth * kEdge, d = i % n_.depth * kDepth;
        pack_a(s_.k[c * 2 * n_.depth + i], k + first * a_.k.position_stride + d,
               a_.k.position_stride, keys_ - first, p_.head_width - d);
      }
      for (std::int64_t i = 0; i < n_.rows; ++i)
        pack_a_transposed(s_.v[c * n_.rows + i], v + c * kChunk * a_.v.position_stride + i * kEdge,
                          a_.v.position_stride, keys_ - c * kChunk, p_.head_width - i * kEdge);
    }
  }

  CHOIR_TILES void run_block(std::int64_t h, std::int64_t q0) {
    const bf16* q = row_of<bf16>(a_.q, p_, b_, q0, h);
    for (std::int64_t i = 0; i < 2 * n_.depth; ++i) {
      const std::int64_t t = i / n_.depth * kEdge, d = i % n_.depth * kDepth;
      pack_b_transposed(s_.q[i], q + t * a_.q.position_stride + d, a_.q.position_stride,
                        p_.queries - q0 - t, p_.head_width - d);
    }
    for (std::int64_t i = 0; i < kQueries; ++i) s_.most[i] = kNothing, s_.sum[i] = 0;
    std::int64_t keys = keys_;
    if (p_.causal) keys = std::min(keys, q0 + kQueries + offset_);
    const std::int64_t chunks = (keys + kChunk - 1) / kChunk;
    if (chunks == 0) std::fill_n(s_.out->f32(), n_.rows * 2 * kTileBytes / 4, 0.0f);
    for (std::int64_t c = 0; c < chunks; c += kStrip)
      add_strip(q0, c, std::min(kStrip, chunks - c));
    finish(h, q0);
  }

  CHOIR_TILES void add_strip(std::int64_t q0, std::int64_t first, std::int64_t count) {
    for (std::int64_t c = 0; c < count; ++c) {
      const Tile* k = s_.k + (first + c) * 2 * n_.depth;
      Tile* scores = s_.scores + 4 * c;
      zero_sums();
      for (std::int64_t d = 0; d < n_.depth; ++d)
        multiply_add(k[d], k[n_.depth + d], s_.q[d], s_.q[n_.depth + d]);
      store_sums(scores[0], scores[1], scores[2], scores[3]);
      mask(scores, q0, (first + c) * kChunk);
    }
    const bool again = first > 0;
    for (std::int64_t t = 0; t < 2; ++t) softmax(t, count, again);
    for (std::int64_t d = 0; d < n_.rows; d += 2) {
      Tile* out = s_.out + 2 * d;
      if (again)
        load_sums(out[0], out[1], out[2], out[3]);
      else
        zero_sums();
      for (std::int64_t c = 0; c < count; ++c) {
        const Tile* v = s_.v + (first + c) * n_.rows + d;
        multiply_add(v[0], v[1], s_.p[2 * c], s_.p[2 * c + 1]);
      }
      store_sums(out[0], out[1], out[2], out[3]);
    }
  }

  /// Masks scores; tile (i, t) holds keys k0 + 16 i and queries q0 + 16 t.
  CHOIR_TILES void mask(Tile* scores, std::int64_t q0, std::int64_t k0) {
    const bool diagonal = p_.causal && k0 + kChunk - 1 > q0 + offset_;
    if (!diagonal && k0 + kChunk <= keys_) return;
    const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t t = 0; t < 2; ++t) {
        const std::int64_t key = k0 + kEdge * i;
        const std::int64_t lead = p_.causal ? key - offset_ - q0 - kEdge * t : kNoMask;
        float* at = scores[2 * i + t].f32();
        for (std::int64_t r = 0; r < kEdge; ++r)
          _mm512_mask_store_ps(at + 16 * r, _knot_mask16(visible(r, lead, keys_ - key)), hidden);
      }
  }

  /// Turns the scores of query tile t over a strip into P, packed as B. `again` is true if sums of
  /// earlier strips must be rescaled to a new maximum.
  CHOIR_TILES void softmax(std::int64_t t, std::int64_t count, bool again) {
    const __m512 factor = _mm512_set1_ps(to_log2_);
    const __m512 old = _mm512_load_ps(s_.most + kEdge * t);
    __m512 high[4];
    for (__m512& x : high) x = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (std::int64_t c = 0; c < 2 * count; ++c) {
      const float* from = s_.scores[2 * c + t].f32();
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r)
        high[r % 4] = _mm512_max_ps(high[r % 4], _mm512_load_ps(from + 16 * r));
    }
    const __m512 highest =
        _mm512_max_ps(_mm512_max_ps(high[0], high[1]), _mm512_max_ps(high[2], high[3]));
    const __m512 most = _mm512_max_ps(old, _mm512_mul_ps(highest, factor));
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (std::int64_t c = 0; c < 2 * count; ++c) {
      const float* from = s_.scores[2 * c + t].f32();
      std::byte* to = s_.p[2 * (c / 2) + t].row(c % 2 * 8);
#pragma GCC unroll 4
      for (int r = 0; r < 16; r += 2) {
        const __m512 x = exp2(_mm512_fmsub_ps(_mm512_load_ps(from + 16 * r), factor, most));
        const __m512 y = exp2(_mm512_fmsub_ps(_mm512_load_ps(from + 16 * r + 16), factor, most));
        sum[0] = _mm512_add_ps(sum[0], x);
        sum[1] = _mm512_add_ps(sum[1], y);
        _mm512_store_si512(to + 32 * r, to_pairs(x, y));
      }
    }
    const __m512 shrink = exp2(_mm512_sub_ps(old, most));
    const __m512 total =
        _mm512_fmadd_ps(_mm512_load_ps(s_.sum + kEdge * t), shrink, _mm512_add_ps(sum[0], sum[1]));
    _mm512_store_ps(s_.most + kEdge * t, most);
    _mm512_store_ps(s_.sum + kEdge * t, total);
    if (!again) return;
    for (std::int64_t d = 0; d < n_.rows; ++d) {
      float* at = s_.out[2 * d + t].f32();
      for (int r = 0; r < 16; ++r)
        _mm512_store_ps(at + 16 * r, _mm512_mul_ps(shrink, _mm512_load_ps(at + 16 * r)));
    }
  }

  CHOIR_TILES void finish(std::int64_t h, std::int64_t q0) {
    const std::int64_t rows = std::min(kQueries, p_.queries - q0);
    bf16* out = row_of<bf16>(a_.out, p_, b_, q0, h);
    for (std::int64_t t = 0; kEdge * t < rows; ++t) {
      const __m512 sum = _mm512_load_ps(s_.sum + kEdge * t);
      const __mmask16 seen = _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_GT_OQ);
      const __m512 inverse = _mm512_maskz_div_ps(seen, _mm512_set1_ps(1.0f), sum);
      for (std::int64_t d = 0; d * kEdge < p_.head_width; ++d)
        write_transposed(out + kEdge * t * a_.out.position_stride + d * kEdge,
                         a_.out.position_stride, s_.out[2 * d + t], rows - kEdge * t,
                         p_.head_width - d * kEdge, inverse);
    }
    if (a_.log_sum_exp.empty()) return;
    float* lse = static_cast<float*>(a_.log_sum_exp.data) + (b_ * p_.heads + h) * p_.queries + q0;
    for (std::int64_t i = 0; i < rows; ++i)
      lse[i] = s_.sum[i] > 0 ? s_.most[i] * 0.69314718f + std::log(s_.sum[i])
                             : -std::numeric_limits<float>::infinity();
  }

  const ops::AttentionForward& a_;
  const ops::AttentionProblem& p_;
  const Sizes n_;
  const Scratch& s_;
  std::int64_t b_, kv_head_, keys_, offset_;
  float to_log2_;
};

}  // namespace

std::int64_t attention_forward_amx_bytes(const ops::AttentionProblem& problem, int threads) {
  return threads * bytes_per_thread(problem);
}

void attention_forward_amx(const ops::AttentionForward& args, int threads) {
  const ops::AttentionProblem& p = args.problem;
  const std::int64_t bytes = bytes_per_thread(p), heads = p.batch * p.kv_heads;
  // Every share packs K and V of its head again, so there are only as many as keep the threads
  // busy.
  const std::int64_t shares =
      heads >= 4 * threads || heads % threads == 0
          ? 1
          : std::min<std::int64_t>(Sizes(p).blocks, (2 * threads + heads - 1) / heads);
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    Carver carver(static_cast<std::byte*>(args.workspace.data) + omp_get_thread_num() * bytes);
    const Scratch scratch(carver, p);
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t i = 0; i < heads * shares; ++i)
      Forward(args, i / shares / p.kv_heads, i / shares % p.kv_heads, scratch)
          .run(i % shares, shares);
  }
}

}  // namespace choir
