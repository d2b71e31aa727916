#pragma once
// Input and output of an agent's codes: K codebooks of N + 3 ids each, whose embeddings form one
// table [K (N + 3), C], and whose heads form one layer [C -> K (N + 3)]. Both are divided over the
// tensor axis by whole codebooks; if there are more ranks than codebooks, adjacent ranks hold the
// same one.
#include <cstdint>
#include <memory>

#include "choir/models/duplex/duplex_config.hpp"
#include "choir/models/gpt/decoder_tower.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"

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
  void add(Pass& pass, const TensorView& codes, const Tensor& terms, BucketHooks& hooks) const;
  /// Adds the gradient of whole rows [N, C] to that of the table. The codes must live until weight
  /// gradients are computed.
  void backward(Pass& pass, const TensorView& codes, const Tensor& d_rows, BucketHooks& hooks);

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
  Tensor forward(Pass& pass, const Tensor& normed, const Tensor& of_tokens, const ModelBatch& batch,
                 BucketHooks& hooks) override;
  Tensor backward(Pass& pass, BucketHooks& hooks) override;

 private:
  Tensor with_losses(Pass& pass, const Tensor& logits, const Tensor& of_tokens,
                     const ModelBatch& batch) const;
  Tensor with_logits(Pass& pass, const Tensor& logits, const Tensor& of_tokens) const;

  std::int64_t codebooks_, ids_;
  CodebookShare share_;
  std::unique_ptr<Linear> layer_;
};

}  // namespace choir
