// Kernels for relative-position attention; formulas and floors are in
// kernels/relative_attention/relative_attention.hpp. All are memory-bound, and neighbouring threads
// read neighbouring memory. Rows of d_bias have any alignment; unshift nevertheless reads them in
// packs of 16 bytes and shifts two of them into one. 8 elements of bf16 cost 2 loads and 1 store
// where there are keys and 1 store elsewhere (8 and 8 if done one by one); divisions of 32 bits are
// multiplications.

#include "kernels/relative_attention/relative_attention.hpp"

#include <vector>

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/sums/sums.hpp"

namespace choir::cuda {

/// A thread computes both signs of one (distance, pair).
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    relative_positions_kernel(std::int64_t tokens, int half, const float* tables, T* out) {
  follow_earlier();
  const std::int64_t width = 2 * std::int64_t{half};
  for (std::int64_t e = global_thread(); e < tokens * half; e += global_threads()) {
    const std::int64_t p = e / half, c = e % half;
    const float* fine = tables + p % kFinePositions * width;
    const float* coarse = tables + (kFinePositions + p / kFinePositions) * width;
    const float sine = fine[c] * coarse[half + c] + fine[half + c] * coarse[c];
    const float cosine = fine[half + c] * coarse[half + c] - fine[c] * coarse[c];
    T *before = out + (tokens - 1 - p) * width + 2 * c,
      *after = out + (tokens - 1 + p) * width + 2 * c;
    after[0] = from_float<T>(-sine), after[1] = from_float<T>(cosine);
    before[0] = from_float<T>(sine), before[1] = from_float<T>(cosine);
  }
}

template <class T>
struct RelativeQueriesArguments {
  T* rows;
  const T *content, *position;
  T* shifted;
  std::int64_t count, row;    ///< number of rows, and elements between rows
  Divisor per_row, per_head;  ///< packs
  int width;
  float scale;
};

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    relative_queries_kernel(RelativeQueriesArguments<T> a) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const std::int64_t items = a.count * a.per_row.divisor;
  for (std::int64_t e = global_thread(); e < items; e += global_threads()) {
    const auto at = static_cast<std::uint32_t>(e);
    const std::int64_t n = a.per_row.quotient(at), pack = a.per_row.remainder(at);
    const std::int64_t head = a.per_head.quotient(static_cast<std::uint32_t>(pack));
    const std::int64_t inside = a.per_head.remainder(static_cast<std::uint32_t>(pack));
    T* const q = a.rows + n * a.row + pack * kWide;
    float x[kWide], content[kWide], position[kWide];
    Wide::load(q, x);
    Wide::load(a.content + pack * kWide, content);
    Wide::load(a.position + pack * kWide, position);
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      position[k] = (x[k] + position[k]) * a.scale;
      content[k] += x[k];
    }
    Wide::store(a.shifted + (head * a.count + n) * a.width + inside * kWide, position);
    Wide::store(q, content);
  }
}

template <class T>
struct RelativeQueriesBackwardArguments {
  T* d_rows;
  const T* d_shifted;
  float* partials;  ///< per block: stride sums for u, stride for v
  std::int64_t count, row, rows_per_block, stride;
  int heads, width;
  float scale;
};

/// A block of rows per blockIdx.x. A thread owns some columns, so that their sums are in the order
/// of the rows.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    relative_queries_backward_kernel(RelativeQueriesBackwardArguments<T> a) {
  follow_earlier();
  constexpr int kAhead = 8;
  const int all = a.heads * a.width;
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.count);
  float* sums = a.partials + blockIdx.x * 2 * a.stride;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const T* shifted = a.d_shifted + i / a.width * a.count * a.width + i % a.width;
    T* const rows = a.d_rows + i;
    float u = 0, v = 0;
    // Several rows are loaded before the first is written, because the compiler must assume that a
    // store changes the rows that are read next.
    for (std::int64_t n = first; n < last; n += kAhead) {
      float d[kAhead], more[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const std::int64_t at = min(n + k, last - 1);
        d[k] = to_float(rows[at * a.row]), more[k] = to_float(shifted[at * a.width]) * a.scale;
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (n + k >= last) break;
        u += d[k];
        v += more[k];
        rows[(n + k) * a.row] = from_float<T>(d[k] + more[k]);
      }
    }
    sums[i] = u;
    sums[a.stride + i] = v;
  }
}

template <class T>
struct UnshiftArguments {
  const T* d_bias;
  T* d_scores;
  std::int64_t count;  ///< elements of d_bias
  std::uint32_t rows;
  int tokens, width;    ///< columns of d_bias, of d_scores
  Divisor each, batch;  ///< divisors of rows: tokens; samples
  int heads;
};

