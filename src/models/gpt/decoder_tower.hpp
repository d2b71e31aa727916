#pragma once
// The decoder that language models share: token embedding, blocks with their table of rotary angles
// and their cache, final norm and head. The model decides what precedes and surrounds its blocks.
// All of it is collective over the tensor and context axes, like modules.
#include <memory>
#include <string>
#include <string_view>

#include "choir/models/blocks.hpp"
#include "choir/models/family.hpp"
#include "choir/models/model.hpp"
#include "choir/nn/layers/token_embedding.hpp"
#include "choir/nn/stream_state.hpp"
#include "kernels/bench/bench_table.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/nn/layers/blocks.hpp"

namespace choir {

/// A second head of the model, on the same rows that the token head reads. It runs after the token
/// head, on the same rank.
class HeadBeside {
 public:
  virtual ~HeadBeside() = default;
  /// `normed`: rows in the form that column layers read, when generating only the last positions.
  /// `of_tokens`: the losses of the tokens [B*T], or their logits [B, V]. Returns the result of the
  /// model (Model::forward).
  virtual Tensor forward(Pass& pass, const Tensor& normed, const Tensor& of_tokens,
                         const ModelBatch& batch) = 0;
  /// Returns the gradient of `normed`, which the caller owns.
  virtual Tensor backward(Pass& pass) = 0;
};

class DecoderTower {
 public:
  struct Options {
    std::string prefix;          ///< prefix of the names of parameters and buckets
    bool shares_weight = false;  ///< head and embedding use the same memory
    bool one_piece = false;   ///< the whole model is one piece: backward directly follows forward
    bool fixed_rows = false;  ///< all micro-batches of all ranks have the same number of rows
    bool spliced = false;     ///< ids below 0 mark rows that come from elsewhere
    std::string_view targets = "targets";  ///< field of the batch with the targets
    std::string_view weights{};            ///< field with f32 weights of the losses; "": none
    std::size_t z_term = 1;                ///< the term of the loss that has the z-loss
  };
  /// True if the head may be computed in chunks of rows. In training its gradients are then
  /// announced in forward, so an embedding that is not in the same piece, or from which a pipeline
  /// can separate it by other micro-batches, needs a gradient of its own.
  static bool may_chunk_head(const GptConfig& config);

  /// See ModelFamily::head_chunk.
  static HeadChunk chunk_of_head(const GptConfig& config, DType logits);

  /// Registers nothing. Call add_embedding(), add_blocks() and add_head() afterwards, in this
  /// order, for the whole decoder on every rank; only add_blocks() begins units.
  DecoderTower(const GptConfig& config, ParameterSet& parameters, const Options& options);
  void add_embedding(bool resident);
  /// The first block is unit `first_unit` of the model.
  void add_blocks(int first_unit, const ModelPieces& pieces, TrainedUnits& trained);
  void add_head(bool resident);
  /// Adds a second head, which must outlive this object.
  void put_beside(HeadBeside& head) { beside_ = &head; }

  const GptConfig& config() const { return config_; }
  /// See ModelFamily::op_shape.
  static ops::BenchShape op_shape(const GptConfig& config, const BatchShape& shape);
  TokenEmbedding& embedding() const { return *embedding_; }

  std::size_t table_bytes(const Precision& precision) const;
  void prepare(Pass& pass, void* memory);

  /// Runs the blocks of a piece and, if it has the head, the head as well, which reads the targets
  /// of `head_batch`: see Gpt::forward.
  Tensor forward_blocks(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                        Tensor input, const ModelBatch* head_batch);
  /// Returns the gradient of the input of the lowest trained block of the piece.
  Tensor backward_blocks(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                         Tensor d_output);

  /// Reserves the cache of streams of at most `positions`; 0: block_size. In an endless stream,
  /// which excludes learned positions, each position sees this many, as if all layers of the model
  /// had windows of that size.
  void remember(Pass& pass, StreamState& state, std::int64_t positions = 0) const;

 private:
  std::unique_ptr<TransformerBlock> make_block(const std::string& name, std::int64_t layer) const;
  /// [tables, block_size, rotated width]: angles of all layers or, in two tables, of layers without
  /// and with a window.
  Shape rope_table_shape() const;
  /// Fills tables of that form, the rows of which are the positions from `first` on.
  void compute_angles(Pass& pass, const TensorView& tables, std::int64_t first) const;
  /// Rotary angles for a pass: those of all positions or, in endless streams, of its own positions.
  Tensor angles_of(Pass& pass) const;

  // If the whole model is one piece, backward directly follows forward: the weights of the head and
  // those shared with the embedding are not released in between.
  bool keeps_shared_weight() const { return options_.shares_weight && options_.one_piece; }
  bool keeps_head(const Pass& pass) const { return pass.training() && options_.one_piece; }

  /// Rows of a chunk of the head in this pass; 0: it is computed whole. Where ranks can have
  /// different numbers of rows, all of them go the same way.
  std::int64_t head_chunk(const Pass& pass) const;
  Tensor token_losses_of(Pass& pass, const Tensor& rows, const ModelBatch& batch);
  Tensor head(Pass& pass, ResidualStream stream, const ModelBatch& batch);
  void release_head(Pass& pass) const;
  Tensor head_backward(Pass& pass);

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
