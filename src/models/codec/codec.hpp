#pragma once
// The speech codec (src/models/codec/codec_config.hpp). Units: 0 features and encoder; 1 rounding;
// 2 conversion of codes to rows of the decoder; 3 decoder and loss. Encoder and decoder are two
// linear layers each, whose hidden width is divided over the tensor axis (see
// src/nn/axes/tensor_axis.hpp).

#include <memory>
#include <string>

#include "choir/models/model.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/pass.hpp"
#include "src/models/codec/codec_config.hpp"
#include "src/models/codec/waveform_head.hpp"

namespace choir {

class TwoLayers {
 public:
  struct Options {
    std::int64_t inputs = 0, hidden = 0, outputs = 0;
    Recompute recompute = Recompute::none;
  };
  /// Registers `name`.input [hidden, inputs] and `name`.output [outputs, hidden] in the current
  /// bucket. Weights are normal with deviation 1 / sqrt(inputs of the layer), so that numbers of
  /// unit size keep that size.
  TwoLayers(ParameterSet& parameters, const std::string& name, const Options& options);

  /// x [N, inputs] -> [N, outputs], both as distributed on this rank.
  Tensor forward(Pass& pass, const Tensor& x);
  Tensor backward(Pass& pass, const Tensor& d_y);

 private:
  /// Returns gelu(input(x)) and saves the input of the activation.
  Tensor hidden(Pass& pass, const Tensor& x);

  Recompute recompute_;
  Linear input_, output_;
};

/// A frame depends neither on other frames nor on padding, and nothing is random.
///
/// Rounding is discontinuous: a number within a rounding error of a threshold may get another code
/// in another layout, whose sums over tensor ranks have another order. All ranks that hold the same
/// rows get them from one sum, bit by bit, so that they always agree with each other. Only two
/// layouts can differ, and only if a number lies within about 1e-15 of a threshold in fp64. Among
/// the 1e5 numbers that `choir verify` rounds in its steps this happens with a probability of 1e-9,
/// and it compares the same numbers in every run. In fp32 noise of 1e-7 could change such a code,
/// too. The gradient passes straight through at thresholds, so training is not affected.
class Codec final : public Model {
 public:
  /// Buckets: "encoder", "codes", "decoder". DeckError for invalid levels.
  Codec(const CodecConfig& config, ParameterSet& parameters, const ModelCut& cut = {});

  const CodecConfig& config() const { return config_; }

  std::size_t table_bytes(const Precision& precision) const override;
  void prepare(Pass& pass, void* memory) override;

  /// Rows are frames.
  Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const override;
  Shape boundary_shape(const Pass& pass, int unit) const override;

  /// With the last unit, losses [B*T]: for each frame the mean of |difference| over its features,
  /// in units of ln, or the losses of WaveformHead::compare(). In Mode::generate of audio: codes
  /// [B*T, K] i32. In Mode::generate of codes: standardised features [T, rows * mels], where
  /// feature = x deviation + mean, or WaveformHead::frames().
  Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch) override;
  Tensor backward(Pass& pass, int piece, Tensor d_output, const ModelBatch& batch) override;

  std::string describe() const override;
  double flops(const BatchShape& shape) const override;
  /// FLOPs of the forward of one micro-batch, by which units are assigned to stages.
  static UnitCosts unit_costs(const CodecConfig& config, const BatchShape& shape);

 private:
  /// Standardised features, [B*T, rows * mels], whole on every rank.
  Tensor features(Pass& pass, const ModelBatch& batch) const;
  Tensor encode(Pass& pass, const Tensor& features);
  void encode_backward(Pass& pass, const Tensor& d_numbers);
  Tensor round(Pass& pass, const Tensor& numbers);
  Tensor round_backward(Pass& pass, const Tensor& d_codes);
  /// The rows that belong to code indices, [B*T, numbers].
  Tensor codes(Pass& pass, const ModelBatch& batch) const;
  Tensor widen(Pass& pass, const Tensor& codes);
  Tensor widen_backward(Pass& pass, Tensor d_rows);
  Tensor decode(Pass& pass, const Tensor& rows);
  Tensor decode_backward(Pass& pass);
  Tensor losses(Pass& pass, const Tensor& predicted, const Tensor& target,
                const ModelBatch& batch) const;
  Tensor losses_of_sound(Pass& pass, const Tensor& predicted, const ModelBatch& batch) const;

  CodecConfig config_;
  ops::FsqLevels levels_;
  std::unique_ptr<TwoLayers> encoder_, decoder_;
  std::unique_ptr<Linear> codes_;
  std::unique_ptr<WaveformHead> sound_;  ///< nullptr: the loss compares features
  int encoder_bucket_ = -1, decoder_bucket_ = -1;
  TensorView mel_tables_;
};

}  // namespace choir
