// Stubs for builds without cuDNN: no problem is supported.
#include "choir/core/error.hpp"
#include "kernels/attention/attention_cudnn.hpp"

namespace choir::cudnn {
namespace {

std::string absent(const ops::AttentionProblem& problem, const AttentionLayout& layout) {
  std::string outside = attention_outside_rules(problem, layout);
  return outside.empty() ? "there is no cuDNN in this build" : outside;
}

}  // namespace

bool attention_supported(Device&, const ops::AttentionProblem& problem,
                         const AttentionLayout& layout, std::string* why) {
  if (why) *why = absent(problem, layout);
  return false;
}

void attention_forward(const Stream&, const ops::AttentionForward& args,
                       const AttentionBias& bias) {
  throw Error(ExitCode::other, absent(args.problem, layout_of(args, bias)));
}

void attention_backward(const Stream&, const ops::AttentionBackward& args,
                        const AttentionBias& bias) {
  throw Error(ExitCode::other, absent(args.problem, layout_of(args, bias)));
}

}  // namespace choir::cudnn
