#include <omp.h>

#include <cmath>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/simd/attention_simd.hpp"

namespace choir {
namespace {

using namespace simd;

constexpr double kLog2E = 1.44269504088896340736;

template <class T>
struct Sizes {
  explicit Sizes(const ops::AttentionProblem& p)
      : width(p.head_width),
        padded_width(round_up(p.head_width, kLanes<T>)),
        group(p.heads / p.kv_heads),
        blocks((p.queries + kQueryBlock<T> - 1) / kQueryBlock<T>),
        key_blocks((p.keys + kKeyBlock - 1) / kKeyBlock),
        head(blocks * width * kQueryBlock<T>) {}
  std::int64_t width, padded_width, group, blocks, key_blocks;
  std::int64_t head;  ///< elements of one head, transposed and padded: [blocks, D, block]
};

/// Memory that one thread needs for one head. Rows of Q and d_out are only copied if the width is
/// not a multiple of the vector or the type differs.
template <class T>
struct Scratch {
  T *q, *d_out;            // [blocks, D, block]: transposed; q times scale * log2 e
  T* d_q;                  // the same, sums
  T *q_rows, *d_out_rows;  // [Tq, padded D] or empty
  T *shift, *delta;        // [blocks * block]: log2 sum exp, and sum of d_out * out
  T *p, *d_s;              // [kKeyBlock, block]
  T *k, *v;                // [kKeyBlock, D] if converted
  T* bias;                 // [kKeyBlock, block] if there is a bias
  T *d_k, *d_v;            // [kKeyBlock, padded D], for all keys if heads share K and V

  Scratch(Carver& c, const ops::AttentionProblem& problem, bool converts) {
    const Sizes<T> n(problem);
    const std::int64_t rows = converts || n.padded_width != n.width ? problem.queries : 0;
    const std::int64_t sums = (n.group > 1 ? n.key_blocks : 1) * kKeyBlock * n.padded_width;
    const std::int64_t copies = converts ? kKeyBlock * n.width : 0;
    q = c.take<T>(n.head), d_out = c.take<T>(n.head), d_q = c.take<T>(n.head);
    q_rows = c.take<T>(rows * n.padded_width), d_out_rows = c.take<T>(rows * n.padded_width);
    shift = c.take<T>(n.blocks * kQueryBlock<T>), delta = c.take<T>(n.blocks * kQueryBlock<T>);
    p = c.take<T>(kKeyBlock * kQueryBlock<T>), d_s = c.take<T>(kKeyBlock * kQueryBlock<T>);
    k = c.take<T>(copies), v = c.take<T>(copies);
    bias = c.take<T>(problem.biased ? kKeyBlock * kQueryBlock<T> : 0);
    d_k = c.take<T>(sums), d_v = c.take<T>(sums);
  }
};

template <class T, class S>
std::int64_t bytes_per_thread(const ops::AttentionProblem& problem) {
  Carver carver(nullptr);
  Scratch<T>(carver, problem, !std::is_same_v<T, S>);
  return carver.used();
}

/// A matrix with contiguous rows.
template <class T>
struct Rows {
  const T* data;
  std::int64_t row;
};

/// The backward pass of one (sample, K/V head, share of its key blocks).
template <class T, class S>
class Backward {
 public:
  Backward(const ops::AttentionBackward& args, std::int64_t b, std::int64_t kv_head,
           const KeyShare& share, const Scratch<T>& scratch, T* d_q_parts)
      : a_(args), p_(args.problem), n_(p_), s_(scratch), b_(b), kv_head_(kv_head), share_(share) {
    d_q_parts_ = d_q_parts;
    offset_ = p_.keys - p_.queries;
    keys_ = keys_of(p_, b);
  }

  void run() {
    for (std::int64_t g = 0; g < n_.group; ++g) {
      const std::int64_t h = kv_head_ * n_.group + g;
      T* d_q = d_q_parts_
                   ? d_q_parts_ + ((b_ * p_.heads + h) * share_.count + share_.index) * n_.head
                   : s_.d_q;
      prepare(h);
      std::fill_n(d_q, n_.head, T(0));
      for (std::int64_t j = share_.index; j < n_.key_blocks; j += share_.count) {
        add_keys(h, j, g == 0, d_q);
        if (g + 1 == n_.group) write_keys(j);
      }
      if (!d_q_parts_) write_queries(h, d_q);
    }
  }

