// Averaged weights of an engine: their formula, in every precision, ZeRO stage and place of the
// state, and their exchange with the weights.
#include <gtest/gtest.h>

#include "test/support/averages_case.hpp"
#include "test/support/offload_case.hpp"
#include "test/support/op_test.hpp"
#include "test/support/separate_device.hpp"
#include "test/unit/train/speech_case.hpp"

namespace choir {
namespace {

using test::ByName;
using test::stored_values;

constexpr double kDecay = 0.75;
constexpr std::array kAveragedPrecisions{"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"};

std::unique_ptr<Device> host_device() {
  return std::make_unique<CpuDevice>();
}
std::unique_ptr<Device> device_apart() {
  return std::make_unique<test::SeparateDevice>();
}

EngineOptions options_of(const char* precision, int stage, const OffloadOptions& offload = {}) {
  EngineOptions options =
      test::engine_options(stage == 2 ? test::tiny_llama() : test::tiny_gpt(), precision, 2);
  options.zero.stage = stage;
  options.offload = offload;
  options.ema = kDecay;
  return options;
}

/// One update in f32 rounds twice, relative to weights below 2.
void expect_averages(const ByName& found, const ByName& expected, double unit,
                     const std::string& what) {
  ASSERT_FALSE(expected.empty());
  for (const auto& [name, values] : expected)
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(found.at(name)[i], values[i], 16 * unit) << what << ", " << name << " " << i;
}

TEST(AveragedWeights, FollowTheFormula) {
  for (const char* precision : kAveragedPrecisions)
    for (const int stage : {0, 2, 3}) {
      const EngineOptions options = options_of(precision, stage);
      test::SingleRank single;
      test::EngineRun run(options, *single.mesh);
      ByName expected;
      for (int i = 0; i < 6; ++i) {
        // The first step and another are not finite and change nothing.
        const bool bad = i == 0 || i == 3;
        const StepResult result = run.step(bad ? NAN : run.tokens_of_step());
        ASSERT_EQ(result.updated, !bad);
        const ByName stored = stored_values(run.engine());
        if (!bad) test::average_into(expected, stored, kDecay);
        const double unit =
            unit_roundoff(precision == std::string_view("fp64") ? DType::f64 : DType::f32);
        if (i > 0)
          expect_averages(stored, expected, unit, fmt::format("{} stage {}", precision, stage));
        EXPECT_EQ(stored.at(std::string(kFirstAverage))[0], 1);
      }
    }
}

TEST(AveragedWeights, ChangeNothingElse) {
  for (const char* precision : {"fp32", "bf16-true"}) {
    EngineOptions options = options_of(precision, 2);
    test::SingleRank single;
    test::EngineRun with(options, *single.mesh);
    options.ema = 0;
    test::EngineRun without(options, *single.mesh);
    EXPECT_EQ(with.losses(4), without.losses(4));
    EXPECT_TRUE(test::same_bits(with.state(), without.state()));
    EXPECT_FALSE(stored_values(without.engine()).contains("ema/first_update"));
  }
}

TEST(AveragedWeights, AreTheSameOutsideOfTheDevice) {
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true"})
    for (const int stage : {0, 3}) {
      test::SingleRank single;
      test::EngineRun here(options_of(precision, stage), *single.mesh);
      here.losses(4);
      const ByName expected = stored_values(here.engine());
      for (const OffloadOptions& offload :
           {test::offload_to_file(), test::offload_to_host(), test::offload_to_host(true)}) {
        if (offload.parameters && stage != 3) continue;
        test::EngineRun run(options_of(precision, stage, offload), *single.mesh, device_apart());
        run.losses(4);
        EXPECT_EQ(stored_values(run.engine()), expected) << precision << " stage " << stage;
        EXPECT_EQ(run.plan().memory.to_string(), run.engine().memory().to_string());
        run.end();
      }
      EXPECT_EQ(here.plan().memory.to_string(), here.engine().memory().to_string());
    }
}

// The exchanged model is that of a run whose masters are the averages; afterwards training goes on
// as if nothing had happened.
TEST(AveragedWeights, ExchangeIsUndoneBitByBit) {
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true"})
    for (const int stage : {0, 2, 3})
      for (const OffloadOptions& offload : {OffloadOptions{}, test::offload_to_file(),
                                            test::offload_to_host(), test::offload_to_host(true)}) {
        if ((offload.parameters && stage != 3) || (offload.any() && stage == 2)) continue;
        const std::string what =
            fmt::format("{} stage {} {}", precision, stage, static_cast<int>(offload.place));
        const EngineOptions options = options_of(precision, stage, offload);
        const auto device = [&] { return offload.any() ? device_apart() : host_device(); };
        test::SingleRank single;
        test::EngineRun run(options, *single.mesh, device());
        test::EngineRun calm(options, *single.mesh, device());
        run.losses(3), calm.losses(3);
        Engine& engine = run.engine();
        const ByName stored = stored_values(engine);
        const double loss = engine.instance().loss_sum(run.batch(77));
        engine.exchange_averages();
        EXPECT_THROW(stored_values(engine), Error) << "a save would store the averages as weights";
        const std::vector<double> exchanged = run.state();
        const double averaged = engine.instance().loss_sum(run.batch(77));
        EXPECT_NE(averaged, loss) << what;

        std::size_t at = 0;
        const double unit = unit_roundoff(options.precision.master);
        for (const Parameter& p : engine.instance().parameters().parameters()) {
          const std::vector<double>& average = stored.at("ema/parameters/" + p.name);
          for (std::size_t i = 0; i < average.size(); ++i)
            ASSERT_NEAR(exchanged[at + i], average[i], unit * std::abs(average[i]))
                << what << ", " << p.name;
          at += 3 * average.size();  // the moments follow
        }

        engine.exchange_averages();
        EXPECT_EQ(stored_values(engine), stored) << what;
        EXPECT_EQ(engine.instance().loss_sum(run.batch(77)), loss) << what;
        EXPECT_EQ(run.losses(2), calm.losses(2)) << what;
        EXPECT_EQ(stored_values(engine), stored_values(calm.engine())) << what;
        run.end(), calm.end();
      }
}

TEST(AveragedWeights, FrozenParametersHaveNone) {
  EngineOptions options = options_of("bf16-mixed", 3);
  options.freezing = {{"embedding.*"}, {}};
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  run.losses(2);
  const ByName stored = stored_values(run.engine());
  for (const auto& [name, values] : stored)
    if (name.starts_with("parameters/")) {
      EXPECT_EQ(stored.contains("ema/" + name), !name.starts_with("parameters/embedding")) << name;
    }
  run.engine().exchange_averages();
  run.engine().exchange_averages();
  EXPECT_EQ(stored_values(run.engine()), stored);
}

TEST(AveragedWeights, CanBeginLater) {
  test::SingleRank single;
  test::EngineRun run(options_of("fp64", 0), *single.mesh);
  run.engine().averages()->begin_after(2);
  run.losses(3);
  const ByName stored = stored_values(run.engine());
  for (const auto& [name, values] : stored)
    if (name.starts_with("parameters/")) {
      EXPECT_EQ(stored.at("ema/" + name), values);
    }
}

TEST(AveragedWeights, StatisticsOfNormsAreAveragedToo) {
  for (const char* precision : {"fp64", "bf16-mixed"}) {
    EngineOptions options = test::speech_options(test::batch_normed(), precision, 2);
    options.ema = kDecay;
    test::SingleRank single;
    test::SpeechRun run(options, *single.mesh);
    ByName expected;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(run.step().updated);
      test::average_into(expected, stored_values(run.engine()), kDecay);
    }
    const ByName stored = stored_values(run.engine());
    EXPECT_EQ(
        std::ranges::count_if(
            expected, [](const auto& one) { return one.first.starts_with("ema/state/running/"); }),
        4)
        << "mean and variance of two norms";
    expect_averages(stored, expected, 4 * unit_roundoff(options.precision.statistic), precision);
    const std::vector<double> before = run.running();
    run.engine().exchange_averages();
    EXPECT_NE(run.running(), before);
    run.engine().exchange_averages();
    EXPECT_EQ(run.running(), before);
    EXPECT_EQ(run.plan().memory.to_string(), run.engine().memory().to_string());
  }
}

}  // namespace
}  // namespace choir
