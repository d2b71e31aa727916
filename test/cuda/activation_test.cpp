#include "test/support/activation_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

using ops::Activation;

class CudaActivation : public CudaTest {
 protected:
  void check(ActivationCase c) {
    // Error of the short forms, by the comment in kernels/activation/activation.cu.
    if (size_of(c.dtype) == 2 && c.kind != Activation::relu) c.approximation = 1e-5;
    c.check(device());
  }
};

constexpr Activation kAll[] = {Activation::gelu,   Activation::gelu_tanh, Activation::relu,
                               Activation::swiglu, Activation::silu,      Activation::geglu};

TEST_F(CudaActivation, MatchesTheReferenceForRaggedShapes) {
  for (const DType dtype : kGpuTypes)
    for (const Activation kind : kAll)
      for (const std::int64_t width : {1, 7, 8, 65, 136})
        for (const std::int64_t rows : {1, 3, 40}) check({kind, dtype, rows, width});
}

TEST_F(CudaActivation, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    for (const Activation kind : kAll)
      for (const int skew : {1, 2}) check({kind, dtype, 3, 64, skew});
}

TEST_F(CudaActivation, MoreThanOnePassOfTheGrid) {
  // A few elements more than one sweep of the largest grid covers: 8192 blocks of 256 threads, four
  // elements each.
  const std::int64_t n = 8192 * 256 * 4 + 5;
  std::vector<float> ones(static_cast<std::size_t>(n), -1.0f);
  ones.back() = 3, ones[ones.size() - 6] = 2;
  const DeviceTensor x(device(), DType::f32, {n}, ones.data());
  TensorView shifted = x.view();  // not aligned: element by element
  shifted.data = x.view().as<float>() + 1, shifted.shape = {n - 1};
  ops::activation_forward(stream(), Activation::relu, shifted, shifted);
  const std::vector<float> y = x.host<float>();
  EXPECT_EQ(y[0], -1.0f);
  EXPECT_EQ(std::count(y.begin() + 1, y.end(), 0.0f), n - 3);
  EXPECT_EQ(y.back(), 3.0f);
  EXPECT_EQ(y[y.size() - 6], 2.0f);
}

TEST_F(CudaActivation, FarTailsAreFiniteAndRight) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
      HostTensor x(dtype, {4}), y(dtype, {4}), d(dtype, {4});
      const HostTensor one = HostTensor::filled(dtype, {4}, 1);
      x.set(0, 1e4), x.set(1, -1e4), x.set(2, 1e20), x.set(3, -1e20);
      Mirror mirror(device());
      const TensorView in = mirror.in(x);
      ops::activation_forward(stream(), kind, in, mirror.io(y));
      ops::activation_backward(stream(), kind, in, mirror.in(one), mirror.io(d));
      mirror.fetch();
      for (const int i : {0, 2}) {
        EXPECT_EQ(y[i], x[i]);
        EXPECT_EQ(d[i], 1);
      }
      for (const int i : {1, 3}) {
        EXPECT_EQ(y[i], 0);
        EXPECT_EQ(d[i], 0);
      }
    }
}

TEST_F(CudaActivation, NaNStays) {
  for (const Activation kind :
       {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu}) {
    HostTensor x = HostTensor::filled(DType::bf16, {8}, 1), y(DType::bf16, {8});
    x.set(3, NAN);
    Mirror mirror(device());
    ops::activation_forward(stream(), kind, mirror.in(x), mirror.io(y));
    mirror.fetch();
    for (int i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(y[i]), i == 3) << static_cast<int>(kind);
  }
}

TEST_F(CudaActivation, BackwardRunsInPlace) {
  for (const Activation kind :
       {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu}) {
    const HostTensor x = HostTensor::normal(DType::bf16, {5, 33}, 1);
    HostTensor d = HostTensor::normal(DType::bf16, {5, 33}, 2), apart(DType::bf16, {5, 33});
    Mirror mirror(device());
    const TensorView in = mirror.in(x), gradient = mirror.io(d);
    ops::activation_backward(stream(), kind, in, gradient, mirror.io(apart));
    ops::activation_backward(stream(), kind, in, gradient, gradient);
    mirror.fetch();
    EXPECT_TRUE(apart.same_bits(d));
  }
}

}  // namespace
}  // namespace choir::test
