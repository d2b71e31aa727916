#include "src/models/codec/codec.hpp"

#include <cmath>
#include <utility>

#include "choir/device/device.hpp"
#include "choir/models/blocks.hpp"
#include "choir/ops/activation.hpp"
#include "kernels/l1_loss/l1_loss.hpp"
#include "kernels/sums/sums.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {
namespace {

constexpr ops::Activation kCodecActivation = ops::Activation::gelu;

double unit_std(std::int64_t inputs) {
  return 1 / std::sqrt(static_cast<double>(inputs));
}

Tensor activated(Pass& pass, const Tensor& before) {
  Tensor active = pass.allocate(before.shape, "activation");
  ops::activation_forward(pass.stream(), kCodecActivation, before, active);
  return active;
}

}  // namespace

TwoLayers::TwoLayers(ParameterSet& parameters, const std::string& name, const Options& o)
    : recompute_(o.recompute),
      input_(parameters, name + ".input", o.inputs, o.hidden,
             {.init_std = unit_std(o.inputs),
              .weight_shard = {.split_dim = 0},
              .bias_shard = {.split_dim = 0}}),
      output_(parameters, name + ".output", o.hidden, o.outputs,
              {.init_std = unit_std(o.hidden), .weight_shard = {.split_dim = 1}}) {}

Tensor TwoLayers::hidden(Pass& pass, const Tensor& x) {
  const Tensor before = input_.forward(pass, x);
  pass.save(before);
  return activated(pass, before);
}

Tensor TwoLayers::forward(Pass& pass, const Tensor& x) {
  if (recompute_ != Recompute::full)
    return output_.forward(pass, hidden(pass, x), recompute_ == Recompute::none);
  Tensor y;
  {
    const Pass::Unsaved again(pass);
    y = output_.forward(pass, hidden(pass, x));
  }
  pass.save(x);
  return y;
}

Tensor TwoLayers::backward(Pass& pass, const Tensor& d_y) {
  if (recompute_ == Recompute::full) {
    pass.save(hidden(pass, pass.pop()));
  } else if (recompute_ == Recompute::selective) {
    const Tensor before = pass.pop();
    pass.save(before);
    pass.save(activated(pass, before));
  }
  const Tensor d_active = output_.backward(pass, d_y);
  const Tensor before = pass.pop();
  const Tensor d_before =
      d_active.sole_owner() ? d_active : pass.allocate(before.shape, "activation gradient");
  ops::activation_backward(pass.stream(), kCodecActivation, before, d_active, d_before);
  return input_.backward(pass, d_before);
}

namespace {

enum CodecUnit : int { kEncoder, kRounding, kCodes, kDecoder };

const std::int32_t* integers(const TensorView& x) {
  return static_cast<const std::int32_t*>(x.data);
}

/// Mode::generate codes or decodes; it has no loss.
bool is_coding(const Pass& pass) {
  return pass.mode() == Mode::generate;
}
bool is_decoding(const ModelBatch& batch) {
  return batch.find("codes") != nullptr;
}

}  // namespace

Codec::Codec(const CodecConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : Model(parameters, cut, c.n_layer), config_(c), levels_(c.fsq()) {
  const auto begin = [&](const char* bucket, int unit) {
    trained_.begin_unit(parameters);
    return parameters.begin_bucket(bucket, pieces_.resident(unit));
  };
  encoder_bucket_ = begin("encoder", kEncoder);
  encoder_ = std::make_unique<TwoLayers>(parameters, "encoder",
                                         TwoLayers::Options{.inputs = c.features(),
                                                            .hidden = c.encoder_width,
                                                            .outputs = c.numbers(),
                                                            .recompute = c.recompute});
  trained_.begin_unit(parameters);  // rounding has no parameters
  begin("codes", kCodes);
  ShardSpec whole;
  if (parameters.tensor().sequence) whole.partial = {Axis::tensor};
  codes_ = std::make_unique<Linear>(
      parameters, "codes", c.numbers(), c.decoder_width,
      Linear::Options{.init_std = 1 / std::sqrt(static_cast<double>(c.numbers())),
                      .weight_shard = whole,
                      .bias_shard = whole});
  decoder_bucket_ = begin("decoder", kDecoder);
  decoder_ = std::make_unique<TwoLayers>(parameters, "decoder",
                                         TwoLayers::Options{.inputs = c.decoder_width,
                                                            .hidden = c.decoder_width,
                                                            .outputs = c.outputs(),
                                                            .recompute = c.recompute});
  if (c.makes_sound()) sound_ = std::make_unique<WaveformHead>(c);
}

std::size_t Codec::table_bytes(const Precision& precision) const {
  const TensorView mel{nullptr, DType::u8, {ops::mel_table_bytes(config_.mel)}};
  return padded_field_bytes(mel) + (sound_ ? sound_->table_bytes(precision.statistic) : 0);
}

void Codec::prepare(Pass& pass, void* memory) {
  Model::prepare(pass, memory);
  mel_tables_ = {memory, DType::u8, {ops::mel_table_bytes(config_.mel)}};
  ops::make_mel_tables(pass.stream(), config_.mel, mel_tables_);
  if (sound_)
    sound_->make_tables(pass.stream(), pass.precision().statistic,
                        static_cast<std::byte*>(memory) + padded_field_bytes(mel_tables_));
}

Sequence Codec::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  CHOIR_CHECK(context.size() == 1, "the frames of an utterance over {} ranks", context.size());
  if (is_decoding(batch)) return {.batch = batch.samples, .tokens = batch.tokens};
  const Shape& audio = batch["audio"].shape;
  return {.batch = audio[0],
          .tokens = config_.frames(audio[1]),
          .lengths = integers(batch["frame_lengths"].slice(1, 1))};
}

