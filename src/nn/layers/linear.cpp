#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "choir/core/philox.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/ops/activation.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/dropout/dropout.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/sums/sums.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {
namespace {

/// A has the columns of the weight, B its rows (`dim`). If the weight is divided along the other
/// dim, the rank r inside B (A x) is summed over ranks, each of which has terms of the gradient of
/// the factor.
ShardSpec factor_shard(const ShardSpec& weight, int dim) {
  CHOIR_CHECK(weight.tiles == 1, "an adapter of a layer in tiles");
  if (weight.split_dim < 0 || weight.split_dim == dim) return weight;
  ShardSpec whole{.partial = weight.partial};
  whole.partial.push_back(weight.axis);
  return whole;
}

ops::GemmOptions forward_options(const Pass& pass, const TensorView& bias) {
  return {.transpose_b = true, .reads_b_once = pass.mode() == Mode::generate, .bias = bias};
}

void multiply_by_factor(Pass& pass, const TensorView& x, double factor) {
  if (factor != 1)
    ops::dropout(pass.stream(), {.in = x, .out = x, .factor = factor, .tokens = x.shape.rows()});
}

}  // namespace

Linear::Linear(ParameterSet& parameters, const std::string& name, std::int64_t inputs,
               std::int64_t outputs, const Options& options)
    : weight_(&parameters.add({.name = name + ".weight",
                               .shape = {outputs, inputs},
                               .init = Init::normal(options.init_std),
                               .decay = true,
                               .use = options.use,
                               .gradient_overwritten = true,
                               .shard = options.weight_shard})),
      inputs_(weight_->local[1]),
      outputs_(weight_->local[0]) {
  if (options.bias)
    bias_ = &parameters.add({.name = name + ".bias",
                             .shape = {outputs},
                             .init = Init::zeros(),
                             .shard = options.bias_shard});
  bucket_ = weight_->bucket;
  if (options.adapter.rank > 0) add_adapter(parameters, name, options);
}

void Linear::add_adapter(ParameterSet& parameters, const std::string& name,
                         const Options& options) {
  const Adapter& adapter = options.adapter;
  const ShardSpec& whole = options.weight_shard;
  const Shape& shape = weight_->shape;
  const bool by_sections = !adapter.sections.empty();
  CHOIR_CHECK(
      !by_sections || (whole.split_dim == 0 && adapter.sections.size() == whole.sections.size() &&
                       adapter.sections.size() <= kMostPairs),
      "{} adapters of {} sections", adapter.sections.size(), whole.sections.size());
  const double std = 1 / std::sqrt(3.0 * static_cast<double>(shape[1]));
  std::int64_t first = 0;
  const auto add = [&](const std::string& of, const ShardSpec& shard, std::int64_t outputs) {
    const auto factor = [&](std::string_view suffix, const Shape& extents, const Init& init,
                            int dim) {
      return &parameters.add({.name = of + std::string(suffix),
                              .shape = extents,
                              .init = init,
                              .decay = true,
                              .use = Use::adapter,
                              .gradient_overwritten = true,
                              .shard = factor_shard(shard, dim)});
    };
    Parameter* const a = factor(kFactorA, {adapter.rank, shape[1]}, Init::normal(std), 1);
    Parameter* const b = factor(kFactorB, {outputs, adapter.rank}, Init::zeros(), 0);
    pairs_.push_back({a, b, first, of + ".adapter_dropout"});
  };
  if (!by_sections) add(name, whole, shape[0]);
  for (std::size_t i = 0; i < adapter.sections.size(); ++i) {
    ShardSpec section = whole;
    section.sections = {whole.sections[i]};
    const std::int64_t rows = whole.sections[i].extent;
    if (!adapter.sections[i].empty()) add(name + "." + adapter.sections[i], section, rows);
    first += local_shape({rows, 1}, section, parameters.tensor())[0];
  }
  adapter_factor_ = adapter.alpha / static_cast<double>(adapter.rank);
  adapter_dropout_ = adapter.dropout;
  CHOIR_CHECK(!row() || adapter.dropout == 0 || whole.sections.empty(),
              "dropout before an adapter of columns in sections");
  if (row() && inputs_ < shape[1]) first_input_ = shard_runs(*weight_).front().logical;
}

Linear::Linear(Parameter& weight)
    : weight_(&weight),
      bucket_(weight.bucket),
      inputs_(weight.local[1]),
      outputs_(weight.local[0]) {}

