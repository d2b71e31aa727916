#pragma once
// The duplex model: an encoder and a decoder, joined by a sum, with two heads
// (src/models/duplex/duplex_config.hpp). Units: 0 features and subsampling, 1 ... Le the
// encoder's blocks, Le + 1 the junction, then the decoder's blocks, and the heads.
// Input and output of an agent's codes: K codebooks of N + 3 ids each, whose embeddings form one
// table [K (N + 3), C], and whose heads form one layer [C -> K (N + 3)]. Both are divided over the
// tensor axis by whole codebooks; if there are more ranks than codebooks, adjacent ranks hold the
// same one.

#include <cstdint>
#include <memory>
#include <string>

#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"
#include "src/models/duplex/duplex_batch.hpp"
#include "src/models/duplex/duplex_config.hpp"
#include "src/models/gpt/decoder_tower.hpp"
#include "src/models/salm/two_towers.hpp"

namespace choir {

/// The codebooks of a tensor rank: [first, first + count). Among `copies` ranks with the same ones,
/// only the `speaker` adds their contribution.
struct CodebookShare {
  std::int64_t first = 0, count = 0, copies = 1;
  bool speaker = true;
};
/// The number of ranks must divide the number of codebooks, or the reverse.
CodebookShare codebook_share(std::int64_t codebooks, int rank, int ranks);

class CodeEmbedding {
 public:
  /// Registers "code_embedding.weight" in its own bucket.
  CodeEmbedding(const DuplexConfig& config, ParameterSet& parameters, bool resident);
  /// terms [N, C] += this rank's terms of the sum over codebooks of the embeddings of codes [N, K].
  void add(Pass& pass, const TensorView& codes, const Tensor& terms) const;
  /// Adds the gradient of whole rows [N, C] to that of the table. The codes must live until weight
  /// gradients are computed.
  void backward(Pass& pass, const TensorView& codes, const Tensor& d_rows);

 private:
  static void gradient(Pass& pass, void* self, const Tensor& codes, const Tensor& d_rows);

  std::int64_t codebooks_, ids_;
  CodebookShare share_;
  Parameter* table_;
};

/// Extends the losses of text [B*T] to those of text and codes [2, B*T*K], the first padded with
/// zeros; when generating, extends logits [B, V] to those of both [B, V + K (N + 3)].
class CodeHead final : public HeadBeside {
 public:
  /// Registers "code_head.weight" and "code_head.bias" in their own bucket.
  CodeHead(const DuplexConfig& config, ParameterSet& parameters, bool resident);
  Tensor forward(Pass& pass, const Tensor& normed, const Tensor& of_tokens,
                 const ModelBatch& batch) override;
  Tensor backward(Pass& pass) override;

 private:
  Tensor with_losses(Pass& pass, const Tensor& logits, const Tensor& of_tokens,
                     const ModelBatch& batch) const;
  Tensor with_logits(Pass& pass, const Tensor& logits, const Tensor& of_tokens) const;

  std::int64_t codebooks_, ids_;
  CodebookShare share_;
  std::unique_ptr<Linear> layer_;
};

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

  /// Returns losses [2, B*T*K] of text and of codes. When
  /// generating, returns logits [B, V + K (N + 3)] of the text and of each codebook after the last
  /// row. The batch has audio or, if this rank has the whole model and T = 1, "heard" [B, C_e]
  /// instead: frames of the encoder in the compute type. For a batch without "text", returns only
  /// the frames [B*T', C_e]: those of a stream's next chunk (SpeechStream), or those of whole
  /// recordings. Batches of generation need no targets.
  Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch) override;

  /// The state of dialogues' rows: a stream has at most block_size of them.
  StreamState make_state(Pass& pass, std::int64_t streams) const override;
  /// The same for dialogues of at most `frames` frames; 0: endless ones, which exclude learned
  /// positions.
  StreamState make_state_of(Pass& pass, std::int64_t streams, std::int64_t frames) const;
  /// The state of the audio of one dialogue. This rank must have the whole model.
  StreamState make_encoder_state(Pass& pass) const;

  std::vector<std::pair<std::string, std::int64_t>> further_counts() const override;
  double flops(const BatchShape& shape) const override;
  /// FLOPs of the forward of one micro-batch, by which units are assigned to stages.
  static UnitCosts unit_costs(const DuplexConfig& config, const BatchShape& shape);

 private:
  Tensor join(Pass& pass, const Tensor& frames, const ModelBatch& batch) override;
  Tensor join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch) override;

  DuplexConfig config_;
  std::unique_ptr<CodeEmbedding> code_embedding_;
  std::unique_ptr<CodeHead> code_head_;
};

}  // namespace choir
