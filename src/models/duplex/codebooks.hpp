#pragma once
// The codes of an agent going in and coming out: K codebooks of N + 3 ids each, whose tables are
// one table [K (N + 3), C], and whose heads are one layer [C -> K (N + 3)]. Both are divided over
// the tensor axis by whole codebooks; where there are more ranks than codebooks, neighbours hold
// the same one.
#include <cstdint>
#include <memory>

#include "choir/models/duplex/duplex_config.hpp"
#include "choir/models/gpt/decoder_tower.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

/// Which codebooks a tensor rank has: [first, first + count). Of `copies` ranks that have the same
/// ones, one is the `speaker`, who alone adds what each of them could.
struct CodebookShare {
  std::int64_t first = 0, count = 0, copies = 1;
  bool speaker = true;
};
/// Ranks divide the codebooks, or the codebooks divide the ranks.
CodebookShare codebook_share(std::int64_t codebooks, int rank, int ranks);

class CodeEmbedding {
 public:
  /// Registers "code_embedding.weight" in a bucket of its own.
  CodeEmbedding(const DuplexConfig& config, ParameterSet& parameters, bool resident);
  /// terms [N, C] += this rank's terms of the sum over codebooks of the rows of codes [N, K].
  void add(Pass& pass, const TensorView& codes, const Tensor& terms, BucketHooks& hooks) const;
  /// The gradient of whole rows [N, C] goes to the table. The codes must live until weight
  /// gradients are done.
  void backward(Pass& pass, const TensorView& codes, const Tensor& d_rows, BucketHooks& hooks);

 private:
  static void gradient(Pass& pass, void* self, const Tensor& codes, const Tensor& d_rows);

  std::int64_t codebooks_, ids_;
  CodebookShare share_;
  Parameter* table_;
};

/// Losses of the text [B*T] become those of text and codes [2, B*T*K], the first padded with zeros;
/// when generating, logits [B, V] those of both [B, V + K (N + 3)].
class CodeHead final : public HeadBeside {
 public:
  /// Registers "code_head.weight" and "code_head.bias" in a bucket of their own.
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