TensorView Linear::bias(const Pass& pass) const {
  const bool elsewhere = row() && pass.tensor().rank() > 0;
  return bias_ && !elsewhere ? bias_->value : TensorView{};
}

Tensor Linear::forward(Pass& pass, const Tensor& x, bool keep_input) {
  const ops::GemmOptions options = forward_options(pass, bias(pass));
  if (row()) {
    Tensor terms = allocate_terms(pass, outputs_, "linear output");
    ops::gemm(pass.stream(), x, weight_->value, terms, options);
    adapt(pass, x, terms);
    if (keep_input) save_input(pass, x);
    return RowSum(pass, std::move(terms)).wait();
  }
  const Tensor rows = column() ? gather_rows(pass, x) : x;
  Tensor y = pass.allocate({rows.shape.rows(), outputs_}, "linear output");
  ops::gemm(pass.stream(), rows, weight_->value, y, options);
  adapt(pass, rows, y);
  if (keep_input) save_input(pass, x);
  return y;
}

TensorView Linear::early_bias(const Pass& pass) const {
  const bool whole = !row() || pass.tensor().size() == 1;
  const bool early = trains_bias() && whole && !pass.postpones_weight_gradients() &&
                     pass.stream().device().plans_for() == DeviceKind::cuda;
  return early ? bias_->gradient : TensorView{};
}

Tensor Linear::backward(Pass& pass, const Tensor& d_y, bool bias_done) {
  if (!column()) {
    Tensor x = pass.pop();
    Tensor d_rows = row() ? gather_rows(pass, d_y) : d_y;
    Tensor d_x = pass.allocate({d_rows.shape.rows(), inputs_}, "linear input gradient");
    ops::gemm(pass.stream(), d_rows, weight_->value, d_x);
    add_adapter_gradients(pass, x, d_rows, adapt_back(pass, d_rows, d_x));
    add_gradients(pass, std::move(x), std::move(d_rows), bias_done);
    return d_x;
  }
  Tensor x = pass.pop();
  std::optional<RowGather> inputs;
  if (needs_input()) inputs.emplace(pass, std::exchange(x, Tensor()));
  Tensor terms = allocate_terms(pass, inputs_, "linear input gradient");
  ops::gemm(pass.stream(), d_y, weight_->value, terms);
  const OfPairs d_narrow = adapt_back(pass, d_y, terms);
  if (inputs) x = inputs->wait();
  RowSum sum(pass, std::move(terms));
  add_adapter_gradients(pass, x, d_y, d_narrow);
  add_gradients(pass, std::move(x), d_y, bias_done);
  return sum.wait();
}

Tensor Linear::forward_gelu(Pass& pass, ops::Activation gelu, const Tensor& x, bool keep_input) {
  const Tensor rows = column() ? gather_rows(pass, x) : x;
  const Shape shape{rows.shape.rows(), outputs_};
  const bool keeps = pass.training() || adapted();
  const Tensor before = keeps ? pass.allocate(shape, "pre-activation") : Tensor();
  Tensor y = pass.allocate(shape, "activation");
  if (adapted()) {  // added between the product and its activation
    ops::gemm(pass.stream(), rows, weight_->value, before, forward_options(pass, bias(pass)));
    adapt(pass, rows, before);
    ops::activation_forward(pass.stream(), gelu, before, y);
  } else {
    ops::GemmOptions options = forward_options(pass, bias(pass));
    options.epilogue =
        gelu == ops::Activation::gelu ? ops::GemmEpilogue::gelu : ops::GemmEpilogue::gelu_tanh;
    options.pre_activation = before;
    ops::gemm(pass.stream(), rows, weight_->value, y, options);
  }
  if (keep_input) save_input(pass, x);
  pass.save(before);
  return y;
}

Tensor Linear::backward_gelu(Pass& pass, ops::Activation gelu, const Tensor& d_y) {
  Tensor x = pass.pop();
  const Tensor before = pass.pop();
  Tensor d_rows = row() ? gather_rows(pass, d_y) : d_y;
  Tensor d_before = pass.allocate(before.shape, "pre-activation gradient");
  if (adapted()) {
    ops::gemm(pass.stream(), d_rows, weight_->value, d_before);
    add_adapter_gradients(pass, x, d_rows, adapt_back(pass, d_rows, d_before));
    ops::activation_backward(pass.stream(), gelu, before, d_before, d_before);
  } else {
    ops::gemm(pass.stream(), d_rows, weight_->value, d_before,
              {.epilogue = gelu == ops::Activation::gelu ? ops::GemmEpilogue::gelu_gradient
                                                         : ops::GemmEpilogue::gelu_tanh_gradient,
               .pre_activation = before});
  }
  add_gradients(pass, std::move(x), std::move(d_rows));
  return d_before;
}

