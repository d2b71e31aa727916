// Kernels of these ops follow.
#include "choir/core/error.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/depthwise_conv.hpp"
#include "kernels/glu.hpp"
#include "kernels/strided_conv.hpp"

namespace choir::cuda {
namespace {

[[noreturn]] void not_yet(const char* op) {
  throw Error(ExitCode::other, fmt::format("{}: not yet on the GPU", op));
}

}  // namespace

void strided_conv_forward(const Stream&, const ops::StridedConv&) {
  not_yet("strided_conv_forward");
}
void strided_conv_backward(const Stream&, const ops::StridedConvBackward&) {
  not_yet("strided_conv_backward");
}
void depthwise_conv_forward(const Stream&, const ops::DepthwiseConv&) {
  not_yet("depthwise_conv_forward");
}
void depthwise_conv_backward(const Stream&, const ops::DepthwiseConvBackward&) {
  not_yet("depthwise_conv_backward");
}
void glu_forward(const Stream&, const TensorView&, const TensorView&, const std::int32_t*,
                 std::int64_t) {
  not_yet("glu_forward");
}
void glu_backward(const Stream&, const TensorView&, const TensorView&, const TensorView&,
                  const std::int32_t*, std::int64_t) {
  not_yet("glu_backward");
}
void mask_frames(const Stream&, const TensorView&, const std::int32_t*, std::int64_t) {
  not_yet("mask_frames");
}
void batch_norm_forward(const Stream&, const ops::BatchNorm&) {
  not_yet("batch_norm_forward");
}
void batch_norm_backward(const Stream&, const ops::BatchNormBackward&) {
  not_yet("batch_norm_backward");
}

}  // namespace choir::cuda
