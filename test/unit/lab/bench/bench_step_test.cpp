#include "src/lab/bench/bench_step.hpp"
#include "src/models/gpt/token_data.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "src/core/text.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/bench/bench_shapes.hpp"

namespace choir {
namespace {

GptConfig gpt2_small() {
  return {.vocab_size = 50257,
          .block_size = 64,
          .n_layer = 12,
          .n_head = 12,
          .n_kv_head = 12,
          .n_embd = 768,
          .ffn_width = 3072};
}

TEST(StepFloor, CountsTheProductsOfGpt2) {
  // 12 x (768 x 2304 + 768 x 768 + 2 x 768 x 3072) + 50257 x 768: the 84.9 M of the blocks, and the
  // head.
  EXPECT_EQ(matmul_weights(gpt2_small()), 84934656 + 38597376);
}

TEST(StepFloor, CountsGroupedHeadsAndGates) {
  const GptConfig llama{.vocab_size = 100,
                        .block_size = 8,
                        .n_layer = 1,
                        .n_head = 4,
                        .n_kv_head = 2,
                        .n_embd = 16,
                        .ffn_width = 32,
                        .activation = ops::Activation::swiglu};
  // q 16 x 16, k and v 16 x 8 each, output 16 x 16, gate, up and down 16 x 32 each, head 100 x 16.
  EXPECT_EQ(matmul_weights(llama), 256 + 2 * 128 + 256 + 3 * 512 + 1600);
}

TEST(StepFloor, AgreesWithAHandCount) {
  const GptConfig c{.vocab_size = 10,
                    .block_size = 4,
                    .n_layer = 2,
                    .n_head = 2,
                    .n_kv_head = 2,
                    .n_embd = 8,
                    .ffn_width = 16};
  const StepWork work = step_work(c, precision_of("fp32"), 3, 1000);
  EXPECT_EQ(work.gemm_flops, 6.0 * static_cast<double>(matmul_weights(c)) * 12);
  EXPECT_EQ(work.attention_flops, 12.0 * 4 * (3 * 2 * 2 * 10));  // D 4; 4+3+2+1 pairs
  EXPECT_EQ(work.optimizer_bytes, 28000);
  EXPECT_EQ(work.norm_bytes, 4000);
  EXPECT_EQ(step_work(c, precision_of("bf16-mixed"), 3, 1000).optimizer_bytes, 30000);
  EXPECT_EQ(step_work(c, precision_of("fp64"), 3, 1000).optimizer_bytes, 56000);
  EXPECT_DOUBLE_EQ(floor_seconds(work, {1e6, 1e6}),
                   (work.gemm_flops + work.attention_flops + 32000) / 1e6);
}

TEST(BenchGemm, SquaresDouble) {
  const auto list = square_gemms(8192);
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].m, 1024);
  EXPECT_EQ(list[3].k, 8192);
  EXPECT_EQ(list[3].flops(), 2.0 * 8192 * 8192 * 8192);
}

TEST(BenchAttention, ConventionOfFlops) {
  // 4 T^2 D H B; causal half; backward 2.5 times.
  const AttentionShape full{2, 3, 3, 64, 128, false, 0};
  EXPECT_EQ(full.flops(false), 4.0 * 128 * 128 * 64 * 3 * 2);
  EXPECT_EQ(full.flops(true), 2.5 * full.flops(false));
  AttentionShape causal = full;
  causal.causal = true;
  EXPECT_EQ(2 * causal.flops(true), full.flops(true));
}

TEST(BenchAttention, SeriesKeepsTokensAndFeatures) {
  const auto list = attention_series(8192, 16384, 2048);
  EXPECT_EQ(list.size(), 4u * 2 * 4);
  for (const AttentionShape& s : list) {
    EXPECT_EQ(s.batch * s.tokens, 16384);
    EXPECT_EQ(s.heads * s.head_width, 2048);
  }
  EXPECT_EQ(attention_series(1024, 1024, 128).size(), 3u * 2 * 3);  // no head of 256
}

TEST(BenchAttention, ShortAndLongAreValid) {
  CpuDevice device;
  // The whole sequence and windows; grouped heads; a length that is no multiple of any tile.
  const std::vector<AttentionShape> shapes{
      {2, 4, 2, 32, 40, true, 1}, {1, 4, 1, 16, 301, true, 1}, {1, 2, 2, 64, 301, false, 0}};
  for (const DType t : {DType::f32, DType::bf16}) {
    const AttentionBench bench =
        bench_attention(device, shapes, t, ops::AttentionImplementation::automatic, 1e9, 0);
    EXPECT_EQ(bench.rows.size(), 6u);
    EXPECT_TRUE(bench.remarks.empty());
    for (const auto& row : bench.rows) EXPECT_TRUE(row.valid()) << to_string(row);
  }
  EXPECT_TRUE(
      bench_attention(device, shapes, DType::f32, ops::AttentionImplementation::cudnn, 1e9, 0)
          .rows.empty());
}