/// Elements [at, at + kPack<T>) for any `at`, from memory that is aligned to 16 bytes and has
/// `count` elements; elements outside are undefined.
template <class T>
__device__ inline uint4 read_shifted(const T* from, std::int64_t at, std::int64_t count) {
  constexpr int kWide = kPack<T>, kLogWords = 2;
  const std::int64_t below = at & ~std::int64_t{kWide - 1};  // a multiple of kWide, below 0 too
  const auto shift = static_cast<int>(at - below);
  std::uint32_t word[8] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t first = below + half * kWide;
    if (half == 1 && shift == 0) break;
    if (first >= 0 && first + kWide <= count) {
      const uint4 raw = *reinterpret_cast<const uint4*>(from + first);
      word[4 * half] = raw.x, word[4 * half + 1] = raw.y;
      word[4 * half + 2] = raw.z, word[4 * half + 3] = raw.w;
      continue;
    }
    // The last pack of the memory may be partial.
    float x[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      x[i] = first + i >= 0 && first + i < count ? to_float(from[first + i]) : 0.0f;
    const uint4 raw = Access<T, true>::pack(x);
    word[4 * half] = raw.x, word[4 * half + 1] = raw.y;
    word[4 * half + 2] = raw.z, word[4 * half + 3] = raw.w;
  }
  const int words = shift * static_cast<int>(sizeof(T)) / 4;
#pragma unroll
  for (int bit = kLogWords - 1; bit >= 0; --bit) {
    if ((words >> bit) % 2 == 0) continue;
#pragma unroll
    for (int i = 0; i + (1 << bit) < 8; ++i) word[i] = word[i + (1 << bit)];
  }
  if (sizeof(T) == 2 && shift % 2 == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = word[i] >> 16 | word[i + 1] << 16;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

/// A warp per row of scores, in a grid-stride loop; with kPacked rows are aligned to 16 bytes.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads)
    unshift_scores_kernel(UnshiftArguments<T> a) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t step = gridDim.x * (blockDim.x / kWarp);
  for (auto r = static_cast<std::uint32_t>(global_thread() / kWarp); r < a.rows; r += step) {
    const std::uint32_t sequence = a.each.quotient(r), head = a.batch.quotient(sequence);
    const auto i = static_cast<int>(a.each.remainder(r));
    const std::int64_t from =
        ((std::int64_t{a.batch.remainder(sequence)} * a.heads + head) * a.tokens + i) * a.tokens;
    T* const to = a.d_scores + std::int64_t{r} * a.width;
    for (int k = lane * kWide; k < a.width; k += kWarp * kWide) {
      const int j = k + i - (a.tokens - 1);
      typename Wide::Raw raw{};
      if (j > -kWide && j < a.tokens) {
        if constexpr (kPacked) {
          raw = read_shifted<T>(a.d_bias, from + j, a.count);
          if (j < 0 || j + kWide > a.tokens) {
            float x[kWide];
            Wide::unpack(raw, x);
#pragma unroll
            for (int n = 0; n < kWide; ++n)
              if (j + n < 0 || j + n >= a.tokens) x[n] = 0;
            raw = Wide::pack(x);
          }
        } else {
          raw = a.d_bias[from + j];
        }
      }
      Wide::write(to + k, raw);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    mask_scores_kernel(std::int64_t rows, std::int64_t tokens, std::int64_t width,
                       ops::AttentionContext context, T* scores) {
  follow_earlier();
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const std::int64_t i = r % tokens;
    const SeenKeys seen = seen_keys(context, i, tokens);
    T* keys = scores + r * width + (tokens - 1 - i);
    for (std::int64_t j = threadIdx.x; j < tokens; j += blockDim.x)
      if (j < seen.first || j >= seen.end) keys[j] = from_float<T>(-INFINITY);
  }
}

namespace {

/// One block per row, up to a limit.
dim3 row_blocks(std::int64_t rows) {
  constexpr std::int64_t kMost = 1 << 20;
  return dim3(static_cast<unsigned>(rows < kMost ? rows : kMost));
}

}  // namespace

// The tables are computed on the host and copied, once per run. The host waits for the copy.
void relative_position_tables(const Stream& stream, std::int64_t width, const TensorView& tables) {
  with_element(tables.dtype, [&](auto) {
    std::vector<float> host(static_cast<std::size_t>(tables.count()));
    cpu::relative_position_tables(width, {host.data(), DType::f32, tables.shape});
    stream.copy_from_host(tables.data, host.data(), tables.bytes());
    stream.synchronize();
  });
}

void relative_positions(const Stream& stream, const TensorView& tables, const TensorView& out) {
  const std::int64_t tokens = (out.shape[0] + 1) / 2, half = out.shape.back() / 2;
  with_element(out.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "relative_positions", relative_positions_kernel<T>,
           {elementwise_blocks(tokens * half), kElementwiseThreads}, tokens, static_cast<int>(half),
           tables.as<float>(), out.as<T>());
  });
}

void relative_queries(const Stream& stream, const ops::RelativeQueries& args) {
  if (args.shifted.count() == 0) return;
  CHOIR_CHECK(args.shifted.count() <= kMostItems, "{} elements of queries, at most {}",
              args.shifted.count(), kMostItems);
  const std::int64_t heads = args.content.shape[0], width = args.content.shape[1];
  const std::int64_t row = args.rows.shape.back();
  with_element(args.rows.dtype, [&](auto t) {
    using T = decltype(t);
    RelativeQueriesArguments<T> a{args.rows.as<T>(),       args.content.as<T>(),
                                  args.position.as<T>(),   args.shifted.as<T>(),
                                  args.rows.shape.rows(),  row,
                                  Divisor(heads * width),  Divisor(width),
                                  static_cast<int>(width), static_cast<float>(args.scale)};
    const bool packs =
        can_pack<T>(width, a.rows, a.content, a.position, a.shifted) && can_pack<T>(row);
    with_bool(packs, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      constexpr std::int64_t kWide = Access<T, kPacked>::kWide;
      a.per_row = Divisor(heads * width / kWide), a.per_head = Divisor(width / kWide);
      launch(stream, "relative_queries", relative_queries_kernel<T, kPacked>,
             {elementwise_blocks(args.shifted.count() / kWide), kElementwiseThreads}, a);
    });
  });
}

