// Tests of the step control of the device against that of the CPU: every field has the same bits,
// except the corrections, whose powers are accurate only to an ulp or two.
#include "choir/ops/step_control.hpp"

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

}  // namespace
}  // namespace choir::test