StepBench good_bench() {
  StepBench b;
  b.deck = "inputs/a.json";
  b.precision = "fp32";
  b.layout = "dp=2 tp=1 pp=1 cp=1";
  b.ranks = 2;
  b.tokens = 1000;
  b.step_seconds = {0.1, 0.1, 0.1};
  b.losses = {4, 3.5, 3};
  b.median_seconds = 0.1;
  b.floor_seconds = 0.05;
  b.rates = {1e12, 1e10};
  b.planned_arena = b.peak_arena = 12345;
  b.planned_memory = std::int64_t{1} << 30;
  b.grown_memory = b.planned_memory + (std::int64_t{50} << 20);
  return b;
}

TEST(StepBench, EnergyIsANumberOrAReason) {
  StepBench b = good_bench();
  b.energy_text = "'/sys/class/powercap': No such file or directory (host a)";
  EXPECT_NE(to_string(b).find("energy is not readable here: '/sys/class/powercap': No such file"),
            std::string::npos);
  EXPECT_EQ(to_json(b).find("energy_j"), std::string::npos);
  b.energy = 20;
  b.energy_text = "package-0 of 2 hosts (RAPL)";
  EXPECT_NE(to_string(b).find("energy of package-0 of 2 hosts (RAPL): 20 J a step, 20 mJ a token"),
            std::string::npos)
      << to_string(b);
  EXPECT_NE(to_json(b).find("\"energy_j\":20.0,\"j_per_token\":0.02"), std::string::npos);
}

TEST(StepBench, FallingLossAndThePlannedMemoryAreValid) {
  EXPECT_TRUE(complaints_of(good_bench()).empty());
}

TEST(StepBench, LossesThatStayWithinNoiseAreValid) {
  StepBench b = good_bench();
  b.losses.clear();
  for (int i = 0; i < 30; ++i) b.losses.push_back(10.8 + 0.05 * std::sin(1.7 * i));
  EXPECT_TRUE(complaints_of(b).empty());
}

TEST(StepBench, RisingOrInfiniteLossIsInvalid) {
  StepBench b = good_bench();
  b.losses.assign(30, 3.0);
  for (int i = 20; i < 30; ++i) b.losses[static_cast<std::size_t>(i)] = 3.5;
  ASSERT_EQ(complaints_of(b).size(), 1u);
  EXPECT_NE(complaints_of(b)[0].find("rose"), std::string::npos);
  b.losses[3] = std::numeric_limits<double>::infinity();
  ASSERT_EQ(complaints_of(b).size(), 1u);
  EXPECT_NE(complaints_of(b)[0].find("not finite"), std::string::npos);
}

TEST(StepBench, ArenaThatMissesItsPlanByAByteIsInvalid) {
  StepBench b = good_bench();
  b.peak_arena -= 1;
  EXPECT_EQ(complaints_of(b).size(), 1u);
}

TEST(StepBench, MemoryMayMissByFivePercentOr64MiB) {
  StepBench b = good_bench();
  b.grown_memory = b.planned_memory + (std::int64_t{65} << 20);
  EXPECT_EQ(complaints_of(b).size(), 1u);
  b.grown_memory = b.planned_memory - (std::int64_t{65} << 20);
  EXPECT_EQ(complaints_of(b).size(), 1u);
  b.planned_memory = std::int64_t{4} << 30;
  b.grown_memory = b.planned_memory + (std::int64_t{200} << 20);
  EXPECT_TRUE(complaints_of(b).empty());
}

TEST(StepBench, MemoryOfAGpuIsNotTheProcesses) {
  StepBench b = good_bench();
  b.grown_memory = 0;
  EXPECT_EQ(complaints_of(b).size(), 1u);
  b.host_visible = false;
  EXPECT_TRUE(complaints_of(b).empty());
}

