#pragma once
// Training with and without offload, for tests on any device and number of ranks.
#include <cstdlib>
#include <string>
#include <vector>

#include "choir/parallel/sharding/parameter_storage.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

/// This chunk is so short that every bucket of a tiny model has several chunks, and the last one is
/// shorter.
inline constexpr std::int64_t kShortChunk = 64 * 6;

inline std::string temporary_directory() {
  const char* const named = std::getenv("TMPDIR");
  return named != nullptr ? named : "/tmp";
}

inline OffloadOptions offload_to_file() {
  return {.place = MemoryPlace::file, .directory = temporary_directory(), .chunk = kShortChunk};
}
inline OffloadOptions offload_to_host(bool parameters = false) {
  return {.place = MemoryPlace::host, .parameters = parameters, .chunk = kShortChunk};
}

/// The same with the slices of gradients, for ZeRO 2 and 3.
inline OffloadOptions with_gradients(OffloadOptions options) {
  options.gradient_sums = 1;
  return options;
}

struct OffloadRun {
  std::vector<double> numbers;  ///< losses, norms, losses of evaluations between steps
  std::vector<double> state;
};

/// Collective. Step 2 has a loss that is not a number and must change nothing.
inline OffloadRun run_offloaded(const EngineOptions& options, Mesh& mesh,
                                std::unique_ptr<Device> device, int steps = 5) {
  EngineRun run(options, mesh, std::move(device));
  OffloadRun result;
  for (int i = 0; i < steps; ++i) {
    const StepResult step = run.step(i == 2 ? NAN : run.tokens_of_step());
    EXPECT_EQ(step.updated, i != 2);
    result.numbers.push_back(i == 2 ? 0 : step.loss);
    result.numbers.push_back(i == 2 ? 0 : step.grad_norm);
    result.numbers.push_back(run.engine().instance().loss_sum(run.batch(77)));
  }
  result.state = run.state();
  return result;
}

inline bool same_bits(const OffloadRun& a, const OffloadRun& b) {
  return same_bits(a.numbers, b.numbers) && same_bits(a.state, b.state);
}

}  // namespace choir::test
