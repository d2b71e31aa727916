#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/simd/attention_simd.hpp"

namespace choir {
namespace {

using namespace simd;

constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;
constexpr double kNothing = -1e30;  // below every score, but finite

/// State of the softmax over some of a head's keys; the weighted values are stored beside it.
template <class T>
struct Softmax {
  T most = T(kNothing), sum = 0;
  /// Raises the maximum to `top`; returns the factor of the weighted values.
  T raise(T top) {
    const T shrink = simd::exp2<T>(broadcast(most - top))[0];
    most = top, sum *= shrink;
    return shrink;
  }
};

/// Memory that one thread needs for the query heads of a task; rows have D elements and are padded
/// with zeros to whole vectors.
template <class T>
struct Scratch {
  std::int64_t row;
  T* q;                 ///< [heads, row], times scale * log2 e
  T* out;               ///< [heads, row]
  Softmax<T>* softmax;  ///< [heads]
  T* block;             ///< [kKeyBlock, row]: keys, then values
  T* scores;            ///< [heads of a group, kKeyBlock]: scores, then probabilities

  Scratch(Carver& carver, std::int64_t kv_heads, std::int64_t group, std::int64_t width)
      : row(round_up(width, kLanes<T>)),
        q(carver.take<T>(kv_heads * group * row)),
        out(carver.take<T>(kv_heads * group * row)),
        softmax(carver.take<Softmax<T>>(kv_heads * group)),
        block(carver.take<T>(kKeyBlock * row)),
        scores(carver.take<T>(group * kKeyBlock)) {}
};

/// Some K/V heads of a sample, each with its group of query heads. The rows of a block of keys in
/// all these heads are read in memory order, and widened once for the group.
template <class T, class S>
class Heads {
 public:
  Heads(const ops::AttentionForward& args, std::int64_t b, std::int64_t first_kv_head,
        std::int64_t kv_heads, const Scratch<T>& scratch)
      : k_(row_of<S>(args.k, args.problem, b, 0, first_kv_head)),
        v_(row_of<S>(args.v, args.problem, b, 0, first_kv_head)),
        k_stride_(args.k.position_stride),
        v_stride_(args.v.position_stride),
        kv_heads_(kv_heads),
        group_(args.problem.heads / args.problem.kv_heads),
        width_(args.problem.head_width),
        cap_(args.problem),
        s_(scratch) {
    const std::int64_t heads = kv_heads * group_;
    widen(s_.q, row_of<S>(args.q, args.problem, b, 0, first_kv_head * group_), width_, heads);
    const auto factor = static_cast<T>(args.problem.scale * kLog2E);
    for (std::int64_t i = 0; i < heads * s_.row; ++i) s_.q[i] *= factor;
    std::fill_n(s_.out, heads * s_.row, T(0));
    std::fill_n(s_.softmax, heads, Softmax<T>());
  }

  /// Adds keys [begin, end).
  void attend(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t first = begin; first < end; first += kKeyBlock) {
      const std::int64_t count = std::min<std::int64_t>(kKeyBlock, end - first);
      for (std::int64_t h = 0; h < kv_heads_; ++h) {
        const Rows keys = rows_of(k_ + first * k_stride_ + h * width_, k_stride_, count);
        for (std::int64_t g = 0; g < group_; ++g) {
          T* const scores = s_.scores + g * kKeyBlock;
          score(s_.q + (h * group_ + g) * s_.row, keys, scores);
          cap_.apply(scores, kKeyBlock, 1, kKeyBlock / kLanes<T>);
          std::fill(scores + count, scores + kKeyBlock, T(kNothing));
        }
        const Rows values = rows_of(v_ + first * v_stride_ + h * width_, v_stride_, count);
        for (std::int64_t g = 0; g < group_; ++g) {
          T *const scores = s_.scores + g * kKeyBlock, *out = s_.out + (h * group_ + g) * s_.row;
          soften(scores, s_.softmax[h * group_ + g], out);
          std::int64_t d = 0;
          add<8>(scores, values, count, out, d);
          add<4>(scores, values, count, out, d);
          add<1>(scores, values, count, out, d);
        }
      }
    }
  }