  /// Writes d_q of head h from [blocks, D, block] sums.
  void write_queries(std::int64_t h, const T* d_q) {
    for (std::int64_t i = 0; i < n_.blocks; ++i)
      transpose<T, false>(row_of<S>(a_.d_q, p_, b_, i * kQueryBlock<T>, h), a_.d_q.position_stride,
                          d_q + i * n_.width * kQueryBlock<T>, kQueryBlock<T>, n_.width,
                          queries_of(i), static_cast<T>(p_.scale));
  }

 private:
  std::int64_t queries_of(std::int64_t block) const {
    return std::min<std::int64_t>(kQueryBlock<T>, p_.queries - block * kQueryBlock<T>);
  }

  void prepare(std::int64_t h) {
    for (std::int64_t i = 0; i < n_.blocks; ++i) {
      const std::int64_t t = i * kQueryBlock<T>, at = i * n_.width * kQueryBlock<T>;
      transpose<T, true>(s_.q + at, kQueryBlock<T>, row_of<S>(a_.q, p_, b_, t, h),
                         a_.q.position_stride, queries_of(i), n_.width,
                         static_cast<T>(p_.scale * kLog2E));
      transpose<T, true>(s_.d_out + at, kQueryBlock<T>, row_of<S>(a_.d_out, p_, b_, t, h),
                         a_.d_out.position_stride, queries_of(i), n_.width, T(1));
    }
    q_ = rows(a_.q, h, s_.q_rows);
    d_out_ = rows(a_.d_out, h, s_.d_out_rows);
    const T* lse = static_cast<const T*>(a_.log_sum_exp.data) + (b_ * p_.heads + h) * p_.queries;
    for (std::int64_t t = 0; t < p_.queries; ++t) {
      // A row without visible keys has -inf; all its scores are masked, so any finite number will
      // do.
      s_.shift[t] = std::isfinite(lse[t]) ? lse[t] * static_cast<T>(kLog2E) : T(0);
      s_.delta[t] = dot(row_of<S>(a_.d_out, p_, b_, t, h), row_of<S>(a_.out, p_, b_, t, h));
    }
    std::fill(s_.shift + p_.queries, s_.shift + n_.blocks * kQueryBlock<T>, T(0));
    std::fill(s_.delta + p_.queries, s_.delta + n_.blocks * kQueryBlock<T>, T(0));
  }

  T dot(const S* x, const S* y) const {
    Vec<T> sum{};
    for (std::int64_t d = 0; d < n_.width; d += kLanes<T>) {
      const std::int64_t n = std::min<std::int64_t>(kLanes<T>, n_.width - d);
      sum += load_some<T>(x + d, n) * load_some<T>(y + d, n);
    }
    T total = 0;
    for (int i = 0; i < kLanes<T>; ++i) total += sum[i];
    return total;
  }

  /// Rows of Q or d_out, copied if they cannot be read in whole vectors.
  Rows<T> rows(const ops::AttentionOperand& x, std::int64_t h, T* copy) {
    const S* from = row_of<S>(x, p_, b_, 0, h);
    if constexpr (std::is_same_v<T, S>)
      if (n_.padded_width == n_.width) return {from, x.position_stride};
    for (std::int64_t t = 0; t < p_.queries; ++t)
      for (std::int64_t d = 0; d < n_.width; d += kLanes<T>)
        store(copy + t * n_.padded_width + d,
              load_some<T>(from + t * x.position_stride + d,
                           std::min<std::int64_t>(kLanes<T>, n_.width - d)));
    return {copy, n_.padded_width};
  }

  Rows<T> keys(const ops::AttentionOperand& x, std::int64_t k0, std::int64_t count, T* copy) {
    const S* from = row_of<S>(x, p_, b_, k0, kv_head_);
    if constexpr (std::is_same_v<T, S>) {
      return {from, x.position_stride};
    } else {
      copy_rows<T>(copy, n_.width, from, x.position_stride, count, n_.width, T(1));
      return {copy, n_.width};
    }
  }

  std::int64_t sums_at(std::int64_t j) const {
    return n_.group > 1 ? j * kKeyBlock * n_.padded_width : 0;
  }

  S* d_bias_of(std::int64_t h, std::int64_t t, std::int64_t j) const {
    return static_cast<S*>(a_.d_bias.data) + ((b_ * p_.heads + h) * p_.queries + t) * p_.keys + j;
  }

