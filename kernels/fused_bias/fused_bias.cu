// Gradients with the sums of a bias on the GPU. A warp takes 32 packs of columns of a row; the
// warps of a block take rows in turn, and every thread keeps the sums of its columns in registers.
// The partition of rows is that of bias_gradient() (kernels/sums/sums.hpp), and so are the order of
// additions, the partial sums and their second stage. 5525 x 2048 elements of 16 bits, a
// feed-forward layer of FastConformer L, are 68 MB: 16 us at 4.3 TB/s, in place of 16 us and
// another 7 us of sums.

#include "kernels/fused_bias/fused_bias.hpp"

#include "kernels/activation/activation_math.cuh"
#include "kernels/cpu/frames.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/dropout/dropout.cuh"

namespace choir::cuda {

constexpr int kFusedWarps = 8, kFusedThreads = kFusedWarps * kWarp;

// A gradient of rows has kInputs packs to read and kParts packs to write per row and thread.

template <class T, class F>
struct ActivationRows {
  static constexpr int kInputs = 2, kParts = 1, kUnroll = 2;
  using Wide = Access<T, true>;
  const T *x, *d_y;
  T* d_x;
  std::int64_t width;

  __device__ void read(std::int64_t row, std::int64_t c, typename Wide::Raw (&raw)[2]) const {
    raw[0] = Wide::read(x + row * width + c), raw[1] = Wide::read(d_y + row * width + c);
  }
  __device__ void compute(std::int64_t, std::int64_t, const typename Wide::Raw (&raw)[2],
                          float (&out)[1][Wide::kWide]) const {
    float in[Wide::kWide], d[Wide::kWide];
    Wide::unpack(raw[0], in), Wide::unpack(raw[1], d);
#pragma unroll
    for (int i = 0; i < Wide::kWide; ++i) out[0][i] = d[i] * F::slope(in[i]);
  }
  __device__ T* to(std::int64_t row, std::int64_t c, int) const {
    return d_x + row * width + c;
  }
};

/// Rows of x and d_x are [value | gate], each `width` columns wide.
template <class T>
struct GateRows {
  static constexpr int kInputs = 3, kParts = 2, kUnroll = 1;
  using Wide = Access<T, true>;
  const T *x, *d_y;
  T* d_x;
  std::int64_t width;
  const std::int32_t* lengths;  ///< may be nullptr
  Divisor tokens;

  __device__ bool counts(std::int64_t row) const {
    const auto r = static_cast<std::uint32_t>(row);
    return lengths == nullptr ||
           tokens.remainder(r) < frames_of(lengths, tokens.quotient(r), tokens.divisor);
  }
  __device__ void read(std::int64_t row, std::int64_t c, typename Wide::Raw (&raw)[3]) const {
    if (!counts(row)) return;
    raw[0] = Wide::read(x + row * 2 * width + c),
    raw[1] = Wide::read(x + (row * 2 + 1) * width + c);
    raw[2] = Wide::read(d_y + row * width + c);
  }
  __device__ void compute(std::int64_t, std::int64_t, const typename Wide::Raw (&raw)[3],
                          float (&out)[2][Wide::kWide]) const {
    float d[Wide::kWide];  // a masked row has zeros, so its gradient is 0
    Wide::unpack(raw[0], out[0]), Wide::unpack(raw[1], out[1]), Wide::unpack(raw[2], d);
#pragma unroll
    for (int i = 0; i < Wide::kWide; ++i) {
      const BelowAndDensity s = logistic<MathFor<T>>(out[1][i]);
      out[1][i] = d[i] * out[0][i] * s.density;
      out[0][i] = d[i] * s.below;
    }
  }
  __device__ T* to(std::int64_t row, std::int64_t c, int part) const {
    return d_x + (row * 2 + part) * width + c;
  }
};

template <class T>
struct DroppedRows {
  static constexpr int kInputs = 1, kParts = 1, kUnroll = 2;
  using Wide = Access<T, true>;
  DropoutArguments<T> a;
  std::int64_t width;

