#include "src/models/salm/salm.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "choir/device/arena.hpp"
#include "choir/device/profile_range.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "choir/nn/axes/tensor_axis.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/ops/splice.hpp"
#include "src/models/parameter_table.hpp"
#include "src/models/piece_walk.hpp"

namespace choir {
namespace {

/// The number of a pass's second sequence: the frames of clips.
constexpr int kFrames = 1;

/// Where the frames of this tensor rank are among those of all clips, on each rank of the context
/// axis, which share the clips: `rows` of them from first(c) on.
struct FramePlaces {
  explicit FramePlaces(const Pass& pass)
      : clips(pass.mode() == Mode::generate ? 1 : pass.context().size()),
        of_clips(pass.sequence().rows()),
        share(pass.share_rows()),
        begin(pass.first_share_row()),
        rows(std::clamp<std::int64_t>(of_clips - begin, 0, share)) {}
  std::int64_t first(std::int64_t rank) const { return rank * of_clips + begin; }
  std::int64_t all() const { return clips * of_clips; }

  std::int64_t clips;            ///< ranks of the context axis
  std::int64_t of_clips;         ///< frames of a rank's clips
  std::int64_t share, begin, rows;  ///< of them on this tensor rank; those that are
};

/// So that what comes behind it in memory is aligned.
std::size_t decoder_tables_begin(const EncoderTower& encoder, const Precision& precision) {
  return static_cast<std::size_t>(round_up(
      static_cast<std::int64_t>(encoder.table_bytes(precision)), Arena::kAlignment));
}

/// Backward comes from the head to the embedding before another micro-batch comes between.
bool ends_meet(const ModelPieces& pieces, int junction) {
  for (int i = 0; i < pieces.count(); ++i)
    if (pieces[i].contains(junction) && pieces[i].head) return true;
  return pieces.whole();
}

SalmConfig with_parts(SalmConfig config) {
  config.encoder.recompute = config.lm.recompute = config.recompute;
  return config;
}

}  // namespace

Salm::Salm(const SalmConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : Model(parameters, cut, c.n_layer),
      config_(with_parts(c)),
      encoder_(config_.encoder, parameters),
      decoder_(config_.lm, parameters,
               {.prefix = "lm.",
                .shares_weight = c.lm.tied && !cut.separate_tied && ends_meet(pieces_, c.junction()),
                .one_piece = pieces_.whole() && pieces() == 1,
                .spliced = true}) {
  encoder_.add(0, pieces_, trained_);
  trained_.begin_unit(parameters);
  add_projector(pieces_.resident(c.junction()));
  decoder_.add_embedding(pieces_.resident(c.junction()));
  decoder_.add_blocks(c.junction() + 1, pieces_, trained_);
  trained_.begin_unit(parameters);
  decoder_.add_head(pieces_.has_head());
}

void Salm::add_projector(bool resident) {
  parameters_->begin_bucket("projector", resident);
  if (resident) projector_bucket_ = static_cast<int>(parameters_->buckets().size()) - 1;
  ShardSpec shard;
  if (parameters_->tensor().sequence) shard.partial = {Axis::tensor};
  projector_ = std::make_unique<Linear>(
      *parameters_, "projector", config_.encoder.n_embd, config_.lm.n_embd,
      Linear::Options{.init_std = 1 / std::sqrt(3.0 * static_cast<double>(config_.encoder.n_embd)),
                      .weight_shard = shard,
                      .bias_shard = shard});
}

std::size_t Salm::table_bytes(const Precision& precision) const {
  return decoder_tables_begin(encoder_, precision) + decoder_.table_bytes(precision);
}

void Salm::prepare(Pass& pass, void* memory) {
  trained_.find(*parameters_);
  encoder_.prepare(pass, memory);
  decoder_.prepare(pass, static_cast<std::byte*>(memory) +
                             decoder_tables_begin(encoder_, pass.precision()));
}

Sequence Salm::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  Sequence sequence = share_of_sequences(batch.samples, batch.tokens, context);
  sequence.sample_ids = static_cast<const std::int64_t*>(batch["conversation_ids"].data);
  return sequence;
}

void Salm::add_sequences(Pass& pass, const ModelBatch& batch) const {
  if (batch.find("audio") == nullptr) return;
  Sequence frames = encoder_.sequence_of(batch);
  frames.repeated = true;
  pass.add_sequence(frames);
}

Shape Salm::boundary_shape(const Pass& pass, int unit) const {
  if (unit >= config_.junction()) return {pass.share_rows(), config_.lm.n_embd};
  return {pass.share_rows(pass.sequence(kFrames)), config_.encoder.n_embd};
}

Tensor Salm::forward(Pass& pass, int index, Tensor stream, const ModelBatch& batch,
                     BucketHooks& hooks) {
  const ModelPieces::Piece& here = pieces_[index];
  begin_forward(pass, index, here, stream,
                here.input ? Shape{} : boundary_shape(pass, here.first_unit - 1));
  const bool hears = here.first_unit < config_.junction() && batch.find("audio") != nullptr;
  if (hears) {
    const Pass::On frames(pass, kFrames);
    stream = encoder_.forward(pass, here, trained_, std::move(stream), batch, hooks);
  }
  if (here.contains(config_.junction())) stream = junction(pass, stream, batch, hooks);
  if (here.last_unit <= config_.junction()) return stream;
  return decoder_.forward_blocks(pass, here, trained_, std::move(stream),
                                 here.head ? &batch : nullptr, hooks);
}

Tensor Salm::junction(Pass& pass, const Tensor& frames, const ModelBatch& batch,
                      BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "junction");
  const bool reached = trained_.reach(config_.junction());
  const Pass::Unsaved below(pass, !reached);
  const TensorView& index = batch["index"];
  if (frames.empty()) return decoder_.embed(pass, index, reached, hooks);
  const Pass::On on_frames(pass, kFrames);
  const FramePlaces places(pass);
  const Tensor audio = projected(pass, frames, hooks);
  const Pass::On on_rows(pass, 0);
  // Where every tensor rank has all frames, one of them adds them to the sum over ranks.
  const bool adds = pass.shares_rows() || pass.tensor().rank() == 0;
  return decoder_.embed(pass, index, reached, hooks, [&](const Tensor& terms) {
    if (!adds || places.rows == 0) return;
    for (std::int64_t rank = 0; rank < places.clips; ++rank)
      ops::splice_forward(pass.stream(), {.index = index,
                                          .audio = audio.slice(rank * places.share, places.rows),
                                          .out = terms,
                                          .first_audio = places.first(rank),
                                          .all_audio = places.all()});
  });
}

