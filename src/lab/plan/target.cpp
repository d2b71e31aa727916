#include "src/lab/plan/target.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>
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
  bool runs;  ///< choir has kernels for it
  int multiprocessors = 132, compute_major = 9;
};

// Memory: the bytes that CUDA and ROCm report as total, for a GCD of MI250X; smaller than on the
// box. Rates: the manufacturers' figures for dense products of 16-bit numbers. The number on a node
// is that of the usual server, and only a default.
constexpr std::array<KnownCard, 11> kCards{{
    {"a100", "A100 80 GB", 85029158912.0, 312e12, 8, true, 108, 8},
    {"a100-40", "A100 40 GB", 42297786368.0, 312e12, 8, true, 108, 8},
    {"h100", "H100 80 GB", 85029158912.0, 989e12, 8, true},
    {"h200", "H200 141 GB", 150754820096.0, 989e12, 8, true},
    {"b200", "B200 180 GB", 191.50e9, 2250e12, 8, true, 148, 10},
    {"gh200", "GH200 96 GB", 101.46e9, 989e12, 4, true},
    {"l40s", "L40S 48 GB", 47.66e9, 362e12, 4, true, 142, 8},
    {"mi210", "MI210 64 GB", 68702699520.0, 181e12, 4, false},
    {"mi250x", "MI250X 64 GB (a GCD of two)", 68702699520.0, 191.5e12, 8, false},
    {"mi300x", "MI300X 192 GB", 206141652992.0, 1307e12, 8, false},
    {"mi325x", "MI325X 256 GB", 274.85e9, 1307e12, 8, false},
}};

PlanTarget card_target(const KnownCard& card) {
  return {.name = card.name,
          .kind = DeviceKind::cuda,
          .memory = kUsableOfCard * card.memory,
          .node_memory = false,
          .peak_flops = card.peak_flops,
          .multiprocessors = card.multiprocessors,
          .compute_major = card.compute_major,
          .ranks_per_node = card.on_node,
          .assumed_node = true,
          .note = card.runs ? ""
                            : "choir has no kernels for this card: the plan says how much memory "
                              "the run would need, with the workspaces of CUDA"};
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
          .multiprocessors = card.multiprocessors,
          .compute_major = card.major,
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

/// Finds a card by the usual spellings of its name: "A100-40GB", "H100_80GB", "nvidia-h200",
/// "B200-192GB" (a size within a tenth of the true one).
const KnownCard* find_card(const std::string& written) {
  std::string key = fold_name(written);
  std::replace(key.begin(), key.end(), '_', '-');
  for (const std::string_view maker : {"nvidia-", "amd-", "instinct-"})
    if (key.starts_with(maker)) key.erase(0, maker.size());
  for (const std::string_view unit : {"gb", "gib", "g"})
    if (key.ends_with(unit)) key.resize(key.size() - unit.size());
  const auto named = [](const std::string& name) {
    const auto* card =
        std::find_if(kCards.begin(), kCards.end(), [&](const auto& c) { return c.key == name; });
    return card == kCards.end() ? nullptr : card;
  };
  if (const KnownCard* card = named(key)) return card;
  const std::size_t dash = key.rfind('-');
  if (dash == std::string::npos) return nullptr;
  const double gigabytes = std::strtod(key.c_str() + dash + 1, nullptr);
  const KnownCard* card = named(key.substr(0, dash));
  const bool same =
      card != nullptr && std::abs(gigabytes * 1e9 - card->memory) < 0.1 * card->memory;
  return same ? card : nullptr;
}

/// "A100-80GB": the name of a card with its memory, as --gpus is documented.
std::string sized_name(const KnownCard& card) {
  std::string name = card.name;
  name.resize(std::min(name.find(" GB"), name.size()));
  std::replace(name.begin(), name.end(), ' ', '-');
  return name + "GB";
}

DeckError unknown_card(const std::string& written, const std::string& option) {
  std::vector<std::string> legal = target_keys();
  if (option == "--gpus") {
    legal.clear();
    for (const KnownCard& card : kCards) legal.push_back(sized_name(card));
  }
  std::vector<std::string> folded;
  for (const std::string& name : legal) folded.push_back(fold_name(name));
  std::string near = nearest_name(fold_name(written), folded);
  if (!near.empty())
    near = fmt::format(
        "did you mean {}? ",
        legal[static_cast<std::size_t>(std::ranges::find(folded, near) - folded.begin())]);
  return DeckError(
      fmt::format("unknown {} {}", option, written),
      near + "legal: " + join(legal, ", ") +
          fmt::format(
              "; for any other card, `choir plan` takes its memory in GiB and the number of "
              "GPUs on a node: {} {} --memory 62 --gpus-per-node 4",
              option, legal[2]));
}

}  // namespace

PlanTarget find_target(const std::string& written, const Deck& deck, const std::string& option) {
  const std::string key = fold_name(written);
  if (key.empty() || key == "here") return here(deck);
  if (key == "cpu") return processor();
  const KnownCard* card = find_card(written);
  if (card == nullptr) throw unknown_card(written, option);
  if (deck.train.precision == TrainPrecision::fp64)
    throw DeckError(
        fmt::format("{} {} does not compute in train.precision = \"fp64\"", option, card->key),
        "choose another precision or --target cpu");
  return card_target(*card);
}

}  // namespace choir