// Coding ends before the decoder, and codes pass through the remaining pieces unchanged.
Shape Codec::boundary_shape(const Pass& pass, int unit) const {
  const bool narrow = unit < kCodes || is_coding(pass);
  return {pass.share_rows(), narrow ? config_.numbers() : config_.decoder_width};
}

Tensor Codec::features(Pass& pass, const ModelBatch& batch) const {
  const ProfileRange range(pass.stream(), "features");
  const Sequence& sequence = pass.sequence();
  Tensor x = pass.allocate_statistic(
      {sequence.batch, sequence.tokens * config_.rows, config_.mel.mels}, "log-mel features");
  ops::log_mel(pass.stream(), {.options = config_.mel,
                               .audio = batch["audio"],
                               .audio_lengths = integers(batch["audio_lengths"]),
                               .lengths = integers(batch["frame_lengths"]),
                               .tables = mel_tables_,
                               .out = x});
  return x.reshaped({sequence.rows(), config_.features()});
}

Tensor Codec::encode(Pass& pass, const Tensor& features) {
  const ProfileRange range(pass.stream(), "encoder");
  const Pass::Unsaved below(pass, !trained_.reach(kEncoder));
  Tensor x = features;
  if (pass.precision().compute != features.dtype) {
    x = pass.allocate(features.shape, "features");
    ops::cast(pass.stream(), features, x);
  }
  return forward_with(pass, encoder_bucket_,
                      [&] { return encoder_->forward(pass, own_rows(pass, x)); });
}

void Codec::encode_backward(Pass& pass, const Tensor& d_numbers) {
  if (!trained_.reach(kEncoder)) return;
  const ProfileRange range(pass.stream(), "encoder backward");
  backward_with(pass, encoder_bucket_, [&] { return encoder_->backward(pass, d_numbers); });
}

Tensor Codec::round(Pass& pass, const Tensor& numbers) {
  const Pass::Unsaved below(pass, !trained_.reach(kRounding));
  pass.save(numbers);
  Tensor codes = pass.allocate(numbers.shape, "codes");
  ops::fsq_forward(pass.stream(), {.levels = levels_, .in = numbers, .codes = codes});
  return codes;
}

Tensor Codec::round_backward(Pass& pass, const Tensor& d_codes) {
  if (!trained_.reach(kRounding)) return d_codes;
  const Tensor numbers = pass.pop();
  Tensor d_numbers = pass.allocate(numbers.shape, "gradient of numbers");
  ops::fsq_backward(pass.stream(),
                    {.levels = levels_, .in = numbers, .d_codes = d_codes, .d_in = d_numbers});
  return d_numbers;
}

Tensor Codec::codes(Pass& pass, const ModelBatch& batch) const {
  Tensor codes = pass.allocate({pass.sequence().rows(), config_.numbers()}, "codes");
  ops::fsq_codes(pass.stream(), {.levels = levels_, .indices = batch["codes"], .codes = codes});
  return codes;
}

Tensor Codec::widen(Pass& pass, const Tensor& codes) {
  const Pass::Unsaved below(pass, !trained_.reach(kCodes));
  const Tensor before =
      forward_with(pass, codes_->bucket(), [&] { return codes_->forward(pass, codes); });
  pass.save(before);
  Tensor rows = pass.allocate(before.shape, "rows of the decoder");
  ops::activation_forward(pass.stream(), ops::Activation::gelu, before, rows);
  return rows;
}

Tensor Codec::widen_backward(Pass& pass, Tensor d_rows) {
  if (!trained_.reach(kCodes))
    return pass.allocate({pass.share_rows(), config_.numbers()}, "gradient of no use");
  const Tensor before = pass.pop();
  const Tensor d_before = pass.allocate(before.shape, "activation gradient");
  ops::activation_backward(pass.stream(), ops::Activation::gelu, before, d_rows, d_before);
  d_rows = {};
  return backward_with(pass, codes_->bucket(), [&] { return codes_->backward(pass, d_before); });
}