  void add_keys(std::int64_t h, std::int64_t j, bool first_head, T* d_q) {
    T* d_k = s_.d_k + sums_at(j);
    T* d_v = s_.d_v + sums_at(j);
    if (first_head) {
      std::fill_n(d_k, kKeyBlock * n_.padded_width, T(0));
      std::fill_n(d_v, kKeyBlock * n_.padded_width, T(0));
    }
    const std::int64_t k0 = j * kKeyBlock;
    if (!a_.d_bias.empty())
      for (std::int64_t t = 0; t < p_.queries; ++t)
        std::fill_n(d_bias_of(h, t, k0), std::min<std::int64_t>(kKeyBlock, p_.keys - k0), S(0));
    const std::int64_t count = std::min<std::int64_t>(kKeyBlock, keys_ - k0);
    if (count <= 0) return;
    const Rows<T> k = keys(a_.k, k0, count, s_.k), v = keys(a_.v, k0, count, s_.v);
    const std::int64_t first =
        p_.causal ? std::max<std::int64_t>(0, k0 - offset_) / kQueryBlock<T> : 0;
    // Queries beyond the window or the document of the last key see none of these keys.
    const std::int64_t blocks =
        p_.windowed() || p_.divided()
            ? (queries_to(p_, b_, k0 + count - 1) + kQueryBlock<T> - 1) / kQueryBlock<T>
            : n_.blocks;
    for (std::int64_t i = first; i < blocks; ++i)
      add_tile(h, i, k0, count, k, v, d_q + i * n_.width * kQueryBlock<T>, d_k, d_v);
  }

  void add_tile(std::int64_t h, std::int64_t i, std::int64_t k0, std::int64_t count, Rows<T> k,
                Rows<T> v, T* d_q, T* d_k, T* d_v) {
    constexpr std::int64_t kQ = kQueryBlock<T>, kL = kLanes<T>;
    const std::int64_t q0 = i * kQ, at = i * n_.width * kQ;
    const std::int64_t lead = k0 - offset_ - q0;  // query q0 + c sees key k0 + r if c >= r + lead
    const std::int64_t first = p_.causal && lead > 0 ? lead / kL : 0, skip = first * kL;
    const std::int64_t queries = queries_of(i), vectors = (queries + kL - 1) / kL - first;
    if (vectors <= 0) return;
    product<T>(count, vectors, n_.width, k.data, k.row, 1, s_.q + at + skip, kQ, s_.p, kQ, false);
    product<T>(count, vectors, n_.width, v.data, v.row, 1, s_.d_out + at + skip, kQ, s_.d_s, kQ,
               false);
    if (p_.biased)
      add_bias<T>(s_.p, s_.bias, kQ, bias_of<S>(a_.bias, b_, h, q0 + skip, k0),
                  a_.bias.query_stride, queries - skip, count, static_cast<T>(kLog2E));
    const SoftCap<T> cap(p_);
    for (std::int64_t c = 0; c < vectors; ++c) {
      const Vec<T> shift = load(s_.shift + q0 + skip + c * kL);
      const Vec<T> delta = load(s_.delta + q0 + skip + c * kL);
      for (std::int64_t r = 0; r < count; ++r) {
        T* p = s_.p + r * kQ + c * kL;
        T* d_s = s_.d_s + r * kQ + c * kL;
        if (cap.cap == 0) {
          const Vec<T> probability = simd::exp2<T>(load(p) - shift);
          store(p, probability);
          store(d_s, probability * (load(d_s) - delta));
          continue;
        }
        const Vec<T> share = cap.share(load(p));
        const Vec<T> probability = simd::exp2<T>(cap.cap * share - shift);
        store(p, probability);
        store(d_s, probability * (load(d_s) - delta) * (1 - share * share));
      }
    }
    if (p_.causal && lead + count > 1) {
      mask_causal<T>(s_.p, kQ, count, vectors, lead - skip, T(0));
      mask_causal<T>(s_.d_s, kQ, count, vectors, lead - skip, T(0));
    }
    if (p_.windowed()) {
      mask_window<T>(s_.p, kQ, count, vectors, lead - skip + p_.window - 1, T(0));
      mask_window<T>(s_.d_s, kQ, count, vectors, lead - skip + p_.window - 1, T(0));
    }
    for (T* of_tile : {s_.p, s_.d_s})
      mask_documents<T>(of_tile, kQ, count, p_, b_, q0 + skip, queries - skip, k0, T(0));
    if (!a_.d_bias.empty())
      transpose<T, false>(d_bias_of(h, q0 + skip, k0), p_.keys, s_.d_s, kQ, count, queries - skip,
                          T(1));
    const std::int64_t wide = n_.padded_width / kL, depth = queries - skip;
    product<T>(count, wide, depth, s_.p, kQ, 1, d_out_.data + (q0 + skip) * d_out_.row, d_out_.row,
               d_v, n_.padded_width, true);
    product<T>(count, wide, depth, s_.d_s, kQ, 1, q_.data + (q0 + skip) * q_.row, q_.row, d_k,
               n_.padded_width, true);
    product<T>(n_.width, vectors, count, k.data, 1, k.row, s_.d_s, kQ, d_q + skip, kQ, true);
  }