TEST(StepBench, SaysWhatMfuIsMeasuredAgainst) {
  StepBench b = good_bench();
  b.step_flops = 1e8 * static_cast<double>(b.tokens), b.peak_flops = 4e12;
  b.mfu = b.flops_per_token() * b.tokens_per_second() / b.peak_flops;
  EXPECT_NE(to_string(b).find("25.0 % of 4.00 TFLOP/s, the measured product\n"), std::string::npos)
      << to_string(b);
  b.nominal_flops = 5e12, b.nominal_mfu = 0.2;
  EXPECT_NE(to_string(b).find("20.0 % of 5.0 TFLOP/s, the makers' figure"), std::string::npos);
  EXPECT_NE(to_string(b).find("MFU 20.0 %"), std::string::npos);
  EXPECT_EQ(to_string(b).find("HFU"), std::string::npos);
  b.hfu_over_mfu = 1.25;
  EXPECT_NE(to_string(b).find("train.recompute runs again: 1.250 x MFU\n"), std::string::npos);
  EXPECT_NE(to_string(b).find("MFU 20.0 %"), std::string::npos) << "which does not count it";
}

TEST(StepBench, SpeechIsMeasuredAgainstRealTime) {
  StepBench b = good_bench();
  EXPECT_EQ(to_string(b).find("real time"), std::string::npos);
  b.audio_seconds = 300 * b.median_seconds;
  const std::string text = to_string(b);
  EXPECT_NE(text.find(fmt::format("\n300 x real time   {:.0f} per rank", 300.0 / b.ranks)),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("tokens"), std::string::npos) << text;
  EXPECT_DOUBLE_EQ(nlohmann::json::parse(to_json(b))["real_time"], 300);
}

TEST(StepBench, ReportsEndInAVerdict) {
  StepBench b = good_bench();
  EXPECT_TRUE(to_string(b).ends_with("\nVALID")) << to_string(b);
  EXPECT_NE(to_string(b).find("10000 tokens/s"), std::string::npos) << to_string(b);
  EXPECT_NE(to_string(b).find("2.00 x the floor"), std::string::npos) << to_string(b);
  b.complaints = {"this", "that"};
  EXPECT_TRUE(to_string(b).ends_with("\nINVALID: this; that"));
}

// 1F1B of 2 equal stages and 4 micro-batches, forward 2 and backward 4 ms: busy 24, makespan 30.
TEST(StepBench, SaysWhereTheStagesOfAPipelineSpendAStep) {
  StepBench b = good_bench();
  EXPECT_EQ(to_string(b).find("pipeline"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(to_json(b)).contains("pipeline"));
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, {2, 4});
  b.pipeline = {.schedule = "1f1b",
                .exchange = "blocking",
                .shape = schedule.shape,
                .makespan = 0.036,
                .simulated = 0.030,
                .chunks = std::vector<ChunkCost>(2, {.forward = 0.002, .backward = 0.004})};
  b.pipeline.stages = stage_losses(schedule, b.pipeline.chunks, b.pipeline.makespan);
  EXPECT_NE(to_string(b).find("idle 33.3 % measured, 20.0 % simulated; (p - 1) / (m v + p - 1) is "
                              "20.0 %"),
            std::string::npos)
      << to_string(b);
  EXPECT_NE(to_string(b).find("  1          24.000      6.000      6.000\n"), std::string::npos)
      << to_string(b);
  const auto json = nlohmann::json::parse(to_json(b))["pipeline"];
  EXPECT_DOUBLE_EQ(json["losses"][1]["bubble_seconds"], 0.006);
  EXPECT_DOUBLE_EQ(json["costs"][0]["backward"], 0.004);
}

TEST(StepBench, SaysWhatEachAxisExposes) {
  StepBench b = good_bench();
  b.traffic = {{.axis = "tp", .transport = "node", .ranks = 2, .calls = 4, .exposed_seconds = 0.01},
               {.axis = "dp", .transport = "mpi", .ranks = 3, .exposed_seconds = 0.002}};
  EXPECT_NE(to_string(b).find(
                "waits along tp (node, 2 ranks): 10.000 ms a step (10.0 %), in whatever phase"),
            std::string::npos)
      << to_string(b);
  EXPECT_EQ(b.exposed_seconds(Axis::data), 0.002);
  EXPECT_EQ(b.exposed_seconds(Axis::pipeline), 0);
  EXPECT_EQ(nlohmann::json::parse(to_json(b))["communication"][1]["exposed_seconds"], 0.002);
}

TEST(StepBench, CsvHasAValueForEveryColumn) {
  EXPECT_EQ(split(csv_header(), ',').size(), split(to_csv(good_bench()), ',').size());
}

}  // namespace
}  // namespace choir
