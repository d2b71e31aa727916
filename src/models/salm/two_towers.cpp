#include "src/models/salm/two_towers.hpp"

#include <algorithm>
#include <cmath>

#include "choir/device/arena.hpp"
#include "choir/device/device.hpp"
#include "choir/models/blocks.hpp"
#include "kernels/activation/activation.hpp"
#include "kernels/copy/copy.hpp"
#include "kernels/dropout/dropout.hpp"
#include "kernels/sums/sums.hpp"
#include "src/core/text.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {
namespace {

/// Copies the frames of each clip between buffers in which clips have different lengths.
void copy_clips(Pass& pass, std::int64_t clips, std::int64_t width, const TensorView& from,
                const TensorView& to) {
  const std::int64_t from_stride = from.count() / clips, to_stride = to.count() / clips;
  ops::copy_blocks(pass.stream(), {.dtype = from.dtype,
                                   .rows = clips,
                                   .blocks = 1,
                                   .width = width,
                                   .from = {.data = from.data, .row_stride = from_stride},
                                   .to = {.data = to.data, .row_stride = to_stride}});
}

Tensor whole(Pass& pass, const Tensor& share, int sequence) {
  const Pass::On on(pass, sequence);
  return gather_rows(pass, share);
}

Tensor own(Pass& pass, const Tensor& rows, int sequence) {
  const Pass::On on(pass, sequence);
  return own_rows(pass, rows);
}

}  // namespace

Sequence FrameStack::rows_of(const Sequence& frames) const {
  Sequence rows = frames;
  rows.tokens = (frames.tokens + frames_ - 1) / frames_;
  if (frames_ > 1) rows.lengths = nullptr;
  return rows;
}

// Shares of the frames and of the rows begin at different frames, so all frames are gathered
// between them. The contents of padded frames must not matter, so they become zero.
Tensor FrameStack::forward(Pass& pass, const Tensor& share, int frames, int rows) const {
  if (frames_ == 1) return share;
  const Sequence &from = pass.sequence(frames), &to = pass.sequence(rows);
  const Tensor all = whole(pass, share, frames);
  const std::int64_t width = all.shape.back();
  const Tensor stacked = pass.allocate({to.rows(), frames_ * width}, "stacked frames");
  ops::zero(pass.stream(), stacked);
  copy_clips(pass, from.batch, from.tokens * width, all, stacked);
  ops::mask_frames(pass.stream(), stacked.reshaped({to.rows() * frames_, width}), from.lengths,
                   to.tokens * frames_);
  return own(pass, stacked, rows);
}

Tensor FrameStack::backward(Pass& pass, const Tensor& d_share, int frames, int rows) const {
  if (frames_ == 1) return d_share;
  const Sequence& to = pass.sequence(frames);
  const Tensor d_stacked = whole(pass, d_share, rows);
  const std::int64_t width = d_stacked.shape.back() / frames_;
  const Tensor d_all = pass.allocate({to.rows(), width}, "gradient of frames");
  copy_clips(pass, to.batch, to.tokens * width, d_stacked, d_all);
  ops::mask_frames(pass.stream(), d_all, to.lengths, to.tokens);
  return own(pass, d_all, frames);
}

FrameProjector::Places::Places(const Pass& pass)
    : clips(pass.mode() == Mode::generate ? 1 : pass.context().size()),
      alone(pass.sequence().alone ? pass.whole_tensor().size() : 1),
      of_clips(pass.sequence().rows()),
      share(pass.share_rows()),
      begin(pass.first_share_row()),
      rows(std::clamp<std::int64_t>(of_clips - begin, 0, share)),
      own(alone > 1 ? pass.whole_tensor().rank() : 0),
      // If every tensor rank has all frames, only one of them adds them to the sum over ranks.
      adds(pass.shares_rows() || alone > 1 || pass.tensor().rank() == 0) {}

std::int64_t FrameProjector::Places::first(std::int64_t rank) const {
  return (rank * alone + own) * of_clips + begin;
}

FrameProjector::FrameProjector(ParameterSet& parameters, std::int64_t inputs, std::int64_t outputs,
                               bool resident, double factor)
    : factor_(factor) {
  parameters.begin_bucket("projector", resident);
  ShardSpec shard;
  if (parameters.tensor().sequence) shard.partial = {Axis::tensor};
  layer_ = std::make_unique<Linear>(
      parameters, "projector", inputs, outputs,
      Linear::Options{.init_std = 1 / std::sqrt(3.0 * static_cast<double>(inputs)),
                      .weight_shard = shard,
                      .bias_shard = shard});
}

