#include "src/models/fastconformer/encoder_tower.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "choir/device/device.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/depthwise_conv/depthwise_conv.hpp"
#include "kernels/features/features.hpp"
#include "kernels/relative_attention/relative_attention.hpp"
#include "kernels/strided_conv/strided_conv.hpp"
#include "kernels/sums/sums.hpp"
#include "src/models/fastconformer/speech_windows.hpp"

namespace choir {
namespace {

void check(const FastConformerConfig& c) {
  const auto refuse = [](bool bad, const std::string& what, const std::string& cure) {
    if (bad) throw DeckError(what, cure);
  };
  refuse(c.n_head < 1 || c.n_embd % c.n_head != 0,
         fmt::format("model.n_head: {} does not divide model.n_embd {}", c.n_head, c.n_embd),
         "use a divisor");
  refuse(c.n_embd % 2 != 0, fmt::format("model.n_embd: {} is odd", c.n_embd),
         fmt::format("use {}: positions are pairs of sine and cosine", c.n_embd + 1));
  refuse(c.conv_kernel < 1 || c.conv_kernel % 2 == 0 || c.conv_kernel > ops::kWidestDepthwise,
         fmt::format("model.conv_kernel: {} taps", c.conv_kernel),
         fmt::format("use an odd number below {}", ops::kWidestDepthwise));
  refuse(c.subsampling != 2 && c.subsampling != 4 && c.subsampling != 8,
         fmt::format("model.subsampling: {}", c.subsampling), "use 2, 4 or 8");
  refuse(c.context_style == ContextStyle::chunked && c.right_context < 0,
         "model.right_context: chunks have right_context + 1 frames, it cannot be -1",
         "use 0 or more");
}

ops::AttentionContext context_of(const FastConformerConfig& c) {
  if (c.context_style == ContextStyle::regular)
    return {.left = c.left_context, .right = c.right_context, .chunk = 0};
  const std::int64_t chunk = c.right_context + 1;
  return {.left = c.left_context < 0 ? -1 : c.left_context / chunk, .right = -1, .chunk = chunk};
}

/// Bytes of a table, rounded up so that the next one is aligned.
std::size_t table_size(std::int64_t elements, DType type) {
  constexpr std::size_t kAlign = Arena::kAlignment;
  return (static_cast<std::size_t>(elements) * size_of(type) + kAlign - 1) / kAlign * kAlign;
}

const std::int32_t* integers(const TensorView& x) {
  return static_cast<const std::int32_t*>(x.data);
}

}  // namespace

EncoderTower::EncoderTower(const FastConformerConfig& config, ParameterSet& parameters,
                           std::int64_t adapter_layers)
    : config_(config), parameters_(&parameters), adapter_layers_(adapter_layers) {
  check(config);
}

void EncoderTower::add(int first_unit, const ModelPieces& pieces, TrainedUnits& trained) {
  first_unit_ = first_unit;
  trained.begin_unit(*parameters_);
  add_input(pieces.resident(first_unit));
  const std::int64_t layers = config_.n_layer;
  const double last = static_cast<double>(std::max<std::int64_t>(1, layers - 1));
  blocks_.add(*parameters_, pieces, trained, first_unit + 1, "encoder.blocks", layers,
              [&](const std::string& name, std::int64_t layer) {
                return make_block(name,
                                  config_.stochastic_depth * static_cast<double>(layer) / last);
              });
  blocks_.add(*parameters_, pieces, trained, first_unit + 1 + static_cast<int>(layers),
              "adapter.blocks", adapter_layers_,
              [this](const std::string& name, std::int64_t) { return make_block(name, 0); });
}

void EncoderTower::add_input(bool resident) {
  const FastConformerConfig& c = config_;
  input_bucket_ = parameters_->begin_bucket("encoder.subsampling", resident);
  subsampling_ = std::make_unique<ConvSubsampling>(
      *parameters_, "encoder.subsampling",
      ConvSubsampling::Options{
          .features = c.mel.mels,
          .channels = c.subsampling_channels,
          .width = c.n_embd,
          .stages = c.stages(),
          .causal = c.causal,
          .factor = c.xscaling ? std::sqrt(static_cast<double>(c.n_embd)) : 1.0,
          .dropout = c.dropout});
}

std::unique_ptr<ConformerBlock> EncoderTower::make_block(const std::string& name,
                                                         double stochastic_depth) const {
  const FastConformerConfig& c = config_;
  return std::make_unique<ConformerBlock>(
      *parameters_, name,
      ConformerBlock::Options{.width = c.n_embd,
                              .hidden = c.hidden(),
                              .heads = c.n_head,
                              .kernel = c.conv_kernel,
                              .causal = c.causal,
                              .context = context_of(c),
                              .dropout = c.dropout,
                              .stochastic_depth = stochastic_depth,
                              .norm_eps = c.norm_eps,
                              .batch_norm = c.conv_norm == ConvNorm::batchnorm,
                              .attention_in_one_kernel = c.attention_in_one_kernel,
                              .recompute = c.recompute});
}

ops::SpeechBenchShape EncoderTower::op_shape(const FastConformerConfig& config,
                                             std::int64_t utterances, std::int64_t samples) {
  return {.samples = utterances,
          .frames = config.lengths_after(0, samples),
          .mels = config.mel.mels,
          .channels = config.subsampling_channels,
          .width = config.n_embd,
          .heads = config.n_head,
          .taps = config.conv_kernel};
}

std::size_t EncoderTower::table_bytes(const Precision& precision) const {
  return table_size(ops::mel_table_bytes(config_.mel), DType::u8) +
         table_size(ops::relative_position_table_size(config_.n_embd), precision.statistic);
}

void EncoderTower::prepare(Pass& pass, void* memory) {
  const DType type = pass.precision().statistic;
  const std::int64_t mel = ops::mel_table_bytes(config_.mel);
  const std::int64_t position = ops::relative_position_table_size(config_.n_embd);
  mel_tables_ = {memory, DType::u8, {mel}};
  position_tables_ = {
      static_cast<std::byte*>(memory) + table_size(mel, DType::u8), type, {position}};
  ops::make_mel_tables(pass.stream(), config_.mel, mel_tables_);
  ops::make_relative_position_tables(pass.stream(), config_.n_embd, position_tables_);
}

Sequence EncoderTower::sequence_of(const ModelBatch& batch) const {
  const std::int64_t samples = batch["audio"].shape[1], frames = config_.frames(samples);
  CHOIR_CHECK(frames > 0, "{} samples of audio are not one frame of {}", samples, config_.mel.hop);
  return {.batch = batch["audio"].shape[0],
          .tokens = frames,
          .lengths = integers(batch["frame_lengths"].slice(config_.stages(), 1)),
          .sample_ids = static_cast<const std::int64_t*>(batch["sample_ids"].data)};
}

Tensor EncoderTower::positions(Pass& pass) const {
  const std::int64_t distances = 2 * pass.sequence().tokens - 1;
  const std::int64_t rows = RelativeAttention::position_rows(pass.sequence().tokens);
  Tensor table = pass.allocate({rows, config_.n_embd}, "relative positions");
  ops::relative_positions(pass.stream(), position_tables_, table.slice(0, distances));
  ops::zero(pass.stream(), table.slice(distances, rows - distances));
  return table;
}

Tensor EncoderTower::features(Pass& pass, const ModelBatch& batch) const {
  const ProfileRange range(pass.stream(), "features");
  const std::int64_t frames = ops::mel_frames(config_.mel, batch["audio"].shape[1]);
  const std::int32_t* lengths = integers(batch["frame_lengths"]);
  const auto* ids = static_cast<const std::int64_t*>(batch["sample_ids"].data);
  Tensor x = pass.allocate_statistic({batch["audio"].shape[0], frames, config_.mel.mels},
                                     "log-mel features");
  ops::LogMel call{.options = config_.mel,
                   .audio = batch["audio"],
                   .audio_lengths = integers(batch["audio_lengths"]),
                   .lengths = lengths,
                   .tables = mel_tables_,
                   .out = x,
                   .dither_key = philox_key(pass.seed(), "dither"),
                   .sample_ids = ids};
  if (!pass.training()) call.options.dither = 0;
  ops::log_mel(pass.stream(), call);
  if (config_.normalise) ops::normalise_features(pass.stream(), x, lengths);
  if (pass.training())
    ops::spec_augment(pass.stream(), config_.augment, x, lengths, ids,
                      philox_key(pass.seed(), "spec_augment"));
  if (pass.precision().compute == x.dtype) return x;
  Tensor narrow = pass.allocate(x.shape, "features");
  ops::cast(pass.stream(), x, narrow);
  return narrow;
}

Tensor EncoderTower::input_layer(Pass& pass, const ModelBatch& batch, bool trained) {
  const Tensor x = features(pass, batch);
  const ProfileRange range(pass.stream(), "subsampling");
  const Pass::Unsaved below(pass, !trained);
  return forward_with(pass, input_bucket_,
                      [&] { return subsampling_->forward(pass, x, batch["frame_lengths"]); });
}

void EncoderTower::input_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch) {
  const ProfileRange range(pass.stream(), "subsampling backward");
  pass.acquire(input_bucket_);
  pass.begin_gradients(input_bucket_);
  subsampling_->backward(pass, d_stream, batch["frame_lengths"]);
  pass.gradients_ready(input_bucket_);
  pass.release(input_bucket_);
}

