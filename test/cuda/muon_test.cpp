#include "kernels/update/muon.hpp"

#include "test/cuda/cuda_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

class CudaMuon : public CudaTest {};

// Four roundings of terms below 5.
TEST_F(CudaMuon, FollowsTheReference) {
  const double u = unit_roundoff(DType::f32);
  for (const DType copy_type : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t n : {1, 8, 9, 255, 3001})
      for (const int skew : {0, 1}) {
        SCOPED_TRACE(fmt::format("copy {} n {} skew {}", name_of(copy_type), n, skew));
        ops::StepControl control{.learning_rate = 1e-2, .apply = 1, .gradient_factor = 0.7};
        HostTensor gradient = HostTensor::normal(DType::f32, {n}, 1),
                   m = HostTensor::normal(DType::f32, {n}, 2, 0.1), direction(DType::f32, {n}),
                   master = HostTensor::normal(DType::f32, {n}, 3), copy;
        if (copy_type != DType::f32) copy = HostTensor(copy_type, {n});
        HostTensor exact_gradient = gradient.to(DType::f64), exact_m = m.to(DType::f64),
                   exact_direction(DType::f64, {n}), exact_master = master.to(DType::f64);
        const bool nesterov = n != 9;
        {
          Mirror mirror(device());
          ops::muon_momentum(
              stream(), {mirror.in(gradient, skew), mirror.io(m, skew), mirror.io(direction, skew),
                         0.9, nesterov, mirror.object(control)});
          mirror.fetch();
        }
        ref::muon_momentum({exact_gradient, exact_m, exact_direction, 0.9, nesterov, &control});
        expect_close(m, exact_m, 4 * u, 8 * u, "m");
        expect_close(direction, exact_direction, 4 * u, 8 * u, "direction");
        {
          Mirror mirror(device());
          ops::muon_step(stream(), {mirror.io(master, skew), mirror.in(direction, skew),
                                    mirror.io(copy, skew), 0.5, 2, 0.1, mirror.object(control)});
          mirror.fetch();
        }
        ref::muon_step({exact_master, exact_direction, {}, 0.5, 2, 0.1, &control});
        expect_close(master, exact_master, 4 * u, 8 * u, "master");
        const HostTensor nearest = master.to(copy_type);
        for (std::int64_t i = 0; i < copy.count(); ++i) ASSERT_EQ(copy[i], nearest[i]) << i;
      }
}

// Without a gradient the new momentum is a product, rounded to f32 alike everywhere.
TEST_F(CudaMuon, NarrowMomentumHasTheBitsOfTheCpu) {
  CpuDevice cpu;
  for (const std::int64_t n : {1, 9, 999})
    for (const ops::ElementNumbers& elements :
         {ops::ElementNumbers{.first = 640},
          {.first = 128, .width = 48, .stride = 96, .column = 16},
          {.first = 128, .width = 21, .stride = 42, .column = 3}}) {
      SCOPED_TRACE(fmt::format("n {} width {}", n, elements.width));
      ops::StepControl control{
          .learning_rate = 1e-2, .apply = 1, .gradient_factor = 0.7, .updates = 5};
      HostTensor gradient = HostTensor::filled(DType::f32, {n}, 0),
                 here = HostTensor::normal(DType::bf16, {n}, 2, 0.1), there = here,
                 direction(DType::f32, {n}), of_cpu = direction;
      const HostTensor before = here;
      ops::MuonMomentum args{.gradient = gradient,
                             .m = here,
                             .direction = of_cpu,
                             .control = &control,
                             .rounding = philox_key(3, "moment rounding"),
                             .elements = elements};
      ops::muon_momentum(Stream(cpu), args);
      Mirror mirror(device());
      const int skew = static_cast<int>(n % 2);
      args.gradient = mirror.in(gradient, skew), args.m = mirror.io(there, skew);
      args.direction = mirror.io(direction, skew), args.control = mirror.object(control);
      ops::muon_momentum(stream(), args);
      mirror.fetch();
      EXPECT_TRUE(there.same_bits(here));
      EXPECT_FALSE(n > 1 && here.same_bits(before));
      // before it is rounded
      expect_close(direction, of_cpu, 4 * unit_roundoff(DType::f32), 0, "direction");
    }
}

TEST_F(CudaMuon, DividesAndAdds) {
  for (const std::int64_t n : {1, 9, 3001})
    for (const int skew : {0, 1}) {
      HostTensor x = HostTensor::normal(DType::f32, {n}, 1),
                 y = HostTensor::normal(DType::f32, {n}, 2), out(DType::f32, {n}),
                 square = HostTensor::filled(DType::f64, {1}, 6.25),
                 zero = HostTensor::filled(DType::f64, {1}, 0), tiny = x;
      const HostTensor before = x;
      Mirror mirror(device());
      const TensorView there = mirror.io(x, skew), small = mirror.io(tiny, skew);
      ops::divide_by_norm(stream(), there, mirror.in(square), 1e-7);
      ops::divide_by_norm(stream(), small, mirror.in(zero), 0.5);
      ops::weighted_sum(stream(), 3, there, -0.5, mirror.in(y, skew), mirror.io(out, skew));
      mirror.fetch();
      for (std::int64_t i = 0; i < n; ++i) {
        const auto quotient = static_cast<float>(before[i]) / 2.5f;
        ASSERT_EQ(x[i], quotient);
        ASSERT_EQ(tiny[i], before[i] / 0.5);
        ASSERT_NEAR(out[i], 3 * x[i] - 0.5 * y[i], 1e-6);
      }
    }
}

TEST_F(CudaMuon, StepTsan) {
  constexpr std::int64_t kCount = 2005;
  HostTensor gradient = HostTensor::normal(DType::f32, {kCount}, 1),
             m = HostTensor::normal(DType::bf16, {kCount}, 2), direction(DType::f32, {kCount}),
             master = HostTensor::normal(DType::f32, {kCount}, 3),
             square = HostTensor::filled(DType::f64, {1}, 4);
  ops::StepControl control{.learning_rate = 1e-2, .apply = 1, .gradient_factor = 0.7};
  Mirror mirror(device());
  const TensorView there = mirror.io(direction);
  const ops::StepControl* now = mirror.object(control);
  ops::muon_momentum(
      stream(),
      {.gradient = mirror.in(gradient), .m = mirror.io(m), .direction = there, .control = now});
  ops::divide_by_norm(stream(), there, mirror.in(square), 1e-7);
  ops::muon_step(stream(), {.master = mirror.io(master), .direction = there, .control = now});
  mirror.fetch();
  EXPECT_FALSE(std::isnan(master[kCount - 1]));
}

TEST_F(CudaMuon, SkippedStepsWriteNothing) {
  HostTensor x = HostTensor::normal(DType::f32, {100}, 1), m = x, w = x;
  const HostTensor before = x;
  ops::StepControl control{.learning_rate = 1, .apply = 0, .gradient_factor = NAN};
  Mirror mirror(device());
  ops::muon_momentum(stream(), {mirror.in(x), mirror.io(m), {}, 0.9, true, mirror.object(control)});
  ops::muon_step(stream(), {mirror.io(w), mirror.in(x), {}, 1, 1, 0, mirror.object(control)});
  mirror.fetch();
  for (std::int64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(m[i], before[i]);
    ASSERT_EQ(w[i], before[i]);
  }
}

}  // namespace
}  // namespace choir::test
