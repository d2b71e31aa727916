#include "choir/nn/layers/feed_forward.hpp"

#include <array>
#include <utility>
#include <vector>

#include "choir/nn/layers/dropout.hpp"
#include "choir/nn/layers/linear.hpp"
#include "kernels/fused_bias/fused_bias.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {
namespace {

Linear::Options input_options(const FeedForward::Options& o) {
  ShardSpec rows{.split_dim = 0};
  const bool gated = ops::activation_inputs(o.activation) == 2;
  if (gated) rows.sections = {{o.hidden}, {o.hidden}};
  using Parts = std::vector<std::string>;
  return {.bias = o.bias,
          .init_std = o.input_init_std,
          .weight_shard = rows,
          .bias_shard = rows,
          .adapter = o.lora.of(gated ? Parts{"gate", "up"} : Parts{"up"})};
}

/// activation(before); `before` is [N, F * activation_inputs].
Tensor activate(Pass& pass, ops::Activation activation, const Tensor& before) {
  const std::int64_t width = before.shape.back() / ops::activation_inputs(activation);
  Tensor active = pass.allocate({before.shape.rows(), width}, "activation");
  ops::activation_forward(pass.stream(), activation, before, active);
  return active;
}

class WholeFeedForward final : public FeedForward {
 public:
  WholeFeedForward(ParameterSet& parameters, const std::string& name, const Options& options);
  Tensor forward(Pass& pass, const Tensor& x, ResidualNorm* source) override;
  Tensor backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source) override;
  void forward_again(Pass& pass, const Tensor& x) override;
  Tensor output_again(Pass& pass, const Tensor& x) override { return forward(pass, x, nullptr); }
  BranchEnd end() override { return {&dropout_, in_product() ? nullptr : &output_}; }

 private:
  bool gelu_tanh() const { return options_.activation == ops::Activation::gelu_tanh; }
  /// True if the activation belongs to the product before it, and its derivative to the one after.
  bool in_product() const { return gelu_tanh() || options_.gelu_in_product; }
  /// activation(input(x)); saves the tensors for backward.
  Tensor activated(Pass& pass, const Tensor& x, bool keep_input);
  /// From the gradient of the output to that of the result of the input layer. `bias_done` is set
  /// if the gradient of that layer's bias has been added on the way.
  Tensor backward_to_input(Pass& pass, const BranchGradient& d_y, bool& bias_done);
  bool remakes_activation(const Pass& pass, const ResidualNorm* source) const;

  Options options_;
  Linear input_, output_;
  Dropout dropout_;
};

WholeFeedForward::WholeFeedForward(ParameterSet& parameters, const std::string& name,
                                   const Options& options)
    : options_(options),
      input_(parameters, name + ".input", options.width,
             options.hidden * ops::activation_inputs(options.activation), input_options(options)),
      output_(parameters, name + ".output", options.hidden, options.width,
              {.bias = options.bias,
               .init_std = options.output_init_std,
               .weight_shard = {.split_dim = 1},
               .adapter = options.lora.of({"down"})}),
      dropout_(name + ".dropout", options.dropout, options.factor) {}

// A GPU library applies gelu_tanh to the exact sums of a product, but only rounded sums are kept.
bool WholeFeedForward::remakes_activation(const Pass& pass, const ResidualNorm* source) const {
  const bool fused = gelu_tanh() && pass.stream().device().plans_for() == DeviceKind::cuda;
  return source != nullptr && !fused;
}

Tensor WholeFeedForward::activated(Pass& pass, const Tensor& x, bool keep_input) {
  if (in_product()) return input_.forward_gelu(pass, options_.activation, x, keep_input);
  const Tensor before = input_.forward(pass, x, keep_input);
  pass.save(before);
  return activate(pass, options_.activation, before);
}

Tensor WholeFeedForward::forward(Pass& pass, const Tensor& x, ResidualNorm* source) {
  const Tensor active = activated(pass, x, source == nullptr);
  Tensor y = output_.forward(pass, active, !remakes_activation(pass, source));
  if (!options_.dropout_in_norm) dropout_.forward(pass, y);
  return y;
}

void WholeFeedForward::forward_again(Pass& pass, const Tensor& x) {
  pass.save(activated(pass, x, true));
}

