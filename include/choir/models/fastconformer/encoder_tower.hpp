#pragma once
// The FastConformer encoder that models of speech share: features, subsampling and blocks, with
// their tables and what they keep of a stream. Its parameters are "encoder.*". All of it is
// collective over the tensor axis as modules are; the pass speaks of the frames (Pass::On).
#include <memory>
#include <string>

#include "choir/models/blocks.hpp"
#include "choir/models/fastconformer/fastconformer_config.hpp"
#include "choir/nn/layers/blocks.hpp"
#include "choir/nn/layers/convolutions.hpp"
#include "choir/nn/stream_state.hpp"
#include "choir/ops/bench_ops.hpp"

namespace choir {

class EncoderTower {
 public:
  /// Registers nothing. `adapter_layers`: further blocks, "adapter.blocks.N", which another model
  /// than the one that the encoder was taught in puts behind it. DeckError for what cannot be
  /// built.
  EncoderTower(const FastConformerConfig& config, ParameterSet& parameters,
               std::int64_t adapter_layers = 0);
  /// Units of the model: `first_unit` features and subsampling, then the blocks.
  void add(int first_unit, const ModelPieces& pieces, TrainedUnits& trained);

  const FastConformerConfig& config() const { return config_; }
  /// What so many utterances, padded to so many samples, add to a ModelFamily::op_shape.
  static ops::SpeechBenchShape op_shape(const FastConformerConfig& config, std::int64_t utterances,
                                        std::int64_t samples);
  std::int64_t adapter_layers() const { return adapter_layers_; }
  int last_unit() const {
    return first_unit_ + static_cast<int>(config_.n_layer + adapter_layers_);
  }

  std::size_t table_bytes(const Precision& precision) const;
  void prepare(Pass& pass, void* memory);

  /// The frames after the subsampling, of the padded audio of the batch (speech_fields).
  Sequence sequence_of(const ModelBatch& batch) const;

  /// What a piece has of the encoder: frames [rows, C], this rank's share of them. Of a stream the
  /// next chunk: see FastConformer::forward.
  Tensor forward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                 Tensor input, const ModelBatch& batch, BucketHooks& hooks);
  /// The gradient of what the piece got; empty where it reads the audio.
  Tensor backward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                  Tensor d_stream, const ModelBatch& batch, BucketHooks& hooks);

  /// One stream (choir/models/fastconformer/speech_windows.hpp) through a whole encoder.
  StreamState make_state(Pass& pass, BucketHooks& hooks, std::int64_t streams) const;

  /// FLOPs of the forward of a micro-batch through the features and the subsampling, and through
  /// one block.
  static double input_flops(const FastConformerConfig& config, const BatchShape& shape);
  static double block_flops(const FastConformerConfig& config, const BatchShape& shape);

 private:
  void add_input(bool resident);
  std::unique_ptr<ConformerBlock> make_block(const std::string& name,
                                             double stochastic_depth) const;

  /// [B, T, F] in the compute type: a function of the batch, without gradient.
  Tensor features(Pass& pass, const ModelBatch& batch) const;
  /// Not `trained`: backward does not reach it.
  Tensor input_layer(Pass& pass, const ModelBatch& batch, bool trained, BucketHooks& hooks);
  /// The frames of the chunk, from audio that begins before it.
  Tensor input_of_chunk(Pass& pass, const ModelBatch& batch, bool trained, BucketHooks& hooks);
  void input_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch,
                      BucketHooks& hooks);
  Tensor positions(Pass& pass) const;

  FastConformerConfig config_;
  ParameterSet* parameters_;
  std::int64_t adapter_layers_;
  int first_unit_ = 0;
  TensorView mel_tables_, position_tables_;
  std::unique_ptr<ConvSubsampling> subsampling_;
  Blocks<ConformerBlock> blocks_;
  int input_bucket_ = -1;
};

}  // namespace choir