  void write_keys(std::int64_t j) {
    const std::int64_t k0 = j * kKeyBlock;
    const std::int64_t count = std::min<std::int64_t>(kKeyBlock, p_.keys - k0);
    copy_rows<T>(row_of<S>(a_.d_k, p_, b_, k0, kv_head_), a_.d_k.position_stride,
                 s_.d_k + sums_at(j), n_.padded_width, count, n_.width, static_cast<T>(p_.scale));
    copy_rows<T>(row_of<S>(a_.d_v, p_, b_, k0, kv_head_), a_.d_v.position_stride,
                 s_.d_v + sums_at(j), n_.padded_width, count, n_.width, T(1));
  }

  const ops::AttentionBackward& a_;
  const ops::AttentionProblem& p_;
  const Sizes<T> n_;
  const Scratch<T>& s_;
  std::int64_t b_, kv_head_, offset_, keys_;
  KeyShare share_;
  T* d_q_parts_;
  Rows<T> q_{}, d_out_{};
};

template <class T, class S>
std::int64_t workspace_bytes(const ops::AttentionProblem& p, int threads) {
  const Sizes<T> n(p);
  const std::int64_t shares = key_shares(p, n.key_blocks, threads);
  const std::int64_t parts = shares > 1 ? p.batch * p.heads * shares * n.head : 0;
  return threads * bytes_per_thread<T, S>(p) + parts * static_cast<std::int64_t>(sizeof(T));
}

template <class T, class S>
void backward(const ops::AttentionBackward& args, int threads) {
  const ops::AttentionProblem& p = args.problem;
  const Sizes<T> n(p);
  const std::int64_t bytes = bytes_per_thread<T, S>(p);
  const std::int64_t shares = key_shares(p, n.key_blocks, threads);
  auto* base = static_cast<std::byte*>(args.workspace.data);
  T* parts = shares > 1 ? reinterpret_cast<T*>(base + threads * bytes) : nullptr;
#pragma omp parallel num_threads(threads)
  {
    Carver carver(base + omp_get_thread_num() * bytes);
    const Scratch<T> scratch(carver, p, !std::is_same_v<T, S>);
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t i = 0; i < p.batch * p.kv_heads * shares; ++i) {
      const std::int64_t head = i / shares;
      Backward<T, S>(args, head / p.kv_heads, head % p.kv_heads, {i % shares, shares}, scratch,
                     parts)
          .run();
    }
    if (parts) {
#pragma omp barrier
#pragma omp for schedule(dynamic) nowait
      for (std::int64_t head = 0; head < p.batch * p.heads; ++head) {
        T* total = parts + head * shares * n.head;
        add_shares(total, shares, n.head);
        Backward<T, S>(args, head / p.heads, 0, {0, 1}, scratch, nullptr)
            .write_queries(head % p.heads, total);
      }
    }
  }
}

}  // namespace

std::int64_t attention_backward_simd_bytes(const ops::AttentionProblem& problem, int threads) {
  return with_types(problem.dtype, [&](auto t, auto s) {
    return workspace_bytes<decltype(t), decltype(s)>(problem, threads);
  });
}

void attention_backward_simd(const ops::AttentionBackward& args, int threads) {
  with_types(args.problem.dtype,
             [&](auto t, auto s) { backward<decltype(t), decltype(s)>(args, threads); });
}

}  // namespace choir
