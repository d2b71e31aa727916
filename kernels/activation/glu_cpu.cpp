// The CPU twin of the gated linear unit. It is a source of its own because GCC decides by the rest
// of a source which products it fuses with additions: beside the activations it decided differently
// for the copies of a loop that run on one thread and on several, and the bits depended on the
// threads.
#include <cstring>

#include "kernels/activation/activation.hpp"
#include "kernels/cpu/frames.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"

namespace choir::cpu {
namespace {

constexpr std::int64_t kCost = 4;  // work in units of a copy

bool counts(const std::int32_t* lengths, std::int64_t tokens, std::int64_t row) {
  return lengths == nullptr || row % tokens < frames_of(lengths, row / tokens, tokens);
}

void clear(void* row, std::int64_t bytes) {
  std::memset(row, 0, static_cast<std::size_t>(bytes));
}

}  // namespace

template <class T>
void glu_forward(const TensorView& x_view, const TensorView& y_view, const std::int32_t* lengths,
                 std::int64_t tokens) {
  const std::int64_t width = y_view.shape.back(), rows = y_view.shape.rows();
  const auto* x = static_cast<const T*>(x_view.data);
  auto* y = static_cast<T*>(y_view.data);
  parallel_ranges(rows, width * kCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* value = x + r * 2 * width;
      T* out = y + r * width;
      if (!counts(lengths, tokens, r)) {
        clear(out, width * static_cast<std::int64_t>(sizeof(T)));
        continue;
      }
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> gate = access.load(value + width + c);
        access.store(out + c, access.load(value + c) * logistic_for<T>(gate).below);
      });
    }
  });
}

template <class T>
void glu_backward(const TensorView& x_view, const TensorView& d_y_view, const TensorView& d_x_view,
                  const std::int32_t* lengths, std::int64_t tokens) {
  const std::int64_t width = d_y_view.shape.back(), rows = d_y_view.shape.rows();
  const auto *x = static_cast<const T*>(x_view.data), *d_y = static_cast<const T*>(d_y_view.data);
  auto* d_x = static_cast<T*>(d_x_view.data);
  parallel_ranges(rows, width * kCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T *value = x + r * 2 * width, *in = d_y + r * width;
      T* out = d_x + r * 2 * width;
      if (!counts(lengths, tokens, r)) {
        clear(out, 2 * width * static_cast<std::int64_t>(sizeof(T)));
        continue;
      }
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(in + c), a = access.load(value + c);
        const auto gate = logistic_for<T>(access.load(value + width + c));
        access.store(out + c, g * gate.below);
        access.store(out + width + c, g * a * gate.density);
      });
    }
  });
}

void mask_frames(const TensorView& x, const std::int32_t* lengths, std::int64_t tokens) {
  const std::int64_t samples = x.shape.rows() / tokens;
  const std::int64_t row = x.shape.back() * static_cast<std::int64_t>(size_of(x.dtype));
  for (std::int64_t b = 0; b < samples; ++b) {
    const std::int64_t frames = frames_of(lengths, b, tokens);
    if (frames == tokens) continue;
    clear(static_cast<char*>(x.data) + (b * tokens + frames) * row, (tokens - frames) * row);
  }
}

#define CHOIR_INSTANTIATE(T)                                                              \
  template void glu_forward<T>(const TensorView&, const TensorView&, const std::int32_t*, \
                               std::int64_t);                                             \
  template void glu_backward<T>(const TensorView&, const TensorView&, const TensorView&,  \
                                const std::int32_t*, std::int64_t);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
