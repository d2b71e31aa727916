// Judgements of measured speeds against the expectation for such a machine. Pure.
#include <fmt/core.h>

#include <algorithm>

#include "choir/core/plural.hpp"
#include "choir/lab/doctor/doctor.hpp"

namespace choir {
namespace {

constexpr double kWell = 0.5;         // of the least that cores should reach
constexpr double kWellReduce = 0.25;  // of the rate of memory or network
constexpr double kOthersCompute =
    0.1;  // share of the time waiting for cores that excuses everything else
constexpr double kFasterByThis = 1.1;  // bf16 over f32, to be worth its rounding
constexpr int kCoresThatCopy = 8;      // more do not help when memory is the limit

std::string others(double busy) {
  return fmt::format("; other processes used these cores {:.0f} % of the time: measure again",
                     100 * busy);
}

/// ", 74 %"; "" if the ratio is unknown.
std::string ratio_text(double ratio) {
  return ratio > 0 ? fmt::format(", {:.0f} %", 100 * ratio) : "";
}

Finding judge_products(const SpeedFacts& facts) {
  const double f32 = (facts.avx2 ? 32 : 8) * facts.cores * facts.clock, f64 = f32 / 2;
  const double of_f64 = f64 > 0 ? facts.f64 / f64 : 0, of_f32 = f32 > 0 ? facts.f32 / f32 : 0;
  std::string text = fmt::format(
      "f64 {:.3f} TFLOP/s ({}{}), f32 {:.3f} TFLOP/s ({}{}), bf16 {:.3f} TFLOP/s ({}, {:.2f} x "
      "f32), for 1024^3, all ranks together",
      facts.f64 / 1e12, facts.libraries[0], ratio_text(of_f64), facts.f32 / 1e12,
      facts.libraries[1], ratio_text(of_f32), facts.bf16 / 1e12, facts.libraries[2],
      facts.bf16 / facts.f32);
  if (f32 > 0)
    text += fmt::format("; 100 % means {} FLOP in f64 and {} in f32 per cycle of {} at {:.1f} GHz",
                        facts.avx2 ? 16 : 4, facts.avx2 ? 32 : 8, counted(facts.cores, "core"),
                        facts.clock / 1e9);
  const bool slow_f64 = f64 > 0 && of_f64<kWell, slow_f32 = f32> 0 && of_f32 < kWell;
  if ((slow_f64 || slow_f32) && facts.busy > kOthersCompute)
    return {Health::info, "products", text + others(facts.busy), ""};
  if (slow_f32)
    return {Health::warning, "products", text + "; f32 is slow",
            "check: oneDNN for this processor (`make` prints what it found); governor or power "
            "limit of the clock; threads pinned to their own cores"};
  if (slow_f64)
    return {Health::warning, "products", text + "; f64 is slow, and so are fp64 runs and verify",
            "use BLAS kernels for this processor: OPENBLAS_CORETYPE=SkylakeX (AVX-512) or Haswell "
            "(AVX2)"};
  if (facts.bf16 < kFasterByThis * facts.f32)
    return {Health::info, "products", text + "; train in fp32 here: bf16-mixed will not be faster",
            ""};
  return {Health::ok, "products", text, ""};
}

Finding judge_memory(const SpeedFacts& facts) {
  const double should = 2 * std::min(facts.cores, kCoresThatCopy) * facts.clock;
  const double ratio = should > 0 ? facts.copy / should : 0;
  std::string text = fmt::format("{:.1f} GB/s copy (read + written{}), all ranks together",
                                 facts.copy / 1e9, ratio_text(ratio));
  if (should == 0 || ratio >= kWell) return {Health::ok, "memory", text, ""};
  if (facts.busy > kOthersCompute) return {Health::info, "memory", text + others(facts.busy), ""};
  return {Health::info, "memory",
          text + fmt::format(
                     "; {:.1f} GB/s is usual: fewer memory channels or modules, or other processes",
                     should / 1e9),
          ""};
}

}  // namespace

std::vector<Finding> judge_speed(const SpeedFacts& facts) {
  return {judge_products(facts), judge_memory(facts)};
}

Finding judge_all_reduce(double bus, int ranks, int nodes, double copy, double link, double busy) {
  const double should = nodes > 1 ? link : copy / (3.0 * ranks);
  const double ratio = should > 0 ? bus / should : 0;
  const std::string text =
      fmt::format("{:.2f} GB/s bus bandwidth{}, 16 MiB over MPI, all {} ranks", bus / 1e9,
                  ratio > 0 ? fmt::format(" ({:.0f} % of {})", 100 * ratio,
                                          nodes > 1 ? "the network" : "the memory limit")
                            : "",
                  ranks);
  if (should == 0 || ratio >= kWellReduce) return {Health::ok, "all-reduce", text, ""};
  if (busy > kOthersCompute) return {Health::info, "all-reduce", text + others(busy), ""};
  if (nodes == 1)
    return {Health::warning, "all-reduce", text,
            "MPI should use shared memory here: unset OMPI_MCA_btl=tcp, check the space in "
            "/dev/shm; training uses node-shared windows (parallel.transport)"};
  return {Health::warning, "all-reduce", text,
          "MPI may not use the fast network: check UCX or libfabric in this MPI (`ompi_info`) and "
          "the network named in jobs/sites; `choir bench collectives` shows each size"};
}

}  // namespace choir