Tensor EncoderTower::forward(Pass& pass, const ModelPieces::Piece& here,
                             const TrainedUnits& trained, Tensor input, const ModelBatch& batch) {
  const bool streams = pass.sequence().state != nullptr, reached = trained.reach(first_unit_);
  const bool reads_audio = here.first_unit <= first_unit_;
  Tensor stream = streams       ? input_of_chunk(pass, batch, reached)
                  : reads_audio ? input_layer(pass, batch, reached)
                                : std::move(input);
  const bool has_blocks = here.first_unit <= last_unit() && here.last_unit > first_unit_;
  const Tensor table = has_blocks && !streams ? positions(pass) : Tensor();
  blocks_.forward(pass, here, trained,
                  [&](ConformerBlock& block) { stream = block.forward(pass, stream, table); });
  return stream;
}

Tensor EncoderTower::backward(Pass& pass, const ModelPieces::Piece& here,
                              const TrainedUnits& trained, Tensor d_stream,
                              const ModelBatch& batch) {
  blocks_.backward(pass, here, trained, [&](ConformerBlock& block) {
    d_stream = block.backward(pass, std::move(d_stream));
  });
  if (here.first_unit > first_unit_) return d_stream;
  if (trained.reach(first_unit_)) input_backward(pass, d_stream, batch);
  return {};
}

