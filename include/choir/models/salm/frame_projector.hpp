#pragma once
// Frames of an encoder as rows of a decoder: a linear layer, and the sum that puts the frames of
// clips into the rows that are to hear them. Collective over the tensor and context axes as modules
// are. Over the tensor axis the layer is whole: with sequence parallelism each rank projects its
// share of the frames, otherwise all of them. Ranks of the context axis share the clips: each
// projects the frames of some of them, and gets those of the others. So do ranks of the tensor axis
// where each encodes clips of its own; what they make meets in the sum over them.
#include <cstdint>
#include <memory>

#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class FrameProjector {
 public:
  /// Registers "projector.weight" [outputs, inputs] and "projector.bias" in a bucket of their own.
  /// `factor`: of what the layer gives. Within a ParameterSet::Alone where tensor ranks have clips
  /// of their own.
  FrameProjector(ParameterSet& parameters, std::int64_t inputs, std::int64_t outputs, bool resident,
                 double factor = 1);

  /// Where the frames of this tensor rank are among those of all clips, on each rank of the context
  /// axis: `rows` of them from first(c) on.
  struct Places {
    explicit Places(const Pass& pass);
    std::int64_t first(std::int64_t rank) const;
    std::int64_t all() const { return clips * alone * of_clips; }

    std::int64_t clips;               ///< ranks of the context axis
    std::int64_t alone;               ///< tensor ranks with clips of their own, or 1
    std::int64_t of_clips;            ///< frames of a rank's clips
    std::int64_t share, begin, rows;  ///< of them on this tensor rank; those that are
    std::int64_t own;                 ///< which of those with clips of their own this one is
    bool adds;                        ///< no other tensor rank has these frames to add
  };
  struct Projected {
    Tensor frames;  ///< [clips * share, outputs]
    Places places;
    /// terms[r] += the frame that index[r] = -1 - frame names, on the rank that has it.
    void add(Pass& pass, const TensorView& index, const Tensor& terms) const;
  };

  /// frames [share, inputs]. Here and in backward the pass speaks of the frames.
  Projected forward(Pass& pass, const Tensor& frames, BucketHooks& hooks);
  /// The gradient of whole rows [N, outputs] -> that of the frames.
  Tensor backward(Pass& pass, const TensorView& index, const Tensor& d_rows, BucketHooks& hooks);

 private:
  Tensor frames_of(Pass& pass, const TensorView& index, const Tensor& d_rows) const;
  void multiply(Pass& pass, const Tensor& rows) const;

  std::unique_ptr<Linear> layer_;
  double factor_;
};

}  // namespace choir
