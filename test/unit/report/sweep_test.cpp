#include "src/report/sweep.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/core/text.hpp"
#include "src/lab/bench/bench_results.hpp"
#include "src/lab/bench/bench_step.hpp"
#include "src/train/step/gradient_noise.hpp"

namespace choir {
namespace {

using nlohmann::json;

/// The part of the output of `choir bench step --json` that a sweep reads.
json run_of(const std::string& sweep, int ranks, int micro, int global, double seconds) {
  json run{{"deck", "a.json"},
           {"precision", "fp32"},
           {"device", "cpu"},
           {"device_description", "host"},
           {"ranks", ranks},
           {"threads", 1},
           {"nodes", 1},
           {"cores", 8},
           {"oversubscribed", false},
           {"micro_batch", micro},
           {"accum", 1},
           {"global_batch", global},
           {"tokens", 100 * global},
           {"audio_seconds", 0},
           {"parameters", 1000},
           {"step_seconds", {seconds, seconds, 1.01 * seconds}},
           {"losses", {3.0, 2.5}},
           {"first_losses", {4.0 + global, 3.0}},
           {"first_norms", {1.0, 2.0}},
           {"median_seconds", seconds},
           {"communicated", true},
           {"mfu", 0.5},
           {"grown_memory", 1 << 20},
           {"complaints", json::array()},
           {"communication", {{{"axis", "dp"}, {"exposed_seconds", seconds / 4}}}},
           {"notes", {{"sweep", sweep}, {"layout", "dp"}, {"launcher", "mpiexec, \"-n\""}}},
           {"provenance", {{"revision", "abc"}, {"hosts", {"h1"}}}}};
  run["first_gradients"] = {{"gradients/a", 1.0}, {"gradients/b", 1e-2}, {"gradients/c", 1e-9}};
  for (const char* phase : {"data", "forward", "backward", "comm", "optimizer", "other"})
    run["phases"][phase] = {{"min", 0}, {"median", seconds / 8}, {"max", 0}};
  return run;
}

/// The run with moved weights of the reference: rounding changes a loss by 1e-4, a norm by 2e-4,
/// and a tensor by 1e-3.
json moved_of(int global) {
  json run = run_of("last place", 1, 1, global, 1);
  run["first_losses"][1] = 3.0 * (1 + 1e-4);
  run["first_norms"][0] = 1.0 - 2e-4;
  run["first_gradients"]["gradients/b"] = 1e-2 * (1 + 1e-3);
  return run;
}

/// Runs, and those that their global batches need: a reference and a moved one each.
Sweep judged(std::vector<json> runs, std::vector<SweepRow> refused = {}) {
  std::set<int> globals;
  for (const json& run : runs) globals.insert(run.at("global_batch").get<int>());
  for (const int global : globals) {
    runs.push_back(run_of("reference", 1, 1, global, 1));
    runs.push_back(moved_of(global));
  }
  return make_sweep(runs, std::move(refused));
}

TEST(Scaling, StrongSpeedupEfficiencyAndSerialFraction) {
  // t(1) = 8, t(4) = 3: S = 8/3, E = 2/3, Karp-Flatt (3/8 - 1/4)/(3/4) = 1/6.
  const Sweep sweep = judged({run_of("strong", 1, 8, 8, 8), run_of("strong", 4, 2, 8, 3)});
  ASSERT_EQ(sweep.rows.size(), 2u);
  const SweepRow& row = sweep.rows[1];
  EXPECT_TRUE(row.valid()) << row.complaints.front();
  EXPECT_DOUBLE_EQ(*row.speedup, 8.0 / 3);
  EXPECT_DOUBLE_EQ(*row.efficiency, 2.0 / 3);
  EXPECT_NEAR(*row.serial_fraction, 1.0 / 6, 1e-12);
  EXPECT_DOUBLE_EQ(row.rate(), 800.0 / 3);
  // Four cores for 3 s are 12 core-seconds for 800 tokens.
  EXPECT_DOUBLE_EQ(row.cost(), 15000);
  EXPECT_DOUBLE_EQ(row.share(Axis::data), 0.25);
  EXPECT_FALSE(sweep.rows[0].serial_fraction);
}

TEST(Scaling, WeakEfficiencyIsOfTheThroughput) {
  // X(1) = 800 / 2, X(2) = 1600 / 2.5: E = 1600 * 2 / (2 * 2.5 * 800) = 0.8.
  const Sweep sweep = judged({run_of("weak", 1, 8, 8, 2), run_of("weak", 2, 8, 16, 2.5)});
  EXPECT_NEAR(*sweep.rows[1].efficiency, 0.8, 1e-12);
}

TEST(Scaling, CommunicationIsWhatGoesAwayWithoutIt) {
  json silent = run_of("strong", 2, 4, 8, 3);
  silent["communicated"] = false;
  const Sweep sweep = judged({run_of("strong", 2, 4, 8, 4), silent});
  ASSERT_EQ(sweep.rows.size(), 1u);
  EXPECT_DOUBLE_EQ(*sweep.rows[0].communication, 0.25);
}

TEST(Scaling, RepeatsGiveAMedianAndPercentiles) {
  const Sweep sweep = judged(
      {run_of("strong", 1, 8, 8, 3), run_of("strong", 1, 8, 8, 1), run_of("strong", 1, 8, 8, 2)});
  ASSERT_EQ(sweep.rows.size(), 1u);
  EXPECT_DOUBLE_EQ(sweep.rows[0].median, 2);
  // The quantiles of 1 1 1.01 2 2 2.02 3 3 3.03 are at positions 0.8 and 7.2.
  EXPECT_DOUBLE_EQ(sweep.rows[0].p10, 1);
  EXPECT_NEAR(sweep.rows[0].p90, 3.006, 1e-12);
}

TEST(Scaling, RowsWhoseTimesSayLittleAreNoisyAndGiveNoAdvice) {
  const auto noise_of = [](std::vector<json> runs) {
    return judged(std::move(runs)).rows[0].noise;
  };
  EXPECT_EQ(noise_of({run_of("strong", 2, 4, 8, 1), run_of("strong", 2, 4, 8, 1.05)}), "");
  EXPECT_EQ(noise_of({run_of("strong", 2, 4, 8, 1), run_of("strong", 2, 4, 8, 1.12)}),
            "repeats differ by +-6 %");
  json stalled = run_of("strong", 2, 4, 8, 1);
  stalled["step_seconds"] = {1, 1, 1.5};
  // p90 - p10 = 0.4 is a deviation of 0.156, and one of 0.113 for the median of three.
  EXPECT_EQ(noise_of({stalled}), "its steps give the median only to 11 %");
  stalled["audio_seconds"] = 10;  // its steps are not alike
  EXPECT_EQ(noise_of({stalled}), "");
  json silent = run_of("strong", 2, 4, 8, 1.1);
  silent["communicated"] = false;
  EXPECT_EQ(noise_of({run_of("strong", 2, 4, 8, 1), silent}), "10 % slower when nothing is sent");

  std::vector<json> runs{run_of("strong", 1, 8, 8, 8), run_of("strong", 4, 2, 8, 2)};
  EXPECT_NE(advice(judged(runs), {}).find("strong scaling pays up to 4 ranks"), std::string::npos);
  runs[1]["step_seconds"] = {2, 2, 9};
  const std::string text = advice(judged(runs), {});
  EXPECT_EQ(text.find("pays up to 4 ranks"), std::string::npos) << text;
  EXPECT_NE(text.find("1 of 2 rows are NOISY and ignored"), std::string::npos) << text;
  EXPECT_EQ(text.find("strong scaling pays"), std::string::npos) << text;
  EXPECT_NE(text.find("No advice on strong scaling beyond 1 rank, because the row of 4 ranks is "
                      "NOISY."),
            std::string::npos)
      << text;
  EXPECT_NE(to_table(judged(runs)).find("VALID, NOISY: its steps"), std::string::npos);
}

// The allowed error is four times the change by moved weights: 4e-4 of the loss, 8e-4 of the norm,
// 4e-3 of a tensor, even of a small one; for a tensor that is only rounding, 4e-3 of 1/1000 of the
// largest.
TEST(Scaling, WhatRoundingDoesNotExplainIsInvalid) {
  const auto verdict = [](const char* field, const json& key, double value) {
    json run = run_of("strong", 2, 4, 8, 1);
    if (key.is_string())
      run[field][key.get<std::string>()] = value;
    else
      run[field][key.get<std::size_t>()] = value;
    const Sweep sweep = judged({run});
    return sweep.valid() ? "" : join(sweep.rows[0].complaints, "; ");
  };
  EXPECT_EQ(verdict("first_losses", 1, 3.0 * (1 + 3.9e-4)), "");
  EXPECT_EQ(verdict("first_losses", 1, 3.0 * (1 + 4.1e-4)),
            "the loss 3.00123 at step 1, of one rank 3 (4.1e-04 off, allowed 4.0e-04)");
  EXPECT_EQ(verdict("first_norms", 1, 2.0 * (1 - 7.9e-4)), "");
  EXPECT_EQ(verdict("first_norms", 0, 0.5),
            "the norm of the gradient 0.5 at step 0, of one rank 1 (5.0e-01 off, allowed 8.0e-04)");
  EXPECT_EQ(verdict("first_gradients", "gradients/b", 1e-2 * (1 - 3.9e-3)), "");
  EXPECT_EQ(verdict("first_gradients", "gradients/b", 0),
            "the norm 0 of gradients/b, of one rank 0.01 (1.0e+00 off, allowed 4.0e-03)");
  EXPECT_EQ(verdict("first_gradients", "gradients/c", 3.9e-6), "");
  EXPECT_NE(verdict("first_gradients", "gradients/c", 4.1e-6), "");
  EXPECT_NE(verdict("first_losses", 0, std::nan("")).find("not finite"), std::string::npos);
  json lost = run_of("strong", 2, 4, 8, 1);
  lost["first_gradients"].erase("gradients/b");
  const Sweep sweep = judged({lost});
  EXPECT_FALSE(sweep.valid());
  EXPECT_FALSE(sweep.rows[0].efficiency);
}

TEST(Scaling, WithoutAReferenceNothingIsValid) {
  const json run = run_of("strong", 1, 8, 8, 1), reference = run_of("reference", 1, 1, 8, 1);
  EXPECT_EQ(make_sweep({run}, {}).rows[0].complaints.at(0),
            "no reference run of the global batch 8");
  EXPECT_NE(make_sweep({run, reference}, {}).rows[0].complaints.at(0).find("moved weights"),
            std::string::npos);
  json broken = moved_of(8);
  broken["first_losses"][0] = nullptr;  // then no difference is explained
  json beside = run;
  beside["first_losses"][0] = 12.5;
  EXPECT_TRUE(make_sweep({run, reference, broken}, {}).valid());
  EXPECT_FALSE(make_sweep({beside, reference, broken}, {}).valid());
}

TEST(Scaling, AMovedLastPlaceIsOneUnit) {
  EXPECT_EQ(moved_last_place(1.0, true, 8), 1 + 0x1p-7);
  EXPECT_EQ(moved_last_place(-1.0, false, 8), -(1 - 0x1p-7));
  EXPECT_EQ(moved_last_place(3.0, true, 24), std::nextafter(3.0f, 4.0f));
  EXPECT_EQ(moved_last_place(-5.5, true, 53), std::nextafter(-5.5, -6.0));
  EXPECT_EQ(moved_last_place(0.0, true, 24), 0);
}

TEST(Scaling, EveryLineOfTheCsvHasAllColumns) {
  SweepRow refused;
  refused.point = {"strong", "tp3", 3, 1, 8};
  refused.complaints = {"refused: exit code 2, \"heads\", cannot be divided"};
  const Sweep sweep = judged({run_of("strong", 1, 8, 8, 1)}, {refused});
  const std::string csv = to_csv(sweep);
  std::vector<int> counts(1, 1);
  bool inside = false;
  for (const char c : csv) {
    if (c == '"') inside = !inside;
    if (c == ',' && !inside) ++counts.back();
    if (c == '\n') counts.push_back(1);
  }
  ASSERT_EQ(counts.size(), 4u);  // header, two rows, and the end behind the last line
  EXPECT_EQ(counts[1], counts[0]);
  EXPECT_EQ(counts[2], counts[0]);
  EXPECT_NE(csv.find("REFUSED"), std::string::npos);
  EXPECT_NE(to_table(sweep).find("cannot be divided"), std::string::npos);
}

TEST(Scaling, TheProcessorIsNamedBesideTheGpu) {
  json run = run_of("strong", 1, 8, 8, 1), silent = run_of("strong", 2, 4, 8, 1);
  run["provenance"]["cpus"] = {"EPYC \"9654\"", "Xeon"};
  run["provenance"]["cpu_clocks"] = "2400 MHz then";
  run["provenance"]["gpus"] = {"NVIDIA H200 GPU-1", "NVIDIA H200 GPU-2"};
  const Sweep sweep = judged({run, silent});  // the second is of a program that did not name itself
  EXPECT_NE(to_csv(sweep).find(",hosts,cpus,cpu_clocks,gpus,"), std::string::npos);
  EXPECT_NE(
      to_csv(sweep).find("\"[\"\"EPYC \\\"\"9654\\\"\"\"\",\"\"Xeon\"\"]\",\"2400 MHz then\","),
      std::string::npos)
      << to_csv(sweep);
  EXPECT_NE(to_csv(sweep).find("\"[\"\"h1\"\"]\",\"\",\"\",\"\",\"\","), std::string::npos);
  EXPECT_NE(to_table(sweep).find("measured on EPYC \"9654\"; Xeon; NVIDIA H200; clocks"),
            std::string::npos)
      << to_table(sweep);
  EXPECT_EQ(to_table(judged({silent})).find("measured on"), std::string::npos);
}

TEST(Scaling, TheKneeIsNamed) {
  // 100, 190, 380 x 0.96 and then hardly more: 800/8, 1600/8.4, 3200/8.8, 6400/17.
  std::vector<json> runs;
  const double seconds[] = {8, 8.4, 8.8, 17};
  for (int k = 0; k < 4; ++k) {
    const int batch = 8 << k;
    runs.push_back(run_of("batch", 1, batch, batch, seconds[k]));
  }
  const Sweep sweep = judged(runs);
  const std::string text = advice(sweep, {});
  EXPECT_NE(text.find("The knee is at a batch of 32"), std::string::npos) << text;
  EXPECT_NE(text.find("2.000x"), std::string::npos);  // sqrt(32 / 8)
  EXPECT_NE(text.find("4.000x"), std::string::npos);
  EXPECT_NE(advice(judged({runs[0], runs[1]}), {}).find("No knee"), std::string::npos);
}

// Two layouts, and one that is crowded: each has its knee; the fastest is zero1 with 1600 in 4 s,
// but dp of one rank works 800 in 5 s on one core: 6.25e-3 against 2 x 2.5e-3 core-seconds a token,
// 80 %.
TEST(Scaling, EverySeriesOfABatchSweepIsSpokenOf) {
  std::vector<json> runs{run_of("batch", 1, 8, 8, 3),     run_of("batch", 1, 16, 16, 6),
                         run_of("batch", 2, 4, 8, 4),     run_of("batch", 2, 8, 16, 4),
                         run_of("batch", 2, 16, 32, 7.9), run_of("batch", 16, 1, 16, 1)};
  for (int k = 2; k < 5; ++k) runs[static_cast<std::size_t>(k)]["notes"]["layout"] = "zero1";
  runs[5]["oversubscribed"] = true;
  const std::string text = advice(judged(runs), {});
  EXPECT_NE(text.find("Batches on 1 rank (dp). lr:"), std::string::npos) << text;
  EXPECT_NE(text.find("Batches on 2 ranks (zero1).\n"), std::string::npos);
  EXPECT_NE(text.find("Batches on 16 ranks (dp).\n"), std::string::npos);
  EXPECT_NE(text.find("The knee is at a batch of 8 (8 a rank and micro-batch)"), std::string::npos);
  EXPECT_NE(text.find("The knee is at a batch of 16 (8 a rank and micro-batch)"),
            std::string::npos);
  EXPECT_NE(text.find("The fastest of these 3 series is zero1 on 2 ranks at a batch of 32"),
            std::string::npos);
  EXPECT_NE(text.find("dp on 1 rank at a batch of 8 costs 76 % of that"), std::string::npos)
      << text;
  EXPECT_NE(text.find("Oversubscribed rows are ignored."), std::string::npos);
  EXPECT_EQ(text.find("16 ranks at"), std::string::npos);
  runs[5]["oversubscribed"] = false;
  EXPECT_NE(advice(judged(runs), {}).find("series is dp on 16 ranks at a batch of 16 (1600"),
            std::string::npos);
  EXPECT_NE(advice(judged({runs[0]}), {}).find("A knee needs several batches"), std::string::npos);
}

TEST(Scaling, TimeToATargetFollowsTheNoiseScale) {
  json noise = run_of("noise", 1, 8, 64, 1);
  noise["gradient_noise"] = {{"scale", 16}, {"error", 1}, {"after_steps", 10}};
  const Sweep sweep = judged({run_of("batch", 1, 8, 8, 1), run_of("batch", 1, 16, 16, 1.5), noise});
  // 300 steps of 8 are (1 + 16/8) S: S = 100; of 16 it takes 200 steps, 300 s, on one core.
  const std::string text = advice(sweep, Target{.loss = 2, .steps = 300, .batch = 8});
  EXPECT_NE(text.find("      200       300.0         300.0"), std::string::npos) << text;
}

TEST(GradientNoise, FindsTheNoiseOfSyntheticGradients) {
  // Gradients (3, 4, 0, ...) plus normal noise of variance 2 a dim and sample, 50 dims: |G|^2 = 25,
  // tr(S) = 100, B_simple = 4.
  constexpr int kDims = 50, kPairs = 4000;
  std::vector<NoiseProbe> probes;
  const PhiloxKey key = philox_key(1, "gradient noise test");
  std::uint64_t place = 0;
  const auto square = [&](double samples) {
    double sum = 0;
    for (int d = 0; d < kDims; ++d) {
      const PhiloxBlock words = philox_at(key, 4 * place++);
      const double u = uniform01(words[0]) + 1e-12, v = uniform01(words[1]);
      const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
      const double mean = d == 0 ? 3 : d == 1 ? 4 : 0;
      sum += std::pow(mean + normal * std::sqrt(2 / samples), 2);
    }
    return sum;
  };
  for (int i = 0; i < kPairs; ++i) {
    const double small = square(2), large = square(32);
    probes.push_back({small, large});
  }
  const GradientNoise noise = estimate_noise(probes, 2, 32);
  EXPECT_GT(noise.error, 0);
  EXPECT_LT(noise.error, 0.1);
  EXPECT_NEAR(noise.scale, 4, 4 * noise.error);
  EXPECT_NEAR(noise.signal, 25, 0.5);
  EXPECT_NEAR(noise.noise, 100, 2);
}

TEST(GradientNoise, LostSignalIsNoNumber) {
  const std::vector<NoiseProbe> probes{{8, 1}, {8, 0.9}, {std::nan(""), 1}};
  const GradientNoise noise = estimate_noise(probes, 1, 8);
  EXPECT_EQ(noise.probes, 2);
  EXPECT_FALSE(noise.known());
}

TEST(BenchBaseline, RowsAreMatchedByWhatTheyMeasure) {
  const auto run = [](double first, double second) {
    return json{{"bench", "gemm"},
                {"rows",
                 {{{"name", "q"}, {"bytes", 8}, {"seconds", first}, {"rate", 1 / first}},
                  {{"name", "q"}, {"bytes", 16}, {"seconds", second}}}}};
  };
  EXPECT_TRUE(compare_with_baseline(run(1, 2), run(1.09, 0.5), 0.1).holds());
  const auto slower = compare_with_baseline(run(1, 2), run(1, 2.3), 0.1);
  ASSERT_EQ(slower.regressions().size(), 1u);
  EXPECT_NEAR(slower.regressions()[0].ratio(), 1.15, 1e-12);
  EXPECT_NE(to_string(slower).find("INVALID: regression, 1 of 2 rows"), std::string::npos);
  EXPECT_FALSE(slower.holds());
  json other = run(1, 2);
  other["rows"] = {{{"name", "k"}, {"seconds", 1}}};
  const auto none = compare_with_baseline(other, run(1, 2), 0.1);
  EXPECT_FALSE(none.holds());
  EXPECT_EQ(none.only_then, 1);
  EXPECT_NE(to_string(none).find("nothing was measured in both"), std::string::npos);
  other["bench"] = "ops";
  EXPECT_THROW(compare_with_baseline(other, run(1, 2), 0.1), DeckError);
  EXPECT_THROW(compare_with_baseline(json::array(), run(1, 2), 0.1), DeckError);
}

}  // namespace
}  // namespace choir
