#pragma once
// Arguments of the attention kernels and the visibility rule for every element type; on the host,
// their preparation from the op's arguments, and the choice of head width and path. The instances
// of the 16-bit kernels are compiled in sources of their own, in parallel.

#include <type_traits>

#include "choir/core/tensor.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

/// Variant of a kernel for 16-bit elements. Tiles are limited by registers and a bias needs some,
/// so the common case is compiled without one. `general` loads elements one by one, with or without
/// a bias.
enum class AttentionPath { plain, biased, general };

constexpr int kNoWindow = 1 << 30;

/// The causal or full mask of one sample: query t sees keys max(0, first(t)) .. limit(t) - 1.
struct KeyLimit {
  int keys;    ///< keys that exist in this sample
  int offset;  ///< Tk - Tq
  bool causal;
  int window;                  ///< kNoWindow: none
  const std::int32_t* begins;  ///< start of a position's document; nullptr: no documents
  int last;                    ///< last entry of `begins`, valid for all positions from there on
  int origin;                  ///< the key that counts as 0
  __device__ int operator()(int query) const {
    const int seen = query + offset + 1;
    return causal && seen < keys ? seen : keys;
  }
  /// The first key that the window and the document leave visible; may be below 0.
  __device__ int first(int query) const {
    const int left = query + offset + 1 - window;
    return begins ? max(left, begins[min(query + offset + origin, last)] - origin) : left;
  }
  /// One past the last of the first `queries` queries that sees `key`.
  __device__ int behind(int key, int queries) const {
    int end = max(min(key - offset + window, queries), 0);
    for (int begin = 0; begins && begin < end;) {
      const int middle = (begin + end) / 2;
      if (first(middle) <= key)
        begin = middle + 1;
      else
        end = middle;
    }
    return end;
  }
  /// The same rule with keys counted from `key`.
  __device__ KeyLimit seen_from(int key) const {
    return {keys - key, offset - key, causal, window, begins, last, origin + key};
  }
};

/// Rows of an operand: element (b, t, h, d) is at data + b*batch_stride + t*position_stride +
/// h*width + d.
template <class T>
struct AttentionRows {
  T* data;
  std::int64_t batch_stride, position_stride;
};

/// Coordinates of a block: one tile of queries (or keys) of one head of one sample.
struct AttentionPlace {
  int tile, head, sample;
};

template <class T>
struct AttentionArgs {
  int heads, group, width, queries, keys;  ///< H, H / Hkv, D, Tq, Tk
  bool causal;
  int window;                  ///< kNoWindow: none; otherwise the path is not plain
  const std::int32_t* begins;  ///< [B, positions] or nullptr; otherwise the path is not plain
  int positions;
  bool aligned;  ///< every row of every operand is whole, aligned chunks of 16 bytes
  float scale, scale_log2, unscale;  ///< scale, scale * log2 e, 1 / scale
  /// The soft cap c, and c / scale and its inverse, which are those of raw scores; 0: none.
  /// Otherwise the path is not plain.
  float cap, raw_cap, raw_uncap;
  const std::int32_t* lengths;  ///< [B] or nullptr
  AttentionRows<const T> q, k, v;
  const T* bias;  ///< or nullptr
  std::int64_t bias_batch, bias_head, bias_query;
  bool bias_pairs;  ///< its rows may be read two elements at a time
  // forward
  AttentionRows<T> out;
  float* log_sum_exp;  ///< [B, H, Tq]; forward: or nullptr
  // backward
  AttentionRows<const T> d_out;
  AttentionRows<T> d_q, d_k, d_v;
  T* d_bias;          ///< [B, H, Tq, Tk] or nullptr
  bool d_bias_pairs;  ///< its rows may be written two elements at a time
  float* delta;       ///< [B, H, Tq]: see with_deltas(); the kernel of queries writes it

  __device__ KeyLimit limit(int sample) const {
    int existing = lengths ? lengths[sample] : keys;
    existing = existing < 0 ? 0 : existing > keys ? keys : existing;
    return {existing,
            keys - queries,
            causal,
            window,
            begins ? begins + static_cast<std::int64_t>(sample) * positions : nullptr,
            positions - 1,
            0};
  }
  template <class R>
  __device__ R* row(const AttentionRows<R>& x, int sample, int position, int head) const {
    return x.data + sample * x.batch_stride + position * x.position_stride +
           static_cast<std::int64_t>(head) * width;
  }
  /// Offset of a head's [B, H, Tq] values.
  __device__ std::int64_t statistics(int sample, int head) const {
    return (static_cast<std::int64_t>(sample) * heads + head) * queries;
  }
  /// Bias of query 0 and key 0 of a head.
  __device__ const T* bias_of(int sample, int head) const {
    return bias + sample * bias_batch + head * bias_head;
  }
};

