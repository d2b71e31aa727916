#pragma once
// The duplex model: an encoder and a decoder, joined by a sum, with two heads
// (choir/models/duplex/duplex_config.hpp). Units: 0 features and subsampling, 1 ... Le the
// encoder's blocks, Le + 1 the junction, then the decoder's blocks, and the heads.
#include <memory>
#include <string>

#include "choir/models/duplex/duplex_batch.hpp"
#include "choir/models/salm/two_towers.hpp"
#include "src/models/duplex/codebooks.hpp"

namespace choir {

/// Row t of a dialogue is E(text_t) + sum over k of E_k(codes_t,k) + user_weight
/// projector(frame_t). A pass has two sequences: the rows of dialogues, and the frames of their
/// audio. A dialogue depends neither on its padding nor, except for rounding, on the others of its
/// batch.
class Duplex final : public TwoTowers {
 public:
  /// Parameters "encoder.*" (of a FastConformer), "projector.*", "lm.*" (of a Gpt, after the
  /// prefix), "code_embedding.weight" and "code_head.*".
  Duplex(const DuplexConfig& config, ParameterSet& parameters, const ModelCut& cut = {});

  const DuplexConfig& config() const { return config_; }

  Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const override;
  /// Begins a pass of the encoder over whole recordings: a batch of audio alone.
  void begin_hearing(Pass& pass, const ModelBatch& batch) const;

  /// Returns losses [2, B*T*K] of text and of codes. When generating, returns logits [B, V + K (N +
  /// 3)] of the text and of each codebook after the last row. The batch has audio or, if this rank
  /// has the whole model and T = 1, "heard" [B, C_e] instead: frames of the encoder in the compute
  /// type. For a batch without "text", returns only the frames [B*T', C_e]: those of a stream's
  /// next chunk (SpeechStream), or those of whole recordings. Batches of generation need no
  /// targets.
  Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch,
                 BucketHooks& hooks) override;

  /// The state of dialogues' rows: a stream has at most block_size of them.
  StreamState make_state(Pass& pass, BucketHooks& hooks, std::int64_t streams) const override;
  /// The same for dialogues of at most `frames` frames; 0: endless ones, which exclude learned
  /// positions.
  StreamState make_state_of(Pass& pass, std::int64_t streams, std::int64_t frames) const;
  /// The state of the audio of one dialogue. This rank must have the whole model.
  StreamState make_encoder_state(Pass& pass, BucketHooks& hooks) const;

  std::vector<std::pair<std::string, std::int64_t>> further_counts() const override;
  double flops(const BatchShape& shape) const override;
  /// FLOPs of the forward of one micro-batch, by which units are assigned to stages.
  static UnitCosts unit_costs(const DuplexConfig& config, const BatchShape& shape);

 private:
  Tensor join(Pass& pass, const Tensor& frames, const ModelBatch& batch,
              BucketHooks& hooks) override;
  Tensor join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch,
                       BucketHooks& hooks) override;

  DuplexConfig config_;
  std::unique_ptr<CodeEmbedding> code_embedding_;
  std::unique_ptr<CodeHead> code_head_;
};

}  // namespace choir