void FrameProjector::multiply(Pass& pass, const Tensor& rows) const {
  if (factor_ != 1)
    ops::dropout(pass.stream(),
                 {.in = rows, .out = rows, .factor = factor_, .tokens = rows.shape.rows()});
}

FrameProjector::Projected FrameProjector::forward(Pass& pass, const Tensor& frames) {
  const Tensor rows =
      forward_with(pass, layer_->bucket(), [&] { return layer_->forward(pass, frames); });
  multiply(pass, rows);
  const Places places(pass);
  if (places.clips == 1) return {rows, places};
  const Tensor all =
      pass.allocate({places.clips * places.share, rows.shape.back()}, "frames of all clips");
  Communicator& ranks = *pass.context().communicator;
  ops::copy(pass.stream(), rows, all.slice(ranks.rank() * places.share, places.share));
  ranks.all_gather(all.data, static_cast<std::size_t>(rows.count()), all.dtype);
  return {all, places};
}

void FrameProjector::Projected::add(Pass& pass, const TensorView& index,
                                    const Tensor& terms) const {
  const std::int64_t rows = places.rows;
  if (!places.adds || rows == 0) return;
  for (std::int64_t rank = 0; rank < places.clips; ++rank)
    ops::splice_forward(pass.stream(), {.index = index,
                                        .audio = frames.slice(rank * places.share, rows),
                                        .out = terms,
                                        .first_audio = places.first(rank),
                                        .all_audio = places.all()});
}

Tensor FrameProjector::backward(Pass& pass, const TensorView& index, const Tensor& d_rows) {
  const Tensor d_projected = frames_of(pass, index, d_rows);
  multiply(pass, d_projected);
  return backward_with(pass, layer_->bucket(), [&] { return layer_->backward(pass, d_projected); });
}

// Every row of the index is on one rank of the context axis: the sums have one term each.
Tensor FrameProjector::frames_of(Pass& pass, const TensorView& index, const Tensor& d_rows) const {
  const Places places(pass);
  const Tensor all =
      pass.allocate({places.clips * places.share, d_rows.shape.back()}, "gradient of frames");
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
  const Tensor mine = pass.allocate({places.share, d_rows.shape.back()}, "gradient of frames");
  ranks.reduce_scatter(all.data, static_cast<std::size_t>(mine.count()), all.dtype, ReduceOp::sum,
                       pass.tensor().order);
  ops::copy(pass.stream(), all.slice(ranks.rank() * places.share, places.share), mine);
  return mine;
}

namespace {

template <class Config>
Config with(Recompute recompute, Config tower) {
  tower.recompute = recompute;
  return tower;
}

/// Offset of the tables after those of the encoder, with alignment.
std::size_t tables_behind(const EncoderTower& encoder, const Precision& precision) {
  return static_cast<std::size_t>(
      round_up(static_cast<std::int64_t>(encoder.table_bytes(precision)), Arena::kAlignment));
}

/// True if backward runs from the head to the embedding, which is in the junction, before another
/// micro-batch intervenes.
bool ends_meet(const ModelPieces& pieces, int junction) {
  for (int i = 0; i < pieces.count(); ++i)
    if (pieces[i].contains(junction) && pieces[i].head) return true;
  return pieces.whole();
}

DecoderTower::Options options_of(DecoderTower::Options options, const GptConfig& lm,
                                 const ModelCut& cut, const ModelPieces& pieces, int junction) {
  options.prefix = "lm.";
  options.one_piece = pieces.whole() && pieces.count() == 1;
  options.shares_weight = lm.tied && !cut.separate_tied && ends_meet(pieces, junction) &&
                          (options.one_piece || !DecoderTower::may_chunk_head(lm));
  return options;
}

}  // namespace

TwoTowers::TwoTowers(const Parts& parts, ParameterSet& parameters, const ModelCut& cut,
                     const DecoderTower::Options& options)
    : Model(parameters, cut, parts.encoder.n_layer + parts.adapter_layers + 1 + parts.lm.n_layer),
      encoder_(with(parts.recompute, parts.encoder), parameters, parts.adapter_layers),
      decoder_(with(parts.recompute, parts.lm), parameters,
               options_of(options, parts.lm, cut, pieces_, junction())),
      clips_alone_(parts.clips_alone) {}

std::size_t TwoTowers::table_bytes(const Precision& precision) const {
  return tables_behind(encoder_, precision) + decoder_.table_bytes(precision);
}

