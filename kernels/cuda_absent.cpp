// The build without CUDA: no stream of that kind can exist, so nothing here is ever reached; the
// functions exist because the op launchers name them.
#include "choir/core/error.hpp"
#include "kernels/attention.hpp"
#include "kernels/reduce.hpp"

namespace choir::cuda {
namespace {

[[noreturn]] void absent(const char* op) {
  throw Error(ExitCode::other, fmt::format("{}: this program was built without CUDA", op));
}

}  // namespace

void add(const Stream&, const TensorView&, const TensorView&, const TensorView&) {
  absent("add");
}
void zero(const Stream&, const TensorView&) {
  absent("zero");
}
void copy(const Stream&, const TensorView&, const TensorView&) {
  absent("copy");
}
void attention_forward(const Stream&, const ops::AttentionForward&) {
  absent("attention");
}
void attention_backward(const Stream&, const ops::AttentionBackward&) {
  absent("attention backward");
}

}  // namespace choir::cuda
