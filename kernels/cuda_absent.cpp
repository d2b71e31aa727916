// The build without CUDA: no stream of that kind can exist, so nothing here is ever reached; the
// functions exist because the op launchers name them.
#include "choir/core/error.hpp"
#include "kernels/adamw.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/reduce.hpp"
#include "kernels/step_control.hpp"

namespace choir::cuda {
namespace {

[[noreturn]] void absent(const char* op) {
  throw Error(ExitCode::other, fmt::format("{}: this program was built without CUDA", op));
}

}  // namespace

void add(const Stream&, const TensorView&, const TensorView&, const TensorView&) {
  absent("add");
}
void sum_of_squares(const Stream&, const TensorView&, const TensorView&) {
  absent("sum_of_squares");
}
void tree_sum(const Stream&, const TensorView&, const TensorView&) {
  absent("tree_sum");
}
void cast(const Stream&, const TensorView&, const TensorView&) {
  absent("cast");
}
void scale(const Stream&, const TensorView&, double) {
  absent("scale");
}
void zero(const Stream&, const TensorView&) {
  absent("zero");
}
void copy(const Stream&, const TensorView&, const TensorView&) {
  absent("copy");
}
void embedding_forward(const Stream&, const ops::EmbeddingForward&) {
  absent("embedding_forward");
}
void embedding_backward(const Stream&, const ops::EmbeddingBackward&) {
  absent("embedding_backward");
}
void cross_entropy(const Stream&, const ops::CrossEntropy&) {
  absent("cross_entropy");
}
void cross_entropy_maxima(const Stream&, const ops::ParallelCrossEntropy&) {
  absent("cross_entropy_maxima");
}
void cross_entropy_sums(const Stream&, const ops::ParallelCrossEntropy&) {
  absent("cross_entropy_sums");
}
void cross_entropy_finish(const Stream&, const ops::ParallelCrossEntropy&) {
  absent("cross_entropy_finish");
}
void adamw(const Stream&, const ops::AdamW&) {
  absent("adamw");
}
void begin_step(const Stream&, ops::StepControl*) {
  absent("begin_step");
}
void end_step(const Stream&, const ops::EndStep&) {
  absent("end_step");
}

}  // namespace choir::cuda
