#pragma once
// Stacking of adjacent frames of a clip, so that a language model reads fewer rows of it.
#include <cstdint>

#include "choir/nn/pass.hpp"

namespace choir {

class FrameStack {
 public:
  /// `frames` frames become a row; the last row of a clip is filled up with zeros.
  explicit FrameStack(std::int64_t frames) : frames_(frames) {}

  /// The rows of a sequence of frames.
  Sequence rows_of(const Sequence& frames) const;
  /// Collective over the tensor axis if ranks have shares of the frames: [share, C] of the pass's
  /// sequence with the index `frames` -> [share, stack * C] of `rows`.
  Tensor forward(Pass& pass, const Tensor& share, int frames, int rows) const;
  Tensor backward(Pass& pass, const Tensor& d_share, int frames, int rows) const;

 private:
  std::int64_t frames_;
};

}  // namespace choir
