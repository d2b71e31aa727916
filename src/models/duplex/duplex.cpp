#include "src/models/duplex/duplex.hpp"

#include <utility>

#include "choir/device/device.hpp"
#include "choir/models/logits.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

constexpr double kCodeInitStd = 0.02;

ShardSpec codebook_shard(const DuplexConfig& c) {
  ShardSpec shard{.split_dim = 0};
  shard.sections = {{c.codebooks * c.code_ids(), c.codebooks}};
  return shard;
}

std::byte* element(const TensorView& of, std::int64_t at) {
  return static_cast<std::byte*>(of.data) + static_cast<std::size_t>(at) * size_of(of.dtype);
}

/// Copies columns [first, first + count) of integers [N, columns] to integers [N * count].
Tensor integer_columns(Pass& pass, const TensorView& from, std::int64_t columns, std::int64_t first,
                       std::int64_t count) {
  const std::int64_t rows = from.count() / columns;
  const Tensor memory = pass.scratch(rows * count * static_cast<std::int64_t>(sizeof(std::int32_t)),
                                     "codes of codebooks");
  const TensorView out{memory.data, DType::i32, {rows * count}};
  ops::copy_rows(pass.stream(), DType::i32, rows, count, {element(from, first), columns},
                 {out.data, count});
  return memory.view(out);
}

}  // namespace

CodebookShare codebook_share(std::int64_t codebooks, int rank, int ranks) {
  CHOIR_CHECK(codebooks % ranks == 0 || ranks % codebooks == 0,
              "{} codebooks divided among {} ranks", codebooks, ranks);
  if (codebooks >= ranks) return {.first = rank * (codebooks / ranks), .count = codebooks / ranks};
  const std::int64_t copies = ranks / codebooks;
  return {.first = rank / copies, .count = 1, .copies = copies, .speaker = rank % copies == 0};
}

CodeEmbedding::CodeEmbedding(const DuplexConfig& c, ParameterSet& parameters, bool resident)
    : codebooks_(c.codebooks),
      ids_(c.code_ids()),
      share_(codebook_share(c.codebooks, parameters.tensor().rank, parameters.tensor().ranks)) {
  parameters.begin_bucket("code_embedding", resident);
  table_ = &parameters.add({.name = "code_embedding.weight",
                            .shape = {c.codebooks * c.code_ids(), c.lm.n_embd},
                            .init = Init::normal(kCodeInitStd),
                            .decay = true,
                            .shard = codebook_shard(c)});
}

void CodeEmbedding::add(Pass& pass, const TensorView& codes, const Tensor& terms) const {
  const ProfileRange range(pass.stream(), "embedding of codes");
  pass.acquire(table_->bucket);
  for (std::int64_t k = 0; share_.speaker && k < share_.count; ++k)
    ops::embedding_forward(pass.stream(),
                           {.ids = integer_columns(pass, codes, codebooks_, share_.first + k, 1),
                            .table = table_->value.slice(k * ids_, ids_),
                            .out = terms,
                            .accumulate = true});
  pass.release(table_->bucket);
}

void CodeEmbedding::backward(Pass& pass, const TensorView& codes, const Tensor& d_rows) {
  if (!table_->trainable) return;
  pass.begin_gradients(table_->bucket);
  pass.weight_gradient({&CodeEmbedding::gradient, this, Tensor().view(codes), d_rows});
  pass.gradients_ready(table_->bucket);
}

// Only the speaker adds: the sum over copies then equals that of one.
void CodeEmbedding::gradient(Pass& pass, void* self, const Tensor& codes, const Tensor& d_rows) {
  const auto& of = *static_cast<const CodeEmbedding*>(self);
  const std::int64_t rows = d_rows.shape.rows(), width = d_rows.shape.back();
  for (std::int64_t k = 0; of.share_.speaker && k < of.share_.count; ++k)
    ops::embedding_backward(
        pass.stream(),
        {.ids = integer_columns(pass, codes, of.codebooks_, of.share_.first + k, 1),
         .d_out = d_rows,
         .d_table = of.table_->gradient.slice(k * of.ids_, of.ids_),
         .workspace = pass.scratch(ops::embedding_workspace(pass.stream(), rows, of.ids_, width),
                                   "embedding gradient of codes")});
}

