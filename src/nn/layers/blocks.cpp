#include "src/nn/layers/blocks.hpp"

#include <cmath>
#include <utility>

#include "choir/device/device.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {

namespace {

std::unique_ptr<ResidualNorm> norm_if(bool exists, ParameterSet& parameters,
                                      const std::string& name, std::int64_t width,
                                      const ResidualNorm::Options& norm) {
  return exists ? std::make_unique<ResidualNorm>(parameters, name, width, norm) : nullptr;
}

}  // namespace

TransformerBlock::TransformerBlock(ParameterSet& parameters, const std::string& name,
                                   const ResidualNorm::Options& norm, BlockForm form,
                                   const SelfAttention::Options& attention,
                                   const FeedForward::Options& feed_forward)
    : attention_norm_(norm_if(form.norms != NormPlace::post, parameters, name + ".attention_norm",
                              attention.width, norm)),
      attention_(parameters, name + ".attention", attention),
      attention_post_norm_(norm_if(form.norms != NormPlace::pre, parameters,
                                   name + ".attention_post_norm", attention.width, norm)),
      feed_forward_norm_(norm_if(form.norms != NormPlace::post, parameters,
                                 name + ".feed_forward_norm", attention.width, norm)),
      feed_forward_(FeedForward::create(parameters, name + ".feed_forward", feed_forward)),
      feed_forward_post_norm_(norm_if(form.norms != NormPlace::pre, parameters,
                                      name + ".feed_forward_post_norm", attention.width, norm)),
      recompute_(feed_forward.recompute),
      parallel_(form.parallel) {}

ResidualNorm::Output TransformerBlock::enter(Pass& pass, const Norm& norm,
                                             const ResidualStream& stream, bool keep_statistics) {
  if (norm) return norm->forward(pass, stream, keep_statistics);
  const Tensor sum = joined(pass, stream);
  return {sum, sum};
}

Tensor TransformerBlock::leave(Pass& pass, const Norm& norm, Tensor branch) {
  return norm ? norm->forward(pass, {std::move(branch), Tensor()}).normed : branch;
}

Tensor TransformerBlock::leave_backward(Pass& pass, const Norm& norm, const Tensor& d_stream) {
  return norm ? norm->backward(pass, d_stream, Tensor()) : d_stream;
}

Tensor TransformerBlock::enter_backward(Pass& pass, const Norm& norm, Tensor d_input,
                                        Tensor d_stream) {
  if (norm) return norm->backward(pass, d_input, std::move(d_stream));
  return joined(pass, {std::move(d_stream), std::move(d_input)});
}

ResidualStream TransformerBlock::forward(Pass& pass, const ResidualStream& in,
                                         const TensorView& rope_table) {
  const ProfileRange range(pass.stream(), "block forward");
  const bool keeps_all = recompute_ == Recompute::none, again = recompute_ == Recompute::full;
  ResidualNorm::Output entered = enter(pass, attention_norm_, in, keeps_all);
  if (again && !attention_norm_) pass.save(entered.sum);
  const Pass::Unsaved entrance_alone(pass, again);
  Tensor attended =
      leave(pass, attention_post_norm_,
            attention_.forward(pass, entered.normed, rope_table, source(attention_norm_)));
  entered.normed = {};
  entered = enter(pass, feed_forward_norm_, second_input(entered.sum, attended), keeps_all);
  if (!parallel_) attended = {};
  Tensor branch = feed_forward_->forward(pass, entered.normed, source(feed_forward_norm_));
  branch = leave(pass, feed_forward_post_norm_, std::move(branch));
  if (parallel_) branch = joined(pass, {std::move(attended), std::move(branch)});
  return {entered.sum, std::move(branch)};
}

