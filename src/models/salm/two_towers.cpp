#include "choir/models/salm/two_towers.hpp"

#include "choir/core/text.hpp"
#include "choir/device/arena.hpp"
#include "choir/device/profile_range.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "src/models/parameter_table.hpp"

namespace choir {
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
  options.shares_weight = lm.tied && !cut.separate_tied && ends_meet(pieces, junction);
  options.one_piece = pieces.whole() && pieces.count() == 1;
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
                                         const ModelBatch& batch, BucketHooks& hooks) {
  if (here.contains(junction())) {
    const ProfileRange range(pass.stream(), "junction");
    const Pass::Unsaved below(pass, !trained_.reach(junction()));
    stream = join(pass, stream, batch, hooks);
  }
  if (here.last_unit <= junction()) return stream;
  return decoder_.forward_blocks(pass, here, trained_, std::move(stream),
                                 here.head ? &batch : nullptr, hooks);
}

Tensor TwoTowers::backward(Pass& pass, int index, Tensor d_output, const ModelBatch& batch,
                           BucketHooks& hooks) {
  const ModelPieces::Piece& here = begin_backward(pass, index, d_output);
  Tensor d_stream = std::move(d_output);
  if (here.last_unit > junction())
    d_stream = decoder_.backward_blocks(pass, here, trained_, std::move(d_stream), hooks);
  if (here.contains(junction())) d_stream = junction_backward(pass, d_stream, batch, hooks);
  if (here.first_unit >= junction()) return d_stream;
  const Pass::On frames(pass, kFrames);
  return encoder_.backward(pass, here, trained_, std::move(d_stream), batch, hooks);
}

Tensor TwoTowers::junction_backward(Pass& pass, const Tensor& d_stream, const ModelBatch& batch,
                                    BucketHooks& hooks) {
  const ProfileRange range(pass.stream(), "junction backward");
  if (trained_.reach(junction()))
    return join_backward(pass, decoder_.embedding().rows_backward(pass, d_stream), batch, hooks);
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
  return parameter_table(*parameters_,
                         {{"encoder.blocks", encoder_.config().n_layer},
                          {"adapter.blocks", encoder_.adapter_layers()},
                          {"lm.blocks", decoder_.config().n_layer}},
                         44);
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
