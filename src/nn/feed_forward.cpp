#include "choir/nn/feed_forward.hpp"

namespace choir {
namespace {

Linear::Options input_options(const FeedForward::Options& o) {
  ShardSpec rows{.split_dim = 0};
  if (ops::activation_inputs(o.activation) == 2) rows.sections = {{o.hidden}, {o.hidden}};
  return {.bias = o.bias, .weight_shard = rows, .bias_shard = rows};
}

}  // namespace

FeedForward::FeedForward(ParameterSet& parameters, const std::string& name, const Options& options)
    : options_(options),
      input_(parameters, name + ".input", options.width,
             options.hidden * ops::activation_inputs(options.activation), input_options(options)),
      output_(parameters, name + ".output", options.hidden, options.width,
              {.bias = options.bias,
               .init_std = options.output_init_std,
               .weight_shard = {.split_dim = 1}}),
      dropout_(name + ".dropout", options.dropout) {}

Tensor FeedForward::activated(Pass& pass, const Tensor& x) {
  if (options_.activation == ops::Activation::gelu_tanh) return input_.forward_gelu_tanh(pass, x);
  const Tensor hidden = input_.forward(pass, x);
  const std::int64_t width = hidden.shape.back() / ops::activation_inputs(options_.activation);
  Tensor active = pass.allocate({hidden.shape.rows(), width}, "activation");
  ops::activation_forward(pass.stream(), options_.activation, hidden, active);
  pass.save(hidden);
  return active;
}

Tensor FeedForward::forward(Pass& pass, const Tensor& x) {
  Tensor y = output_.forward(pass, activated(pass, x));
  dropout_.forward(pass, y);
  return y;
}

Tensor FeedForward::backward(Pass& pass, const Tensor& d_y) {
  if (options_.activation == ops::Activation::gelu_tanh)
    return input_.backward(pass, output_.backward_gelu_tanh(pass, dropout_.backward(pass, d_y)));
  const Tensor d_active = output_.backward(pass, dropout_.backward(pass, d_y));
  const Tensor hidden = pass.pop();
  const bool in_place = ops::activation_inputs(options_.activation) == 1 && d_active.sole_owner();
  const Tensor d_hidden = in_place ? d_active : pass.allocate(hidden.shape, "activation gradient");
  ops::activation_backward(pass.stream(), options_.activation, hidden, d_active, d_hidden);
  return input_.backward(pass, d_hidden);
}

}  // namespace choir