// Runs everything but the last product, if its result is not needed.
void TransformerBlock::forward_again(Pass& pass, const TensorView& rope_table) {
  const ProfileRange range(pass.stream(), "block forward again");
  ResidualStream middle;
  {
    const ResidualNorm::Output entered = enter(pass, attention_norm_, {pass.pop(), Tensor()}, true);
    middle = second_input(entered.sum, leave(pass, attention_post_norm_,
                                             attention_.forward(pass, entered.normed, rope_table)));
  }
  const Tensor input = enter(pass, feed_forward_norm_, middle, true).normed;
  middle = {};
  if (!feed_forward_post_norm_) return feed_forward_->forward_again(pass, input);
  leave(pass, feed_forward_post_norm_, feed_forward_->output_again(pass, input));
}

Tensor TransformerBlock::backward(Pass& pass, Tensor d_stream, const TensorView& rope_table) {
  if (recompute_ == Recompute::full) forward_again(pass, rope_table);
  const ProfileRange range(pass.stream(), "block backward");
  Tensor d_attended = parallel_ ? d_stream : Tensor();
  // A norm adds to the gradient of the stream in place if nothing else owns it, so the gradient of
  // a branch, which may be the same memory, must end first.
  Tensor d_input = feed_forward_->backward(
      pass, leave_backward(pass, feed_forward_post_norm_, d_stream), source(feed_forward_norm_));
  d_stream = enter_backward(pass, feed_forward_norm_, std::move(d_input), std::move(d_stream));
  if (!parallel_) d_attended = d_stream;
  d_attended = leave_backward(pass, attention_post_norm_, d_attended);
  d_input = attention_.backward(pass, d_attended, rope_table, source(attention_norm_));
  d_attended = {};
  return enter_backward(pass, attention_norm_, std::move(d_input), std::move(d_stream));
}

namespace {

/// Standard deviation of PyTorch's default for layers of n inputs, which is uniform within
/// 1/sqrt(n).
double init_std(std::int64_t inputs) {
  return 1 / std::sqrt(3.0 * static_cast<double>(inputs));
}

ResidualNorm::Options norm(const ConformerBlock::Options& o) {
  return {.eps = o.norm_eps};
}

FeedForward::Options feed_forward(const ConformerBlock::Options& o) {
  return {.width = o.width,
          .hidden = o.hidden,
          .activation = ops::Activation::silu,
          .dropout = o.dropout,
          .input_init_std = init_std(o.width),
          .output_init_std = init_std(o.hidden),
          .factor = 0.5,
          .dropout_in_norm = true,
          .recompute = o.recompute};
}

}  // namespace

ConformerBlock::ConformerBlock(ParameterSet& parameters, const std::string& name,
                               const Options& options)
    : options_(options),
      name_(name),
      first_norm_(parameters, name + ".feed_forward_1_norm", options.width, norm(options)),
      first_(FeedForward::create(parameters, name + ".feed_forward_1", feed_forward(options))),
      attention_norm_(parameters, name + ".attention_norm", options.width, norm(options)),
      attention_(parameters, name + ".attention",
                 {.width = options.width,
                  .heads = options.heads,
                  .context = options.context,
                  .dropout = options.dropout,
                  .dropout_in_norm = true,
                  .init_std = init_std(options.width),
                  .one_kernel = options.attention_in_one_kernel}),
      convolution_norm_(parameters, name + ".convolution_norm", options.width, norm(options)),
      convolution_(parameters, name + ".convolution",
                   {.width = options.width,
                    .kernel = options.kernel,
                    .causal = options.causal,
                    .norm_eps = options.norm_eps,
                    .batch_norm = options.batch_norm,
                    .dropout = options.dropout,
                    .dropout_in_norm = true,
                    .init_std = init_std(options.width)}),
      second_norm_(parameters, name + ".feed_forward_2_norm", options.width, norm(options)),
      second_(FeedForward::create(parameters, name + ".feed_forward_2", feed_forward(options))),
      final_norm_(parameters, name + ".final_norm", options.width, norm(options)) {}

ops::StochasticDepth ConformerBlock::depth(const Pass& pass) const {
  return {.probability = options_.stochastic_depth,
          .key = philox_key(pass.seed(), name_ + ".depth"),
          .first_row = pass.first_share_row(),
          .tokens = pass.sequence().tokens,
          .first_sample = pass.first_sample(),
          .first_sample_on_device = pass.first_sample_on_device(),
          .sample_ids = pass.sequence().sample_ids};
}