Tensor Salm::projected(Pass& pass, const Tensor& frames, BucketHooks& hooks) {
  hooks.acquire(projector_bucket_);
  const Tensor rows = projector_->forward(pass, frames);
  hooks.release(projector_bucket_);
  const FramePlaces places(pass);
  if (places.clips == 1) return rows;
  const Tensor all =
      pass.allocate({places.clips * places.share, rows.shape.back()}, "frames of all clips");
  Communicator& ranks = *pass.context().communicator;
  ops::copy(pass.stream(), rows, all.slice(ranks.rank() * places.share, places.share));
  ranks.all_gather(all.data, static_cast<std::size_t>(rows.count()), all.dtype);
  return all;
}

Tensor Salm::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch,
                      BucketHooks& hooks) {
  const ModelPieces::Piece& here = pieces_[index];
  begin_backward(pass, index, here, d_output);
  Tensor d_stream = std::move(d_output);
  if (here.last_unit > config_.junction())
    d_stream = decoder_.backward_blocks(pass, here, trained_, std::move(d_stream), hooks);
  if (here.contains(config_.junction())) d_stream = junction_backward(pass, d_stream, batch, hooks);
  if (here.first_unit >= config_.junction()) return d_stream;
  const Pass::On frames(pass, kFrames);
  return encoder_.backward(pass, here, trained_, std::move(d_stream), batch, hooks);
}