Tensor WholeFeedForward::backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source) {
  if (remakes_activation(pass, source)) {
    const Tensor before = pass.pop();
    pass.save(before);
    pass.save(activate(pass, options_.activation, before));
  }
  bool bias_done = false;
  const Tensor d_before = backward_to_input(pass, d_y, bias_done);
  if (source) pass.save(source->remake(pass));
  return input_.backward(pass, d_before, bias_done);
}

Tensor WholeFeedForward::backward_to_input(Pass& pass, const BranchGradient& d_y, bool& bias_done) {
  if (in_product())
    return output_.backward_gelu(pass, options_.activation, dropout_.backward(pass, d_y));
  const Tensor d_active = dropout_.backward_through(pass, d_y, output_);
  const Tensor before = pass.pop();
  const bool in_place = ops::activation_inputs(options_.activation) == 1 && d_active.sole_owner();
  Tensor d_before = in_place ? d_active : pass.allocate(before.shape, "activation gradient");
  const bool gated = ops::is_gated(options_.activation);
  const TensorView d_bias = gated ? TensorView{} : input_.early_bias(pass);
  if (d_bias.empty()) {
    ops::activation_backward(pass.stream(), options_.activation, before, d_active, d_before);
    return d_before;
  }
  const Tensor workspace = pass.scratch(
      ops::bias_gradient_workspace(pass.stream(), before.shape.rows(), before.shape.back()),
      "bias gradient");
  ops::activation_backward(pass.stream(), options_.activation, before, d_active, d_before,
                           {.d_bias = d_bias, .workspace = workspace});
  bias_done = true;
  return d_before;
}

// The spec of one tile of the hidden width.
ShardSpec tile_of(ShardSpec spec, int tile, int tiles) {
  spec.tile = tile, spec.tiles = tiles;
  return spec;
}

class TiledFeedForward final : public FeedForward {
 public:
  TiledFeedForward(ParameterSet& parameters, const std::string& name, const Options& options);

  Tensor forward(Pass& pass, const Tensor& x, ResidualNorm* source) override;
  Tensor backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source) override;
  void forward_again(Pass& pass, const Tensor& x) override { pass.save(x); }
  Tensor output_again(Pass& pass, const Tensor& x) override;
  BranchEnd end() override { return {&dropout_, nullptr}; }

 private:
  /// A tile's columns of the hidden layer: rows (of each section) of the first weight, columns of
  /// the second.
  struct Tile {
    Linear input, output;
  };
  /// Tensors that forward kept of a tile; empty if they must be recomputed.
  struct Hidden {
    Tensor before, active;
  };

  Tensor product(Pass& pass, const Tile& tile, const Tensor& rows) const;
  /// The gradient of the activation's input of a tile; adds the gradients of its output layer on
  /// the way.
  Tensor hidden_gradient(Pass& pass, Tile& tile, Hidden hidden, const Tensor& rows,
                         const Tensor& d_rows);

  Options options_;
  std::vector<Tile> tiles_;
  Dropout dropout_;
};

TiledFeedForward::TiledFeedForward(ParameterSet& parameters, const std::string& name,
                                   const Options& options)
    : options_(options), dropout_(name + ".dropout", options.dropout, options.factor) {
  CHOIR_CHECK(options.tiles <= kMostTiles, "{} tiles", options.tiles);
  const Lora& lora = options.lora;
  CHOIR_CHECK(!lora.adapts("gate") && !lora.adapts("up") && !lora.adapts("down"),
              "an adapter of a layer in tiles");
  const int inputs = ops::activation_inputs(options.activation);
  ShardSpec rows{.split_dim = 0};
  if (inputs == 2) rows.sections = {{options.hidden}, {options.hidden}};
  for (int t = 0; t < options.tiles; ++t) {
    const ShardSpec of_input = tile_of(rows, t, options.tiles);
    const ShardSpec of_output = tile_of({.split_dim = 1}, t, options.tiles);
    parameters.begin_tile();
    Linear input(parameters, name + ".input", options.width, options.hidden * inputs,
                 {.bias = options.bias,
                  .init_std = options.input_init_std,
                  .weight_shard = of_input,
                  .bias_shard = of_input});
    Linear output(parameters, name + ".output", options.hidden, options.width,
                  {.bias = false, .init_std = options.output_init_std, .weight_shard = of_output});
    tiles_.push_back({std::move(input), std::move(output)});
  }
  parameters.end_tiles();
  // The output bias is in no tile: all tiles are alike and share memory for whole buckets.
  if (options.bias)
    tiles_.front().output.use_bias(parameters.add(
        {.name = name + ".output.bias", .shape = {options.width}, .init = Init::zeros()}));
}

