#pragma once
// The model of a SALM: an encoder and a decoder, joined (src/models/salm/salm_config.hpp). Units:
// 0 features and subsampling, 1 ... Le the blocks of the encoder and of the adapter, Le + 1 the
// junction, then the decoder's blocks, and the head.
#include "src/models/salm/salm_config.hpp"
#include "src/models/salm/two_towers.hpp"

namespace choir {

/// A pass has three sequences: the rows of conversations, the frames of clips, and the rows of
/// stacked frames. A conversation depends neither on its padding nor, except for rounding, on the
/// others of its batch.
///
/// Over the tensor axis both towers are divided like separate models, and the projector is whole:
/// with sequence parallelism each rank projects its share of the frames, otherwise all of them.
/// Ranks of the context axis divide the rows of conversations, and the clips: each encodes some of
/// them, and receives the projected frames of the others. With EncoderShare::clips tensor ranks
/// divide the clips, too: encoder and projector are whole on each and need no communication, and
/// the sum over ranks that embeds the tokens also distributes the frames of all clips.
class Salm final : public TwoTowers {
 public:
  /// Parameters "encoder.*" (of a FastConformer), "adapter.*", "projector.*" and "lm.*" (of a Gpt,
  /// after the prefix).
  Salm(const SalmConfig& config, ParameterSet& parameters, const ModelCut& cut = {});

  const SalmConfig& config() const { return config_; }

  Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const override;
  void add_sequences(Pass& pass, const ModelBatch& batch) const override;

  /// Returns losses per token [B*T], or when generating the logits of the last position [B, V'].
  /// Batches of generation need neither audio nor targets.
  Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch) override;

  /// A stream has at most block_size positions.
  StreamState make_state(Pass& pass, std::int64_t streams) const override;

  double flops(const BatchShape& shape) const override;
  /// FLOPs of the forward of one micro-batch, by which units are assigned to stages.
  static UnitCosts unit_costs(const SalmConfig& config, const BatchShape& shape);

 private:
  static constexpr int kClipRows = 2;  ///< index of the third sequence

  Tensor join(Pass& pass, const Tensor& frames, const ModelBatch& batch) override;
  Tensor join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch) override;

  SalmConfig config_;
  FrameStack stack_;
};

}  // namespace choir
