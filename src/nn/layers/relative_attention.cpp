#include "src/nn/layers/relative_attention.hpp"

#include <cmath>
#include <utility>

#include "choir/nn/stream_state.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

Linear::Options relative_qkv_options(const RelativeAttention::Options& o) {
  const Section third{o.width, o.heads};
  const ShardSpec rows{.split_dim = 0, .sections = {third, third, third}};
  return {.init_std = o.init_std, .weight_shard = rows, .bias_shard = rows};
}

Parameter position_parameter(const std::string& name, const RelativeAttention::Options& o) {
  return {.name = name + ".position.weight",
          .shape = {o.width, o.width},
          .init = Init::normal(o.init_std),
          .decay = true,
          .use = Use::hidden,
          .gradient_overwritten = true,
          .shard = {.split_dim = 0, .sections = {{o.width, o.heads}}}};
}

Parameter head_bias(const std::string& name, const RelativeAttention::Options& o) {
  return {.name = name,
          .shape = {o.heads, o.width / o.heads},
          .init = Init::zeros(),
          .shard = {.split_dim = 0}};
}

}  // namespace

RelativeAttention::RelativeAttention(ParameterSet& parameters, const std::string& name,
                                     const Options& options)
    : options_(options),
      head_width_(options.width / options.heads),
      scale_(1.0 / std::sqrt(static_cast<double>(head_width_))),
      qkv_(parameters, name + ".qkv", options.width, 3 * options.width,
           relative_qkv_options(options)),
      position_(&parameters.add(position_parameter(name, options))),
      query_bias_(&parameters.add(head_bias(name + ".query_bias", options))),
      position_bias_(&parameters.add(head_bias(name + ".position_bias", options))),
      output_(parameters, name + ".output", options.width, options.width,
              {.init_std = options.init_std, .weight_shard = {.split_dim = 1}}),
      dropout_(name + ".dropout", options.dropout) {
  options_.heads = query_bias_->local[0];
}

ops::AttentionProblem RelativeAttention::problem(const Pass& pass) const {
  const Sequence& sequence = pass.sequence();
  return {
      .batch = sequence.batch,
      .heads = options_.heads,
      .kv_heads = options_.heads,
      .head_width = head_width_,
      .queries = sequence.tokens,
      .keys = sequence.tokens,
      .causal = false,
      .scale = scale_,
      .dtype = pass.precision().compute,
      .lengths = sequence.lengths,
      .biased = true,
      // Plans for each length with which a stream begins and ends would cost more than they save.
      .implementation = sequence.state ? ops::AttentionImplementation::own
                                       : ops::AttentionImplementation::automatic};
}

ops::AttentionOperand RelativeAttention::packed(const Tensor& rows, std::int64_t first_head,
                                                const Pass& pass) const {
  const std::int64_t row = rows.shape.back();
  auto* data = static_cast<std::byte*>(rows.data) +
               static_cast<std::size_t>(first_head * head_width_) * size_of(rows.dtype);
  return {.data = data, .batch_stride = pass.sequence().tokens * row, .position_stride = row};
}

ops::AttentionBias RelativeAttention::bias(const Tensor& scores, const Pass& pass) const {
  const std::int64_t tokens = pass.sequence().tokens, distances = scores.shape.back();
  const std::int64_t matrix = tokens * distances;
  return {.data = static_cast<const std::byte*>(scores.data) +
                  static_cast<std::size_t>(tokens - 1) * size_of(scores.dtype),
          .batch_stride = matrix,
          .head_stride = pass.sequence().batch * matrix,
          .query_stride = distances - 1};
}

TensorView RelativeAttention::by_heads(const TensorView& rows) const {
  return rows.reshaped({options_.heads, head_width_, rows.shape.back()});
}

Tensor RelativeAttention::project(Pass& pass, const Tensor& positions) const {
  const std::int64_t count = positions.shape[0];
  Tensor projected =
      pass.allocate({options_.heads, count, head_width_}, "projected relative positions");
  ops::gemm_batched(pass.stream(), positions, by_heads(position_->value), projected,
                    {.transpose_b = true});
  return projected;
}

void RelativeAttention::remember(Pass& pass, StreamState& state, std::int64_t left,
                                 std::int64_t chunk, const Tensor& positions) const {
  const Tensor distances = positions.view(positions.slice(0, left + 2 * chunk - 1));
  state.add(pass, this,
            {.width = 2 * options_.heads * head_width_,
             .most = left,
             .chunk = chunk,
             .constant = project(pass, distances)},
            "keys and values");
}

