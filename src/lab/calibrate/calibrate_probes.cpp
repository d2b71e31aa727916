// The small models whose steps are measured, and their steps on ranks that share them along each
// axis, which show the time that ranks lose by waiting for each other.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "choir/core/median.hpp"
#include "choir/deck/deck_layout.hpp"
#include "choir/lab/bench/bench_step.hpp"
#include "choir/lab/plan/layout_plan.hpp"
#include "choir/train/step/run_setup.hpp"
#include "src/lab/calibrate/calibrate_parts.hpp"

namespace choir {
namespace {

/// Nobody trains these models: predictions are made for others.
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

/// `axes` are overrides for the layout and the micro-batches.
Deck deck_of(const ProbeModel& probe, const std::string& precision, const std::string& device,
             const std::vector<std::string>& axes = {}) {
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
      "choir calibrate", axes);
}

/// The probes that ranks can share along an axis: all ranks along data, else pairs of ranks.
std::vector<Deck> shared_decks(Axis axis, int ranks, const std::string& precision,
                               const std::string& device, bool brief) {
  const int sharing = axis == Axis::data ? ranks : 2;
  if (ranks % sharing != 0) return {};
  constexpr std::array<const char*, kAxes> kKeys{"tensor", "context", "data", "pipeline"};
  std::vector<std::string> keys{
      fmt::format("parallel.{}={}", kKeys[static_cast<std::size_t>(axis)], sharing)};
  if (axis != Axis::data) keys.push_back(fmt::format("parallel.data={}", ranks / sharing));
  if (axis == Axis::pipeline) keys.push_back("train.grad_accum=2");
  std::vector<Deck> decks;
  for (const ProbeModel& probe : kProbes) {
    const int shared = axis == Axis::data       ? sharing
                       : axis == Axis::pipeline ? probe.layers
                                                : probe.heads;
    // A step of a wide model takes as long as the steps of all others together.
    if (shared % sharing == 0 && probe.width <= 256 && !(brief && !decks.empty()))
      decks.push_back(deck_of(probe, precision, device, keys));
  }
  return decks;
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
  std::vector<WaitFactor> waits;
  for (const StreamTimes& streams : to.streams)
    for (const Axis axis : {Axis::tensor, Axis::context, Axis::data, Axis::pipeline}) {
      const std::vector<Deck> decks =
          shared_decks(axis, to.ranks, streams.precision, to.device, brief);
      if (decks.empty()) continue;
      const auto mesh =
          Mesh::over_world(layout_of(decks.front(), to.ranks), mesh_options_of(decks.front()));
      mesh->attach(device);
      std::vector<double> factors;
      for (const Deck& deck : decks) {
        const StepTime alone = predicted(to, deck, device.kind());
        // A step that is mostly messages would measure the prediction of messages.
        if (alone.exposed_seconds() > 0.25 * alone.seconds) continue;
        std::vector<double> seconds;
        for (int round = 0; round < (brief ? 1 : kCalibrationRounds); ++round)
          seconds.push_back(
              bench_step(deck, *mesh, device, log, probe_options(brief)).median_seconds);
        factors.push_back(1 +
                          (median_of(seconds) - alone.seconds) / (alone.compute + alone.update));
      }
      if (factors.empty()) continue;
      waits.push_back({streams.precision, axis, std::max(1.0, median_of(factors))});
    }
  to.waits = std::move(waits);
}

}  // namespace choir
