#pragma once
// Common base of models with an encoder before a decoder.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/models/fastconformer/encoder_tower.hpp"
#include "choir/models/gpt/decoder_tower.hpp"
#include "choir/models/model.hpp"
#include "choir/models/salm/frame_projector.hpp"
#include "choir/models/salm/salm_config.hpp"

namespace choir {

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
  Tensor backward(Pass& pass, int piece, Tensor d_output, const ModelBatch& batch,
                  BucketHooks& hooks) override;
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
                                const ModelBatch& batch, BucketHooks& hooks);

  EncoderTower encoder_;
  DecoderTower decoder_;
  std::unique_ptr<FrameProjector> projector_;

 private:
  bool clips_alone_;
  /// Returns the rows that the decoder's blocks read.
  virtual Tensor join(Pass& pass, const Tensor& frames, const ModelBatch& batch,
                      BucketHooks& hooks) = 0;
  /// Returns the gradient of the frames, given that of all rows of the embedding.
  virtual Tensor join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch,
                               BucketHooks& hooks) = 0;
  Tensor junction_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch,
                           BucketHooks& hooks);
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