CodeHead::CodeHead(const DuplexConfig& c, ParameterSet& parameters, bool resident)
    : codebooks_(c.codebooks),
      ids_(c.code_ids()),
      share_(codebook_share(c.codebooks, parameters.tensor().rank, parameters.tensor().ranks)) {
  parameters.begin_bucket("code_head", resident);
  layer_ =
      std::make_unique<Linear>(parameters, "code_head", c.lm.n_embd, c.codebooks * c.code_ids(),
                               Linear::Options{.init_std = kCodeInitStd,
                                               .use = Use::other,
                                               .weight_shard = codebook_shard(c),
                                               .bias_shard = codebook_shard(c)});
}

Tensor CodeHead::forward(Pass& pass, const Tensor& normed, const Tensor& of_tokens,
                         const ModelBatch& batch) {
  const ProfileRange range(pass.stream(), "head of codes and loss");
  const Tensor logits =
      forward_with(pass, layer_->bucket(), [&] { return layer_->forward(pass, normed); });
  return pass.mode() == Mode::generate ? with_logits(pass, logits, of_tokens)
                                       : with_losses(pass, logits, of_tokens, batch);
}

// Gradients of copies are summed, so each copy computes a fraction of them.
Tensor CodeHead::with_losses(Pass& pass, const Tensor& logits, const Tensor& of_tokens,
                             const ModelBatch& batch) const {
  const bool divided = pass.tensor().size() > 1;
  const std::int64_t rows = pass.sequence().rows(), all = rows * codebooks_;
  const TensorView& targets = batch["code_targets"];
  const Tensor both = pass.allocate_statistic({2, all}, "losses of text and codes");
  const TensorView flat = both.reshaped({2 * all}), of_codes = flat.slice(all, all);
  const TensorView tokens = of_tokens.reshaped({of_tokens.count()});
  const Tensor mine = divided ? pass.allocate_statistic({rows * share_.count}, "losses of codes")
                              : both.view(of_codes);
  ops::zero(pass.stream(), both);
  ops::copy(pass.stream(), tokens.slice(0, rows), flat.slice(0, rows));
  const Tensor my_targets =
      divided ? integer_columns(pass, targets, codebooks_, share_.first, share_.count)
              : Tensor().view(targets);
  ops::cross_entropy(pass.stream(), {.logits = logits.reshaped({rows * share_.count, ids_}),
                                     .targets = my_targets,
                                     .losses = mine,
                                     .vocabulary = ids_,
                                     .scale = batch.scale / static_cast<double>(share_.copies),
                                     .device_scale = batch.device_scale(1),
                                     .write_gradient = pass.training()});
  pass.save(logits);  // they hold their gradient now
  if (divided) {
    if (share_.speaker)
      ops::copy_rows(pass.stream(), mine.dtype, rows, share_.count, {mine.data, share_.count},
                     {element(of_codes, share_.first), codebooks_});
    pass.tensor().communicator->all_reduce(of_codes.data, static_cast<std::size_t>(all),
                                           of_codes.dtype, ReduceOp::sum, pass.tensor().order);
  }
  pass.add_loss(1, of_codes, {.unmasked = targets});
  return both;
}

Tensor CodeHead::with_logits(Pass& pass, const Tensor& logits, const Tensor& of_tokens) const {
  const Tensor parts = gather_columns(pass, logits);
  const std::int64_t streams = parts.shape.rows(), text = of_tokens.shape.back();
  const std::int64_t width = text + codebooks_ * ids_;
  const Tensor all = pass.allocate({streams, width}, "logits of text and codes");
  const auto place = [&](const Tensor& from, std::int64_t at, std::int64_t count, std::int64_t to) {
    ops::copy_rows(pass.stream(), from.dtype, streams, count,
                   {element(from, at), from.shape.back()}, {element(all, to), width});
  };
  place(of_tokens, 0, text, 0);
  for (std::int64_t k = 0; k < codebooks_; ++k)
    place(parts, k * share_.copies * ids_, ids_, text + k * ids_);
  return all;
}

Tensor CodeHead::backward(Pass& pass) {
  const ProfileRange range(pass.stream(), "head of codes backward");
  return backward_with(pass, layer_->bucket(), [&] { return layer_->backward(pass, pass.pop()); });
}

namespace {

/// True for a batch of audio alone, which only the encoder reads.
bool only_hears(const Pass& pass, const ModelBatch& batch) {
  return pass.mode() == Mode::generate && batch.find("text") == nullptr;
}

}  // namespace

