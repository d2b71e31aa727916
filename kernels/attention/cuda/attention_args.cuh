#pragma once
// Arguments of the attention kernels and the visibility rule, for every element type.
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
  const std::int32_t* lengths;       ///< [B] or nullptr
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
  float* delta;       ///< [B, H, Tq]: sum over D of d_out * out

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

/// Coordinates of this block. Tiles of one head are neighbours, so that its K and V stay in L2; the
/// caller chooses their order.
__device__ inline AttentionPlace attention_place(int tiles, int heads) {
  const int block = static_cast<int>(blockIdx.x), head = block / tiles;
  return {block % tiles, head % heads, head / heads};
}

}  // namespace choir::cuda
