// The calibration of a machine that was not measured: the manufacturers' figures for its GPUs, less
// the part that programs usually do not reach.
#include <fmt/core.h>

#include <cmath>

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "choir/lab/plan/calibration.hpp"

namespace choir {
namespace {

/// Bytes per second of the GPU's memory, of its links inside a node, and of its network card in one
/// direction, by the manufacturers.
struct CardLinks {
  const char* name;  ///< the beginning of PlanTarget::name
  double memory, node, network;
};
constexpr std::array<CardLinks, 4> kLinks{{
    {"A100 80", 2.04e12, 300e9, 25e9},
    {"A100 40", 1.56e12, 300e9, 25e9},
    {"H100", 3.35e12, 450e9, 50e9},
    {"H200", 4.8e12, 450e9, 50e9},
}};

constexpr double kProductShare = 0.7, kAttentionShare = 0.35, kStreamShare = 0.8, kLinkShare = 0.8;
/// A product with these extents reaches half of its share, because of partly filled tiles and
/// waves.
constexpr double kHalfExtent = 96;
constexpr double kLaunch = 4e-6;  ///< seconds of an empty kernel
constexpr double kNodeLatency = 15e-6, kNetworkLatency = 30e-6;

void add_products(Calibration& c, DType dtype, double peak) {
  for (const auto& [a, b] : {std::pair{false, true}, {false, false}, {true, false}})
    for (const std::int64_t m : {64, 512, 4096, 32768})
      for (const std::int64_t n : {64, 512, 4096, 32768})
        for (const std::int64_t k : {64, 512, 4096, 32768}) {
          const auto share = [](std::int64_t x) {
            return static_cast<double>(x) / (static_cast<double>(x) + kHalfExtent);
          };
          const double flops =
              2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
          const double rate = kProductShare * peak * share(m) * share(n) * share(k);
          c.products.push_back({dtype, a, b, m, n, k, flops / rate + kLaunch});
        }
  for (const bool backward : {false, true})
    for (const std::int64_t tokens : {128, 1024, 8192})
      c.attention.push_back({dtype, backward, true, tokens, 128,
                             kAttentionShare * peak * static_cast<double>(tokens) /
                                 (static_cast<double>(tokens) + 256)});
}

/// A ring of n ranks moves f(n) S at the rate of a link.
void add_calls(Calibration& c, bool across, double rate, double latency) {
  for (const CallKind kind : {CallKind::all_reduce, CallKind::reduce_scatter, CallKind::all_gather,
                              CallKind::all_to_all, CallKind::message}) {
    const double factor = kind == CallKind::all_reduce ? 1.0 : kind == CallKind::message ? 1 : 0.5;
    for (double bytes = 1024; bytes <= 1 << 30; bytes *= 32)
      c.calls.push_back(
          {across, true, kind, 2, bytes, latency + factor * bytes / (kLinkShare * rate)});
  }
  c.overlaps.push_back({across, 1});
}

}  // namespace

Calibration assumed_calibration(const PlanTarget& target) {
  const auto* links = std::find_if(kLinks.begin(), kLinks.end(), [&](const CardLinks& l) {
    return target.name.starts_with(l.name);
  });
  if (links == kLinks.end() || target.peak_flops == 0)
    throw DeckError(fmt::format("there are no assumed times for {}", target.name),
                    "measure them on such a machine: choir calibrate");
  Calibration c{.name = target.name,
                .assumed = true,
                .device = "cuda",
                .description = "manufacturers' figures",
                .ranks = 2 * target.ranks_per_node,
                .ranks_per_node = target.ranks_per_node};
  // True f32 runs beside the tensor cores, at about a sixteenth of their rate.
  for (const DType dtype : {DType::bf16, DType::f16}) add_products(c, dtype, target.peak_flops);
  add_products(c, DType::f32, target.peak_flops / 16);
  const double per_byte = 1 / (kStreamShare * links->memory);
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    c.streams.push_back({.precision = precision, .per_byte = per_byte, .step = 1e-3});
    for (const double bytes : {1e3, 1e9})
      c.updates.push_back({precision, bytes, bytes * per_byte + kLaunch});
  }
  add_calls(c, false, links->node, kNodeLatency);
  add_calls(c, true, links->network, kNetworkLatency);
  return c;
}

}  // namespace choir
