// Tests of the step control of the device against that of the CPU: every field has the same bits,
// except the corrections, whose powers are accurate only to an ulp or two.
#include "choir/ops/step_control.hpp"

#include "kernels/sums/sums.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

class CudaStepControl : public CudaTest {};

TEST_F(CudaStepControl, FollowsTheCpuBitForBit) {
  for (const double window : {0.0, 3.0}) {
    ops::StepControl here{.learning_rate = 1e-3, .targets = {7, 0, 3}, .weights = {1, 2, 0.3}};
    here.loss_scale = window > 0 ? 1024 : 1;
    ops::StepControl there = here;
    CpuDevice cpu;
    const double infinite = HUGE_VAL, nan = std::nan("");
    for (double square : {9.0, 1e-12, 2.0, 3.7e8, infinite, 4.0, nan, 0.0, 5.0, 6.0, 7.0, 8.0})
      for (double loss : {16.25, square == 2.0 ? nan : 3.0}) {
        const auto run = [&](Device& device, ops::StepControl* control, double* sums) {
          const Stream stream(device);
          ops::begin_step(stream, control);
          ops::end_step(stream, {.control = control,
                                 .square_sum = {sums, DType::f64, {1}},
                                 .loss_sums = {sums + 1, DType::f64, {3}},
                                 .max_norm = 0.7,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .scaling = {.start = 1024, .window = window}});
        };
        double sums[4] = {square, loss, 0, 0.7};
        run(cpu, &here, sums);
        Mirror mirror(device());
        struct Sums {
          double of[4];
        } copy{{square, loss, 0, 0.7}};
        run(device(), mirror.object(there), mirror.object(copy)->of);
        mirror.fetch();
        for (double ops::StepControl::*power :
             {&ops::StepControl::correction1, &ops::StepControl::correction2}) {
          EXPECT_NEAR(there.*power, here.*power, 2 * 0x1p-52);  // of a power below 1
          there.*power = here.*power;
        }
        EXPECT_EQ(std::memcmp(&here, &there, sizeof here), 0)
            << "square " << square << " loss " << loss << " updates " << there.updates;
      }
    EXPECT_GT(here.updates, 10);
  }
}

// In a graph with dependent launch the kernel of end_step() begins before the sum is there.
TEST_F(CudaStepControl, EndsARecordedStepAfterTheSumsOfItsGraph) {
  const std::vector<float> ones(1000, 1);
  const std::vector<double> losses{3, std::nan("")};
  const DeviceTensor x(device(), DType::f32, {1000}, ones.data());
  const DeviceTensor sums(device(), DType::f64, {2}, losses.data());
  const TensorView square{sums.view().as<double>() + 1, DType::f64, {1}};
  const ops::StepControl start{.learning_rate = 1e-3, .targets = {1}};
  const Buffer memory(device(), sizeof start);
  auto* const control = static_cast<ops::StepControl*>(memory.data());
  device().copy_from_host(control, &start, sizeof start);
  const auto queue = [&] {
    ops::tree_sum(stream(), x, square);
    ops::end_step(stream(), {.control = control,
                             .square_sum = square,
                             .loss_sums = {sums.view().data, DType::f64, {1}},
                             .max_norm = 1,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .scaling = {.start = 1, .window = 0}});
  };
  queue();  // libraries and emulation know the kernels from then on
  device().synchronize(stream().native());
  cuda::set_dependent_launch(device(), true);
  device().begin_capture(stream().native());
  queue();
  const NativeGraph graph = device().end_capture(stream().native());
  for (int replay = 0; replay < 3; ++replay) {
    device().copy_from_host(sums.view().data, losses.data(), 2 * sizeof(double));
    device().launch(graph, stream().native());
    ops::StepControl end{};
    device().copy_to_host(&end, control, sizeof end);
    EXPECT_EQ(end.gradient_norm, std::sqrt(1000.0));
    EXPECT_EQ(end.apply, 1);
  }
  device().destroy(graph);
}

}  // namespace
}  // namespace choir::test