void TwoTowers::prepare(Pass& pass, void* memory) {
  Model::prepare(pass, memory);
  encoder_.prepare(pass, memory);
  decoder_.prepare(pass,
                   static_cast<std::byte*>(memory) + tables_behind(encoder_, pass.precision()));
}

void TwoTowers::add_sequences(Pass& pass, const ModelBatch& batch) const {
  if (batch.find("audio") == nullptr) return;
  Sequence frames = encoder_.sequence_of(batch);
  frames.repeated = true;
  frames.alone = clips_alone_;
  pass.add_sequence(frames);
}

Shape TwoTowers::boundary_shape(const Pass& pass, int unit) const {
  if (unit >= junction()) return {pass.share_rows(), decoder_.config().n_embd};
  return {pass.share_rows(pass.sequence(kFrames)), encoder_.config().n_embd};
}

Tensor TwoTowers::forward_behind_encoder(Pass& pass, const ModelPieces::Piece& here, Tensor stream,
                                         const ModelBatch& batch) {
  if (here.contains(junction())) {
    const ProfileRange range(pass.stream(), "junction");
    const Pass::Unsaved below(pass, !trained_.reach(junction()));
    stream = join(pass, stream, batch);
  }
  if (here.last_unit <= junction()) return stream;
  return decoder_.forward_blocks(pass, here, trained_, std::move(stream),
                                 here.head ? &batch : nullptr);
}

Tensor TwoTowers::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_backward(pass, index, d_output);
  Tensor d_stream = std::move(d_output);
  if (here.last_unit > junction())
    d_stream = decoder_.backward_blocks(pass, here, trained_, std::move(d_stream));
  if (here.contains(junction())) d_stream = junction_backward(pass, d_stream, batch);
  if (here.first_unit >= junction()) return d_stream;
  const Pass::On frames(pass, kFrames);
  return encoder_.backward(pass, here, trained_, std::move(d_stream), batch);
}

Tensor TwoTowers::junction_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch) {
  const ProfileRange range(pass.stream(), "junction backward");
  if (trained_.reach(junction()))
    return join_backward(pass, decoder_.embedding().rows_backward(pass, d_stream), batch);
  const Pass::On frames(pass, kFrames);
  return pass.allocate({pass.share_rows(), encoder_.config().n_embd}, "gradient of no use");
}

std::vector<std::pair<std::string, std::int64_t>> TwoTowers::further_counts() const {
  std::vector<std::pair<std::string, std::int64_t>> counts{
      {"encoder", parameters_of(*parameters_, "encoder.")}};
  if (encoder_.adapter_layers() > 0)
    counts.emplace_back("adapter", parameters_of(*parameters_, "adapter."));
  counts.emplace_back("projector", parameters_of(*parameters_, "projector."));
  counts.emplace_back("language model", parameters_of(*parameters_, "lm."));
  return counts;
}

std::string TwoTowers::describe() const {
  return parameter_table(*parameters_, {"encoder.blocks", "adapter.blocks", "lm.blocks"}, 44);
}

std::int64_t parameters_of(const ParameterSet& parameters, std::string_view prefix) {
  std::int64_t count = 0;
  for (const Parameter* p : parameters.all())
    if (p->name.starts_with(prefix)) count += p->count();
  return count;
}

UnitCosts two_tower_costs(const FastConformerConfig& encoder, const GptConfig& lm,
                          const BatchShape& shape, std::int64_t clips,
                          std::int64_t adapter_layers) {
  const BatchShape audio{.samples = clips, .audio_samples = shape.audio_samples};
  const auto frames = static_cast<double>(clips * encoder.frames(shape.audio_samples));
  const UnitCosts decoder = Gpt::unit_costs(lm, shape.samples * shape.tokens);
  UnitCosts costs(static_cast<std::size_t>(encoder.n_layer + adapter_layers) + 1,
                  EncoderTower::block_flops(encoder, audio));
  costs.front() = EncoderTower::input_flops(encoder, audio);
  costs.push_back(decoder.front() + 2 * frames * static_cast<double>(encoder.n_embd * lm.n_embd));
  costs.insert(costs.end(), decoder.begin() + 1, decoder.end());
  return costs;
}

std::vector<KeyProblem> within(const std::string& section, std::vector<KeyProblem> problems) {
  const auto moved = [&](std::string& text) {
    const std::string from = "model.";
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos;
         at += section.size() + 1)
      text.replace(at, from.size(), section + ".");
  };
  for (KeyProblem& problem : problems) {
    for (std::string& key : problem.keys) moved(key);
    moved(problem.text);
  }
  return problems;
}

}  // namespace choir
