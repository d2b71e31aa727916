#pragma once
// A decoder-only transformer language model: embedding, blocks, final norm, head, loss.
#include <string>
#include <vector>

#include "choir/models/model.hpp"
#include "src/models/gpt/decoder_tower.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

class Gpt final : public Model {
 public:
  /// Describes all parameters and registers those of this rank. Buckets: token embedding, learned
  /// positions, one per block (and one for each tile of its feed-forward layer), final norm, and
  /// the head if it has its own weight. Initialised as in nanoGPT: normal(0, 0.02), residual
  /// outputs 0.02/sqrt(2 L), norms 1, biases 0.
  ///
  /// If weights are tied and the head is on another rank than the embedding, or separate, then
  /// "head.weight" is a copy (Parameter::tied_to) of "embedding.tokens.weight" in a bucket of the
  /// same layout. Both gradients are parts of one and are added after their reduction over data
  /// ranks.
  Gpt(const GptConfig& config, ParameterSet& parameters, const ModelCut& cut = {});

  const GptConfig& config() const { return decoder_.config(); }

  /// Rotary angles, with Position::rope.
  std::size_t table_bytes(const Precision& precision) const override {
    return decoder_.table_bytes(precision);
  }
  void prepare(Pass& pass, void* memory) override;

  Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const override;
  Shape boundary_shape(const Pass& pass, int /*unit*/) const override {
    return {pass.share_rows(), config().n_embd};
  }

  /// The piece with the embedding reads the inputs of the batch, and the piece with the head its
  /// targets, in training and evaluation: losses are per token [B*T]. When generating, the result
  /// is the logits of the last position [B, V'], where columns beyond the vocabulary are padding.
  Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch) override;
  Tensor backward(Pass& pass, int piece, Tensor d_output, const ModelBatch& batch) override;

  /// Run all pieces, if this rank has the whole model. Training and evaluation: ids and targets
  /// [B*T] -> per-token losses [B*T].
  Tensor loss(Pass& pass, const TensorView& ids, const TensorView& targets, double scale,
              const double* device_scale = nullptr);
  void backward(Pass& pass, const TensorView& ids);
  /// Generation: ids [B*T] -> logits of the last position.
  Tensor next_logits(Pass& pass, const TensorView& ids);

  /// A stream has at most block_size positions.
  StreamState make_state(Pass& pass, std::int64_t streams) const override;

  std::string describe() const override;
  std::vector<std::pair<std::string, std::int64_t>> further_counts() const override {
    return {{"without positions", parameters_without_positions()}};
  }
  /// N of the MFU formula: all parameters except the position embedding (nanoGPT's convention).
  std::int64_t parameters_without_positions() const;
  /// FLOPs of forward and backward per token: 6 N + 12 L H Q T (PaLM, nanoGPT), where a window
  /// reduces T.
  double flops_per_token() const;
  /// The same for `tokens` tokens in documents: T is replaced by the documents' own lengths, so
  /// that T tokens is `pairs`, in layers with a window `window_pairs` (DocumentCounts).
  double document_flops(double tokens, double pairs, double window_pairs) const;
  double flops(const BatchShape& shape) const override {
    return flops_per_token() * static_cast<double>(shape.samples * shape.tokens);
  }
  /// FLOPs of the forward of one micro-batch of `tokens` tokens in sequences of the block size, by
  /// which units are assigned to stages: matrix products, the half of attention that a causal mask
  /// leaves, and additions in the embedding.
  static UnitCosts unit_costs(const GptConfig& config, std::int64_t tokens);

 private:
  Tensor through(Pass& pass, const ModelBatch& batch);

  DecoderTower decoder_;
};

}  // namespace choir
