#include "src/lab/plan/target.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

#include "src/core/text.hpp"
#include "src/device/cuda.hpp"
#include "src/run/step_plan.hpp"

namespace choir {
namespace {

struct KnownCard {
  const char* key;
  const char* name;
  double memory;  ///< bytes as reported by the driver
  double peak_flops;
  int on_node;
};

// Memory: totalGlobalMem of the GPUs, except for the smaller A100. Rates: the manufacturers'
// figures for dense products of 16-bit numbers.
constexpr std::array<KnownCard, 4> kCards{{
    {"a100", "A100 80 GB", 85029158912.0, 312e12, 8},
    {"a100-40", "A100 40 GB", 42297786368.0, 312e12, 8},
    {"h100", "H100 80 GB", 85029158912.0, 989e12, 8},
    {"h200", "H200 141 GB", 150754820096.0, 989e12, 8},
}};

PlanTarget card_target(const KnownCard& card) {
  return {.name = card.name,
          .kind = DeviceKind::cuda,
          .memory = kUsableOfCard * card.memory,
          .node_memory = false,
          .peak_flops = card.peak_flops,
          .ranks_per_node = card.on_node};
}

PlanTarget processor() {
  return {.name = "the processor of this machine",
          .kind = DeviceKind::cpu,
          .memory = node_memory(),
          .node_memory = true,
          .peak_flops = 0,
          .ranks_per_node = std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
}

PlanTarget own_cards(const cuda::Availability& found) {
  const cuda::Card& card = found.cards.front();
  return {.name = card.name + " of this machine",
          .kind = DeviceKind::cuda,
          .memory = kUsableOfCard * static_cast<double>(card.memory),
          .node_memory = false,
          .peak_flops = card.peak_bf16_flops,
          .host_memory = node_memory(),
          .ranks_per_node = static_cast<int>(found.cards.size())};
}

PlanTarget here(const Deck& deck) {
  if (deck.device == RequestedDevice::cpu ||
      (deck.device == RequestedDevice::automatic && deck.train.precision == TrainPrecision::fp64))
    return processor();
  const cuda::Availability found = cuda::availability();
  if (!found.cards.empty()) return own_cards(found);
  if (deck.device == RequestedDevice::automatic) return processor();
  throw DeckError(fmt::format("device = \"cuda\", but {}", found.reason),
                  "choose the GPU to plan for: --target h200 (or " + join(target_keys(), ", ") +
                      "), or set device = \"cpu\"");
}

}  // namespace

std::vector<std::string> target_keys() {
  std::vector<std::string> keys;
  for (const KnownCard& card : kCards) keys.emplace_back(card.key);
  keys.insert(keys.end(), {"cpu", "here"});
  return keys;
}

namespace {

/// Normalises the usual spellings of GPUs: "A100-40GB", "H100_80GB", "nvidia-h200".
std::string card_key(const std::string& written) {
  std::string key = fold_name(written);
  std::replace(key.begin(), key.end(), '_', '-');
  if (key.starts_with("nvidia-")) key.erase(0, 7);
  if (key.ends_with("gb")) key.resize(key.size() - 2);
  for (const char* usual : {"a100-80", "h100-80", "h200-141"})
    if (key == usual) key.resize(4);
  return key;
}

}  // namespace

PlanTarget find_target(const std::string& written, const Deck& deck) {
  const std::string key = card_key(written);
  if (key.empty() || key == "here") return here(deck);
  if (key == "cpu") return processor();
  const auto* card =
      std::find_if(kCards.begin(), kCards.end(), [&](const auto& c) { return c.key == key; });
  if (card == kCards.end())
    throw DeckError(fmt::format("unknown --target {}", written),
                    "legal: " + join(target_keys(), ", "));
  if (deck.train.precision == TrainPrecision::fp64)
    throw DeckError(fmt::format("--target {} does not compute in train.precision = \"fp64\"", key),
                    "choose another precision or --target cpu");
  return card_target(*card);
}

}  // namespace choir