/// This lane's share of the sum over D of d_out * out of one row, of which kLanes neighbouring
/// lanes have a share each. kWhole: every row of both operands is whole, aligned chunks of 16
/// bytes; all their loads are in flight at once.
template <int kWidth, int kLanes, bool kWhole, class T>
__device__ inline float share_of_delta(const AttentionArgs<T>& a, int sample, int head, int t) {
  const T* const x = a.row(a.d_out, sample, t, head);
  const T* const y = a.row(a.out, sample, t, head);
  const int first = static_cast<int>(threadIdx.x) % kLanes * kPack<T>;
  float sum = 0;
  if constexpr (kWhole) {
#pragma unroll
    for (int d = 0; d < kWidth; d += kLanes * kPack<T>) {
      if (first + d >= a.width) continue;
      const Pack<T> left = load_pack(x + first + d), right = load_pack(y + first + d);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sum += left.x[i] * right.x[i];
    }
  } else {
#pragma unroll 1
    for (int d = first; d < a.width; d += kLanes * kPack<T>)
      for (int i = d; i < d + kPack<T> && i < a.width; ++i) sum += to_float(x[i]) * to_float(y[i]);
  }
  return sum;
}

/// Calls f(row, delta) for rows 0 to kRows - 1 of the tile of queries that begins at `query`, each
/// in one lane, with 0 behind the last query; delta is the sum over D of d_out * out, which
/// backward subtracts from dP (it is the row's sum of P times dP). Keeps the deltas for the kernel
/// of keys, which is launched later. The whole block of kThreads takes part.
template <int kRows, int kThreads, int kWidth, bool kWhole, class T, class F>
__device__ inline void with_deltas(const AttentionArgs<T>& a, int sample, int head, int query,
                                   const F& f) {
  constexpr int kLanes = 8, kStep = kThreads / kLanes, kRounds = (kRows + kStep - 1) / kStep;
  static_assert(kRows % (kWarp / kLanes) == 0);  // a warp has rows or none
  const int thread = static_cast<int>(threadIdx.x), first = thread / kLanes;
  float sums[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r)
    sums[r] = share_of_delta<kWidth, kLanes, kWhole>(a, sample, head,
                                                     min(query + first + r * kStep, a.queries - 1));
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int row = first + r * kStep, t = query + row;
    const float sum = warp_reduce<Sum, kLanes>(sums[r]);
    if (thread % kLanes != 0 || row >= kRows) continue;
    if (t < a.queries) a.delta[a.statistics(sample, head) + t] = sum;
    f(row, t < a.queries ? sum : 0.0f);
  }
}

/// Coordinates of this block. Tiles of one head are neighbours, so that its K and V stay in L2; the
/// caller chooses their order.
__device__ inline AttentionPlace attention_place(int tiles, int heads) {
  const int block = static_cast<int>(blockIdx.x), head = block / tiles;
  return {block % tiles, head % heads, head / heads};
}

// These functions are defined and instantiated beside the kernels.
template <class T>
void launch_attention_forward(const Stream& stream, const ops::AttentionProblem& p,
                              const AttentionArgs<T>& a);
template <class T>
void launch_attention_backward_keys(const Stream& stream, const ops::AttentionProblem& p,
                                    const AttentionArgs<T>& a);
template <class T>
void launch_attention_backward_queries(const Stream& stream, const ops::AttentionProblem& p,
                                       const AttentionArgs<T>& a);

/// f(std::integral_constant<int, W>{}) with W the narrowest of kWidths that holds `width`.
template <int kFirst, int... kMore, class F>
void with_head_width(std::int64_t width, const F& f) {
  if (width <= kFirst) return f(std::integral_constant<int, kFirst>{});
  if constexpr (sizeof...(kMore) > 0)
    with_head_width<kMore...>(width, f);
  else
    CHOIR_CHECK(false, "attention kernel for heads {} wide", width);
}

/// f(width, path), both integral constants, for the 16-bit kernel that computes the call.
template <class T, class F>
void with_attention_path(const ops::AttentionProblem& p, const AttentionArgs<T>& a, const F& f) {
  const auto on = [&](auto path) { return [&, path](auto width) { f(width, path); }; };
  using Path = AttentionPath;
  if (!a.aligned)
    with_head_width<32, 64, 128, 256>(p.head_width,
                                      on(std::integral_constant<Path, Path::general>{}));
  else if (a.bias || a.begins || a.window != kNoWindow || a.cap > 0)
    with_head_width<32, 64, 96, 128, 256>(p.head_width,
                                          on(std::integral_constant<Path, Path::biased>{}));
  else
    with_head_width<32, 64, 96, 128, 256>(p.head_width,
                                          on(std::integral_constant<Path, Path::plain>{}));
}

