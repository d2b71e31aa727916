#pragma once
// Models with an encoder of frames before a decoder of rows: stacking of adjacent frames, their
// projection to rows of the decoder, and the common base of such models. The projector is a linear
// layer, and the sum that puts the frames of clips into their rows. Like modules, it is collective
// over the tensor and context axes. The layer is whole on every tensor rank: with sequence
// parallelism each rank projects its share of the frames, otherwise all of them. Ranks of the
// context axis divide the clips: each projects the frames of some and receives those of the others.
// Tensor ranks that encode their own clips do the same; their results are combined by the sum over
// these ranks.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/models/model.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "src/models/fastconformer/encoder_tower.hpp"
#include "src/models/gpt/decoder_tower.hpp"
#include "src/models/salm/salm_config.hpp"

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
  Projected forward(Pass& pass, const Tensor& frames);
  /// Returns the gradient of the frames, given that of whole rows [N, outputs].
  Tensor backward(Pass& pass, const TensorView& index, const Tensor& d_rows);

 private:
  Tensor frames_of(Pass& pass, const TensorView& index, const Tensor& d_rows) const;
  void multiply(Pass& pass, const Tensor& rows) const;

  std::unique_ptr<Linear> layer_;
  double factor_;
};

/// A model with an encoder of frames and a decoder of rows, which join in one unit. A pass has two
/// sequences: the rows, and the frames of audio if the batch has any. The derived class registers
/// the parts.
class TwoTowers : public Model {
 public:
  std::size_t table_bytes(const Precision& precision) const override;
  void prepare(Pass& pass, void* memory) override;
  bool divides_rows() const override { return clips_alone_; }
  /// Adds the frames of the audio, if the batch has any.
  void add_sequences(Pass& pass, const ModelBatch& batch) const override;
  Shape boundary_shape(const Pass& pass, int unit) const override;
  Tensor backward(Pass& pass, int piece, Tensor d_output, const ModelBatch& batch) override;
  std::string describe() const override;
  std::vector<std::pair<std::string, std::int64_t>> further_counts() const override;

 protected:
  static constexpr int kFrames = 1;  ///< index of the second sequence

  struct Parts {
    const FastConformerConfig& encoder;
    const GptConfig& lm;
    Recompute recompute;              ///< in the blocks of both towers
    std::int64_t adapter_layers = 0;  ///< see EncoderTower
    /// Each rank of the tensor axis encodes its own clips: the derived class then registers the
    /// parts that read frames within a ParameterSet::Alone.
    bool clips_alone = false;
  };
  /// The derived class sets in `options` what only it can decide.
  TwoTowers(const Parts& parts, ParameterSet& parameters, const ModelCut& cut,
            const DecoderTower::Options& options);

  int junction() const { return encoder_.last_unit() + 1; }
  /// Continues after the encoder: from the frames if the piece has the junction, else from the
  /// input of the piece.
  Tensor forward_behind_encoder(Pass& pass, const ModelPieces::Piece& here, Tensor stream,
                                const ModelBatch& batch);

  EncoderTower encoder_;
  DecoderTower decoder_;
  std::unique_ptr<FrameProjector> projector_;

 private:
  bool clips_alone_;
  /// Returns the rows that the decoder's blocks read.
  virtual Tensor join(Pass& pass, const Tensor& frames, const ModelBatch& batch) = 0;
  /// Returns the gradient of the frames, given that of all rows of the embedding.
  virtual Tensor join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch) = 0;
  Tensor junction_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch);
};

/// The number of elements in the parameters whose names begin with `prefix`.
std::int64_t parameters_of(const ParameterSet& parameters, std::string_view prefix);

/// FLOPs of the forward of one micro-batch with this number of audio clips, for each unit: features
/// and subsampling, the blocks of encoder and adapter, the junction with its projector, the
/// decoder's blocks, the head.
UnitCosts two_tower_costs(const FastConformerConfig& encoder, const GptConfig& lm,
                          const BatchShape& shape, std::int64_t clips,
                          std::int64_t adapter_layers = 0);

/// Moves the problems that a tower reports about itself ("model.n_head = 3 ...") to the section
/// that it is in.
std::vector<KeyProblem> within(const std::string& section, std::vector<KeyProblem> problems);

}  // namespace choir