Tensor ConformerBlock::forward(Pass& pass, const Tensor& x, const Tensor& positions) {
  const ProfileRange range(pass.stream(), "block forward");
  if (options_.recompute == Recompute::full) {
    pass.save(x);
    pass.save(positions);
  }
  const Pass::Unsaved entrance_alone(pass, options_.recompute == Recompute::full);
  const Tensor y = transform(pass, x, positions);
  if (drops(pass)) ops::stochastic_depth_forward(pass.stream(), depth(pass), x, y, y);
  return y;
}

void ConformerBlock::remember(Pass& pass, StreamState& state, std::int64_t left, std::int64_t chunk,
                              const Tensor& positions) const {
  attention_.remember(pass, state, left, chunk, positions);
  convolution_.remember(pass, state, chunk);
}

Tensor ConformerBlock::transform(Pass& pass, const Tensor& x, const Tensor& positions) {
  const bool keeps_all = options_.recompute != Recompute::selective;
  ResidualStream stream{x, Tensor()};
  const auto normed = [&](ResidualNorm& norm) {
    ResidualNorm::Output out = norm.forward(pass, stream, keeps_all);
    stream = {std::move(out.sum), Tensor()};
    return std::move(out.normed);
  };
  const auto ends = [&](Tensor delta, const BranchEnd& branch) {
    stream.delta = std::move(delta);
    stream.dropout = branch.dropout;
  };
  ends(first_->forward(pass, normed(first_norm_), source(first_norm_)), first_->end());
  ends(attention_.forward(pass, normed(attention_norm_), positions, source(attention_norm_)),
       attention_.end());
  ends(convolution_.forward(pass, normed(convolution_norm_), source(convolution_norm_)),
       convolution_.end());
  ends(second_->forward(pass, normed(second_norm_), source(second_norm_)), second_->end());
  return final_norm_.forward(pass, stream).normed;
}

Tensor ConformerBlock::backward(Pass& pass, Tensor d_y) {
  if (options_.recompute == Recompute::full) {
    const ProfileRange range(pass.stream(), "block forward again");
    const Tensor positions = pass.pop();
    const Tensor x = pass.pop();
    transform(pass, x, positions);
  }
  const ProfileRange range(pass.stream(), "block backward");
  if (!drops(pass)) return transform_backward(pass, d_y);
  const Tensor d_transformed = pass.allocate(d_y.shape, "stochastic depth gradient");
  const Tensor d_direct = pass.allocate(d_y.shape, "stochastic depth gradient");
  ops::stochastic_depth_backward(pass.stream(), depth(pass), d_y, d_transformed, d_direct);
  d_y.reset();
  const Tensor d_x = transform_backward(pass, d_transformed);
  ops::add(pass.stream(), d_direct, d_x, d_direct);
  return d_direct;
}

Tensor ConformerBlock::transform_backward(Pass& pass, const Tensor& d_y) {
  ResidualNorm::Gradients d = final_norm_.backward(pass, d_y, Tensor(), second_->end());
  // First the gradient of a branch's input, then that of the stream before the norm, and of the
  // branch before. That of the branch may be the stream's, which the norm then changes in place.
  const auto of_branch = [&] { return std::exchange(d.d_branch, {Tensor()}); };
  Tensor d_normed = second_->backward(pass, of_branch(), source(second_norm_));
  d = second_norm_.backward(pass, d_normed, std::move(d.d_sum), convolution_.end());
  d_normed = convolution_.backward(pass, of_branch(), source(convolution_norm_));
  d = convolution_norm_.backward(pass, d_normed, std::move(d.d_sum), attention_.end());
  d_normed = attention_.backward(pass, of_branch(), source(attention_norm_));
  d = attention_norm_.backward(pass, d_normed, std::move(d.d_sum), first_->end());
  d_normed = first_->backward(pass, of_branch(), source(first_norm_));
  return first_norm_.backward(pass, d_normed, std::move(d.d_sum));
}

}  // namespace choir