Tensor Salm::junction_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch,
                               BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "junction backward");
  if (!trained_.reach(config_.junction())) {
    const Pass::On frames(pass, kFrames);
    return pass.allocate({pass.share_rows(), config_.encoder.n_embd}, "gradient of no use");
  }
  const TensorView& index = batch["index"];
  const Tensor d_rows = decoder_.embedding_rows_backward(pass, d_stream);
  decoder_.embedding_backward(pass, d_rows, index, hooks);
  const Pass::On frames(pass, kFrames);
  const Tensor d_audio = frames_backward(pass, index, d_rows);
  hooks.acquire(projector_bucket_);
  pass.begin_gradients(hooks, projector_bucket_);
  Tensor d_frames = projector_->backward(pass, d_audio);
  pass.gradients_ready(hooks, projector_bucket_);
  hooks.release(projector_bucket_);
  return d_frames;
}

// Every row of the index is on one rank of the context axis: the sums have one term each.
Tensor Salm::frames_backward(Pass& pass, const TensorView& index, const Tensor& d_rows) {
  const FramePlaces places(pass);
  const Tensor all =
      pass.allocate({places.clips * places.share, config_.lm.n_embd}, "gradient of frames");
  for (std::int64_t rank = 0; rank < places.clips; ++rank) {
    const TensorView part = all.slice(rank * places.share, places.share);
    if (places.rows > 0)
      ops::splice_backward(pass.stream(), {.index = index,
                                           .d_out = d_rows,
                                           .d_audio = part.slice(0, places.rows),
                                           .first_audio = places.first(rank),
                                           .all_audio = places.all()});
    if (places.rows < places.share)
      ops::zero(pass.stream(), part.slice(places.rows, places.share - places.rows));
  }
  if (places.clips == 1) return all;
  Communicator& ranks = *pass.context().communicator;
  const Tensor mine = pass.allocate({places.share, config_.lm.n_embd}, "gradient of frames");
  ranks.reduce_scatter(all.data, static_cast<std::size_t>(mine.count()), all.dtype, ReduceOp::sum,
                       pass.tensor().order);
  ops::copy(pass.stream(), all.slice(ranks.rank() * places.share, places.share), mine);
  return mine;
}

StreamState Salm::make_state(Pass& pass, BucketHooks&, std::int64_t streams) const {
  StreamState state(streams);
  decoder_.remember(pass, state);
  return state;
}

// What a Salm says about itself.
namespace {

BatchShape clips_of(const BatchShape& shape) {
  return {.samples = shape.clips, .audio_samples = shape.audio_samples};
}

}  // namespace

UnitCosts Salm::unit_costs(const SalmConfig& c, const BatchShape& shape) {
  const BatchShape clips = clips_of(shape);
  const double block = EncoderTower::block_flops(c.encoder, clips);
  const auto frames = static_cast<double>(clips.samples * c.encoder.frames(clips.audio_samples));
  const UnitCosts decoder = Gpt::unit_costs(c.lm, shape.samples * shape.tokens);
  UnitCosts costs(static_cast<std::size_t>(c.encoder.n_layer) + 1, block);
  costs.front() = EncoderTower::input_flops(c.encoder, clips);
  costs.push_back(decoder.front() +
                  2 * frames * static_cast<double>(c.encoder.n_embd * c.lm.n_embd));
  costs.insert(costs.end(), decoder.begin() + 1, decoder.end());
  return costs;
}

double Salm::flops(const BatchShape& shape) const {
  const UnitCosts costs = unit_costs(config_, shape);
  return 3 * std::accumulate(costs.begin(), costs.end(), 0.0);
}

std::int64_t Salm::parameters_of(const std::string& prefix) const {
  std::int64_t count = 0;
  for (const Parameter* p : parameters_->all())
    if (p->name.starts_with(prefix)) count += p->count();
  return count;
}

std::vector<std::pair<std::string, std::int64_t>> Salm::further_counts() const {
  return {{"encoder", parameters_of("encoder.")},
          {"projector", parameters_of("projector.")},
          {"language model", parameters_of("lm.")}};
}

std::string Salm::describe() const {
  return parameter_table(
      *parameters_,
      {{"encoder.blocks", config_.encoder.n_layer}, {"lm.blocks", config_.lm.n_layer}}, 44);
}

}  // namespace choir