 private:
  /// A block of keys or values.
  struct Rows {
    const T* first;
    std::int64_t stride;
    const T* operator[](std::int64_t r) const { return first + r * stride; }
  };
  /// The rows in place if they have the right layout, else a copy. Rows behind the last one are
  /// zeros.
  Rows rows_of(const S* from, std::int64_t stride, std::int64_t count) const {
    if constexpr (std::is_same_v<S, T>)
      if (count == kKeyBlock && width_ == s_.row) return {from, stride};
    widen(s_.block, from, stride, count);
    std::fill(s_.block + count * s_.row, s_.block + kKeyBlock * s_.row, T(0));
    return {s_.block, s_.row};
  }
  void widen(T* to, const S* from, std::int64_t stride, std::int64_t rows) const {
    for (std::int64_t r = 0; r < rows; ++r, to += s_.row, from += stride) {
      std::int64_t d = 0;
#pragma GCC unroll 4
      for (; d + kLanes<T> <= width_; d += kLanes<T>) store(to + d, load(from + d));
      if (d < width_) store(to + d, load_some<T>(from + d, width_ - d));
    }
  }

  /// Computes as many keys at a time as a vector has lanes: latencies overlap, and one vector holds
  /// their sums.
  void score(const T* q, const Rows& keys, T* scores) const {
    constexpr int kTogether = kLanes<T>;
    for (std::int64_t r = 0; r < kKeyBlock; r += kTogether) {
      Vec<T> sums[kTogether] = {};
      for (std::int64_t d = 0; d < s_.row; d += kLanes<T>) {
        const Vec<T> query = load(q + d);
#pragma GCC unroll 16
        for (int i = 0; i < kTogether; ++i) sums[i] += query * load(keys[r + i] + d);
      }
      store(scores + r, cpu::sums_of_lanes(sums));
    }
  }

  /// Turns scores into probabilities relative to the new maximum, and rescales `out`.
  void soften(T* scores, Softmax<T>& softmax, T* out) const {
    Vec<T> top = broadcast(softmax.most), sum{};
    for (int r = 0; r < kKeyBlock; r += kLanes<T>) {
      const Vec<T> score = load(scores + r);
      top = score > top ? score : top;
    }
    const T most = cpu::max_of_lanes(top);
    const T shrink = softmax.raise(most);
    for (int r = 0; r < kKeyBlock; r += kLanes<T>) {
      const Vec<T> p = simd::exp2<T>(load(scores + r) - most);
      sum += p;
      store(scores + r, p);
    }
    softmax.sum += cpu::sum_of_lanes(sum);
    if (shrink == 1) return;
    for (std::int64_t d = 0; d < s_.row; d += kLanes<T>) store(out + d, shrink * load(out + d));
  }

  /// out += probabilities V from column d on, with kVectors in registers at a time, while at least
  /// kVectors remain.
  template <int kVectors>
  void add(const T* probabilities, const Rows& values, std::int64_t count, T* out,
           std::int64_t& d) const {
    for (; d + kVectors * kLanes<T> <= s_.row; d += kVectors * kLanes<T>) {
      Vec<T> sums[kVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) sums[i] = load(out + d + i * kLanes<T>);
      for (std::int64_t r = 0; r < count; ++r) {
        const T* const v = values[r] + d;
        const Vec<T> weight = broadcast(probabilities[r]);
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) sums[i] += weight * load(v + i * kLanes<T>);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) store(out + d + i * kLanes<T>, sums[i]);
    }
  }

  const S *k_, *v_;
  std::int64_t k_stride_, v_stride_, kv_heads_, group_, width_;
  SoftCap<T> cap_;
  const Scratch<T>& s_;
};

/// Division of a sample's work into tasks, independent of the number of threads: keys in parts of
/// whole blocks, none so small that joining it would cost more than it saves; heads if there are
/// few keys.
struct Tasks {
  static constexpr std::int64_t kLeastKeys = 64, kMostParts = 64;
  std::int64_t keys, parts, kv_heads;
  explicit Tasks(const ops::AttentionProblem& p)
      : keys(std::max(kLeastKeys,
                      round_up((p.keys + kMostParts - 1) / kMostParts, std::int64_t{kKeyBlock}))),
        parts((p.keys + keys - 1) / keys),
        kv_heads(parts == 1 ? 1 : p.kv_heads) {}
  /// The largest number of parts for up to this many keys.
  static std::int64_t most_parts(std::int64_t keys) {
    return std::min(kMostParts, (keys + kLeastKeys - 1) / kLeastKeys);
  }
};

/// Memory for all threads, and for the partial results of all heads. There is room for the largest
/// number of parts that fewer keys can have, because the workspace is planned for a full cache.
template <class T>
struct Workspace {
  Tasks tasks;
  std::int64_t row, bytes_of_thread, bytes;
  T* out;               ///< [B, H, parts, row]
  Softmax<T>* softmax;  ///< [B, H, parts]
  std::byte* threads;