void Linear::multiply(Pass& pass, const TensorView& rows, const TensorView& y,
                      bool accumulate) const {
  ops::GemmOptions options = forward_options(pass, bias(pass));
  options.accumulate = accumulate;
  ops::gemm(pass.stream(), rows, weight_->value, y, options);
}

void Linear::multiply_outputs(Pass& pass, const TensorView& rows, std::int64_t first,
                              std::int64_t count, const TensorView& y) const {
  const TensorView all = bias(pass);
  ops::gemm(pass.stream(), rows, weight_->value.slice(first, count), y,
            forward_options(pass, all.empty() ? all : all.slice(first, count)));
}

void Linear::multiply_back(Pass& pass, const TensorView& d_y, const TensorView& d_rows,
                           bool accumulate) const {
  ops::gemm(pass.stream(), d_y, weight_->value, d_rows, {.accumulate = accumulate});
}

void Linear::weight_gradient_alone(Pass& pass, void* self, const Tensor& x, const Tensor& d_y) {
  auto& layer = *static_cast<Linear*>(self);
  ops::gemm(pass.stream(), d_y, x, layer.weight_->gradient,
            {.transpose_a = true, .accumulate = layer.weight_->accumulate()});
}

void Linear::weight_gradient(Pass& pass, void* self, const Tensor& x, const Tensor& d_y) {
  const auto& layer = *static_cast<Linear*>(self);
  if (layer.weight_->trainable) weight_gradient_alone(pass, self, x, d_y);
  if (!layer.trains_bias()) return;
  const Tensor workspace =
      pass.scratch(ops::bias_gradient_workspace(pass.stream(), d_y.shape.rows(), layer.outputs_),
                   "bias gradient");
  ops::bias_gradient(pass.stream(), d_y, layer.bias_->gradient, workspace);
}

Tensor Linear::columns_of(Pass& pass, const Pair& pair, const TensorView& y) const {
  const std::int64_t rows = y.shape.rows(), width = pair.b->local[0];
  if (width == outputs_) return Tensor().view(y);
  Tensor part = pass.allocate({rows, width}, "adapter");
  auto* const from =
      static_cast<std::byte*>(y.data) + static_cast<std::size_t>(pair.first) * size_of(y.dtype);
  ops::copy_rows(pass.stream(), y.dtype, rows, width, {from, outputs_}, {part.data, width});
  return part;
}

// The generator draws numbers for four features at a time. If this rank's features begin in the
// middle of four, rows are copied into wider ones with the right alignment.
Tensor Linear::dropped(Pass& pass, const Pair& pair, const TensorView& rows) const {
  if (!drops(pass)) return Tensor().view(rows);
  const Sequence& sequence = pass.sequence();
  const std::int64_t n = rows.shape.rows(), before = first_input_ % 4, width = inputs_ + before;
  const Tensor place = before == 0 ? Tensor() : pass.allocate({n, width}, "adapter dropout");
  const Tensor out = pass.allocate({n, inputs_}, "adapter dropout");
  const std::size_t gap = static_cast<std::size_t>(before) * size_of(rows.dtype);
  if (before > 0) {
    ops::zero(pass.stream(), place);
    ops::copy_rows(pass.stream(), rows.dtype, n, inputs_, {rows.data, inputs_},
                   {static_cast<std::byte*>(place.data) + gap, width});
  }
  const TensorView in = before > 0 ? TensorView(place) : rows;
  const TensorView kept = before > 0 ? place : out;
  for (int i = 0; i < sequence.runs(); ++i) {
    const Sequence::Run run = sequence.run(i);
    ops::dropout(pass.stream(), {.in = in.slice(run.first_row, run.rows),
                                 .out = kept.slice(run.first_row, run.rows),
                                 .probability = adapter_dropout_,
                                 .key = philox_key(pass.seed(), pair.dropout),
                                 .first_sample = pass.first_sample(),
                                 .first_sample_on_device = pass.first_sample_on_device(),
                                 .sample_ids = sequence.sample_ids,
                                 .tokens = run.tokens,
                                 .first_position = run.first_position,
                                 .first_column = first_input_ - before});
  }
  if (before > 0)
    ops::copy_rows(pass.stream(), rows.dtype, n, inputs_,
                   {static_cast<std::byte*>(place.data) + gap, width}, {out.data, inputs_});
  return out;
}

