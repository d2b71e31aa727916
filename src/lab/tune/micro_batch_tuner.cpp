#include "choir/lab/tune/micro_batch_tuner.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "choir/core/clock.hpp"
#include "choir/core/plural.hpp"
#include "choir/deck/deck_layout.hpp"

namespace choir {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
/// With fewer micro-batches a pipeline is idle more than necessary (the same number as in `choir
/// plan`).
constexpr std::int64_t kMicroBatchesPerStage = 4;

bool given(const Deck& deck, const char* key) {
  const auto origin = deck.origins.find(key);
  return origin != deck.origins.end() && origin->second.source != KeySource::derived;
}

std::vector<std::string> changes_to(const Deck& deck, std::int64_t micro, std::int64_t accum) {
  std::vector<std::string> changes{fmt::format("train.micro_batch_size={}", micro)};
  if (given(deck, "train.grad_accum")) changes.push_back(fmt::format("train.grad_accum={}", accum));
  return changes;
}

std::optional<LayoutPlan> planned(PlanCase request, const DeckVariants& variants,
                                  const std::vector<std::string>& changes) {
  const std::optional<Deck> deck = variants.legal_with(changes);
  if (!deck) return std::nullopt;
  request.deck = *deck;
  return plan_layout(request);
}

DeckError too_large(const LayoutPlan& plan, std::int64_t micro) {
  const MemoryPlan& memory = plan.fullest().plan.memory;
  const double parameters = parameter_bytes(memory);
  const bool alone = parameters > plan.memory_limit;
  return DeckError(
      fmt::format(
          "{}a micro-batch of {} needs {} a rank ({}), above the limit of {}",
          alone ? fmt::format("the parameters alone are {} a rank; ", format_bytes(parameters))
                : "",
          micro, format_bytes(static_cast<double>(memory.total())), memory_text(memory),
          format_bytes(plan.memory_limit)),
      "use more memory per rank; train.recompute=full; or parallel.zero, parallel.tensor or "
      "parallel.pipeline on more ranks; `choir plan` lists the layouts that fit");
}

}  // namespace

const std::vector<std::string>& TunedMicroBatch::changes() const {
  const auto largest =
      std::find_if(rows.rbegin(), rows.rend(), [](const Row& r) { return r.fits; });
  return largest->changes;
}

TunedMicroBatch tune_micro_batch(const PlanCase& request, const DeckVariants& variants) {
  if (request.deck.train.reproducible)
    throw DeckError(
        "train.reproducible = true: gradients are summed by micro-batches, so another "
        "train.micro_batch_size changes the result",
        "tune with train.reproducible=false, and set it again if the result may change");
  TunedMicroBatch tuned;
  Deck deck = request.deck;
  const int data = layout_of(deck, request.ranks).size(Axis::data);
  tuned.batch = tuned.was = resolve_batch(deck, data);
  const std::int64_t share = tuned.was.global / data;
  const int stages = deck.parallel.pipeline;
  tuned.limited_by = "train.global_batch_size";
  bool found = false;
  for (std::int64_t micro = 1; micro <= share; ++micro) {
    if (share % micro != 0) continue;
    const std::int64_t accum = share / micro;
    if (found && stages > 1 && accum < kMicroBatchesPerStage * stages) {
      tuned.limited_by = fmt::format("parallel.pipeline: {} stages need {} micro-batches", stages,
                                     kMicroBatchesPerStage * stages);
      break;
    }
    const std::vector<std::string> changes = changes_to(request.deck, micro, accum);
    const std::optional<LayoutPlan> plan = planned(request, variants, changes);
    if (!plan) continue;
    tuned.memory_limit = plan->memory_limit;
    tuned.rows.push_back({micro, accum, plan->needs(), plan->fits(), changes});
    if (!plan->fits()) {
      if (!found) throw too_large(*plan, micro);
      tuned.limited_by = "memory";
      break;
    }
    found = true;
    tuned.batch = plan->batch;
  }
  CHOIR_CHECK(found, "no micro-batch of {} is legal", share);
  return tuned;
}

std::string to_string(const TunedMicroBatch& tuned) {
  std::string text =
      fmt::format("  {:>12} {:>12} {:>14}\n", "micro-batch", "accumulated", "planned MiB");
  for (const TunedMicroBatch::Row& row : tuned.rows)
    text += fmt::format("  {:>12} {:>12} {:>14.1f}{}\n", row.micro, row.accum, row.bytes / kMiB,
                        row.fits ? "" : "  above the limit");
  return text + fmt::format(
                    "  limit {:.1f} MiB a rank\n"
                    "train.micro_batch_size {} (was {}), limited by {}; global batch {} = {} x {} "
                    "micro-batches x {}\n",
                    tuned.memory_limit / kMiB, tuned.batch.micro, tuned.was.micro, tuned.limited_by,
                    tuned.batch.global, tuned.batch.micro, tuned.batch.accum,
                    counted(tuned.batch.data_parallel, "rank"));
}

}  // namespace choir