Tensor Codec::decode(Pass& pass, const Tensor& rows) {
  const ProfileRange range(pass.stream(), "decoder");
  return forward_with(pass, decoder_bucket_,
                      [&] { return gather_rows(pass, decoder_->forward(pass, rows)); });
}

Tensor Codec::decode_backward(Pass& pass) {
  const ProfileRange range(pass.stream(), "decoder backward");
  return backward_with(pass, decoder_bucket_,
                       [&] { return decoder_->backward(pass, own_rows(pass, pass.pop())); });
}

namespace {

/// The targets of every term are the frames of the recordings.
LossTargets frames_of(const Pass& pass) {
  const Sequence& sequence = pass.sequence();
  if (sequence.lengths == nullptr) return {.number = static_cast<double>(sequence.rows())};
  return {.lengths = {const_cast<std::int32_t*>(sequence.lengths), DType::i32, {sequence.batch}}};
}

}  // namespace

Tensor Codec::losses(Pass& pass, const Tensor& predicted, const Tensor& target,
                     const ModelBatch& batch) const {
  Tensor losses = pass.allocate_statistic({pass.sequence().rows()}, "losses");
  ops::l1_loss(pass.stream(),
               {.predicted = predicted,
                .target = target,
                .lengths = pass.sequence().lengths,
                .tokens = pass.sequence().tokens,
                .losses = losses,
                .factor = config_.mel.deviation / static_cast<double>(config_.features()),
                .scale = batch.scale,
                .device_scale = batch.device_scale(),
                .write_gradient = pass.training()});
  pass.add_loss(0, losses, frames_of(pass));
  pass.save(predicted);  // they hold their gradient now
  return losses;
}

Tensor Codec::losses_of_sound(Pass& pass, const Tensor& predicted, const ModelBatch& batch) const {
  WaveformHead::Compared compared = sound_->compare(pass, predicted, batch);
  const auto terms = static_cast<std::size_t>(compared.losses.shape[0]);
  for (std::size_t term = 0; term < terms; ++term)
    pass.add_loss(term, losses_of_term(compared.losses, term, terms), frames_of(pass));
  pass.save(compared.d_rows);
  return compared.losses;
}

Tensor Codec::forward(Pass& pass, int index, Tensor stream, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_forward(pass, index, stream);
  const bool decoding = is_decoding(batch), loses = here.head && !is_coding(pass);
  // The last stage of a pipeline computes the target features again.
  Tensor heard;
  if (!decoding && (here.input || (loses && !sound_))) heard = features(pass, batch);
  if (here.input) stream = decoding ? codes(pass, batch) : encode(pass, heard);
  if (here.contains(kRounding) && !decoding) stream = round(pass, stream);
  if (is_coding(pass) && !decoding) {
    if (!here.head) return stream;
    Tensor indices = pass.scratch(pass.sequence().rows() * config_.codebooks *
                                      static_cast<std::int64_t>(sizeof(std::int32_t)),
                                  "codes");
    indices = indices.view({indices.data, DType::i32, {pass.sequence().rows(), config_.codebooks}});
    ops::fsq_indices(pass.stream(), {.levels = levels_, .codes = stream, .indices = indices});
    return indices;
  }
  if (here.contains(kCodes)) stream = widen(pass, stream);
  if (!here.head) return stream;
  const Tensor predicted = decode(pass, stream);
  if (sound_)
    return loses ? losses_of_sound(pass, predicted, batch) : sound_->frames(pass, predicted);
  return loses ? losses(pass, predicted, heard, batch) : predicted;
}

Tensor Codec::backward(Pass& pass, int index, Tensor d_output, const ModelBatch&) {
  const ModelPieces::Piece& here = begin_backward(pass, index, d_output);
  Tensor d_stream = here.head ? decode_backward(pass) : std::move(d_output);
  if (here.contains(kCodes)) d_stream = widen_backward(pass, std::move(d_stream));
  if (here.contains(kRounding)) d_stream = round_backward(pass, d_stream);
  if (!here.input) return d_stream;
  encode_backward(pass, d_stream);
  return {};
}

UnitCosts Codec::unit_costs(const CodecConfig& c, const BatchShape& shape) {
  const auto product = [](std::int64_t a, std::int64_t b) {
    return 2 * static_cast<double>(a * b);
  };
  const auto frames = static_cast<double>(shape.samples * c.frames(shape.audio_samples));
  return {
      frames * (product(c.features(), c.encoder_width) + product(c.encoder_width, c.numbers())),
      20 * frames * static_cast<double>(c.numbers()),
      frames * product(c.numbers(), c.decoder_width),
      frames * (product(c.decoder_width, c.decoder_width) + product(c.decoder_width, c.outputs()) +
                (c.makes_sound() ? WaveformHead::flops(c) : 0))};
}

double Codec::flops(const BatchShape& shape) const {
  return trained_.flops(unit_costs(config_, shape));
}

std::string Codec::describe() const {
  return parameter_table(*parameters_, {}, 24);
}

}  // namespace choir