Tensor Linear::narrow(Pass& pass, const Pair& pair, const TensorView& rows) const {
  Tensor h = pass.allocate({rows.shape.rows(), pair.a->local[0]}, "adapter");
  ops::gemm(pass.stream(), rows, pair.a->value, h, forward_options(pass, {}));
  multiply_by_factor(pass, h, adapter_factor_);
  return h;
}

// Terms of A x need no separate sum: B is linear, and the outputs are summed anyway.
void Linear::adapt(Pass& pass, const TensorView& rows, const TensorView& y) const {
  for (const Pair& pair : pairs_) {
    const Tensor h = narrow(pass, pair, dropped(pass, pair, rows));
    const Tensor part = columns_of(pass, pair, y);
    ops::GemmOptions options = forward_options(pass, {});
    options.accumulate = true;
    ops::gemm(pass.stream(), h, pair.b->value, part, options);
    const std::int64_t width = part.shape.back();
    if (width == outputs_) continue;
    auto* const to =
        static_cast<std::byte*>(y.data) + static_cast<std::size_t>(pair.first) * size_of(y.dtype);
    ops::copy_rows(pass.stream(), y.dtype, part.shape.rows(), width, {part.data, width},
                   {to, outputs_});
  }
}

Linear::OfPairs Linear::adapt_back(Pass& pass, const TensorView& d_y,
                                   const TensorView& d_rows) const {
  OfPairs all;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const Pair& pair = pairs_[i];
    Tensor& d_narrow = all[i];
    d_narrow = pass.allocate({d_y.shape.rows(), pair.b->local[1]}, "adapter gradient");
    ops::gemm(pass.stream(), columns_of(pass, pair, d_y), pair.b->value, d_narrow);
    multiply_by_factor(pass, d_narrow, adapter_factor_);
    if (!drops(pass)) {
      ops::gemm(pass.stream(), d_narrow, pair.a->value, d_rows, {.accumulate = true});
      continue;
    }
    const Tensor d_dropped = pass.allocate({d_rows.shape.rows(), inputs_}, "adapter gradient");
    ops::gemm(pass.stream(), d_narrow, pair.a->value, d_dropped);
    ops::add(pass.stream(), d_rows, dropped(pass, pair, d_dropped), d_rows);
  }
  return all;
}

// A x is recomputed here, while values are available; they may be released when a postponed
// gradient runs.
void Linear::add_adapter_gradients(Pass& pass, const Tensor& rows, const Tensor& d_y,
                                   const OfPairs& d_narrow) {
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const Pair& pair = pairs_[i];
    if (!pair.trains()) continue;
    const Tensor x = drops(pass) ? dropped(pass, pair, rows) : rows;
    if (pair.a->trainable) pass.weight_gradient({&Linear::factor_gradient, pair.a, x, d_narrow[i]});
    if (!pair.b->trainable) continue;
    const bool all = pair.b->local[0] == outputs_;
    pass.weight_gradient({&Linear::factor_gradient, pair.b, narrow(pass, pair, x),
                          all ? d_y : columns_of(pass, pair, d_y)});
  }
}

void Linear::factor_gradient(Pass& pass, void* factor, const Tensor& x, const Tensor& d_y) {
  auto& parameter = *static_cast<Parameter*>(factor);
  ops::gemm(pass.stream(), d_y, x, parameter.gradient,
            {.transpose_a = true, .accumulate = parameter.accumulate()});
}

bool Lora::adapts(std::string_view target) const {
  return rank > 0 && std::any_of(targets.begin(), targets.end(), [&](const std::string& one) {
           return one == "all" || one == target;
         });
}

double Lora::factor() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilised ? std::sqrt(r) : r);
}

Linear::Adapter Lora::of(const std::vector<std::string>& parts) const {
  Linear::Adapter adapter;
  for (const std::string& part : parts) {
    if (adapts(part)) adapter.rank = rank;
    adapter.sections.push_back(adapts(part) ? part : "");
  }
  if (parts.size() == 1) adapter.sections.clear();
  adapter.alpha = factor() * static_cast<double>(rank);
  adapter.dropout = dropout;
  return adapter;
}

bool is_adapter(std::string_view name) {
  return name.ends_with(Linear::kFactorA) || name.ends_with(Linear::kFactorB);
}

bool has_adapters(const ParameterSet& parameters) {
  const auto& all = parameters.all();
  return std::any_of(all.begin(), all.end(),
                     [](const Parameter* p) { return is_adapter(p->name); });
}

}  // namespace choir
