// Tests of state in pinned host memory, or in a file, beside the cuda device: copies on separate
// streams, recorded or queued, change no bit.
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/offload_case.hpp"

namespace choir::test {
namespace {

class CudaOffload : public CudaTest {
 protected:
  static OffloadRun train(const EngineOptions& options) {
    SingleRank single;
    return run_offloaded(options, *single.mesh, make_device(DeviceKind::cuda), 5);
  }
};

TEST_F(CudaOffload, ChangesNoBit) {
  for (const char* precision : {"fp32", "bf16-mixed"})
    for (const int stage : {0, 2, 3}) {
      if (stage == 0 && precision == std::string_view("fp32")) continue;  // only moments: stage 3
      EngineOptions options = engine_options(tiny_gpt(), precision, 2);
      options.zero.stage = stage;
      options.cuda_graph = false;
      const OffloadRun whole = train(options);
      for (const bool recorded : {false, true}) {
        options.cuda_graph = recorded;
        const std::string what =
            fmt::format("{} stage {} {}", precision, stage, recorded ? "recorded" : "queued");
        options.offload = offload_to_host();
        EXPECT_TRUE(same_bits(whole, train(options))) << what;
        options.offload = offload_to_host(true);
        if (stage == 3) {
          EXPECT_TRUE(same_bits(whole, train(options))) << what << ", all";
        }
        options.offload = offload_to_file();
        if (!recorded) {
          EXPECT_TRUE(same_bits(whole, train(options))) << what << ", file";
        }
        if (stage == 0) continue;
        options.offload = with_gradients(offload_to_host(stage == 3));
        EXPECT_TRUE(same_bits(whole, train(options))) << what << ", gradients";
        options.offload = with_gradients(offload_to_file());
        if (!recorded) {
          EXPECT_TRUE(same_bits(whole, train(options))) << what << ", gradients beside a file";
        }
      }
    }
}

TEST_F(CudaOffload, HoldsWhatIsPlanned) {
  for (const int stage : {0, 2, 3}) {
    EngineOptions options = engine_options(tiny_gpt(), "bf16-mixed", 2);
    options.zero.stage = stage;
    options.offload = offload_to_host(stage == 3);
    options.offload.gradient_sums = stage >= 2 ? 1 : 0;
    SingleRank single;
    EngineRun run(options, *single.mesh, make_device(DeviceKind::cuda));
    run.losses(2);
    EXPECT_EQ(run.plan().memory.to_string(), run.engine().memory().to_string());
    EXPECT_GT(run.engine().memory().total(MemoryPlace::host), 0u);
  }
}

}  // namespace
}  // namespace choir::test
