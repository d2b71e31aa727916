#pragma once
// The FastConformer encoder with a CTC head (src/models/fastconformer/fastconformer_config.hpp),
// from audio to losses of utterances. Units: 0 features and subsampling, 1 ... L the blocks, L + 1
// the head.
#include <memory>
#include <string>

#include "choir/models/model.hpp"
#include "choir/nn/layers/linear.hpp"
#include "src/models/fastconformer/encoder_tower.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"

namespace choir {

/// An utterance depends neither on its padding nor, except for rounding, on the others of its
/// batch: frames of padding are zeros before every convolution and masked in attention, and random
/// numbers are functions of (seed, sample id, frame, channel). Batch normalisation (conv_norm)
/// couples the utterances of a micro-batch, only in training.
///
/// Blocks are divided over the tensor axis; the input layer and the head are whole on every rank
/// and compute the same everywhere. Under sequence parallelism the stream holds a share of the rows
/// of all frames [B*T'].
class FastConformer final : public Model {
 public:
  /// Buckets: "encoder.subsampling", one per block "encoder.blocks.N", "head". Initialisation:
  /// normal weights with the deviation of PyTorch's uniform default, 1/sqrt(3 inputs), and for the
  /// head with that of Xavier's, sqrt(2 / (C + V + 1)); biases, u and v 0, norms 1. DeckError for
  /// invalid configurations.
  FastConformer(const FastConformerConfig& config, ParameterSet& parameters,
                const ModelCut& cut = {});

  const FastConformerConfig& config() const { return encoder_.config(); }

  std::size_t table_bytes(const Precision& precision) const override {
    return encoder_.table_bytes(precision);
  }
  void prepare(Pass& pass, void* memory) override;

  /// Rows are the frames of the padded audio after the subsampling.
  Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const override;
  Shape boundary_shape(const Pass& pass, int /*unit*/) const override {
    return {pass.share_rows(), config().n_embd};
  }

  /// With the head: losses [B]; in Mode::generate logits [B*T', V + 1], whole on every rank of the
  /// tensor axis, where those of padding are undefined. In a stream the pass covers the frames of
  /// the next chunk, and the audio begins SpeechChunks::overlap frames before it, or with the
  /// stream; the logits equal those of the whole stream except for rounding.
  Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch) override;
  Tensor backward(Pass& pass, int piece, Tensor d_output, const ModelBatch& batch) override;

  /// The state of one stream (src/models/fastconformer/speech_windows.hpp) through a whole model.
  StreamState make_state(Pass& pass, std::int64_t streams) const override;

  std::string describe() const override;
  double flops(const BatchShape& shape) const override;
  /// FLOPs of the forward of one micro-batch, by which units are assigned to stages.
  static UnitCosts unit_costs(const FastConformerConfig& config, const BatchShape& shape);

 private:
  void add_head(bool resident);
  // If the whole model is one piece, backward directly follows forward: the weights of the head are
  // not released in between.
  bool keeps_head(const Pass& pass) const {
    return pass.training() && pieces_.whole() && pieces() == 1;
  }
  Tensor head(Pass& pass, const Tensor& stream, const ModelBatch& batch);
  Tensor head_backward(Pass& pass);

  EncoderTower encoder_;
  std::unique_ptr<Linear> head_;
};

}  // namespace choir
