#include "choir/ops/glu.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/glu/glu.hpp"

namespace choir::ops {
namespace {

void check_pair(const TensorView& gated, const TensorView& plain, const std::int32_t* lengths,
                std::int64_t tokens) {
  CHOIR_CHECK(plain.shape.rank() > 0 && gated.shape.rank() > 0, "glu of a scalar");
  CHOIR_CHECK(gated.shape.back() == 2 * plain.shape.back(), "input of width {} for output of {}",
              gated.shape.back(), plain.shape.back());
  CHOIR_CHECK(lengths == nullptr || (tokens > 0 && plain.shape.rows() % tokens == 0),
              "{} rows are not whole samples of {} frames", plain.shape.rows(), tokens);
  check_tensor(gated, plain.dtype, 2 * plain.count(), "x");
}

}  // namespace

void glu_forward(const Stream& stream, const TensorView& x, const TensorView& y,
                 const std::int32_t* lengths, std::int64_t tokens) {
  check_pair(x, y, lengths, tokens);
  check_tensor(y, y.dtype, y.count(), "y");
  CHOIR_CHECK(x.data != y.data, "glu does not run in place");
  stream.count(30.0 * static_cast<double>(y.count()), as_bytes(x) + as_bytes(y));
  if (on_cuda(stream)) return cuda::glu_forward(stream, x, y, lengths, tokens);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::glu_forward<decltype(t)>(x, y, lengths, tokens); });
}

void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths, std::int64_t tokens) {
  check_pair(x, d_y, lengths, tokens);
  check_tensor(d_y, d_y.dtype, d_y.count(), "d_y");
  check_tensor(d_x, d_y.dtype, x.count(), "d_x");
  CHOIR_CHECK(d_x.data != d_y.data, "glu does not run in place of d_y");
  stream.count(30.0 * static_cast<double>(d_y.count()),
               as_bytes(x) + as_bytes(d_y) + as_bytes(d_x));
  if (on_cuda(stream)) return cuda::glu_backward(stream, x, d_y, d_x, lengths, tokens);
  if (!computes(stream)) return;
  with_element(x.dtype,
               [&](auto t) { cpu::glu_backward<decltype(t)>(x, d_y, d_x, lengths, tokens); });
}

void mask_frames(const Stream& stream, const TensorView& x, const std::int32_t* lengths,
                 std::int64_t tokens) {
  CHOIR_CHECK(x.shape.rank() > 0, "frames of a scalar");
  CHOIR_CHECK(lengths == nullptr || (tokens > 0 && x.shape.rows() % tokens == 0),
              "{} rows are not whole samples of {} frames", x.shape.rows(), tokens);
  check_tensor(x, x.dtype, x.count(), "x");
  stream.count(0, lengths == nullptr ? 0 : as_bytes(x));
  if (lengths == nullptr) return;
  if (on_cuda(stream)) return cuda::mask_frames(stream, x, lengths, tokens);
  if (!computes(stream)) return;
  cpu::mask_frames(x, lengths, tokens);
}

}  // namespace choir::ops
