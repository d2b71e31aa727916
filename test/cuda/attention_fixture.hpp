#pragma once
// Runs cases of attention on the device by our own kernels, and compares with the reference in f64.
#include <array>

#include "test/cuda/cuda_fixture.hpp"
#include "test/unit/ops/attention_case.hpp"

namespace choir::test {

inline constexpr DType kAttentionTypes[] = {DType::f32, DType::bf16, DType::f16};

/// The values are in the order of AttentionMemory.
template <class Tensors>
auto in_memory_order(Tensors& t) {
  return std::array{&t.q,     &t.kv,  &t.bias, &t.out,   &t.log_sum_exp,
                    &t.d_out, &t.d_q, &t.d_kv, &t.d_bias};
}

/// The tensors of a case on the device; they start `skew` elements into their buffers, so that rows
/// begin at unaligned addresses.
class OnDevice {
 public:
  OnDevice(Device& device, const AttentionTensors& t, const AttentionCase& c, int skew = 0)
      : device_(device),
        t_(t),
        skew_(skew),
        lengths_(integers(device, c.lengths)),
        begins_(integers(device, c.begins)) {
    for (const HostTensor* x : in_memory_order(t)) parts_.push_back(part(*x));
    memory_ = {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), nullptr, nullptr};
    if (!c.lengths.empty()) memory_.lengths = lengths_.view().as<std::int32_t>();
    if (!c.begins.empty()) memory_.begins = begins_.view().as<std::int32_t>();
  }
  void forward(const Stream& stream, bool training = true) const {
    ops::AttentionForward args = t_.forward(memory_);
    if (!training) args.log_sum_exp = {};
    args.problem.implementation = ops::AttentionImplementation::own;
    ops::attention_forward(stream, args);
  }
  void backward(const Stream& stream) const {
    ops::AttentionBackward args = t_.backward(memory_);
    args.problem.implementation = ops::AttentionImplementation::own;
    const DeviceTensor workspace(device_, DType::u8,
                                 {ops::attention_workspace(stream, args.problem, true)});
    args.workspace = workspace;
    ops::attention_backward(stream, args);
    stream.synchronize();
    EXPECT_TRUE(workspace.intact());
  }
  /// Copies all results into the tensors of `t`.
  void copy_to(AttentionTensors& t) const {
    const auto to = in_memory_order(t);
    for (std::size_t i = 0; i < to.size(); ++i)
      if (parts_[i]) {
        device_.copy_to_host(to[i]->data(), at(i), to[i]->bytes());
        EXPECT_TRUE(parts_[i]->intact()) << "tensor " << i;
      }
  }

 private:
  static DeviceTensor integers(Device& device, std::vector<std::int32_t> values) {
    if (values.empty()) values.push_back(0);
    return {device, DType::i32, {static_cast<std::int64_t>(values.size())}, values.data()};
  }
  std::unique_ptr<DeviceTensor> part(const HostTensor& x) const {
    if (x.count() == 0) return nullptr;
    const int skew = &x == &t_.log_sum_exp ? 0 : skew_;
    auto made = std::make_unique<DeviceTensor>(device_, x.dtype(), Shape{x.count() + skew});
    device_.copy_from_host(
        static_cast<char*>(made->view().data) + static_cast<std::size_t>(skew) * size_of(x.dtype()),
        x.data(), x.bytes());
    return made;
  }
  void* at(std::size_t i) const {
    if (!parts_[i]) return nullptr;
    const TensorView& view = parts_[i]->view();
    const bool moved = i != 4;  // statistics are always aligned to a float
    return static_cast<char*>(view.data) +
           (moved ? static_cast<std::size_t>(skew_) * size_of(view.dtype) : 0);
  }

  Device& device_;
  const AttentionTensors& t_;
  int skew_;
  DeviceTensor lengths_, begins_;
  std::vector<std::unique_ptr<DeviceTensor>> parts_;
  AttentionMemory memory_{};
};

class CudaAttention : public CudaTest {
 protected:
  AttentionTensors computed(const AttentionCase& c, const AttentionTensors& inputs, int skew = 0) {
    AttentionTensors t = inputs;
    const OnDevice tensors(device(), t, c, skew);
    tensors.forward(stream());
    tensors.backward(stream());
    tensors.copy_to(t);
    return t;
  }
  AttentionTensors computed(const AttentionCase& c, int skew = 0) {
    return computed(c, AttentionTensors(c, 1), skew);
  }

  /// The bounds of the CPU's kernels: these round P and dS as operands, too, read the stored `out`
  /// for delta, and sum in f32.
  void compare(const AttentionCase& c, int skew = 0) {
    const std::string what = name_of(c);
    const AttentionTensors t = computed(c, skew), exact = AttentionTensors(c, 1).exact();
    const AttentionTolerance tolerance(c);
    ref::attention_forward(exact.forward());
    ref::attention_backward(exact.backward());
    expect_close(t.out, exact.out, tolerance.stored * 1.01, tolerance.sums + 2 * tolerance.stored,
                 "out " + what);
    expect_norm(t.out, exact.out, tolerance.sums + tolerance.stored, "out " + what);
    compare_lse(t.log_sum_exp, exact.log_sum_exp, tolerance.sums, "lse " + what);
    const double limit = 4 * tolerance.sums + 1.5 * tolerance.stored;
    // With one key dP and delta cancel: both are sums of order sqrt(D), and dS is the difference
    // times P <= 1.
    const double floor = 4 * tolerance.sums, wide = std::sqrt(static_cast<double>(c.width));
    expect_norm(t.d_q, exact.d_q, limit, "d_q " + what, floor);
    if (t.d_kv.count() > 0) expect_norm(t.d_kv, exact.d_kv, limit, "d_kv " + what, floor);
    if (t.d_bias.count() > 0)
      expect_norm(t.d_bias, exact.d_bias, limit, "d_bias " + what, floor * wide);
  }
  void over_types(AttentionCase c) {
    for (const DType type : kAttentionTypes) c.dtype = type, compare(c);
  }
};

}  // namespace choir::test
