// Averaged weights beside the cuda device: recorded or queued, on the device, in pinned host memory
// or in a file, they are averaged by the formula and exchanged without a trace.
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/averages_case.hpp"
#include "test/support/offload_case.hpp"

namespace choir::test {
namespace {

class CudaAverages : public CudaTest {};

TEST_F(CudaAverages, FollowTheFormulaAndAreExchanged) {
  constexpr double kDecay = 0.75;
  for (const char* precision : {"bf16-mixed", "bf16-true"})
    for (const OffloadOptions& offload : {OffloadOptions{}, offload_to_host(), offload_to_file()}) {
      EngineOptions options = engine_options(tiny_gpt(), precision, 2);
      options.ema = kDecay;
      options.offload = offload;
      const std::string what = fmt::format("{} {}", precision, static_cast<int>(offload.place));
      SingleRank single;
      EngineRun run(options, *single.mesh, make_device(DeviceKind::cuda));
      Engine& engine = run.engine();
      ByName expected;
      for (int i = 0; i < 4; ++i) {  // the last two are recorded
        ASSERT_TRUE(run.step().updated);
        average_into(expected, stored_values(engine), kDecay);
      }
      const ByName stored = stored_values(engine);
      for (const auto& [name, values] : expected)
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(stored.at(name)[i], values[i], 16 * unit_roundoff(DType::f32))
              << what << ", " << name << " " << i;
      const double loss = engine.instance().loss_sum(run.batch(77));
      engine.exchange_averages();
      EXPECT_NE(engine.instance().loss_sum(run.batch(77)), loss) << what;
      engine.exchange_averages();
      EXPECT_EQ(engine.instance().loss_sum(run.batch(77)), loss) << what;
      EXPECT_EQ(stored_values(engine), stored) << what;
      EXPECT_EQ(run.plan().memory.to_string(), engine.memory().to_string()) << what;
      run.end();
    }
}

}  // namespace
}  // namespace choir::test
