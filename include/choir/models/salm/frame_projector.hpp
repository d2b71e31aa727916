#pragma once
// Projection of encoder frames to rows of a decoder: a linear layer, and the sum that puts the
// frames of clips into their rows. Like modules, it is collective over the tensor and context axes.
// The layer is whole on every tensor rank: with sequence parallelism each rank projects its share
// of the frames, otherwise all of them. Ranks of the context axis divide the clips: each projects
// the frames of some and receives those of the others. Tensor ranks that encode their own clips do
// the same; their results are combined by the sum over these ranks.
#include <cstdint>
#include <memory>

#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class FrameProjector {
 public:
  /// Registers "projector.weight" [outputs, inputs] and "projector.bias" in their own bucket.
  /// `factor` multiplies the output of the layer. Call it within a ParameterSet::Alone if tensor
  /// ranks have their own clips.
  FrameProjector(ParameterSet& parameters, std::int64_t inputs, std::int64_t outputs, bool resident,
                 double factor = 1);

  /// The position of this tensor rank's frames among those of all clips, on each rank of the
  /// context axis: `rows` frames from first(rank) on.
  struct Places {
    explicit Places(const Pass& pass);
    std::int64_t first(std::int64_t rank) const;
    std::int64_t all() const { return clips * alone * of_clips; }

    std::int64_t clips;     ///< ranks of the context axis
    std::int64_t alone;     ///< tensor ranks with clips of their own, or 1
    std::int64_t of_clips;  ///< frames of a rank's clips
    std::int64_t share, begin,
        rows;          ///< of them on this tensor rank: size with padding, first frame, real frames
    std::int64_t own;  ///< index of this rank among tensor ranks with their own clips
    bool adds;         ///< true if no other tensor rank adds these frames
  };
  struct Projected {
    Tensor frames;  ///< [clips * share, outputs]
    Places places;
    /// terms[r] += frame -1 - index[r], on the rank that has this frame.
    void add(Pass& pass, const TensorView& index, const Tensor& terms) const;
  };

  /// frames [share, inputs]. Here and in backward the current sequence is that of the frames.
  Projected forward(Pass& pass, const Tensor& frames, BucketHooks& hooks);
  /// Returns the gradient of the frames, given that of whole rows [N, outputs].
  Tensor backward(Pass& pass, const TensorView& index, const Tensor& d_rows, BucketHooks& hooks);

 private:
  Tensor frames_of(Pass& pass, const TensorView& index, const Tensor& d_rows) const;
  void multiply(Pass& pass, const Tensor& rows) const;

  std::unique_ptr<Linear> layer_;
  double factor_;
};

}  // namespace choir
