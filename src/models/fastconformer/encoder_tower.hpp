#pragma once
// The FastConformer encoder that speech models share: features, subsampling and blocks, with their
// tables and their stream state. Its parameters are "encoder.*". Like modules, it is collective
// over the tensor axis; the current sequence of the pass is that of the frames (Pass::On).
#include <memory>
#include <string>

#include "choir/models/blocks.hpp"
#include "choir/nn/stream_state.hpp"
#include "kernels/bench/bench_table.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "src/nn/layers/blocks.hpp"
#include "src/nn/layers/convolutions.hpp"

namespace choir {

class EncoderTower {
 public:
  /// Registers nothing. `adapter_layers`: further blocks, "adapter.blocks.N", that another model
  /// appends to a pretrained encoder. DeckError for invalid configurations.
  EncoderTower(const FastConformerConfig& config, ParameterSet& parameters,
               std::int64_t adapter_layers = 0);
  /// Adds the units of the model: `first_unit` has features and subsampling, then follow the
  /// blocks.
  void add(int first_unit, const ModelPieces& pieces, TrainedUnits& trained);

  const FastConformerConfig& config() const { return config_; }
  /// The part of ModelFamily::op_shape for utterances padded to a number of samples.
  static ops::SpeechBenchShape op_shape(const FastConformerConfig& config, std::int64_t utterances,
                                        std::int64_t samples);
  std::int64_t adapter_layers() const { return adapter_layers_; }
  int last_unit() const {
    return first_unit_ + static_cast<int>(config_.n_layer + adapter_layers_);
  }

  std::size_t table_bytes(const Precision& precision) const;
  void prepare(Pass& pass, void* memory);

  /// The frames after the subsampling of the padded audio of the batch (speech_fields).
  Sequence sequence_of(const ModelBatch& batch) const;

  /// Runs the encoder's part of a piece and returns this rank's share of the frames [rows, C]. In a
  /// stream these are the frames of the next chunk: see FastConformer::forward.
  Tensor forward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                 Tensor input, const ModelBatch& batch);
  /// Returns the gradient of the piece's input; empty if the piece reads the audio.
  Tensor backward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                  Tensor d_stream, const ModelBatch& batch);

  /// The state of one stream (src/models/fastconformer/speech_windows.hpp) through a whole
  /// encoder.
  StreamState make_state(Pass& pass, std::int64_t streams) const;

  /// FLOPs of the forward of a micro-batch through features and subsampling, and through one block.
  static double input_flops(const FastConformerConfig& config, const BatchShape& shape);
  static double block_flops(const FastConformerConfig& config, const BatchShape& shape);

 private:
  void add_input(bool resident);
  std::unique_ptr<ConformerBlock> make_block(const std::string& name,
                                             double stochastic_depth) const;

  /// [B, T, F] in the compute type; they depend on the batch alone and have no gradient.
  Tensor features(Pass& pass, const ModelBatch& batch) const;
  /// `trained` is false if backward does not reach it.
  Tensor input_layer(Pass& pass, const ModelBatch& batch, bool trained);
  /// The frames of a chunk, computed from audio that begins before it.
  Tensor input_of_chunk(Pass& pass, const ModelBatch& batch, bool trained);
  void input_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch);
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