RelativeAttention::Past RelativeAttention::read(Pass& pass, const Tensor& qkv,
                                                const Tensor& positions) const {
  const ops::AttentionOperand own_keys = packed(qkv, options_.heads, pass);
  StreamState* const state = pass.sequence().state;
  if (!state)
    return {.keys = pass.sequence().tokens,
            .k = own_keys,
            .v = packed(qkv, 2 * options_.heads, pass),
            .projected = project(pass, positions)};
  const StreamState::Rows rows = state->append(pass, this, {own_keys.data, qkv.shape.back()});
  const StreamState::Track& track = state->track(this);
  const auto from = [&](std::int64_t column) {
    auto* const data = static_cast<std::byte*>(rows.first.data) +
                       static_cast<std::size_t>(column) * size_of(rows.first.dtype);
    return ops::AttentionOperand{data, rows.stride, track.width};
  };
  const std::int64_t keys = rows.first.shape[0];
  return {.keys = keys,
          .k = from(0),
          .v = from(track.width / 2),
          .projected = track.constant,
          .first = track.most + track.chunk - keys};
}

// Key j of Tk is p = Tk - Tq + i - j positions before query i: element j - i + Tq - 1 of the
// distances from Tk - 1 down to 1 - Tq.
Tensor RelativeAttention::position_scores(Pass& pass, const Tensor& shifted,
                                          const Tensor& projected, std::int64_t keys,
                                          std::int64_t first) const {
  const std::int64_t tokens = pass.sequence().tokens, rows = pass.sequence().rows();
  const std::int64_t all = projected.shape[1];
  const std::int64_t count = pass.sequence().state ? keys + tokens - 1 : all;
  Tensor scores = pass.allocate({options_.heads, rows, count}, "scores of relative positions");
  if (!pass.sequence().state) {
    ops::gemm_batched(pass.stream(), shifted, projected, scores, {.transpose_b = true});
    ops::mask_scores(
        pass.stream(), options_.context,
        scores.TensorView::reshaped({options_.heads * pass.sequence().batch, tokens, count}));
    return scores;
  }
  // A stream needs only the distances of its keys.
  for (std::int64_t h = 0; h < options_.heads; ++h)
    ops::gemm(pass.stream(), shifted.slice(h, 1).reshaped({rows, head_width_}),
              projected.slice(h, 1).reshaped({all, head_width_}).slice(first, count),
              scores.slice(h, 1).reshaped({rows, count}), {.transpose_b = true});
  return scores;
}

Tensor RelativeAttention::forward(Pass& pass, const Tensor& x, const Tensor& positions,
                                  ResidualNorm* source) {
  ops::AttentionProblem shape = problem(pass);
  const Tensor qkv = qkv_.forward(pass, x, source == nullptr);
  const Tensor shifted =
      pass.allocate({shape.heads, pass.sequence().rows(), head_width_}, "shifted queries");
  ops::relative_queries(pass.stream(), {.rows = qkv,
                                        .content = query_bias_->value,
                                        .position = position_bias_->value,
                                        .shifted = shifted,
                                        .scale = scale_});
  const Past past = read(pass, qkv, positions);
  shape.keys = past.keys;
  const Tensor scores = position_scores(pass, shifted, past.projected, past.keys, past.first);
  Tensor out =
      pass.allocate({pass.sequence().rows(), shape.heads * head_width_}, "attention output");
  const Tensor lse =
      pass.training()
          ? pass.allocate_statistic({shape.batch, shape.heads, shape.queries}, "attention lse")
          : Tensor();
  {
    const Tensor workspace =
        pass.scratch(ops::attention_workspace(pass.stream(), shape, false), "attention workspace");
    ops::attention_forward(pass.stream(), {.problem = shape,
                                           .q = packed(qkv, 0, pass),
                                           .k = past.k,
                                           .v = past.v,
                                           .out = packed(out, 0, pass),
                                           .log_sum_exp = lse,
                                           .workspace = workspace,
                                           .bias = bias(scores, pass)});
  }
  pass.save(qkv);
  pass.save(shifted);
  pass.save(past.projected);
  pass.save(positions);
  if (!source) pass.save(scores);
  pass.save(out);
  if (pass.training()) pass.save(lse);
  Tensor y = output_.forward(pass, out);
  if (!options_.dropout_in_norm) dropout_.forward(pass, y);
  return y;
}