Duplex::Duplex(const DuplexConfig& c, ParameterSet& parameters, const ModelCut& cut)
    : TwoTowers({c.encoder, c.lm, c.recompute}, parameters, cut,
                {.targets = "text_targets", .weights = "text_weights", .z_term = 2}),
      config_(c) {
  const bool joins = pieces_.resident(junction());
  encoder_.add(0, pieces_, trained_);
  trained_.begin_unit(parameters);
  projector_ = std::make_unique<FrameProjector>(parameters, c.encoder.n_embd, c.lm.n_embd, joins,
                                                c.user_weight);
  decoder_.add_embedding(joins);
  code_embedding_ = std::make_unique<CodeEmbedding>(c, parameters, joins);
  decoder_.add_blocks(junction() + 1, pieces_, trained_);
  trained_.begin_unit(parameters);
  // The head of codes is registered after that of the text.
  decoder_.add_head(pieces_.has_head());
  code_head_ = std::make_unique<CodeHead>(c, parameters, pieces_.has_head());
  decoder_.put_beside(*code_head_);
}

Sequence Duplex::sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
  Sequence sequence = Model::sequence_of(batch, context);
  sequence.sample_ids = static_cast<const std::int64_t*>(batch["dialogue_ids"].data);
  return sequence;
}

void Duplex::begin_hearing(Pass& pass, const ModelBatch& batch) const {
  pass.begin(Mode::generate, encoder_.sequence_of(batch), 0);
}

Tensor Duplex::forward(Pass& pass, int index, Tensor stream, const ModelBatch& batch) {
  const ModelPieces::Piece& here = begin_forward(pass, index, stream);
  if (only_hears(pass, batch))
    return encoder_.forward(pass, here, trained_, std::move(stream), batch);
  if (batch.find("heard") != nullptr) {
    CHOIR_CHECK(pieces_.whole(), "frames for a part of a model");
    stream = Tensor().view(batch["heard"]);
  } else if (here.first_unit < junction()) {
    const Pass::On frames(pass, kFrames);
    stream = encoder_.forward(pass, here, trained_, std::move(stream), batch);
  }
  return forward_behind_encoder(pass, here, std::move(stream), batch);
}

Tensor Duplex::join(Pass& pass, const Tensor& frames, const ModelBatch& batch) {
  const auto heard = [&] {
    const Pass::On on_frames(pass, batch.find("heard") != nullptr ? 0 : kFrames);
    return projector_->forward(pass, frames);
  }();
  return decoder_.embedding().forward(pass, batch["text"], [&](const Tensor& terms) {
    code_embedding_->add(pass, batch["codes"], terms);
    heard.add(pass, batch["frames"], terms);
  });
}

Tensor Duplex::join_backward(Pass& pass, const Tensor& d_rows, const ModelBatch& batch) {
  code_embedding_->backward(pass, batch["codes"], d_rows);
  decoder_.embedding().backward(pass, d_rows, batch["text"]);
  const Pass::On frames(pass, kFrames);
  return projector_->backward(pass, batch["frames"], d_rows);
}

StreamState Duplex::make_state(Pass& pass, std::int64_t streams) const {
  return make_state_of(pass, streams, config_.lm.block_size);
}

StreamState Duplex::make_state_of(Pass& pass, std::int64_t streams, std::int64_t frames) const {
  StreamState state(streams, frames == 0);
  decoder_.remember(pass, state, frames);
  return state;
}

StreamState Duplex::make_encoder_state(Pass& pass) const {
  CHOIR_CHECK(pieces_.whole(), "this rank has {} pieces of the model, not all of it", pieces());
  return encoder_.make_state(pass, 1);
}

// Costs of a Duplex.
UnitCosts Duplex::unit_costs(const DuplexConfig& c, const BatchShape& shape) {
  const auto rows = static_cast<double>(shape.samples * shape.tokens);
  const auto width = static_cast<double>(c.lm.n_embd);
  const auto books = static_cast<double>(c.codebooks), ids = static_cast<double>(c.code_ids());
  UnitCosts costs = two_tower_costs(c.encoder, c.lm, shape, shape.samples);
  costs[static_cast<std::size_t>(c.junction())] += rows * width * books;
  costs.back() += 2 * rows * width * books * ids;
  return costs;
}

double Duplex::flops(const BatchShape& shape) const {
  return trained_.flops(unit_costs(config_, shape));
}

std::vector<std::pair<std::string, std::int64_t>> Duplex::further_counts() const {
  auto counts = TwoTowers::further_counts();
  counts.emplace_back("codes", parameters_of(*parameters_, "code_"));
  return counts;
}

}  // namespace choir