void relative_queries_backward(const Stream& stream, const ops::RelativeQueriesBackward& args) {
  const std::int64_t rows = args.d_rows.shape.rows(), width = args.d_content.count();
  if (rows == 0) return;
  const RelativeQueriesPlan plan(rows, width);
  auto* partials = static_cast<float*>(args.workspace.data);
  with_element(args.d_rows.dtype, [&](auto t) {
    using T = decltype(t);
    launch(
        stream, "relative_queries_backward", relative_queries_backward_kernel<T>,
        {dim3(static_cast<unsigned>(plan.blocks)), kElementwiseThreads},
        RelativeQueriesBackwardArguments<T>{
            args.d_rows.as<T>(), args.d_shifted.as<T>(), partials, rows, args.d_rows.shape.back(),
            plan.rows_per_block, plan.stride, static_cast<int>(args.d_content.shape[0]),
            static_cast<int>(args.d_content.shape[1]), static_cast<float>(args.scale)});
  });
  add_partials(stream, {partials,
                        plan.blocks,
                        2 * plan.stride,
                        plan.stride,
                        width,
                        {args.d_content.as<float>(), args.d_position.as<float>()}});
}

void unshift_scores(const Stream& stream, const TensorView& d_bias, const TensorView& d_scores) {
  if (d_bias.count() == 0) return;
  const std::int64_t rows = d_bias.shape.rows();
  CHOIR_CHECK(rows <= kMostItems, "{} rows of scores, at most {}", rows, kMostItems);
  with_element(d_bias.dtype, [&](auto t) {
    using T = decltype(t);
    const UnshiftArguments<T> a{d_bias.as<T>(),
                                d_scores.as<T>(),
                                d_bias.count(),
                                static_cast<std::uint32_t>(rows),
                                static_cast<int>(d_bias.shape[2]),
                                static_cast<int>(d_scores.shape.back()),
                                Divisor(d_bias.shape[2]),
                                Divisor(d_bias.shape[0]),
                                static_cast<int>(d_bias.shape[1])};
    with_bool(can_pack<T>(a.width, a.d_bias, a.d_scores), [&](auto packed) {
      launch(stream, "unshift_scores", unshift_scores_kernel<T, decltype(packed)::value>,
             {row_blocks(blocks_for(rows, kElementwiseThreads / kWarp)), kElementwiseThreads}, a);
    });
  });
}

void mask_scores(const Stream& stream, const ops::AttentionContext& context,
                 const TensorView& scores) {
  if (scores.count() == 0) return;
  const std::int64_t rows = scores.shape[0] * scores.shape[1];
  with_element(scores.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "mask_scores", mask_scores_kernel<T>, {row_blocks(rows), kElementwiseThreads},
           rows, scores.shape[1], scores.shape[2], context, scores.as<T>());
  });
}

}  // namespace choir::cuda
