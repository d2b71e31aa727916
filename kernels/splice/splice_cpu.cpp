#include <cstring>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/splice/splice.hpp"

namespace choir::cpu {

template <class T>
void splice_forward(const ops::SpliceForward& args) {
  const std::int64_t width = args.out.shape.back(), audio_rows = args.audio.shape.rows();
  const auto* index = static_cast<const std::int32_t*>(args.index.data);
  const auto* audio = static_cast<const T*>(args.audio.data);
  auto* out = static_cast<T*>(args.out.data);
  parallel_ranges(args.index.count(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t a = -1 - std::int64_t{index[r]} - args.first_audio;
      if (index[r] >= 0 || a < 0 || a >= audio_rows) continue;
      const T* x = audio + a * width;
      T* y = out + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        access.store(y + c, access.load(y + c) + access.load(x + c));
      });
    }
  });
}

template <class T>
void splice_backward(const ops::SpliceBackward& args) {
  const std::int64_t width = args.d_out.shape.back(), audio_rows = args.d_audio.shape.rows();
  const auto* index = static_cast<const std::int32_t*>(args.index.data);
  const auto* d_out = static_cast<const T*>(args.d_out.data);
  auto* d_audio = static_cast<T*>(args.d_audio.data);
  parallel_ranges(args.index.count(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t a = -1 - std::int64_t{index[r]} - args.first_audio;
      if (index[r] >= 0 || a < 0 || a >= audio_rows) continue;
      std::memcpy(static_cast<void*>(d_audio + a * width), d_out + r * width,
                  static_cast<std::size_t>(width) * sizeof(T));
    }
  });
}

#define CHOIR_INSTANTIATE(T)                                  \
  template void splice_forward<T>(const ops::SpliceForward&); \
  template void splice_backward<T>(const ops::SpliceBackward&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