  Workspace(void* memory, const ops::AttentionProblem& p, int thread_count)
      : tasks(p), row(round_up(p.head_width, kLanes<T>)) {
    Carver all(memory), one(nullptr);
    const std::int64_t room = p.batch * p.heads * Tasks::most_parts(p.keys);
    out = all.take<T>(room * row);
    softmax = all.take<Softmax<T>>(room);
    Scratch<T>(one, tasks.kv_heads, p.heads / p.kv_heads, p.head_width);
    bytes_of_thread = one.used();
    threads = all.take<std::byte>(thread_count * bytes_of_thread);
    bytes = all.used();
  }
};

template <class T, class S>
void attend(const ops::AttentionForward& args, const Workspace<T>& w, std::int64_t b,
            std::int64_t first_kv_head, std::int64_t part) {
  const ops::AttentionProblem& p = args.problem;
  const std::int64_t group = p.heads / p.kv_heads, heads = w.tasks.kv_heads * group;
  Carver carver(w.threads + omp_get_thread_num() * w.bytes_of_thread);
  const Scratch<T> scratch(carver, w.tasks.kv_heads, group, p.head_width);
  Heads<T, S>(args, b, first_kv_head, w.tasks.kv_heads, scratch)
      .attend(std::max(first_key(p, b, 0), part * w.tasks.keys),
              std::min(keys_of(p, b), (part + 1) * w.tasks.keys));
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t to = (b * p.heads + first_kv_head * group + h) * w.tasks.parts + part;
    std::copy_n(scratch.out + h * w.row, w.row, w.out + to * w.row);
    w.softmax[to] = scratch.softmax[h];
  }
}

/// Joins the parts of a head in order.
template <class T, class S>
void join(const ops::AttentionForward& args, const Workspace<T>& w, std::int64_t b,
          std::int64_t h) {
  const ops::AttentionProblem& p = args.problem;
  const std::int64_t first = (b * p.heads + h) * w.tasks.parts;
  T* const out = w.out + first * w.row;
  Softmax<T> all = w.softmax[first];
  for (std::int64_t i = first + 1; i < first + w.tasks.parts; ++i) {
    Softmax<T> part = w.softmax[i];
    const T top = std::max(all.most, part.most);
    const T shrink = all.raise(top), factor = part.raise(top);
    all.sum += part.sum;
    for (std::int64_t d = 0; d < w.row; d += kLanes<T>)
      store(out + d, shrink * load(out + d) + factor * load(w.out + i * w.row + d));
  }
  const T inverse = all.sum > 0 ? 1 / all.sum : T(0);
  S* const to = row_of<S>(args.out, p, b, 0, h);
  for (std::int64_t d = 0; d < p.head_width; d += kLanes<T>)
    store_some<T>(to + d, inverse * load(out + d),
                  std::min<std::int64_t>(kLanes<T>, p.head_width - d));
  if (args.log_sum_exp.empty()) return;
  static_cast<T*>(args.log_sum_exp.data)[b * p.heads + h] =
      all.sum > 0 ? all.most * T(kLn2) + std::log(all.sum) : -std::numeric_limits<T>::infinity();
}

template <class T, class S>
void forward(const ops::AttentionForward& args, int threads) {
  const ops::AttentionProblem& p = args.problem;
  const Workspace<T> w(args.workspace.data, p, threads);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for collapse(3) schedule(dynamic)
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t kv_head = 0; kv_head < p.kv_heads; kv_head += w.tasks.kv_heads)
        for (std::int64_t part = 0; part < w.tasks.parts; ++part)
          attend<T, S>(args, w, b, kv_head, part);
#pragma omp for collapse(2)
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.heads; ++h) join<T, S>(args, w, b, h);
  }
}

}  // namespace

bool attention_of_one_query(const ops::AttentionProblem& problem) {
  return problem.queries == 1 && !problem.biased;
}

std::int64_t attention_one_query_simd_bytes(const ops::AttentionProblem& problem, int threads) {
  return with_types(problem.dtype, [&](auto t, auto) {
    return Workspace<decltype(t)>(nullptr, problem, threads).bytes;
  });
}

void attention_one_query_simd(const ops::AttentionForward& args, int threads) {
  with_types(args.problem.dtype,
             [&](auto t, auto s) { forward<decltype(t), decltype(s)>(args, threads); });
}

}  // namespace choir
