#pragma once
// Helpers shared by forward and backward of the strided convolution on the CPU: weights as lines of
// channels, input frames with zeros for invalid ones, and windows that slide along the frequencies.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/frames.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/strided_conv/strided_conv.hpp"

namespace choir::cpu {

/// Transposes weight [C, 9] to 9 lines of `stride` channels.
template <class T>
void transpose_taps(const T* weight, std::int64_t channels, std::int64_t stride, Sum<T>* lines) {
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t i = 0; i < 9; ++i)
      lines[i * stride + c] = static_cast<Sum<T>>(weight[9 * c + i]);
}

/// One frame [F, C] as its columns; an invalid frame is a column of zeros that is read repeatedly.
template <class T>
struct FrameRow {
  const T* at = nullptr;
  std::int64_t step = 0;
};

template <class T>
inline FrameRow<T> frame_row(const T* sample, std::int64_t frame, std::int64_t frames,
                             std::int64_t size, std::int64_t step) {
  static constexpr T kZeros[kLanes<T>] = {};
  if (frame < 0 || frame >= frames) return {kZeros, 0};
  return {sample + frame * size, step};
}

/// Column `f` of a frame; zeros outside.
template <class T, class Access>
inline Vec<T> column(const FrameRow<T>& row, std::int64_t f, std::int64_t count, std::int64_t c,
                     const Access& access) {
  if (f < 0 || f >= count) return Vec<T>{};
  return access.load(row.step == 0 ? row.at : row.at + f * row.step + c);
}

/// Calls body(f, x) for the outputs f of a row, where x[3 i + j] is the input under tap (i, j), for
/// one vector of channels c. The last column of a window is the first of the next.
template <class T, class Access, class Body>
inline void slide_columns(const FrameRow<T> (&rows)[3], std::int64_t in, std::int64_t out,
                          std::int64_t pad, std::int64_t c, const Access& access,
                          const Body& body) {
  using V = Vec<T>;
  V first[3] = {};  // column -pad
  for (std::int64_t f = 0; f < out; ++f) {
    V x[9];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      x[3 * i] = first[i];
      x[3 * i + 1] = column(rows[i], 2 * f + 1 - pad, in, c, access);
      x[3 * i + 2] = first[i] = column(rows[i], 2 * f + 2 - pad, in, c, access);
    }
    body(f, x);
  }
}

/// The frames under outputs [first, first + kWindow) of one input channel, converted: 3 lines.
template <class T>
struct NarrowWindow {
  static constexpr std::int64_t kOutputs = 64, kColumns = 2 * kOutputs + 1;
  Sum<T> x[3][kColumns];

  NarrowWindow(const T* sample, std::int64_t frames, std::int64_t in, std::int64_t top,
               std::int64_t first, std::int64_t count) {
    const std::int64_t columns = 2 * count + 1, from = first < 0 ? -first : 0,
                       to = first + columns < in ? columns : in - first;
    for (int i = 0; i < 3; ++i) {
      const std::int64_t frame = top + i;
      Sum<T>* const line = x[i];
      if (frame < 0 || frame >= frames) {
        std::fill(line, line + columns, Sum<T>(0));
        continue;
      }
      std::fill(line, line + from, Sum<T>(0));
      for_vectors<T>(from, to, [&](std::int64_t k, auto access) {
        access.store(line + k, access.load(sample + frame * in + first + k));
      });
      std::fill(line + to, line + columns, Sum<T>(0));
    }
  }
};

}  // namespace choir::cpu
