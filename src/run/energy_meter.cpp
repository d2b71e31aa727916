#include "src/run/energy_meter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/cuda.hpp"

namespace choir {
namespace {

/// True on the first rank of the node that has this value. Collective over the node.
bool first_with(Communicator& node, std::uint64_t value) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(node.size()));
  all[static_cast<std::size_t>(node.rank())] = value;
  node.all_gather(all.data(), sizeof value, DType::u8);
  return std::ranges::find(all, value) - all.begin() == node.rank();
}

}  // namespace

std::string format_energy(double joules) {
  constexpr std::array<const char*, 6> kUnits{"uJ", "mJ", "J", "kJ", "MJ", "GJ"};
  double value = 1e6 * joules;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

EnergyMeter::EnergyMeter(Mesh& mesh, const Device& device, const Places& places)
    : world_(mesh.world()) {
  const cuda::Card* const card = cuda::card_of(device);
  const bool reads = first_with(mesh.node(), card != nullptr ? fnv1a(card->uuid) : 0);
  if (reads)
    own_ = card != nullptr ? energy_of_card(card->uuid, places.nvml)
                           : energy_of_processors(places.powercap);
  std::array<std::int64_t, 2> counts{reads, own_.readable()};
  world_.all_reduce(counts.data(), counts.size(), DType::i64, ReduceOp::sum);
  const auto [devices, read] = counts;
  readable_ = read == devices;
  const std::string why =
      own_.reason.empty() ? "" : fmt::format("{} (host {})", own_.reason, host_name());
  const std::vector<std::string> parts = gather_texts(world_, own_.parts);
  const std::vector<std::string> reasons = gather_texts(world_, why);
  if (world_.rank() != 0) return;
  if (!readable_) {
    // Planned meshes gather nothing.
    const auto found =
        std::ranges::find_if(reasons, [](const auto& text) { return !text.empty(); });
    text_ = found != reasons.end() ? *found : why;
    if (devices > 1)
      text_ += fmt::format("; {} of {} can be read", read,
                           counted(devices, card != nullptr ? "card" : "host"));
  } else if (card != nullptr) {
    text_ = fmt::format("{} (NVML)", counted(devices, "card"));
  } else {
    text_ = fmt::format("{} of {} (RAPL)", parts[0], counted(devices, "host"));
  }
}

void EnergyMeter::keep_up() {
  if (own_.counter != nullptr && now_seconds() - read_at_ > 1) read(in_steps_);
}

void EnergyMeter::read(bool steps) {
  if (own_.counter != nullptr) {
    const double now = own_.counter->joules();
    mine_.all += now - last_;
    if (in_steps_) mine_.steps += now - last_;
    last_ = now;
    read_at_ = now_seconds();
  }
  in_steps_ = steps;
}

EnergyUse EnergyMeter::use() {
  read(in_steps_);
  std::array<double, 2> sums{mine_.steps, mine_.all};
  world_.all_reduce(sums.data(), sums.size(), DType::f64, ReduceOp::sum);
  if (!std::isfinite(sums[1])) readable_ = false;
  return {.steps = sums[0], .all = sums[1]};
}

}  // namespace choir