  __device__ void read(std::int64_t row, std::int64_t c, typename Wide::Raw (&raw)[1]) const {
    raw[0] = Wide::read(a.in + row * width + c);
  }
  __device__ void compute(std::int64_t row, std::int64_t c, const typename Wide::Raw (&raw)[1],
                          float (&out)[1][Wide::kWide]) const {
    Wide::unpack(raw[0], out[0]);
    drop(a, first_sample_of(a), static_cast<std::uint32_t>(row), static_cast<int>(c), out[0]);
  }
  __device__ T* to(std::int64_t row, std::int64_t c, int) const { return a.out + row * width + c; }
};

/// Writes the gradients of rows and the partial sums of their columns. `width` is that of a part.
template <class Rows>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kFusedThreads)
    gradient_with_sums_kernel(Rows a, std::int64_t rows, std::int64_t rows_per_block,
                              std::int64_t width, std::int64_t stride, float* partials) {
  follow_earlier();
  using Wide = typename Rows::Wide;
  constexpr int kWide = Wide::kWide, kTile = kWarp * kWide, kUnroll = Rows::kUnroll;
  constexpr int kParts = Rows::kParts;
  CHOIR_SHARED_ARRAY(float, sums, kFusedWarps* kParts* kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile, c = tile + lane * kWide;
  const std::int64_t first = blockIdx.y * rows_per_block;
  const std::int64_t last = min(first + rows_per_block, rows);
  float sum[kParts][kWide] = {};
  for (std::int64_t r = first + warp; c < width && r < last; r += kUnroll * kFusedWarps) {
    typename Wide::Raw raw[kUnroll][Rows::kInputs] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (r + u * kFusedWarps < last) a.read(r + u * kFusedWarps, c, raw[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t row = r + u * kFusedWarps;
      if (row >= last) break;
      float out[kParts][kWide];
      a.compute(row, c, raw[u], out);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const typename Wide::Raw stored = Wide::pack(out[p]);
        Wide::write(a.to(row, c, p), stored);
        Wide::unpack(stored, out[p]);
#pragma unroll
        for (int i = 0; i < kWide; ++i) sum[p][i] += out[p][i];
      }
    }
  }
  // Stored value by value, so that neighbouring lanes use neighbouring banks.
#pragma unroll
  for (int p = 0; p < kParts; ++p)
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      sums[((warp * kParts + p) * kWide + i) * kWarp + lane] = sum[p][i];
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kParts * kTile; t += kFusedThreads) {
    const int value = t % kTile;  // value / 32 of lane value % 32
    const std::int64_t column = tile + value % kWarp * kWide + value / kWarp;
    float total = sums[t];
#pragma unroll
    for (int w = 1; w < kFusedWarps; ++w) total += sums[w * kParts * kTile + t];
    if (column < width) partials[blockIdx.y * stride + t / kTile * width + column] = total;
  }
}

namespace {

template <class T, class Rows>
void run(const Stream& stream, const char* name, const Rows& work, const TensorView& gradient,
         const ops::BiasSums& bias) {
  const std::int64_t rows = gradient.shape.rows(), all = gradient.shape.back();
  const std::int64_t width = all / Rows::kParts;
  const BiasGradientPlan plan(rows, all);
  auto* partials = static_cast<float*>(bias.workspace.data);
  launch(stream, name, gradient_with_sums_kernel<Rows>,
         {dim3(static_cast<unsigned>(blocks_for(width, kWarp * kPack<T>)),
               static_cast<unsigned>(plan.blocks)),
          kFusedThreads},
         work, rows, plan.rows_per_block, width, plan.stride, partials);
  add_partials(stream,
               {partials, plan.blocks, plan.stride, 0, all, {bias.d_bias.as<float>(), nullptr}});
}

/// Calls f(T{}) and returns true if rows of `width` elements can be read in packs at each of these
/// addresses, and 32 bits can count the rows.
template <class F, class... P>
bool in_packs(const TensorView& gradient, std::int64_t width, const F& f, const P*... pointers) {
  bool done = false;
  with_element(gradient.dtype, [&](auto t) {
    using T = decltype(t);
    done = gradient.shape.rows() <= kMostItems && can_pack<T>(width, pointers...);
    if (done) f(t);
  });
  return done;
}

}  // namespace

bool activation_backward(const Stream& stream, ops::Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x, const ops::BiasSums& bias) {
  const std::int64_t width = d_x.shape.back();
  return in_packs(
      d_x, width,
      [&](auto t) {
        using T = decltype(t);
        with_function<T>(kind, [&](auto f) {
          run<T>(stream, "activation_backward+bias",
                 ActivationRows<T, decltype(f)>{x.as<T>(), d_y.as<T>(), d_x.as<T>(), width}, d_x,
                 bias);
        });
      },
      static_cast<const std::byte*>(x.data), static_cast<const std::byte*>(d_y.data),
      static_cast<const std::byte*>(d_x.data));
}

bool glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths, std::int64_t tokens,
                  const ops::BiasSums& bias) {
  const std::int64_t width = d_y.shape.back();
  return in_packs(
      d_x, width,
      [&](auto t) {
        using T = decltype(t);
        run<T>(stream, "glu_backward+bias",
               GateRows<T>{x.as<T>(), d_y.as<T>(), d_x.as<T>(), width, lengths, Divisor(tokens)},
               d_x, bias);
      },
      static_cast<const std::byte*>(x.data), static_cast<const std::byte*>(d_y.data),
      static_cast<const std::byte*>(d_x.data));
}

bool dropout(const Stream& stream, const ops::Dropout& args, const ops::BiasSums& bias) {
  const std::int64_t rows = args.in.shape.rows(), width = args.in.shape.back();
  return in_packs(
      args.out, width,
      [&](auto t) {
        using T = decltype(t);
        run<T>(stream, "dropout+bias",
               DroppedRows<T>{dropout_arguments<T>(args, 0, rows, 1), width}, args.out, bias);
      },
      static_cast<const std::byte*>(args.in.data), static_cast<const std::byte*>(args.out.data));
}

}  // namespace choir::cuda