Tensor RelativeAttention::backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source) {
  ops::AttentionProblem shape = problem(pass);
  const Tensor d_out = dropout_.backward_through(pass, d_y, output_);
  const Tensor lse = pass.pop();
  const Tensor out = pass.pop();
  Tensor scores = source ? Tensor() : pass.pop();
  const Tensor positions = pass.pop();
  const Tensor projected = pass.pop();
  const Tensor shifted = pass.pop();
  Tensor qkv = pass.pop();
  if (source) scores = position_scores(pass, shifted, projected, pass.sequence().tokens);
  const Tensor d_qkv = pass.allocate(qkv.shape, "qkv gradient");
  // Rows of scores are whole packs where position_rows() has made them so.
  const bool one_kernel = options_.one_kernel &&
                          ops::relative_backward_is_one(pass.stream(), shape) &&
                          scores.shape.back() % 8 == 0;
  if (one_kernel) shape.implementation = ops::AttentionImplementation::own;
  const Shape pairs{shape.batch, shape.heads, shape.queries, shape.keys};
  Tensor d_bias = one_kernel ? Tensor() : pass.allocate(pairs, "scores gradient"), d_scores;
  if (one_kernel) d_scores = pass.allocate(scores.shape, "gradient of scores of positions");
  {
    const Tensor workspace =
        pass.scratch(ops::attention_workspace(pass.stream(), shape, true), "attention workspace");
    const ops::AttentionBackward call{.problem = shape,
                                      .q = packed(qkv, 0, pass),
                                      .k = packed(qkv, shape.heads, pass),
                                      .v = packed(qkv, 2 * shape.heads, pass),
                                      .out = packed(out, 0, pass),
                                      .d_out = packed(d_out, 0, pass),
                                      .log_sum_exp = lse,
                                      .d_q = packed(d_qkv, 0, pass),
                                      .d_k = packed(d_qkv, shape.heads, pass),
                                      .d_v = packed(d_qkv, 2 * shape.heads, pass),
                                      .workspace = workspace,
                                      .bias = bias(scores, pass),
                                      .d_bias = d_bias};
    if (one_kernel)
      ops::relative_attention_backward(pass.stream(), call, d_scores);
    else
      ops::attention_backward(pass.stream(), call);
  }
  const Shape shape_of_scores = scores.shape;
  scores.reset();
  qkv.reset();
  if (!one_kernel) {
    d_scores = pass.allocate(shape_of_scores, "gradient of scores of positions");
    ops::unshift_scores(pass.stream(), d_bias, d_scores);
    d_bias.reset();
  }
  backward_positions(pass, std::move(d_scores), shifted, projected, positions, d_qkv);
  if (source) pass.save(source->remake(pass));
  return qkv_.backward(pass, d_qkv);
}

void RelativeAttention::backward_positions(Pass& pass, Tensor d_scores, const Tensor& shifted,
                                           const Tensor& projected, const Tensor& positions,
                                           const Tensor& d_qkv) {
  const std::int64_t rows = pass.sequence().rows();
  const Tensor d_shifted = pass.allocate(shifted.shape, "shifted queries gradient");
  const bool trained = position_->trainable;
  const Tensor d_projected =
      trained ? pass.allocate(projected.shape, "relative positions gradient") : Tensor();
  ops::gemm_batched(pass.stream(), d_scores, projected, d_shifted);
  if (trained)
    ops::gemm_batched(pass.stream(), d_scores, shifted, d_projected, {.transpose_a = true});
  d_scores.reset();
  if (trained)
    pass.weight_gradient({&RelativeAttention::position_gradient, this, positions, d_projected});
  constexpr auto kDiscarded = SideGradient::Frozen::discarded;
  SideGradient content(pass, query_bias_, kDiscarded), position(pass, position_bias_, kDiscarded);
  {
    const Tensor workspace = pass.scratch(
        ops::relative_queries_workspace(pass.stream(), rows, options_.heads * head_width_),
        "head bias gradient");
    ops::relative_queries_backward(pass.stream(), {.d_rows = d_qkv,
                                                   .d_shifted = d_shifted,
                                                   .d_content = content.view(),
                                                   .d_position = position.view(),
                                                   .workspace = workspace,
                                                   .scale = scale_});
  }
  content.finish(pass);
  position.finish(pass);
}

void RelativeAttention::position_gradient(Pass& pass, void* self, const Tensor& positions,
                                          const Tensor& d_projected) {
  auto& layer = *static_cast<RelativeAttention*>(self);
  ops::gemm_batched(pass.stream(), d_projected, positions,
                    layer.by_heads(layer.position_->gradient),
                    {.transpose_a = true, .accumulate = layer.position_->accumulate()});
}

}  // namespace choir
