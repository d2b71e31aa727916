// The small models whose steps are measured, and their steps on all ranks together: what ranks lose
// that wait for each other.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>

#include "choir/core/median.hpp"
#include "choir/lab/bench/bench_step.hpp"
#include "choir/lab/plan/layout_plan.hpp"
#include "src/lab/calibrate/calibrate_parts.hpp"

namespace choir {
namespace {

/// None of them is a model that anybody trains: predictions are for others.
struct ProbeModel {
  int layers, heads, width, tokens, batch, vocabulary;
  bool modern;
};
constexpr std::array<ProbeModel, 6> kProbes{{
    {2, 2, 64, 64, 8, 64, false},
    {2, 3, 192, 128, 8, 96, false},
    {2, 4, 256, 256, 2, 256, true},
    {2, 7, 448, 128, 4, 128, false},
    {1, 16, 1024, 128, 2, 64, false},
    {1, 4, 256, 64, 4, 8192, false},
}};

Deck deck_of(const ProbeModel& probe, const std::string& precision, const std::string& device) {
  const char* style = probe.modern ? R"("norm": "rmsnorm", "activation": "swiglu",
                                        "position": "rope", "bias": false)"
                                   : R"("bias": true)";
  return parse_deck(
      fmt::format(R"({{"model": {{"n_layer": {}, "n_head": {}, "n_embd": {}, "block_size": {},
                      "vocab_size": {}, {}}}, "data": {{"format": "synthetic"}}, "device": "{}",
                      "train": {{"precision": "{}", "micro_batch_size": {}, "grad_accum": 1,
                                 "max_steps": 100}}}})",
                  probe.layers, probe.heads, probe.width, probe.tokens, probe.vocabulary, style,
                  device, precision, probe.batch),
      "choir calibrate", {});
}

StepTime predicted(const Calibration& calibration, const Deck& deck, DeviceKind device) {
  const PlanTarget here{.name = calibration.name, .kind = device};
  const auto known = std::make_shared<const Calibration>(calibration);
  return *plan_layout({.deck = deck,
                       .ranks = calibration.ranks,
                       .ranks_per_node = calibration.ranks_per_node,
                       .target = here,
                       .calibration = known})
              .time;
}

}  // namespace

std::vector<Deck> probe_decks(const std::string& precision, const std::string& device, bool brief) {
  std::vector<Deck> decks;
  for (std::size_t i = 0; i < (brief ? 2 : kProbes.size()); ++i)
    decks.push_back(deck_of(kProbes[i], precision, device));
  return decks;
}

StepBenchOptions probe_options(bool brief) {
  return {.warmup_seconds = 0, .steps = brief ? 3 : 12, .ceilings = false};
}

void add_waits(Calibration& to, Device& device, Logger& log, bool brief) {
  const auto mesh = Mesh::over_world(Layout(1, 1, to.ranks, 1), Transport::automatic);
  mesh->attach(device);
  for (StreamTimes& streams : to.streams) {
    std::vector<double> factors;
    for (const Deck& deck : probe_decks(streams.precision, to.device, brief)) {
      const StepTime alone = predicted(to, deck, device.kind());
      double seconds = std::numeric_limits<double>::infinity();
      for (int round = 0; round < (brief ? 1 : 2); ++round)
        seconds = std::min(
            seconds, bench_step(deck, *mesh, device, log, probe_options(brief)).median_seconds);
      factors.push_back(1 + (seconds - alone.seconds) / (alone.compute + alone.update));
    }
    streams.waiting = std::max(1.0, median_of(factors));
  }
}

}  // namespace choir