Tensor TiledFeedForward::product(Pass& pass, const Tile& tile, const Tensor& rows) const {
  Tensor before = pass.allocate({rows.shape.rows(), tile.input.outputs()}, "pre-activation");
  tile.input.multiply(pass, rows, before);
  return before;
}

Tensor TiledFeedForward::forward(Pass& pass, const Tensor& x, ResidualNorm* source) {
  const Tensor rows = gather_rows(pass, x);
  Tensor terms = allocate_terms(pass, options_.width, "linear output");
  for (const Tile& tile : tiles_) {
    pass.acquire(tile.input.bucket());
    const Tensor before = product(pass, tile, rows);
    const Tensor active = activate(pass, options_.activation, before);
    tile.output.multiply(pass, active, terms, &tile != &tiles_.front());
    pass.release(tile.input.bucket());
    pass.save(before);
    if (source == nullptr) pass.save(active);
  }
  if (source == nullptr) pass.save(x);  // saved last, because all tiles read it
  Tensor y = RowSum(pass, std::move(terms)).wait();
  if (!options_.dropout_in_norm) dropout_.forward(pass, y);
  return y;
}

Tensor TiledFeedForward::output_again(Pass& pass, const Tensor& x) {
  forward_again(pass, x);
  const Pass::Unsaved input_alone(pass);
  return forward(pass, x, nullptr);
}

Tensor TiledFeedForward::backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source) {
  const bool again = options_.recompute == Recompute::full;
  std::array<Hidden, kMostTiles> kept;
  Tensor x = source ? Tensor() : pass.pop();
  for (std::size_t t = again ? 0 : tiles_.size(); t-- > 0;) {
    if (source == nullptr) kept[t].active = pass.pop();
    kept[t].before = pass.pop();
  }
  if (source) x = source->remake(pass);  // reads the saved tensors below, and saves one on top
  const Tensor d_rows = gather_rows(pass, dropout_.backward(pass, d_y));
  const Tensor rows = gather_rows(pass, x);
  Tensor terms = allocate_terms(pass, options_.width, "linear input gradient");
  for (std::size_t t = tiles_.size(); t-- > 0;) {
    Tile& tile = tiles_[t];
    pass.acquire(tile.input.bucket());
    pass.begin_gradients(tile.input.bucket());
    Tensor d_before = hidden_gradient(pass, tile, std::exchange(kept[t], {}), rows, d_rows);
    tile.input.multiply_back(pass, d_before, terms, t + 1 < tiles_.size());
    pass.release(tile.input.bucket());
    if (t > 0) {
      tile.input.add_gradients(pass, rows, std::move(d_before));
      pass.gradients_ready(tile.input.bucket());
      continue;
    }
    RowSum sum(pass, std::move(terms));  // overlaps the last product
    tile.input.add_gradients(pass, rows, std::move(d_before));
    terms = sum.wait();
    pass.gradients_ready(tile.input.bucket());
  }
  return terms;
}

Tensor TiledFeedForward::hidden_gradient(Pass& pass, Tile& tile, Hidden hidden, const Tensor& rows,
                                         const Tensor& d_rows) {
  if (hidden.before.empty()) hidden.before = product(pass, tile, rows);
  if (hidden.active.empty()) hidden.active = activate(pass, options_.activation, hidden.before);
  Tensor d_active = pass.allocate(hidden.active.shape, "activation gradient");
  tile.output.multiply_back(pass, d_rows, d_active);
  tile.output.add_gradients(pass, std::move(hidden.active), d_rows);
  const bool in_place = ops::activation_inputs(options_.activation) == 1;
  Tensor d_before =
      in_place ? d_active : pass.allocate(hidden.before.shape, "pre-activation gradient");
  ops::activation_backward(pass.stream(), options_.activation, hidden.before, d_active, d_before);
  return d_before;
}

}  // namespace

std::unique_ptr<FeedForward> FeedForward::create(ParameterSet& parameters, const std::string& name,
                                                 const Options& options) {
  if (options.tiles == 1) return std::make_unique<WholeFeedForward>(parameters, name, options);
  return std::make_unique<TiledFeedForward>(parameters, name, options);
}

}  // namespace choir
