#include "choir/nn/feed_forward.hpp"

#include "choir/nn/dropout.hpp"
#include "choir/nn/linear.hpp"
#include "src/nn/tiled_feed_forward.hpp"

namespace choir {
namespace {

Linear::Options input_options(const FeedForward::Options& o) {
  ShardSpec rows{.split_dim = 0};
  if (ops::activation_inputs(o.activation) == 2) rows.sections = {{o.hidden}, {o.hidden}};
  return {.bias = o.bias, .init_std = o.input_init_std, .weight_shard = rows, .bias_shard = rows};
}

class WholeFeedForward final : public FeedForward {
 public:
  WholeFeedForward(ParameterSet& parameters, const std::string& name, const Options& options);
  Tensor forward(Pass& pass, const Tensor& x, BucketHooks& hooks, ResidualNorm* source) override;
  Tensor backward(Pass& pass, const Tensor& d_y, BucketHooks& hooks, ResidualNorm* source) override;
  void forward_again(Pass& pass, const Tensor& x) override;

 private:
  bool gelu_tanh() const { return options_.activation == ops::Activation::gelu_tanh; }
  /// activation(input(x)), what backward needs of it saved.
  Tensor activated(Pass& pass, const Tensor& x, bool keep_input);
  /// activation(before); `before` [N, F * activation_inputs].
  Tensor activate(Pass& pass, const Tensor& before) const;
  /// From the gradient of the result of the output layer to that of the input layer.
  Tensor backward_to_input(Pass& pass, const Tensor& d_y);
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
               .weight_shard = {.split_dim = 1}}),
      dropout_(name + ".dropout", options.dropout, options.factor) {}

// A library on a GPU activates the exact sum of a product, of which only the rounded one is kept.
bool WholeFeedForward::remakes_activation(const Pass& pass, const ResidualNorm* source) const {
  const bool fused = gelu_tanh() && pass.stream().device().plans_for() == DeviceKind::cuda;
  return source != nullptr && !fused;
}

Tensor WholeFeedForward::activate(Pass& pass, const Tensor& before) const {
  const std::int64_t width = before.shape.back() / ops::activation_inputs(options_.activation);
  Tensor active = pass.allocate({before.shape.rows(), width}, "activation");
  ops::activation_forward(pass.stream(), options_.activation, before, active);
  return active;
}

Tensor WholeFeedForward::activated(Pass& pass, const Tensor& x, bool keep_input) {
  if (gelu_tanh()) return input_.forward_gelu_tanh(pass, x, keep_input);
  const Tensor before = input_.forward(pass, x, keep_input);
  pass.save(before);
  return activate(pass, before);
}

Tensor WholeFeedForward::forward(Pass& pass, const Tensor& x, BucketHooks&, ResidualNorm* source) {
  const Tensor active = activated(pass, x, source == nullptr);
  Tensor y = output_.forward(pass, active, !remakes_activation(pass, source));
  dropout_.forward(pass, y);
  return y;
}

void WholeFeedForward::forward_again(Pass& pass, const Tensor& x) {
  pass.save(activated(pass, x, true));
}

Tensor WholeFeedForward::backward(Pass& pass, const Tensor& d_y, BucketHooks&,
                                  ResidualNorm* source) {
  if (remakes_activation(pass, source)) {
    const Tensor before = pass.pop();
    pass.save(before);
    pass.save(activate(pass, before));
  }
  const Tensor d_before = backward_to_input(pass, dropout_.backward(pass, d_y));
  if (source) pass.save(source->remake(pass));
  return input_.backward(pass, d_before);
}

Tensor WholeFeedForward::backward_to_input(Pass& pass, const Tensor& d_y) {
  if (gelu_tanh()) return output_.backward_gelu_tanh(pass, d_y);
  const Tensor d_active = output_.backward(pass, d_y);
  const Tensor before = pass.pop();
  const bool in_place = ops::activation_inputs(options_.activation) == 1 && d_active.sole_owner();
  Tensor d_before = in_place ? d_active : pass.allocate(before.shape, "activation gradient");
  ops::activation_backward(pass.stream(), options_.activation, before, d_active, d_before);
  return d_before;
}

}  // namespace

std::unique_ptr<FeedForward> FeedForward::create(ParameterSet& parameters, const std::string& name,
                                                 const Options& options) {
  if (options.tiles == 1) return std::make_unique<WholeFeedForward>(parameters, name, options);
  return std::make_unique<TiledFeedForward>(parameters, name, options);
}

}  // namespace choir
