#include "src/nn/tiled_feed_forward.hpp"

#include <array>
#include <utility>

namespace choir {
namespace {

ShardSpec tile_of(ShardSpec spec, int tile, int tiles) {
  spec.tile = tile, spec.tiles = tiles;
  return spec;
}

}  // namespace

TiledFeedForward::TiledFeedForward(ParameterSet& parameters, const std::string& name,
                                   const Options& options)
    : options_(options), dropout_(name + ".dropout", options.dropout, options.factor) {
  CHOIR_CHECK(options.tiles <= kMostTiles, "{} tiles", options.tiles);
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
  // Not in a tile: tiles are all alike, and share memory for whole buckets.
  if (options.bias)
    tiles_.front().output.use_bias(parameters.add(
        {.name = name + ".output.bias", .shape = {options.width}, .init = Init::zeros()}));
}

Tensor TiledFeedForward::product(Pass& pass, const Tile& tile, const Tensor& rows) const {
  Tensor before = pass.allocate({rows.shape.rows(), tile.input.outputs()}, "pre-activation");
  tile.input.multiply(pass, rows, before);
  return before;
}

Tensor TiledFeedForward::activate(Pass& pass, const Tensor& before) const {
  const std::int64_t width = before.shape.back() / ops::activation_inputs(options_.activation);
  Tensor active = pass.allocate({before.shape.rows(), width}, "activation");
  ops::activation_forward(pass.stream(), options_.activation, before, active);
  return active;
}

Tensor TiledFeedForward::forward(Pass& pass, const Tensor& x, BucketHooks& hooks,
                                 ResidualNorm* source) {
  const Tensor rows = gather_rows(pass, x);
  Tensor terms = allocate_terms(pass, options_.width, "linear output");
  for (const Tile& tile : tiles_) {
    hooks.acquire(tile.input.bucket());
    const Tensor before = product(pass, tile, rows);
    const Tensor active = activate(pass, before);
    tile.output.multiply(pass, active, terms, &tile != &tiles_.front());
    hooks.release(tile.input.bucket());
    pass.save(before);
    if (source == nullptr) pass.save(active);
  }
  if (source == nullptr) pass.save(x);  // on top: all tiles read it
  Tensor y = RowSum(pass, std::move(terms)).wait();
  dropout_.forward(pass, y);
  return y;
}

Tensor TiledFeedForward::backward(Pass& pass, const Tensor& d_y, BucketHooks& hooks,
                                  ResidualNorm* source) {
  const bool again = options_.recompute == Recompute::full;
  std::array<Hidden, kMostTiles> kept;
  Tensor x = source ? Tensor() : pass.pop();
  for (std::size_t t = again ? 0 : tiles_.size(); t-- > 0;) {
    if (source == nullptr) kept[t].active = pass.pop();
    kept[t].before = pass.pop();
  }
  if (source) x = source->remake(pass);  // of what lies below, and it leaves something on top
  const Tensor d_rows = gather_rows(pass, dropout_.backward(pass, d_y));
  const Tensor rows = gather_rows(pass, x);
  Tensor terms = allocate_terms(pass, options_.width, "linear input gradient");
  for (std::size_t t = tiles_.size(); t-- > 0;) {
    Tile& tile = tiles_[t];
    hooks.acquire(tile.input.bucket());
    pass.begin_gradients(hooks, tile.input.bucket());
    Tensor d_before = hidden_gradient(pass, tile, std::exchange(kept[t], {}), rows, d_rows);
    tile.input.multiply_back(pass, d_before, terms, t + 1 < tiles_.size());
    hooks.release(tile.input.bucket());
    if (t > 0) {
      tile.input.add_gradients(pass, rows, std::move(d_before));
      pass.gradients_ready(hooks, tile.input.bucket());
      continue;
    }
    RowSum sum(pass, std::move(terms));  // beside the last product
    tile.input.add_gradients(pass, rows, std::move(d_before));
    terms = sum.wait();
    pass.gradients_ready(hooks, tile.input.bucket());
  }
  return terms;
}

Tensor TiledFeedForward::hidden_gradient(Pass& pass, Tile& tile, Hidden hidden, const Tensor& rows,
                                         const Tensor& d_rows) {
  if (hidden.before.empty()) hidden.before = product(pass, tile, rows);
  if (hidden.active.empty()) hidden.active = activate(pass, hidden.before);
  Tensor d_active = pass.allocate(hidden.active.shape, "activation gradient");
  tile.output.multiply_back(pass, d_rows, d_active);
  tile.output.add_gradients(pass, std::move(hidden.active), d_rows);
  const bool in_place = ops::activation_inputs(options_.activation) == 1;
  Tensor d_before =
      in_place ? d_active : pass.allocate(hidden.before.shape, "pre-activation gradient");
  ops::activation_backward(pass.stream(), options_.activation, hidden.before, d_active, d_before);
  return d_before;
}

}  // namespace choir