inline dim3 attention_blocks(std::int64_t tiles, std::int64_t heads, std::int64_t batch) {
  const std::int64_t blocks = tiles * heads * batch;
  CHOIR_CHECK(blocks < std::int64_t{1} << 31, "attention in {} blocks", blocks);
  return dim3(static_cast<unsigned>(blocks));
}

template <class T>
bool whole_chunks(const ops::AttentionProblem& p, const ops::AttentionOperand& x) {
  return p.head_width % kPack<T> == 0 && x.batch_stride % kPack<T> == 0 &&
         can_pack<T>(x.position_stride, x.data);
}

template <class T>
bool takes_pairs(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % (2 * sizeof(T)) == 0;
}

/// Arguments common to forward and backward.
template <class T>
AttentionArgs<T> attention_args(const ops::AttentionProblem& p, const ops::AttentionOperand& q,
                                const ops::AttentionOperand& k, const ops::AttentionOperand& v,
                                const ops::AttentionOperand& out, const ops::AttentionBias& bias,
                                const TensorView& log_sum_exp) {
  const auto small = [](std::int64_t n) {
    CHOIR_CHECK(n >= 0 && n < std::int64_t{1} << 30, "attention over {}", n);
    return static_cast<int>(n);
  };
  const auto rows = [](const ops::AttentionOperand& x) {
    return AttentionRows<T>{static_cast<T*>(x.data), x.batch_stride, x.position_stride};
  };
  const auto inputs = [](const ops::AttentionOperand& x) {
    return AttentionRows<const T>{static_cast<const T*>(x.data), x.batch_stride, x.position_stride};
  };
  AttentionArgs<T> a{};
  a.heads = small(p.heads), a.group = small(p.heads / p.kv_heads), a.width = small(p.head_width);
  a.queries = small(p.queries), a.keys = small(p.keys);
  a.causal = p.causal;
  a.window = p.windowed() ? small(p.window) : kNoWindow;
  a.begins = p.divided() ? p.begins : nullptr, a.positions = small(p.positions);
  a.aligned = whole_chunks<T>(p, q) && whole_chunks<T>(p, k) && whole_chunks<T>(p, v) &&
              whole_chunks<T>(p, out);
  a.scale = static_cast<float>(p.scale);
  a.scale_log2 = static_cast<float>(p.scale * 1.44269504088896340736);
  a.unscale = static_cast<float>(1 / p.scale);
  a.cap = static_cast<float>(p.softcap), a.raw_cap = static_cast<float>(p.softcap / p.scale);
  a.raw_uncap = p.softcap > 0 ? static_cast<float>(p.scale / p.softcap) : 0.0f;
  a.lengths = p.lengths;
  a.q = inputs(q), a.k = inputs(k), a.v = inputs(v);
  a.bias = static_cast<const T*>(bias.data);
  a.bias_batch = bias.batch_stride, a.bias_head = bias.head_stride;
  a.bias_query = bias.query_stride;
  a.bias_pairs = takes_pairs<T>(bias.data) && bias.batch_stride % 2 == 0 &&
                 bias.head_stride % 2 == 0 && bias.query_stride % 2 == 0 && p.keys % 2 == 0;
  a.out = rows(out);
  a.log_sum_exp = log_sum_exp.empty() ? nullptr : log_sum_exp.as<float>();
  return a;
}

template <class T>
AttentionArgs<T> attention_args(const ops::AttentionForward& args) {
  return attention_args<T>(args.problem, args.q, args.k, args.v, args.out, args.bias,
                           args.log_sum_exp);
}

template <class T>
AttentionArgs<T> attention_args(const ops::AttentionBackward& args) {
  AttentionArgs<T> a = attention_args<T>(args.problem, args.q, args.k, args.v, args.out, args.bias,
                                         args.log_sum_exp);
  const ops::AttentionProblem& p = args.problem;
  for (const ops::AttentionOperand* x : {&args.d_out, &args.d_q, &args.d_k, &args.d_v})
    a.aligned = a.aligned && whole_chunks<T>(p, *x);
  const auto rows = [](const ops::AttentionOperand& x) {
    return AttentionRows<T>{static_cast<T*>(x.data), x.batch_stride, x.position_stride};
  };
  const AttentionRows<T> d_out = rows(args.d_out);
  a.d_out = {d_out.data, d_out.batch_stride, d_out.position_stride};
  a.d_q = rows(args.d_q), a.d_k = rows(args.d_k), a.d_v = rows(args.d_v);
  a.d_bias = args.d_bias.empty() ? nullptr : args.d_bias.as<T>();
  a.d_bias_pairs = takes_pairs<T>(args.d_bias.data) && p.keys % 2 == 0;
  a.delta = static_cast<float*>(args.workspace.data);
  return a;
}

}  // namespace choir::cuda