// Streaming, chunk by chunk.
StreamState EncoderTower::make_state(Pass& pass, std::int64_t streams) const {
  CHOIR_CHECK(streams == 1, "{} streams in one pass", streams);
  const SpeechChunks chunks(config_);
  const std::int64_t left = chunks.past, chunk = chunks.frames;
  const Tensor table =
      pass.allocate({2 * (left + chunk) - 1, config_.n_embd}, "relative positions");
  ops::relative_positions(pass.stream(), position_tables_, table);
  StreamState state(streams);
  for (const auto& block : blocks_.all()) {
    pass.acquire(block.bucket);
    block.module->remember(pass, state, left, chunk, table);
    pass.release(block.bucket);
  }
  state.begin(pass.stream());
  return state;
}

Tensor EncoderTower::input_of_chunk(Pass& pass, const ModelBatch& batch, bool trained) {
  const std::int64_t seen = pass.sequence().state->seen(), frames = pass.sequence().tokens;
  const Pass::On audio(pass, pass.add_sequence(sequence_of(batch)));
  const Tensor made = input_layer(pass, batch, trained);
  return made.view(made.slice(std::min(seen, SpeechChunks(config_).overlap), frames));
}

// The cost of an encoder.
namespace {

double real(std::int64_t n) {
  return static_cast<double>(n);
}

/// FLOPs of the forward of the subsampling: products and convolutions.
double subsampling_flops(const FastConformerConfig& c, const BatchShape& shape) {
  const double channels = real(c.subsampling_channels);
  std::int64_t t = ops::mel_frames(c.mel, shape.audio_samples), f = c.mel.mels;
  double flops = 0;
  for (int k = 0; k < c.stages(); ++k) {
    t = ops::strided_size(t, c.causal), f = ops::strided_size(f, c.causal);
    flops += real(t * f) * channels * (18 + (k > 0 ? 2 * channels : 0));
  }
  return real(shape.samples) * (flops + 2 * real(t * f) * channels * real(c.n_embd));
}

/// FLOPs of the forward of a block: products, convolution, and attention over the keys that a frame
/// can see.
double flops_of_block(const FastConformerConfig& c, const BatchShape& shape) {
  const double frames = real(c.frames(shape.audio_samples)), width = real(c.n_embd);
  const double feed_forward = 2 * 2 * 2 * width * real(c.hidden());
  const double attention = 2 * 4 * width * width, convolution = 2 * 3 * width * width;
  // Scores of content and of positions, and the sum of values.
  const double keys = 3 * 2 * frames * width;
  const double positions = 2 * 2 * width * width;  // 2T - 1 rows for each utterance, once per batch
  return frames * (real(shape.samples) * (feed_forward + attention + convolution + keys +
                                          2 * real(c.conv_kernel) * width) +
                   positions);
}

}  // namespace

double EncoderTower::input_flops(const FastConformerConfig& c, const BatchShape& shape) {
  return subsampling_flops(c, shape);
}

double EncoderTower::block_flops(const FastConformerConfig& c, const BatchShape& shape) {
  return flops_of_block(c, shape);
}

}  // namespace choir
