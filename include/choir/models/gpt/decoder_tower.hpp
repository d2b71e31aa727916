#pragma once
// The decoder that language models share: embedding of tokens, blocks with their table of rotary
// angles and their cache, final norm and head. What stands before its blocks and around them is for
// the model to say. All of it is collective over the tensor and context axes as modules are.
#include <memory>
#include <string>
#include <string_view>

#include "choir/models/blocks.hpp"
#include "choir/models/gpt/gpt_config.hpp"
#include "choir/models/pieces.hpp"
#include "choir/models/trained_units.hpp"
#include "choir/nn/layers/blocks.hpp"
#include "choir/nn/layers/token_embedding.hpp"
#include "choir/nn/stream_state.hpp"
#include "choir/ops/bench_ops.hpp"

namespace choir {

/// A head of the model's own on the rows that the head of tokens reads, which it comes behind. It
/// is on the same rank.
class HeadBeside {
 public:
  virtual ~HeadBeside() = default;
  /// `normed` as column layers take rows, of the last positions when generating; `of_tokens`: the
  /// losses of the tokens [B*T], or their logits [B, V]. What the model returns (Model::forward).
  virtual Tensor forward(Pass& pass, const Tensor& normed, const Tensor& of_tokens,
                         const ModelBatch& batch, BucketHooks& hooks) = 0;
  /// The gradient of `normed`, which is the caller's.
  virtual Tensor backward(Pass& pass, BucketHooks& hooks) = 0;
};

class DecoderTower {
 public:
  struct Options {
    std::string prefix;          ///< of the names of parameters and buckets
    bool shares_weight = false;  ///< head and embedding use the same memory
    bool one_piece = false;      ///< all of the model is one piece: backward follows forward
    bool spliced = false;        ///< ids below 0 stand for rows that come from elsewhere
    std::string_view targets = "targets";  ///< the field of the batch
    std::string_view weights{};            ///< ... of weights of the losses, f32; "": none
  };
  /// Registers nothing. Then add_embedding(), add_blocks() and add_head() in this order, of the
  /// whole decoder on every rank; only add_blocks() begins units.
  DecoderTower(const GptConfig& config, ParameterSet& parameters, const Options& options);
  void add_embedding(bool resident);
  /// The first block is `first_unit` of the model.
  void add_blocks(int first_unit, const ModelPieces& pieces, TrainedUnits& trained);
  void add_head(bool resident);
  /// The other head lives as long as this.
  void put_beside(HeadBeside& head) { beside_ = &head; }

  const GptConfig& config() const { return config_; }
  /// See ModelFamily::op_shape.
  static ops::BenchShape op_shape(const GptConfig& config, const BatchShape& shape);
  TokenEmbedding& embedding() const { return *embedding_; }

  std::size_t table_bytes(const Precision& precision) const;
  void prepare(Pass& pass, void* memory);

  /// The blocks of a piece, and where it has the head that too, which reads the targets of
  /// `head_batch`: see Gpt::forward.
  Tensor forward_blocks(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                        Tensor input, const ModelBatch* head_batch, BucketHooks& hooks);
  /// The gradient of what the lowest trained block of the piece reads.
  Tensor backward_blocks(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                         Tensor d_output, BucketHooks& hooks);

  /// Every stream has at most `positions`; 0: block_size. An endless one, for which positions must
  /// not be learnt, goes on with each position seeing so many: what the model would say if all of
  /// its layers had windows of that size.
  void remember(Pass& pass, StreamState& state, std::int64_t positions = 0) const;

 private:
  std::unique_ptr<TransformerBlock> make_block(const std::string& name, std::int64_t layer) const;
  Shape rope_table_shape() const;
  /// Rotary angles for a pass: those of all positions, or of its own in endless streams.
  Tensor angles_of(Pass& pass) const;

  // With the whole model in one piece backward follows forward: the head's weights are not given
  // back in between, nor what it shares with the embedding.
  bool keeps_shared_weight() const { return options_.shares_weight && options_.one_piece; }
  bool keeps_head(const Pass& pass) const { return pass.training() && options_.one_piece; }

  Tensor head(Pass& pass, ResidualStream stream, const ModelBatch& batch, BucketHooks& hooks);
  void release_head(BucketHooks& hooks) const;
  Tensor head_backward(Pass& pass, BucketHooks& hooks);

  GptConfig config_;
  Options options_;
  ParameterSet* parameters_;
  TensorView rope_table_;
  std::unique_ptr<TokenEmbedding> embedding_;
  Blocks<TransformerBlock> blocks_;
  std::unique_ptr<ResidualNorm> final_norm_;
  std::unique_ptr<Linear> head_;
  HeadBeside* beside_ = nullptr;
  int final_norm_bucket_ = -1;
};

}  // namespace choir
